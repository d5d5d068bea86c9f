"""The program that workers are forked from: one small process, one thread, with everything imported that a worker needs.

    host ── control ──> fork server ── fork ──> worker: confined first, then it runs the plugin
             (EOF)           |
                             +── obituary of each worker (its exit status) ──> host

Started with ``python -I -S`` and a clean environment: no .pth file, no variable and no working folder decides what is
imported; the host hands its own path over. It lives as long as the host: its end is seen by the closed control socket and by
its pidfd. Workers die with it (PDEATHSIG), and whatever a worker leaves behind is handed to it (subreaper) and ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NoReturn

from tavern_core.box.confine import Begun, confine
from tavern_core.box.policy import BoxPolicy, BoxUnavailable
from tavern_core.errors import sayable
from tavern_core.isolation.transport import MOST_AT_ONCE, Stream, encode

BOOT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from tavern_core.isolation.fork_server import main; main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])"
)
"""What ``python -c`` runs: path as JSON, control socket, the host's process id, modules to import in advance."""

STATUS: Final = struct.Struct(">i")
"""What an obituary says: the exit status as `os.waitstatus_to_exitcode` gives it."""

CONFINED: Final = b"C"
FAILED: Final = b"F"
"""First byte on the side channel: the worker is confined; or the box could not be closed, and a frame says why."""

LONGEST_REQUEST: Final = 1 << 24
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_MODULES: Final = (
    "asyncio", "concurrent.futures", "ctypes", "dataclasses", "decimal", "inspect", "json", "logging", "pydantic", "random",
    "tempfile", "typing", "uuid", "tavern_core.contract.hookspecs",
    "tavern_core.isolation.worker.main", "tavern_core.schema.signature",
)  # fmt: skip


def main(control_fd: int, host: int, modules: list[str]) -> NoReturn:
    """Serve until the host ends; does not return."""
    control = socket.socket(fileno=control_fd)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for module in (*_MODULES, *modules):
        importlib.import_module(module)
    _use_once()
    server = _Server(control, os.pidfd_open(host) if os.getppid() == host else -1)
    gc.collect()
    gc.freeze()  # so that a collection in a worker does not copy what all share
    control.sendall(encode({"ready": True}))
    try:
        server.serve()
    finally:
        server.end_all()
        os._exit(0)


class _Server:
    """Forks workers and buries them."""

    def __init__(self, control: socket.socket, host: int) -> None:
        self._control = control
        self._host = host
        self._workers: dict[int, int] = {}  # process id → obituary
        self._deaths, told = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Until the host hangs up or dies."""
        stream, fds = Stream(LONGEST_REQUEST), list[int]()
        waiting = select.poll()
        waiting.register(self._control, select.POLLIN)
        waiting.register(self._deaths, select.POLLIN)
        if self._host >= 0:
            waiting.register(self._host, select.POLLIN)
        while True:
            for fd, _ in waiting.poll():
                if fd == self._deaths:
                    _drain(fd)
                    self._bury()
                elif fd == self._host:
                    return
                else:
                    chunk, found, _, _ = socket.recv_fds(self._control, MOST_AT_ONCE, 32)
                    fds += found
                    if not chunk:
                        return
                    for request in stream.feed(chunk):
                        count = request["fds"]
                        self._fork(request, fds[:count])
                        del fds[:count]

    def _fork(self, request: dict[str, Any], fds: list[int]) -> None:
        obituary, *others = fds
        policy = _policy(request["policy"])
        begun = Begun(policy)
        try:
            pid = os.fork()
        except OSError as error:
            for fd in fds:
                os.close(fd)
            begun.close()
            self._control.sendall(encode({"error": error.strerror or "fork failed"}))
            return
        if pid == 0:
            _become_worker(
                request,
                policy,
                begun,
                others,
                [obituary, self._control.fileno(), self._deaths, self._host, *self._workers.values()],
            )
        self._workers[pid] = obituary
        begun.close()
        for fd in others:
            os.close(fd)
        handle = os.pidfd_open(pid)  # before anybody may reap it, so it is this process and no later one
        socket.send_fds(self._control, [encode({"pid": pid})], [handle])
        os.close(handle)
        Begun(
            policy
        ).close()  # while nobody waits: what is written to is copied after a fork, and the next one finds it copied

    def _bury(self) -> None:
        """Reap what has died, say how, and end what a dead worker left behind."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                break
            if (obituary := self._workers.pop(pid, None)) is not None:
                with contextlib.suppress(OSError):
                    os.write(obituary, STATUS.pack(os.waitstatus_to_exitcode(status)))
                os.close(obituary)
        for orphan in _children() - self._workers.keys():
            _kill(orphan)

    def end_all(self) -> None:
        """Kill every worker, and what they leave, for as long as there is something."""
        signal.set_wakeup_fd(-1)
        for _ in range(1000):
            children = _children() | self._workers.keys()
            self._workers.clear()
            for pid in children:
                _kill(pid)
            if not children:
                return
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, 0)


