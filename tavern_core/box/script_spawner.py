"""The host's side of scripts: start one through the fork server, hold its descriptors."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from tavern_core.box.fork_server_client import ForkServer, ForkServerGone, by_path, readable
from tavern_core.errors import ConnectionLost, UpstreamError

LARGEST_REQUEST: Final = 192_000
"""Bytes of command line and environment."""


@dataclass(frozen=True, slots=True)
class ScriptLaunch:
    """A script to start."""

    argv: tuple[str, ...]
    """The program's absolute path first."""
    environment: Mapping[str, str]
    folder: str
    """Working directory."""
    stdin: bytes | None
    """All of its input; None: a pipe, which stays open for more (`ScriptProcess.stdin`)."""
    seconds: float
    """Its deadline."""
    policy: str = ""
    """Its `BoxPolicy` as JSON; empty: none."""


@dataclass(frozen=True, slots=True)
class ScriptProcess:
    """A started script, as the host sees it. Closing `status` ends the script and everything that it started."""

    stdout: int
    stderr: int
    status: socket.socket
    """Its reports: ``taken``, ``gateway <token>`` and ``asking`` with their descriptors, ``started <pid>``,
    ``boxless <layer> <why>``, ``weak <layers as JSON>``, ``failed <errno>``, ``ended <wait status> <why> <left>``."""
    policy: str = ""
    """The policy of its `ScriptLaunch`."""
    stdin: int = -1
    """The descriptor for its input, never blocking; -1: all input was passed at the start."""

    def send(self, word: str) -> None:
        """Send ``stop``: SIGTERM, a moment, SIGKILL. Or ``kill``: at once."""
        with contextlib.suppress(OSError):  # it has already ended
            self.status.send(word.encode())

    def without_stdin(self) -> ScriptProcess:
        """The same after closing its stdin."""
        if self.stdin >= 0:
            os.close(self.stdin)
        return replace(self, stdin=-1)

    def close(self) -> None:
        """Close it; remaining processes are killed."""
        self.status.close()
        for descriptor in (self.stdout, self.stderr, self.stdin):
            if descriptor >= 0:
                os.close(descriptor)


class ScriptSpawner:
    """Starts scripts. Usable from any thread and event loop, and after a fork of the host."""

    def __init__(self) -> None:
        self._server = ForkServer(lambda: by_path("tavern_core.box.script_fork_job:ScriptForkJob"), _environment)

    def start(self, launch: ScriptLaunch) -> ScriptProcess:
        """Pass a script to the fork server; reports come over `ScriptProcess.status`.

        Raises:
            UpstreamError: the command line is too long, or descriptors or processes are exhausted (UPSTREAM_ERROR).
            ConnectionLost: no fork server can be started (CONNECTION_LOST).
        """
        request = {
            "argv": launch.argv,
            "env": dict(launch.environment),
            "cwd": launch.folder,
            "seconds": launch.seconds,
        }
        words = json.dumps(request).encode()
        if len(words) > LARGEST_REQUEST:
            raise UpstreamError(
                f"command line and environment take {len(words):,} bytes, more than {LARGEST_REQUEST:,}",
                hint="pass large values in the arguments: they go over stdin",
            )
        try:
            return self._hand_over(words + b"\n" + launch.policy.encode(), launch.stdin, launch.policy)
        except ForkServerGone as error:
            raise ConnectionLost(
                "the process that starts scripts ends as soon as it is started",
                hint=f"check that {sys.executable!r} is a working Python interpreter",
                retryable=True,
            ) from error
        except OSError as error:
            raise UpstreamError(f"cannot start a process: {error.strerror or error}", retryable=True) from error

    def close(self) -> None:
        """End the fork server. The calls of running scripts end them."""
        self._server.close()

    def _hand_over(self, request: bytes, stdin: bytes | None, policy: str) -> ScriptProcess:
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            if stdin is None:
                our_end, their_end = _pipe(ours, theirs, we_read=False)
            else:
                our_end, their_end = -1, theirs.enter_context(readable(stdin))
            stdout, stdout_end = _pipe(ours, theirs)
            stderr, stderr_end = _pipe(ours, theirs)
            status, status_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.enter_context(status)
            theirs.enter_context(status_end)
            self._server.request([status_end.fileno(), their_end, stdout_end, stderr_end], request)
            status.setblocking(False)
            ours.pop_all()  # from here on, the `ScriptProcess` closes them
            return ScriptProcess(stdout, stderr, status, policy, our_end)


def _environment() -> dict[str, str]:
    """Variables that some interpreters need to start."""
    return {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}


def _pipe(ours: contextlib.ExitStack, theirs: contextlib.ExitStack, *, we_read: bool = True) -> tuple[int, int]:
    """(our end, which never blocks; their end)."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    our_end, their_end = (reader, writer) if we_read else (writer, reader)
    ours.callback(os.close, our_end)
    theirs.callback(os.close, their_end)
    os.set_blocking(our_end, False)
    return our_end, their_end
