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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

_CHILD: Final = Path(__file__).with_name("probe_child.py")
_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+)')
_START_S: Final = 60.0
_TRACE_S: Final = 5.0
"""How long a hanging process may take to say where it hangs."""
_LONGEST: Final = 65_536


@dataclass(frozen=True, slots=True)
class Probe:
    """How the import ended. `said` is for a person: what happened, and where when that is known."""

    outcome: Literal["good", "raised", "crashed", "hung"]
    said: str = ""
    notes: tuple[str, ...] = ()
    """What it did besides: started threads or processes."""

    @property
    def is_safe(self) -> bool:
        """False when the host would not survive the import."""
        return self.outcome in ("good", "raised")


def probe(name: str, *, module: str, folder: Path | None, seconds: float) -> Probe:
    """Import a plugin in a process of its own.

    Args:
        module: of an installed package; empty: what is in `folder`.
        folder: where its files are.
        seconds: how long it may take.
    """
    given = {"path": sys.path, "name": name, "module": module, "folder": str(folder or "")}
    command = [sys.executable, "-I", "-B", str(_CHILD)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    ) as child:
        try:
            _begin(child, json.dumps(given).encode())
            out, err = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return Probe("hung", f"importing it has not ended after {seconds:g} s{_at(_trace(child), folder)}")
        finally:
            _end(child)
    answer = _answer(out)
    if answer is None:
        return Probe("crashed", f"importing it ended the process with {_ending(child.returncode)}{_at(err, folder)}")
    notes = [text for key, text in _NOTES.items() if answer.get(key)]
    error = str(answer.get("error") or "")
    return Probe("raised" if error else "good", error, tuple(notes))


_NOTES: Final = {
    "forks": "it makes copies of the process while it is imported",
    "threads": "it starts threads while it is imported",
}


def _begin(child: subprocess.Popen[bytes], given: bytes) -> None:
    """Tell the process what to import, and wait until it is about to: a busy machine takes its time to start Python."""
    assert child.stdin is not None
    assert child.stdout is not None
    with suppress(BrokenPipeError):
        child.stdin.write(given)
    child.stdin.close()
    child.stdin = None
    if select.select([child.stdout], [], [], _START_S)[0]:
        child.stdout.read(1)


def _trace(child: subprocess.Popen[bytes]) -> bytes:
    """Where a hanging process is: it is aborted, and says so on its way out."""
    child.send_signal(signal.SIGABRT)
    try:
        return child.communicate(timeout=_TRACE_S)[1]
    except subprocess.TimeoutExpired:
        return b""


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the process and what it started, as far as that stayed in its session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def _answer(out: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(out[:_LONGEST])
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


def _at(trace: bytes, folder: Path | None) -> str:
    """``file:line`` of the plugin's own innermost frame in a trace of `faulthandler`."""
    frames = [(m[1], m[2]) for m in _FRAME.finditer(trace[:_LONGEST].decode("utf-8", "replace"))]
    own = [f for f in frames if folder is not None and Path(f[0]).is_relative_to(folder)]
    return f", at {own[0][0]}:{own[0][1]}" if own else ""
