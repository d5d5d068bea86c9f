"""The process in which imports are tried: small, of one thread, with what nearly every plugin imports loaded already.

    host ── one JSON line for each import ──> server ── fork ──> copy: imports the plugin
      ^                                          │
      └────── one JSON line: what came of it ────┘

A copy may crash, hang or end as it likes. The server hears of it and kills whatever it started (it is a subreaper: nothing
slips away). It ends when the host closes its socket, when the host dies (its pidfd), and when nothing was tried for a while. A
copy dies with it (PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from tavern_core.box.policy import BoxLimits
from tavern_core.box.rlimits import apply
from tavern_core.box.script_server import become_subreaper, end_all, look_for, wake_on_children
from tavern_core.box.syscalls import prctl
from tavern_core.review import probe_job

BOOT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from tavern_core.review.probe_server import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)
"""What ``python -c`` runs: path as JSON, control socket, the host's process id."""
EARLY: Final = ("tavern_core.contract.hookspecs", "tavern_core.contract.tools")
FAMILIES: Final = ("asyncio", "pydantic", "tavern_core")
"""Of these packages everything that a copy has needed is loaded here before the next copy is made."""
READY: Final = b"ready\n"
"""Its first words."""
IDLE_S: Final = 20.0
"""After this long without a request the server ends."""
LATE: Final = b"late\n"
"""What the host says when the import has had its time."""
LONGEST: Final = 65_536
_TRACE_S: Final = 5.0
"""How long a hanging copy may take to say where it hangs."""
_SILENT_S: Final = 1.0
"""How long a copy that can say nothing any more has to end."""
_LONGEST_CHUNK: Final = 65_536
_MOST_DESCRIPTORS: Final = 1 << 20
_SET_PDEATHSIG: Final = 1
_MEMORY: Final = max(1 << 30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
"""How many bytes a copy may use: half of what the machine has."""


def main(control_fd: int, host: int) -> NoReturn:
    """Serve until the host ends; does not return."""
    control, wake = socket.socket(fileno=control_fd), wake_on_children()
    try:
        handle = os.pidfd_open(host)
        if os.getppid() == host:
            become_subreaper()
            for module in EARLY:
                importlib.import_module(module)
            _Server(control, handle, wake).serve()
    finally:
        end_all(0, 0, wake, is_init=False)  # a copy, and what it leaves behind
        os._exit(0)


class _Server:
    """Tries one import after the other."""

    def __init__(self, control: socket.socket, host: int, wake: int) -> None:
        self._control = control
        self._host = host
        self._wake = wake
        self._heard = bytearray()

    def serve(self) -> None:
        """Until nobody needs it any more."""
        _settle()
        self._control.sendall(READY)
        while (asked := self._request()) is not None:
            _warm_up(asked["needed"])
            self._control.sendall(json.dumps(self._tried(asked)).encode() + b"\n")

    def _request(self) -> dict[str, Any] | None:
        """What is to be tried next; None: nobody needs this process any more."""
        while True:
            line, ended, rest = self._heard.partition(b"\n")
            if ended:
                self._heard = rest
                if line + ended != LATE:  # said when the answer was on its way
                    asked: dict[str, Any] = json.loads(line)
                    return asked
            sources: list[Any] = [self._control, self._host]
            ready = select.select(sources, [], [], IDLE_S)[0]
            if self._control not in ready or self._host in ready or not (chunk := self._control.recv(_LONGEST_CHUNK)):
                return None
            self._heard += chunk

    def _tried(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What came of one import.

        Raises:
            EOFError: nobody waits for it any more.
        """
        told, tell = os.pipe()
        trace, traces = os.pipe()
        server = os.getpid()
        try:
            copy = os.fork()
        except OSError as error:
            for fd in (told, tell, trace, traces):
                os.close(fd)
            return {"said": json.dumps({"broken": f"no process can be had: {error.strerror}"})}
        if copy == 0:
            self._control.detach()
            _become_copy(asked, server, tell, traces)
        os.close(tell)
        os.close(traces)
        watch = _Watch(copy, told, trace, self._wake)
        is_late = watch.until_told(self._control, self._host)
        code = end_all(copy, watch.code, self._wake, is_init=False)[0]
        watch.close()
        return {
            "said": watch.said.decode("utf-8", "replace"),
            "trace": watch.last_words.decode("utf-8", "replace"),
            "late": is_late,
            "code": os.waitstatus_to_exitcode(code),
        }


def _warm_up(needed: Sequence[str]) -> None:
    """Load what copies have needed before, so that the next need not."""
    if new := [name for name in needed if name not in sys.modules and name.partition(".")[0] in FAMILIES]:
        for name in new:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        _settle()


def _settle() -> None:
    """See to it that a collection in a copy does not write to what all share."""
    gc.collect()
    gc.freeze()


class _Watch:
    """What a copy says, and how it ended."""

    def __init__(self, copy: int, told: int, trace: int, wake: int) -> None:
        self.copy = copy
        self.said = self.last_words = b""
        self.code: int | None = None
        self._told, self._trace, self._wake = told, trace, wake

    def until_told(self, control: socket.socket, host: int) -> bool:
        """Wait until the copy has spoken or ended; True when the host said before that its time was over.

        Raises:
            EOFError: nobody waits for it any more.
        """
        sources: list[Any] = [self._told, self._trace, self._wake, control, host]
        end, is_late = math.inf, False
        while True:
            left = None if end == math.inf else max(0.0, end - time.monotonic())
            ready = select.select(sources, [], [], left)[0]
            if host in ready or (control in ready and control.recv(len(LATE)) != LATE):
                raise EOFError
            if self._wake in ready and (code := look_for(self.copy, self._wake)) is not None:
                self.code = code
                self._read_rest(self._told)
                return is_late
            if self._trace in ready and not self._read(self._trace):
                sources.remove(self._trace)
            if self._told in ready:
                if not self._read(self._told):  # it became another program, or closed what it speaks through
                    sources.remove(self._told)
                    end = min(end, time.monotonic() + _SILENT_S)
                elif self.said.endswith(b"\n"):
                    return is_late
            if (
                control not in ready and time.monotonic() < end
            ):  # whatever was readable: a flood of signs must not stop the clock
                continue
            if is_late or self._told not in sources:
                return is_late
            is_late, end = True, time.monotonic() + _TRACE_S
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.copy, signal.SIGABRT)

    def close(self) -> None:
        """Read what it left on its way out; everything that could write to it has ended."""
        self._read_rest(self._trace)
        os.close(self._trace)
        os.close(self._told)

    def _read_rest(self, end: int) -> None:
        while select.select([end], [], [], 0.0)[0]:
            if not self._read(end):
                return

    def _read(self, end: int) -> bytes:
        data = os.read(end, LONGEST)
        if end == self._told:
            self.said = (self.said + data)[:LONGEST]
        else:
            self.last_words = (self.last_words + data)[:LONGEST]
        return data


def _become_copy(asked: dict[str, Any], server: int, tell: int, traces: int) -> NoReturn:
    """In the copy: shed what is the server's, then import."""
    try:
        prctl(_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:
            os._exit(0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _only(tell, traces)
        os.setsid()
        apply(BoxLimits(_MEMORY, is_address_space=False, open_files=None, processes=None, file_bytes=None))
        with contextlib.suppress(OSError):
            score = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
            os.write(score, b"1000")  # should the machine's memory be used up, let this be the first to go
            os.close(score)
        probe_job.import_plugin(asked, tell, traces, _MEMORY, FAMILIES)
    except BaseException as error:  # noqa: BLE001 - nothing of the plugin has run yet, so it is not its fault
        os.write(tell, json.dumps({"broken": str(error)[:2000]}).encode() + b"\n")
    finally:
        os._exit(0)


def _only(*kept: int) -> None:
    """Close every descriptor but the three streams, which lead nowhere, and these."""
    lowest = 3
    for fd in sorted(kept):
        os.closerange(lowest, fd)
        lowest = fd + 1
    os.closerange(lowest, _MOST_DESCRIPTORS)
