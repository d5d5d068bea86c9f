"""A small single-threaded process that forks others: guards of scripts, workers of plugins, probes of imports. A separate program.

    host ──(descriptors, request)──> fork server ──fork──> child: runs its job
      ^                                   │                  │
      └──────── status socket of the request: reports of its job, and how it ended ────────┘

Why not fork the host? It has threads, and a process with threads cannot be forked safely. Why not start an interpreter each time? That costs
ten times a fork from a small warm process. There are up to three of these, one per job, because they differ in what they
may load: the one for scripts is tiny, the one for workers has imported what plugins need, the one for probes runs with the host's rights.

It runs no plugin code itself. It ends when the host closes its socket or dies (its pidfd). Processes that a child leaves behind are inherited
by this process, which is a subreaper and kills them.

Started with the standard library alone, by path (scripts) or with `BOOT`; the first argument is the job, as ``module:class``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

if __name__ == "__main__":  # run by its path, without site-packages
    sys.path.append(__file__.rpartition("/tavern_core/")[0])

from tavern_core.box.descriptor_passing import receive, send
from tavern_core.box.process_tree import (
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
"""The code for ``python -c``, with the path as JSON before the other arguments."""
TAKEN: Final = b"taken"
"""On the status socket: the request was read. Without this message, the host knows that nothing ran."""
FAILED: Final = "failed {}"
"""No process can be created: errno."""
FORKED: Final = struct.Struct(">i")
"""The process id of the child, with a pidfd, if the job reports it."""
EXIT: Final = struct.Struct(">i")
"""Its exit code, as from `os.waitstatus_to_exitcode`."""
MOST_DESCRIPTORS: Final = 32
_EVERY_DESCRIPTOR: Final = 1 << 20


class ForkJob(Protocol):
    """The work of a forked child."""

    modules: Sequence[str]
    """The modules that its children need; imported before the first fork."""
    descriptors: int
    """How many descriptors each request has, the status socket first. A file with the request is not counted."""
    idle_s: float | None
    """Seconds without work after which the server ends; None: never."""
    ends_children: bool
    """Whether running children end with the server."""
    reports: bool
    """Whether the server reports on the status socket the forked process and its end; else the child reports."""

    def fork(self, request: bytes, descriptors: list[int], shed: Callable[[], None]) -> int:
        """Fork a child and return its process id; in the child, call `shed` and never return.

        Args:
            shed: closes the resources of the server.

        Raises:
            OSError: no process can be created.
        """
        ...

    def forked(self) -> None:
        """Called in the server after a fork: time to prepare the next one."""
        ...


def main(arguments: list[str]) -> None:
    """Serve until the host ends.

    Args:
        arguments: the job as ``module:class``, control socket, process id of the host.
    """
    name, control, host = arguments[0], socket.socket(fileno=int(arguments[1])), int(arguments[2])
    os.closerange(control.fileno() + 1, _EVERY_DESCRIPTOR)  # inherited descriptors of the host
    os.chdir("/")  # so that the host's folder can be removed
    become_subreaper()
    module, _, job = name.partition(":")
    handle, kind = _handle_on(host), getattr(importlib.import_module(module), job)
    for module in kind.modules:
        importlib.import_module(module)
    _ForkServer(control, handle, kind()).serve()
    os._exit(0)


def import_for_children(names: Iterable[str]) -> None:
    """Import modules for later children; each child itself reports those that cannot be imported."""
    if new := [name for name in names if name not in sys.modules]:
        for name in new:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        gc.collect()
        gc.freeze()  # so that a collection in a child does not copy shared memory


def _handle_on(host: int) -> int:
    """A pidfd of the host, which still runs; -1 if the system has no pidfds."""
    try:
        handle = os.pidfd_open(host)
    except OSError:
        handle = -1
    if os.getppid() != host:
        os._exit(0)
    return handle


class _ForkServer:
    def __init__(self, control: socket.socket, host: int, job: ForkJob) -> None:
        self._control = control
        self._host = host
        self._job = job
        self._wake = wake_on_children()
        self._children: dict[int, int] = {}
        """Process id → the descriptor for reporting its end; -1: none."""

    def serve(self) -> None:
        """Run until this process is no longer needed."""
        gc.collect()
        gc.freeze()  # so that a collection in a child does not copy shared memory
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
        """Fork for one request; False if the host has closed the connection."""
        try:
            message, descriptors = receive(self._control, 16, MOST_DESCRIPTORS)
        except BlockingIOError:
            return True
        try:
            if (
                len(descriptors) == self._job.descriptors + 1
            ):  # fewer if we have no descriptors left: the host tries again
                with os.fdopen(descriptors.pop(), "rb") as file:
                    request = file.read()
                self._fork(descriptors, request)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return bool(message)

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
            _report_fork(status, pid)
        self._job.forked()

    def _shed(self) -> None:
        """In a child: close the resources of the server."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._control.close()
        for descriptor in (signal.set_wakeup_fd(-1), self._wake, self._host, *self._children.values()):
            if descriptor >= 0:
                os.close(descriptor)

    def _reap(self) -> None:
        """Report ended children, and kill the processes that they left behind."""
        drain(self._wake)
        while (ended := next_ended()) is not None:
            status = self._children.pop(ended[0], -1)
            if status >= 0:
                _say(status, EXIT.pack(os.waitstatus_to_exitcode(ended[1])))
                os.close(status)
        with contextlib.suppress(OSError):  # no descriptors left: try later
            for orphan in set(children()) - self._children.keys():
                kill(orphan)


def _report_fork(status: int, pid: int) -> None:
    handle = os.pidfd_open(pid)  # before it can be reaped, so it is this process and no later one with the same id
    with socket.socket(fileno=os.dup(status)) as line, contextlib.suppress(OSError):
        send(line, FORKED.pack(pid), [handle])
    os.close(handle)


def _say(status: int, word: bytes) -> None:
    with contextlib.suppress(OSError):  # the reader is gone
        os.write(status, word)


if __name__ == "__main__":
    main(sys.argv[1:])