def _become_worker(
    request: dict[str, Any], policy: BoxPolicy, begun: Begun, fds: list[int], foreign: list[int]
) -> NoReturn:
    """The forked child: sheds what is the fork server's, is confined, runs the plugin. Never returns."""
    try:
        server = os.getppid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:
            os._exit(0)  # it died before the wish was heard
        signal.set_wakeup_fd(-1)
        for fd in foreign:
            if fd >= 0:
                os.close(fd)
        output, side, *lane_fds = fds
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for fd in (nothing, output):
            os.close(fd)
        os.chdir(request["folder"])
        _confine(policy, begun, side)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the host's to hear
        sys.path[:] = request["path"]
        sys.dont_write_bytecode = True
        os.environ.clear()
        os.environ.update(request["environment"])
        lanes = [(kind, socket.socket(fileno=fd)) for kind, fd in zip(request["lanes"], lane_fds, strict=True)]
        from tavern_core.isolation.worker.main import run

        run(socket.socket(fileno=side), lanes)
    except BaseException as error:  # noqa: BLE001 - nothing may climb back into the server's code
        os.write(2, f"the worker could not begin: {error!r}\n".encode("utf-8", "backslashreplace")[:4000])
    finally:
        os._exit(70)


def _confine(policy: BoxPolicy, begun: Begun, side: int) -> None:
    """Close the box and say which layers hold; or say why not, and end."""
    asking: list[int] = []
    try:
        layers = confine(policy, begun=begun, asking=asking.append)
    except BoxUnavailable as error:
        said = {"layer": str(error.layer), "reason": sayable(str(error.reason))}
        os.write(side, FAILED + encode(said))  # the socket is new and has room
        os._exit(0)
    except Exception as error:  # noqa: BLE001 - half a box is none
        os.write(side, FAILED + encode({"layer": "box", "reason": sayable(repr(error))}))
        os._exit(0)
    with socket.socket(fileno=os.dup(side)) as line:
        socket.send_fds(line, [CONFINED + encode({"layers": list(layers)})], asking)
    for descriptor in asking:
        os.close(descriptor)


@lru_cache(maxsize=64)
def _policy(text: str) -> BoxPolicy:
    """A policy as it is asked for again and again, whenever a worker is replaced."""
    return BoxPolicy.from_json(text)


def _use_once() -> None:
    """Run once what is slow the first time, so that no worker pays for it."""
    from tavern_core.contract.tools import tool
    from tavern_core.kernel.plugins.tool_offers import Owner, describe

    @tool
    def warm(text: str, count: int = 1) -> list[str]:
        """Warm up."""
        return [text] * count

    describe([warm], Owner("warm", "0", {}))


def _children() -> set[int]:
    """The process ids of this process's children, zombies too."""
    try:
        return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}
    except OSError:
        return set()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(fd, 4096):
            pass


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {option}: {errno.errorcode.get(number, number)}")
