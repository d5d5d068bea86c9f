"""Is a plugin's import safe to run here? Tried in a process of its own, which may crash, hang or end as it likes.

An import that raises an exception is no finding of a probe: that costs the host nothing but this plugin. A probe finds what
the host would not survive: a crash, `os._exit`, an import that never ends or takes all memory. It is no sandbox: the code runs
as the host's user.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tavern_core.review.audit.observed_use import Use
from tavern_core.review.probe_process import ProbeProcess
from tavern_core.review.probe_result import Import, Probe
from tavern_core.review.probe_server import IDLE_S, LONGEST

_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+)')
_MOST_NEEDED: Final = 2000
_AT_ONCE: Final = 4
"""Imports that are tried at a time; more wait for their turn."""
_PATIENCE_S: Final = 0.3
"""How long to wait for a process that is busy before another one is started: it takes about a tenth of a second."""
_COLLECT_S: Final = IDLE_S + 2.0
"""How long after an import to look whether the processes have ended."""


class Prober:
    """Tries imports in copies of small warm processes, which all hosts of this process share. Safe for threads.

    One process tries one import after the other. Nearly always one is all there is: only an import that takes its time lets
    another be started for the next.
    """

    _collector: asyncio.AbstractEventLoop | None
    """Looks whether processes have ended, at the time `_collects_at` of the monotonic clock."""
    _collects_at: float

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin_anew)
        atexit.register(self.close)

    def probe(self, what: Import, *, seconds: float, guarded: bool = False) -> Probe:
        """Import a plugin in a process of its own.

        Args:
            seconds: how long it may take.
            guarded: put the audit guard on, to see what it uses.
        """
        process = self._turn()
        try:
            answer = _asked(process, _request(what, guarded, self._needed), seconds)
        except BaseException:  # Ctrl-C: whoever comes next must not be given what this one asked for
            process.close()
            raise
        finally:
            self._next(process)
        if answer is None:
            if process.trouble:
                return Probe("unknown", process.trouble)
            return Probe("crashed", "importing it ended the process that tries imports")
        said = _object(str(answer.get("said") or "")) or {}
        needed = said.get("needed")
        if isinstance(needed, list) and len(self._needed) < _MOST_NEEDED:
            self._needed.update(dict.fromkeys(name for name in needed if isinstance(name, str)))
        return _judged(answer, said, what.folder, seconds)

    def collect_later(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have `loop`, which runs this, collect the processes when they have ended for want of work: else they stay as zombies.

        A loop that is there anyway does so without a thread. When it is closed before, the next import or the end of this process does.
        """
        now = time.monotonic()
        with self._change:
            if self._collector is not None and not self._collector.is_closed() and now < self._collects_at:
                return
            self._collector = loop
            self._collects_at = now + _COLLECT_S
        loop.call_later(_COLLECT_S, self._collect, loop)

    def _collect(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._change:
            idle = [process.is_there() for process in self._idle]
            self._collector = None
            is_done = len(idle) == len(self._processes) and not any(idle)
        if not is_done:
            self.collect_later(loop)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.close()

    def _turn(self) -> ProbeProcess:
        """A process that is trying nothing."""
        with self._change:
            if not self._idle and len(self._processes) > 0:
                self._change.wait_for(lambda: self._idle, _PATIENCE_S)
            while not self._idle:
                if len(self._processes) < _AT_ONCE:
                    self._processes.append(process := ProbeProcess())
                    return process
                self._change.wait()
            return self._idle.pop()

    def _next(self, process: ProbeProcess) -> None:
        with self._change:
            self._idle.append(process)
            self._change.notify()

    def _begin(self) -> None:
        self._change = threading.Condition()
        self._processes: list[ProbeProcess] = []
        self._idle: list[ProbeProcess] = []
        self._needed: dict[str, None] = {}
        self._collector = None
        self._collects_at = 0.0

    def _begin_anew(self) -> None:
        """A forked copy of this process has none: they belong to the original, and so do the threads that hold the lock."""
        for process in self._processes:
            process.disown()
        self._begin()


prober: Final = Prober()
"""The one of this process."""


def _asked(process: ProbeProcess, request: bytes, seconds: float) -> dict[str, Any] | None:
    """What a process says of an import; None when it said nothing."""
    for _ in range(2):  # it may have ended, idle, just when it was asked
        if not process.ask(request):
            break
        if not process.is_heard(seconds):
            process.hurry()
        if (answer := _object(process.answer())) is not None:
            return answer
    return None


def _request(what: Import, guarded: bool, needed: Iterable[str]) -> bytes:
    """What the copy is told: the import, and what it would see here."""
    try:
        cwd = os.getcwd()  # noqa: PTH109 - it may be gone
    except OSError:
        cwd = ""
    asked = {
        "name": what.name, "module": what.module, "folder": str(what.folder or ""), "has_code": what.has_code, "nodes": what.nodes,
        "handlers": what.handlers, "guarded": guarded, "environment": dict(os.environ), "cwd": cwd,
        "path": [os.fsdecode(entry) for entry in sys.path if isinstance(entry, str | bytes | os.PathLike)],
        "argv": [word for word in getattr(sys, "argv", ()) if isinstance(word, str)],
        "no_bytecode": sys.dont_write_bytecode, "bytecode": sys.pycache_prefix,
        "needed": list(needed),
    }  # fmt: skip
    return json.dumps(asked).encode() + b"\n"


def _judged(answer: dict[str, Any], said: dict[str, Any], folder: Path | None, seconds: float) -> Probe:
    """What came of an import, as a verdict. `said` is what the copy said: nothing where it was kept from that."""
    trace = str(answer.get("trace") or "").encode()
    if answer.get("late"):
        return Probe("hung", f"importing it has not ended after {round(seconds, 1):g} s{own_line(trace, folder)}")
    if not said:
        return Probe(
            "crashed", f"importing it ended the process with {_ending(int(answer['code']))}{own_line(trace, folder)}"
        )
    if broken := said.get("broken"):
        return Probe("unknown", str(broken))
    notes = tuple(text for key, text in _NOTES.items() if said.get(key))
    if greed := said.get("greed"):
        return Probe("crashed", f"importing it failed: {greed}", notes)
    error = str(said.get("error") or "")
    uses = tuple(use for row in said.get("uses", ()) if (use := Use.from_json(row)) is not None)
    hooks = tuple((str(hook), str(where)) for hook, where in said.get("hooks", ()))
    return Probe("raised" if error else "good", error, notes, uses, hooks)


_NOTES: Final = {
    "forks": "it makes copies of the process while it is imported",
    "threads": "it starts threads while it is imported",
}


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def own_line(trace: bytes, folder: Path | None) -> str:
    """``, at file:line`` of the plugin's own innermost frame in a trace of `faulthandler`."""
    frames = [(m[1], m[2]) for m in _FRAME.finditer(trace[:LONGEST].decode("utf-8", "replace"))]
    own = [f for f in frames if folder is not None and Path(f[0]).is_relative_to(folder)]
    return f", at {own[0][0]}:{own[0][1]}" if own else ""
