"""Is a plugin's import safe to run here? Tried in a process of its own, which may crash, hang or end as it likes.

An import that raises an exception is no finding of a probe: that costs the host nothing but this plugin. A probe finds what
the host would not survive: a crash, `os._exit`, an import that never ends. It is no sandbox: the code runs as the host's user.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tavern_core.kernel.tracing.use import Use

_CHILD: Final = Path(__file__).with_name("probe_child.py")
_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+)')
_START_S: Final = 60.0
_SPARE_S: Final = 30.0
"""What the process may take on top of the time that an import has."""
_LONGEST: Final = 65_536


@dataclass(frozen=True, slots=True)
class Probe:
    """How the import ended. `said` is for a person: what happened, and where when that is known."""

    outcome: Literal["good", "raised", "crashed", "hung"]
    said: str = ""
    notes: tuple[str, ...] = ()
    """What it did besides: started threads or processes."""
    uses: tuple[Use, ...] = ()
    """What its code used meanwhile; only with the audit guard."""
    hooks: tuple[tuple[str, str], ...] = ()
    """Hook → ``file:line`` of what implements it; only with the audit guard."""

    @property
    def is_safe(self) -> bool:
        """False when the host would not survive the import."""
        return self.outcome in ("good", "raised")


class Prober:
    """Tries imports: one small process, started with the first, that makes a copy of itself for each. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def probe(self, name: str, *, module: str, folder: Path | None, seconds: float, guarded: bool = False) -> Probe:
        """Import a plugin in a process of its own.

        Args:
            module: of an installed package; empty: what is in `folder`.
            folder: where its files are.
            seconds: how long it may take.
            guarded: put the audit guard on, to see what it uses.
        """
        given = {"path": sys.path, "name": name, "module": module, "folder": str(folder or ""), "seconds": seconds, "guarded": guarded}
        with self._lock:
            answer = self._ask(json.dumps(given).encode() + b"\n", seconds)
        if answer is None:
            return Probe("crashed", "importing it ended the process that tries imports")
        trace = str(answer.get("trace") or "").encode()
        if answer.get("late"):
            return Probe("hung", f"importing it has not ended after {seconds:g} s{own_line(trace, folder)}")
        said = _answer(str(answer.get("said") or ""))
        if said is None:
            return Probe("crashed", f"importing it ended the process with {_ending(int(answer['code']))}{own_line(trace, folder)}")
        notes = [text for key, text in _NOTES.items() if said.get(key)]
        error = str(said.get("error") or "")
        uses = [use for row in said.get("uses", ()) if (use := Use.from_json(row)) is not None]
        return Probe("raised" if error else "good", error, tuple(notes), tuple(uses), tuple((str(hook), str(where)) for hook, where in said.get("hooks", ())))

    def close(self) -> None:
        """End the process."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            _end(process)

    def _ask(self, request: bytes, seconds: float) -> dict[str, Any] | None:
        """What the process answers; None: it is gone. A request that killed it before is tried once more with a new one."""
        for _ in range(2):
            process = self._started()
            if process is None:
                return None
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(request)
                process.stdin.flush()
                if select.select([process.stdout], [], [], seconds + _SPARE_S)[0]:
                    return _answer(process.stdout.readline().decode("utf-8", "replace"))
            except (OSError, ValueError):
                pass
            self._process = None
            _end(process)
        return None

    def _started(self) -> subprocess.Popen[bytes] | None:
        if self._process is not None and self._process.poll() is None:
            return self._process
        command = [sys.executable, "-I", "-B", str(_CHILD)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], _START_S)[0] or process.stdout.readline() != b"!\n":
            _end(process)
            return None
        self._process = process
        return process


def probe(name: str, *, module: str, folder: Path | None, seconds: float, guarded: bool = False) -> Probe:
    """Try one import; see `Prober.probe`."""
    prober = Prober()
    try:
        return prober.probe(name, module=module, folder=folder, seconds=seconds, guarded=guarded)
    finally:
        prober.close()


_NOTES: Final = {
    "forks": "it makes copies of the process while it is imported",
    "threads": "it starts threads while it is imported",
}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it started, as far as that stayed in its session."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def _answer(out: str) -> dict[str, Any] | None:
    try:
        answer = json.loads(out)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def own_line(trace: bytes, folder: Path | None) -> str:
    """``, at file:line`` of the plugin's own innermost frame in a trace of `faulthandler`."""
    frames = [(m[1], m[2]) for m in _FRAME.finditer(trace[:_LONGEST].decode("utf-8", "replace"))]
    own = [f for f in frames if folder is not None and Path(f[0]).is_relative_to(folder)]
    return f", at {own[0][0]}:{own[0][1]}" if own else ""
