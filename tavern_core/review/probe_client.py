"""One import probe in a separate process: its report, its deadline, its end."""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import time
from typing import Any, Final

from tavern_core.box.fork_server import EXIT
from tavern_core.box.fork_server_client import ForkedChild, ForkServer, ForkServerGone, by_import
from tavern_core.package_location import module_path

LONGEST: Final = 65_536
"""Maximum bytes of a copy's report, and of its trace."""
_START_S: Final = 60.0
"""How long the process may take to start, and to fork, in seconds."""
_TRACE_S: Final = 5.0
"""How long a hanging copy may take to report where it hangs."""
_SILENT_S: Final = 1.0
"""How long a copy that cannot report any more has to end."""


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
        seconds: how long it may take.

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
        """It has been killed: get its exit status, and read its last output."""
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
