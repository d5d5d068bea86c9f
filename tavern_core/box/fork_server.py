"""A small process of one thread that forks others: guards of scripts, workers of plugins, probes of imports. A program of its own.

    host ──(descriptors, request)──> fork server ──fork──> child: does the work of its job
      ^                                   │                  │
      └──────── status socket of the request: what its job says, and how it ended ────────┘

Why not fork the host? It has threads, and a process with threads cannot be forked safely. Why not start an interpreter each time? That costs
ten times a fork from a small warm process. There are up to three of these, one for each job, because they differ in what they
may load: the one for scripts is tiny, that for workers has imported what plugins need, that for probes runs with the host's rights.

It runs no plugin code itself. It ends when the host closes its socket or dies (its pidfd). What a child leaves behind when it ends comes
to this process, which is a subreaper, and is killed.

Started with the standard library alone, by path (scripts) or with `BOOT`; the first argument names the module of the job.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable
from typing import Final, Protocol

if __name__ == "__main__":  # run by its path, without site-packages
    sys.path.append(__file__.rpartition("/tavern_core/")[0])

from tavern_core.box.subreaper import (
    become_subreaper,
    children,
    drain,
    end_all,
    kill,
    next_ended,
    wait_for,
    wake_on_children,
)

BOOT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from tavern_core.box.fork_server import main; main(sys.argv[2:])"
)
"""What ``python -c`` runs, with the path as JSON before the other arguments."""
TAKEN: Final = b"taken"
"""On the status socket: the request was read. Without this word the host knows that nothing was run."""
FAILED: Final = "failed {}"
"""There can be no more processes: errno."""
FORKED: Final = struct.Struct(">i")
"""The process id of the child, with a pidfd, where the job wants it reported."""
EXIT: Final = struct.Struct(">i")
"""How it ended, as `os.waitstatus_to_exitcode` gives it."""
MOST_DESCRIPTORS: Final = 32
_EVERY_DESCRIPTOR: Final = 1 << 20
_RECEIVE: Final = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC


class Job(Protocol):
    """What is forked for a request. The class `Job` of its module is made with the further arguments of the command line."""

    descriptors: int
    """With each request: the status socket first. A file with the request is not counted."""
    idle_s: float | None
    """Seconds without work after which the server ends; None: never."""
    ends_children: bool
    """Whether what still runs ends with the server."""
    reports: bool
    """Whether the server says on the status socket which process was forked, and how it ended; else the child says what there is to say."""

    def fork(self, request: bytes, descriptors: list[int], shed: Callable[[], None]) -> int:
        """Fork a child and return its process id; in the child, call `shed` and never return.

        Args:
            shed: closes what is the server's.

        Raises:
            OSError: there can be no more processes.
        """
        ...

    def forked(self) -> None:
        """Called in the server after a fork: time to prepare the next one."""
        ...


def main(arguments: list[str]) -> None:
    """Serve until the host ends.

    Args:
        arguments: module of the job, control socket, process id of the host, then what the job is made with.
    """
    name, control, host = arguments[0], socket.socket(fileno=int(arguments[1])), int(arguments[2])
    os.closerange(control.fileno() + 1, _EVERY_DESCRIPTOR)  # what the host left inheritable
    os.chdir("/")  # the folder the host was started in can be removed
    become_subreaper()
    _Server(control, _handle_on(host), importlib.import_module(name).Job(arguments[3:])).serve()
    os._exit(0)


def _handle_on(host: int) -> int:
    """A pidfd of the host, which has not died yet; -1 where the system has none."""
    try:
        handle = os.pidfd_open(host)
    except OSError:
        handle = -1
    if os.getppid() != host:
        os._exit(0)
    return handle


class _Server:
    def __init__(self, control: socket.socket, host: int, job: Job) -> None:
        self._control = control
        self._host = host
        self._job = job
        self._wake = wake_on_children()
        self._children: dict[int, int] = {}
        """Process id → where to say how it ended; -1: nowhere."""

    def serve(self) -> None:
        """Until nobody needs this process any more."""
        gc.collect()
        gc.freeze()  # so that a collection in a child does not copy what all share
        sources = [self._control, self._wake, *([self._host] if self._host >= 0 else [])]
        try:
            while (
                ready := wait_for(sources, None if self._children else self._job.idle_s)
            ) and self._host not in ready:
                self._reap()
                if self._control in ready and not self._take():
                    return
        finally:
            if self._job.ends_children:
                end_all(0, 0, self._wake, is_init=False)

    def _take(self) -> bool:
        """Fork for one request; False when the host has hung up."""
        try:
            said, descriptors = receive(self._control, 16, MOST_DESCRIPTORS)
        except BlockingIOError:
            return True
        try:
            if len(descriptors) == self._job.descriptors + 1:  # fewer when our own are used up: the host tries again
                with os.fdopen(descriptors.pop(), "rb") as file:
                    request = file.read()
                self._fork(descriptors, request)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return bool(said)

    def _fork(self, descriptors: list[int], request: bytes) -> None:
        status = descriptors[0]
        _say(status, TAKEN)
        try:
            pid = self._job.fork(request, descriptors, self._shed)
        except OSError as error:
            _say(status, FAILED.format(error.errno or 0).encode())
            return
        self._children[pid] = -1
        if self._job.reports:
            self._children[pid] = os.dup(status)
            _tell_forked(status, pid)
        self._job.forked()

    def _shed(self) -> None:
        """In a child: close what is the server's."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._control.close()
        for descriptor in (signal.set_wakeup_fd(-1), self._wake, self._host, *self._children.values()):
            if descriptor >= 0:
                os.close(descriptor)

    def _reap(self) -> None:
        """Say how children ended, and kill what they left to us."""
        drain(self._wake)
        while (ended := next_ended()) is not None:
            status = self._children.pop(ended[0], -1)
            if status >= 0:
                _say(status, EXIT.pack(os.waitstatus_to_exitcode(ended[1])))
                os.close(status)
        with contextlib.suppress(OSError):  # our own descriptors are used up: another time
            for orphan in set(children()) - self._children.keys():
                kill(orphan)


def receive(line: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """A message and its descriptors. By hand: `socket.recv_fds` of Python 3.11 ignores its flags.

    Args:
        size: bytes of the longest message.
        most: descriptors that come with one.

    Raises:
        BlockingIOError: there is none.
    """
    numbers = array.array("i")
    body, ancillary, _, _ = line.recvmsg(size, socket.CMSG_LEN(most * numbers.itemsize), _RECEIVE)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    return body, list(numbers)


def _tell_forked(status: int, pid: int) -> None:
    handle = os.pidfd_open(pid)  # before anybody may reap it: it is this process and no later one of that number
    with socket.socket(fileno=os.dup(status)) as line, contextlib.suppress(OSError):
        socket.send_fds(line, [FORKED.pack(pid)], [handle])
    os.close(handle)


def _say(status: int, word: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        os.write(status, word)


if __name__ == "__main__":
    main(sys.argv[1:])
