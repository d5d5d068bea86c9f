"""The host's handle on a fork server: started with the first request, and again after it ended."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tavern_core.box.fork_server import BOOT, FORKED, TAKEN

SERVER: Final = Path(__file__).with_name("fork_server.py")
_CONTROL: Final = 3
_MOST_SAID: Final = 65_536
_LONGEST_WORD: Final = 256
_END_S: Final = 5.0
"""Time in which a server and its children may end by themselves."""


class ForkServerGone(OSError):
    """A fork server ended at its start; the message is its last line of output."""


def ending(code: int) -> str:
    """An exit status in words: the name of the signal that ended a process, or its exit code."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


@dataclass(frozen=True, slots=True)
class ForkedChild:
    """A child of a fork server whose job reports."""

    pid: int
    handle: int
    """A pidfd: it always means this process, never a later one with the same id."""
    status: socket.socket
    """Reports its exit status at the end (`fork_server.EXIT`); closes without it if the fork server ends."""

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal."""
        with contextlib.suppress(OSError):  # it has ended
            signal.pidfd_send_signal(self.handle, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it if it still runs."""
        self.kill()
        os.close(self.handle)
        self.status.close()


class ForkServer:
    """The process of one job. Thread-safe. After a fork of the host, the copy starts its own.

    Args:
        command: builds the arguments of the interpreter (`by_path`, `by_import`).
        environment: builds its environment.
    """

    def __init__(self, command: Callable[[], Sequence[str]], environment: Callable[[], Mapping[str, str]]) -> None:
        self._command = command
        self._environment = environment
        self._lock = threading.Lock()
        self._process: _ServerProcess | None = None

    @property
    def pid(self) -> int | None:
        """Its process id if it runs."""
        process = self._process
        return None if process is None or process.owner != os.getpid() else process.pid

    def request(self, descriptors: Sequence[int], request: bytes) -> None:
        """Request a child; reports come over the status socket, whose other end is the first descriptor.

        Raises:
            ForkServerGone: no server can be started.
            OSError: descriptors or processes are exhausted.
        """
        with readable(request) as file:
            for _ in range(2):
                process = self._running()
                try:
                    socket.send_fds(process.control, [b"fork"], [*descriptors, file])
                except (BrokenPipeError, ConnectionError):  # it was killed before it got the request
                    why = process.last_words()
                    self._drop(process)
                else:
                    return
        raise ForkServerGone(why)

    def fork(self, descriptors: Sequence[int], request: bytes, seconds: float) -> ForkedChild:
        """Fork a child of a job with reports. A server that has died is replaced.

        Args:
            descriptors: without the status socket.
            seconds: time limit.

        Raises:
            ForkServerGone: it ended before it forked.
            OSError: descriptors or processes are exhausted.
        """
        for _ in range(2):
            if (child := self._forked(descriptors, request, seconds)) is not None:
                return child
        raise ForkServerGone(self.last_words() or "it ends as soon as it is started")

    def _forked(self, descriptors: Sequence[int], request: bytes, seconds: float) -> ForkedChild | None:
        """None if the server ended before it forked."""
        with contextlib.ExitStack() as opened:
            status, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            opened.enter_context(status)
            with its:
                self.request([its.fileno(), *descriptors], request)
            status.settimeout(seconds)
            message, passed = TAKEN, list[int]()
            while message == TAKEN:
                message, passed, _, _ = socket.recv_fds(status, _LONGEST_WORD, 1)
            if passed:
                opened.pop_all()
                status.settimeout(None)
                os.set_inheritable(passed[0], False)
                return ForkedChild(FORKED.unpack(message)[0], passed[0], status)
            if message:
                number = int(message.split()[1])
                raise OSError(number, os.strerror(number))
            return None

    def last_words(self) -> str:
        """The last line that the running server wrote: why it does not start; empty if there is none."""
        process = self._process
        return "" if process is None else process.last_words()

    def is_running(self) -> bool:
        """Whether it runs; one that has ended is cleaned up."""
        process = self._process
        if process is not None and process.has_ended():
            self._drop(process)
        return self._process is not None

    def close(self) -> None:
        """End it. Its job decides whether its children end, too."""
        if (process := self._process) is not None:
            self._drop(process)

    def _drop(self, process: _ServerProcess) -> None:
        with self._lock:
            if self._process is process:
                self._process = None
        process.end()

    def _running(self) -> _ServerProcess:
        with self._lock:
            if self._process is None or self._process.owner != os.getpid():
                self._process = _ServerProcess(self._command(), self._environment())
            return self._process


def by_path(job: str) -> list[str]:
    """Start the server by its path, with nothing but the standard library and the box.

    Args:
        job: the job as ``module:class``; see `fork_server.ForkJob`.
    """
    return ["-I", "-S", str(SERVER), job, str(_CONTROL), str(os.getpid())]


def by_import(flags: Sequence[str], path: Sequence[str], job: str) -> list[str]:
    """Start the server with a module search path.

    Args:
        flags: of the interpreter.
        job: the job as ``module:class``; see `fork_server.ForkJob`.
    """
    return [*flags, "-c", BOOT, json.dumps(path), job, str(_CONTROL), str(os.getpid())]


class _ServerProcess:
    """A server process and the socket to it."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self.owner = os.getpid()
        self.control, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._output = os.memfd_create("said") if hasattr(os, "memfd_create") else os.open(os.devnull, os.O_RDWR)
        argv = [sys.executable, *words]
        nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(2)]
        stderr = fcntl.fcntl(self._output, fcntl.F_DUPFD_CLOEXEC, _CONTROL + 1)  # not at the descriptor of the socket
        try:
            actions = [(os.POSIX_SPAWN_DUP2, end.fileno(), _CONTROL), (os.POSIX_SPAWN_DUP2, stderr, 2), *nowhere]
            self.pid = os.posix_spawn(argv[0], argv, environment, file_actions=actions, setsid=True, setsigmask=())
        except OSError:
            self.control.close()
            os.close(self._output)
            raise
        finally:
            os.close(stderr)
            end.close()
        # Also at exit and when the ForkServer is garbage-collected: a server does not outlive its host.
        self.end = weakref.finalize(self, _end, self.control, self._output, self.pid, self.owner)

    def has_ended(self) -> bool:
        """Whether it has ended by itself, or belongs to the parent of this fork."""
        return self.owner != os.getpid() or _is_over(self.pid, 0.0)

    def last_words(self) -> str:
        """The last line it wrote."""
        lines = os.pread(self._output, _MOST_SAID, 0).decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""


def _end(control: socket.socket, output: int, pid: int, owner: int) -> None:
    if owner == os.getpid():
        with contextlib.suppress(OSError):
            # closing is not enough while a forked copy of the host holds the socket
            control.shutdown(socket.SHUT_RDWR)
        if not _is_over(pid, _END_S):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    control.close()
    os.close(output)


def _is_over(pid: int, seconds: float) -> bool:
    """Whether a child process ends within the time."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:  # already reaped, or no pidfds: then wait for it
        return True
    try:
        waiting = select.poll()
        waiting.register(handle, select.POLLIN)
        return bool(waiting.poll(seconds * 1000))
    finally:
        os.close(handle)


@contextlib.contextmanager
def readable(content: bytes) -> Iterator[int]:
    """A descriptor that holds `content`.

    A file in memory and not a pipe, so that writing never blocks.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("given")
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(content)
            os.lseek(descriptor, 0, os.SEEK_SET)
            yield descriptor
        finally:
            os.close(descriptor)
    else:
        with tempfile.TemporaryFile() as file:
            file.write(content)
            file.seek(0)
            yield file.fileno()
