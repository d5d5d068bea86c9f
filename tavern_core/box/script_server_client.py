"""The host's side of the keeper: start a script, hold its descriptors.

A Spawner has one keeper process, started for the first script and again should it be gone. It may be used from any
thread and any event loop, and after a fork of the host.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tavern_core.box.script_server import LARGEST_REQUEST
from tavern_core.errors import ConnectionLost, UpstreamError

_KEEPER = Path(__file__).with_name("script_server.py")
_KEEPER_SOCKET = 3


@dataclass(frozen=True, slots=True)
class Launch:
    """One script to start."""

    argv: tuple[str, ...]
    """The program's absolute path first."""
    environment: Mapping[str, str]
    folder: str
    """Working directory."""
    stdin: bytes
    seconds: float
    """When its time is over."""
    policy: str = ""
    """The `BoxPolicy` it runs under, as JSON; empty: none."""


@dataclass(frozen=True, slots=True)
class Child:
    """A started script, seen from here. Closing `status` ends the script and all it started."""

    stdout: int
    stderr: int
    status: socket.socket
    """What is said of it: ``taken``, ``gateway <token>`` and ``asking`` with their descriptors, ``started <pid>``, ``boxless <layer> <why>``, ``weak <layers as JSON>``,
    ``failed <errno>``, ``ended <wait status> <why> <left>``."""
    policy: str = ""
    """As of its `Launch`."""

    def say(self, word: str) -> None:
        """``stop``: SIGTERM, a moment, SIGKILL. ``kill``: at once."""
        with contextlib.suppress(OSError):  # it has ended by itself
            self.status.send(word.encode())

    def close(self) -> None:
        """Let go of it; what still runs is killed."""
        self.status.close()
        os.close(self.stdout)
        os.close(self.stderr)


class Spawner:
    """Starts scripts through a keeper process of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line: _Line | None = None

    def start(self, launch: Launch) -> Child:
        """Hand a script to the keeper; what becomes of it comes over `Child.status`.

        Raises:
            UpstreamError: the command line is too long, or descriptors or processes are used up (UPSTREAM_ERROR).
            ConnectionLost: no keeper can be reached (CONNECTION_LOST).
        """
        request = {
            "argv": launch.argv,
            "env": dict(launch.environment),
            "cwd": launch.folder,
            "seconds": launch.seconds,
        }
        body = json.dumps(request).encode()
        if len(body) > LARGEST_REQUEST:
            raise UpstreamError(
                f"command line and environment take {len(body):,} bytes, more than {LARGEST_REQUEST:,}",
                hint="pass large values in the arguments: they go over stdin",
            )
        try:
            return self._hand_over(body, launch.stdin, launch.policy.encode())
        except OSError as error:
            raise UpstreamError(f"cannot start a process: {error.strerror or error}", retryable=True) from error

    def close(self) -> None:
        """End the keeper. Scripts that still run are ended by their own calls."""
        with self._lock:
            line, self._line = self._line, None
        if line is not None:
            line.close()

    def _hand_over(self, body: bytes, stdin: bytes, policy: bytes) -> Child:
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            given = theirs.enter_context(_readable(stdin))
            rules = theirs.enter_context(
                _readable(policy)
            )  # names whatever lies beside what is shut: no message holds that
            stdout, stdout_end = _pipe(ours, theirs)
            stderr, stderr_end = _pipe(ours, theirs)
            status, status_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.enter_context(status)
            theirs.enter_context(status_end)
            self._send(body, [given, stdout_end, stderr_end, status_end.fileno(), rules])
            status.setblocking(False)
            ours.pop_all()  # from here on they are the Child's to close
            return Child(stdout, stderr, status, policy.decode())

    def _send(self, body: bytes, descriptors: list[int]) -> None:
        for _ in range(2):
            line = self._ready()
            try:
                socket.send_fds(line.socket, [body], descriptors)
            except (BrokenPipeError, ConnectionError):  # the keeper was killed: nothing was handed over
                with self._lock:
                    self._line = None if self._line is line else self._line
                line.close()
            else:
                return
        raise ConnectionLost(
            "the process that starts scripts ends as soon as it is started",
            hint=f"check that {sys.executable!r} is a working Python interpreter",
            retryable=True,
        )

    def _ready(self) -> _Line:
        with self._lock:
            if self._line is None or self._line.owner != os.getpid():
                self._line = _Line()
            return self._line


class _Line:
    """A keeper process and the socket to it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.socket, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with end:
            pid = _spawn_keeper(end.fileno())
        # Also at exit and when nobody holds the Spawner any more: a keeper does not outlive its host.
        self.close = weakref.finalize(self, _end_keeper, self.socket, pid, self.owner)


def _spawn_keeper(descriptor: int) -> int:
    argv = [sys.executable, "-I", "-S", str(_KEEPER), str(_KEEPER_SOCKET)]
    nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    actions = [(os.POSIX_SPAWN_DUP2, descriptor, _KEEPER_SOCKET), *nowhere]
    libraries = {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}  # some interpreters need it to start
    return os.posix_spawn(argv[0], argv, libraries, file_actions=actions, setsid=True, setsigmask=())


def _end_keeper(line: socket.socket, pid: int, owner: int) -> None:
    if owner == os.getpid():
        with contextlib.suppress(OSError):
            # closing alone would not do while a forked copy of the host holds the socket
            line.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    line.close()


def _pipe(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
    """(our end to read, never blocking; their end to write)."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    ours.callback(os.close, reader)
    theirs.callback(os.close, writer)
    os.set_blocking(reader, False)
    return reader, writer


@contextlib.contextmanager
def _readable(content: bytes) -> Iterator[int]:
    """A descriptor that holds `content`.

    A file in memory and not a pipe: however large the input is, and whether the script reads it or not, nobody waits.
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
