"""Probes whether a plugin's import is safe to run here, in a separate process, which may crash, hang or end.

An exception is not a finding of a probe, because it only affects this plugin. A probe finds what
the host would not survive: a crash, `os._exit`, an import that never ends or takes all memory. It is not a sandbox: the code runs
as the host's user.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import math
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tavern_core.box.fork_server import EXIT
from tavern_core.box.fork_server_client import ForkedChild, ForkServer, ForkServerGone, by_import, ending
from tavern_core.package_location import module_path
from tavern_core.review.audit.observed_use import ObservedUse
from tavern_core.review.probe_fork_job import IDLE_S
from tavern_core.review.probe_result import PluginImport, ProbeResult

_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+)')
_MOST_NEEDED: Final = 2000
_AT_ONCE: Final = 4
"""Imports that are probed at the same time; more wait."""
_COLLECT_S: Final = IDLE_S + 2.0
"""Time after an import until the check whether the process has ended."""


class Prober:
    """Probes imports in copies of a small warm process, which all hosts of this process share. Thread-safe."""

    _collector: asyncio.AbstractEventLoop | None
    """Checks whether the process has ended, at the time `_collects_at` of the monotonic clock."""
    _collects_at: float

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)  # that process belongs to the original
        atexit.register(self.close)

    def probe(self, what: PluginImport, *, seconds: float, guarded: bool = False) -> ProbeResult:
        """Import a plugin in a separate process.

        Args:
            seconds: time limit.
            guarded: install the audit guard, to see what it uses.
        """
        with self._turns:
            try:
                for _ in range(2):  # another import may have ended the server
                    trial = probe_once(self._server, _request(what, guarded, self._needed), seconds)
                    if trial.code is not None:
                        break
            except Unavailable as error:
                return ProbeResult("unknown", str(error))
        report = _object(trial.output) or {}
        if trial.code is None:
            return ProbeResult("crashed", "importing it ended the process that tries imports")
        needed = report.get("needed")
        if isinstance(needed, list) and len(self._needed) < _MOST_NEEDED:
            self._needed.update(dict.fromkeys(name for name in needed if isinstance(name, str)))
        return _judged(trial, report, what.folder, seconds)

    def collect_later(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the running `loop` reap the process after it ended because it was idle; else it stays as a zombie.

        An existing loop needs no thread for that. If it closes before, the next import or the end of this process reaps it.
        """
        now = time.monotonic()
        with self._lock:
            if self._collector is not None and not self._collector.is_closed() and now < self._collects_at:
                return
            self._collector = loop
            self._collects_at = now + _COLLECT_S
        loop.call_later(_COLLECT_S, self._collect, loop)

    def _collect(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._collector = None
        if self._server.is_running():
            self.collect_later(loop)

    def close(self) -> None:
        """End the process and its probes."""
        self._server.close()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._turns = threading.Semaphore(_AT_ONCE)
        self._server = probe_server()
        self._needed: dict[str, None] = {}
        self._collector = None
        self._collects_at = 0.0


def _request(what: PluginImport, guarded: bool, needed: Iterable[str]) -> bytes:
    """The request to the copy: the import and its environment here."""
    try:
        cwd = os.getcwd()  # noqa: PTH109 - it may have been removed
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
    return json.dumps(asked).encode()


def _judged(trial: ProbeProcess, report: dict[str, Any], folder: Path | None, seconds: float) -> ProbeResult:
    """The verdict about an import. `report` is the report of the copy; empty if it could not report."""
    line = own_line(trial.trace, folder)
    if trial.is_late:
        return ProbeResult("hung", f"importing it has not ended after {round(seconds, 1):g} s{line}")
    if not report and trial.code is not None:
        return ProbeResult("crashed", f"importing it ended the process with {ending(trial.code)}{line}")
    if broken := report.get("broken"):
        return ProbeResult("unknown", str(broken))
    notes = tuple(text for key, text in _NOTES.items() if report.get(key))
    if greed := report.get("greed"):
        return ProbeResult("crashed", f"importing it failed: {greed}", notes)
    error = str(report.get("error") or "")
    uses = tuple(use for row in report.get("uses", ()) if (use := ObservedUse.from_json(row)) is not None)
    hooks = tuple((str(hook), str(where)) for hook, where in report.get("hooks", ()))
    return ProbeResult("raised" if error else "good", error, notes, uses, hooks)


_NOTES: Final = {
    "forks": "it makes copies of the process while it is imported",
    "threads": "it starts threads while it is imported",
}


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def own_line(trace: bytes, folder: Path | None) -> str:
    """``, at file:line`` of the plugin's own innermost frame in a trace of `faulthandler`."""
    frames = [(m[1], m[2]) for m in _FRAME.finditer(trace[:LONGEST].decode("utf-8", "replace"))]
    own = [f for f in frames if folder is not None and Path(f[0]).is_relative_to(folder)]
    return f", at {own[0][0]}:{own[0][1]}" if own else ""


LONGEST: Final = 65_536
"""Maximum bytes of a copy's report, and of its trace."""
_START_S: Final = 60.0
"""Time in seconds in which the process must start, and fork."""
_TRACE_S: Final = 5.0
"""Time in which a hanging copy may report where it hangs."""
_SILENT_S: Final = 1.0
"""Time in which a copy that cannot report any more must end."""


class Unavailable(Exception):
    """No process can be started; the message says why."""


def probe_server() -> ForkServer:
    """The warm process. It ends when it has been idle for a while."""
    return ForkServer(
        lambda: by_import([*_flags(), "-P"], module_path(), "tavern_core.review.probe_fork_job:ProbeForkJob"),
        lambda: dict(os.environ),
    )


def probe_once(server: ForkServer, request: bytes, seconds: float) -> ProbeProcess:
    """Probe one import.

    Args:
        seconds: time limit.

    Raises:
        Unavailable: no process can be started.
    """
    if getattr(sys, "frozen", False) or not sys.executable:
        raise Unavailable("there is no interpreter to be started: this program carries its own")
    reports, report = os.pipe2(os.O_CLOEXEC)
    traces, trace = os.pipe2(os.O_CLOEXEC)
    try:
        try:
            copy = server.fork([report, trace], request, _START_S)
        except ForkServerGone as error:
            raise Unavailable(f"the process for trial imports does not start: {error}") from error
        except OSError as error:
            why = error.strerror or str(error)
            raise Unavailable(f"the process in which imports are tried cannot be had: {why}") from error
        finally:
            os.close(report)
            os.close(trace)
        with copy:
            trial = ProbeProcess(copy, reports, traces)
            trial.wait(time.monotonic() + seconds)
            copy.kill()
            trial.finish(time.monotonic() + _START_S)
        return trial
    finally:
        os.close(reports)
        os.close(traces)


class ProbeProcess:
    """The import of a plugin in a copy: its report, and how it ended."""

    def __init__(self, copy: ForkedChild, reports: int, traces: int) -> None:
        self.output = b""
        """One line of JSON; empty if it could not report."""
        self.trace = b""
        """The output of `faulthandler`."""
        self.is_late = False
        self.code: int | None = None
        """Exit code, or minus the signal; None: it ended the fork server as well."""
        self._copy, self._reports, self._traces = copy, reports, traces
        self._sources: list[Any] = [reports, traces, copy.status]

    def wait(self, end: float) -> None:
        """Wait until the copy has reported or ended; it is late if its time was over before."""
        while True:
            ready = _readable(self._sources, end - time.monotonic())
            if self._copy.status in ready:
                self._hear_end()
                return
            if self._traces in ready:
                self._read(self._traces)
            if self._reports in ready:
                if not self._read(self._reports):  # it became another program, or closed its report descriptor
                    end = min(end, time.monotonic() + _SILENT_S)
                elif self.output.endswith(b"\n"):
                    return
            if time.monotonic() < end:
                continue
            if self.is_late or self._reports not in self._sources:
                return
            self.is_late, end = True, time.monotonic() + _TRACE_S
            self._copy.kill(signal.SIGABRT)

    def finish(self, end: float) -> None:
        """Get the exit status of the killed copy, and read its last output."""
        if self._copy.status in self._sources and _readable([self._copy.status], end - time.monotonic()):
            self._hear_end()
        while _readable([self._traces], 0.0) and self._read(self._traces):
            pass

    def _hear_end(self) -> None:
        self._sources.remove(self._copy.status)
        word = self._copy.status.recv(EXIT.size)
        self.code = EXIT.unpack(word)[0] if len(word) == EXIT.size else None
        while _readable([self._reports], 0.0) and self._read(self._reports):
            pass

    def _read(self, end: int) -> bytes:
        data = os.read(end, LONGEST)
        if not data and end in self._sources:
            self._sources.remove(end)
        if end == self._reports:
            self.output = (self.output + data)[:LONGEST]
        else:
            self.trace = (self.trace + data)[:LONGEST]
        return data


def _readable(sources: list[Any], seconds: float) -> list[Any]:
    """The readable ones, as soon as one is readable or the time is over. Not `select.select`: a host may have many descriptors."""
    waiting, by_number = select.poll(), {}
    for source in sources:
        number = source if isinstance(source, int) else source.fileno()
        by_number[number] = source
        waiting.register(number, select.POLLIN)
    return [by_number[number] for number, _ in waiting.poll(max(0.0, math.ceil(seconds * 1000)))]


def _flags() -> list[str]:
    """The options of this interpreter that affect imports."""
    flags = sys.flags
    words = ["-O"] * flags.optimize
    words += [
        word for word, on in (("-E", flags.ignore_environment), ("-s", flags.no_user_site), ("-S", flags.no_site)) if on
    ]
    return [*words, *(["-X", "utf8"] if flags.utf8_mode else [])]


prober: Final = Prober()
"""The instance of this process."""
