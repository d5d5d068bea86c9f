"""Read the output of a script until its guard reports the end: bounded, and never blocked by a pipe.

The guard defines the end. A grandchild that holds stdout open, or a script that closes it early, changes
nothing: when the guard has reported, the rest of the pipes is read without waiting.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from tavern_core.box.descriptor_passing import receive
from tavern_core.box.policy import BoxPolicy
from tavern_core.box.script_spawner import ScriptProcess
from tavern_core.box.write_broker import WriteBroker

Reason = Literal["exit", "stop", "time", "kill", "flood", "failed", "boxless", "lost", "untaken"]
"""Ended by itself, or why it was ended; `failed`: never started; `boxless`: not started because a layer is missing; `lost`: its guard died;
`untaken`: the fork server died before it took the request, so nothing ran."""
_AT_ONCE = 65_536
_LONGEST_WORD = 4096
_LAST_READS = 64
"""A pipe holds at most a megabyte; output that arrives faster than we read after the end is dropped."""
STOPPING_S = 6.0
"""The guard gives up after five seconds; then the host stops waiting, too."""


class OutputHead:
    """Stores bytes up to `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()

    def add(self, data: bytes) -> bool:
        """False if `data` does not fit any more."""
        room = self._limit - len(self._kept)
        self._kept += data[:room]
        return len(data) <= room

    def content(self) -> bytes:
        return bytes(self._kept)


@dataclass(frozen=True, slots=True)
class OutputEnds:
    """The beginning and the end of the output, and how many bytes between them were dropped."""

    head: bytes = b""
    tail: bytes = b""
    dropped: int = 0


class HeadAndTail:
    """Stores the first and the last `half` bytes: the first identify the program, the last explain its end."""

    def __init__(self, half: int) -> None:
        self._half = half
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> bool:
        """Always True: any amount can be dropped."""
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > self._half + _AT_ONCE:
            self._trim()
        return True

    def content(self) -> OutputEnds:
        self._trim()
        return OutputEnds(bytes(self._head), bytes(self._tail), self._dropped)

    def _trim(self) -> None:
        if (extra := len(self._tail) - self._half) > 0:
            del self._tail[:extra]
            self._dropped += extra


@dataclass(frozen=True, slots=True)
class ScriptOutcome:
    """The end of a script and its output."""

    reason: Reason
    status: int = -1
    """The wait status (`os.waitstatus_to_exitcode`); -1 if unknown."""
    left: int = 0
    """Processes that could not be killed."""
    errno: int = 0
    """Why it could not be started."""
    missing: tuple[str, str] | None = None
    """(layer, why) of the box that could not be created."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Layer → why it ran without it."""
    stdout: bytes = b""
    stderr: OutputEnds = OutputEnds()


Serve = Callable[[socket.socket, str], None]
"""``serve(listening, token)``: answer connections to the gateway of a box (`egress_proxy_socket.py`)."""


async def collect(
    child: ScriptProcess, output_bytes: int, stderr_half: int, serve: Serve | None = None
) -> ScriptOutcome:
    """Read from a child until it has ended, then close it. Cancelling ends the child with everything that it started.

    Args:
        output_bytes: more than this on stdout ends the child with reason ``flood``.
        stderr_half: stored bytes of the beginning and of the end of stderr.
        serve: gets the gateway of the child's box and closes it; without it, no one serves the gateway.
    """
    listener = _Listener(child, OutputHead(output_bytes), HeadAndTail(stderr_half), serve)
    try:
        return await asyncio.shield(listener.end)
    except asyncio.CancelledError:
        child.send("stop")
        await asyncio.wait([listener.end], timeout=STOPPING_S)  # cancelled again: `close` kills at once
        raise
    finally:
        listener.close()


class ChildListener(Protocol):
    """Is notified of the start and the end of a child."""

    def on_started(self) -> None:
        """The program was started."""

    def on_ended(self, ended: ScriptOutcome) -> None:
        """It has ended; called once. What it wrote is not in `ended`."""


class StatusReader:
    """Reads the reports about a child on its status socket, on the running event loop.

    Args:
        serve: gets the gateway of the child's box, and closes it.
    """

    def __init__(self, child: ScriptProcess, listener: ChildListener, serve: Serve | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._child = child
        self._listener = listener
        self._serve = serve
        self._is_taken = False
        self._skipped: Mapping[str, str] = {}
        self._loop.add_reader(child.status, self._on_status)

    def close(self) -> None:
        """Stop reading; called before the child is closed."""
        self._loop.remove_reader(self._child.status)

    def _on_status(self) -> None:
        passed: list[int] = []
        try:
            message, passed = receive(self._child.status, _LONGEST_WORD, 1)
            word, _, rest = (message.decode() or "lost").partition(" ")
        except BlockingIOError:
            return
        except ConnectionError:
            word, rest = "lost", ""
        for descriptor in passed:
            if word == "gateway" and self._serve is not None:
                self._serve(socket.socket(fileno=descriptor), rest)
            elif word == "asking":
                WriteBroker(descriptor, BoxPolicy.from_json(self._child.policy)).begin()
            else:
                os.close(descriptor)
        self._is_taken = self._is_taken or word == "taken"
        if word == "started":
            self._listener.on_started()
        elif word == "weak":
            self._skipped = json.loads(rest)
        elif (ended := self._ended(word, rest)) is not None:
            self.close()
            self._listener.on_ended(ended)

    def _ended(self, word: str, rest: str) -> ScriptOutcome | None:
        if word == "ended":
            status, reason, survivors = rest.split()
            return ScriptOutcome(_REASONS[reason], int(status), int(survivors), skipped=self._skipped)
        if word == "failed":
            return ScriptOutcome("failed", errno=int(rest), skipped=self._skipped)
        if word == "boxless":
            layer, _, why = rest.partition(" ")
            return ScriptOutcome("boxless", missing=(layer, why), skipped=self._skipped)
        if word == "lost":
            return ScriptOutcome("lost" if self._is_taken else "untaken", skipped=self._skipped)
        return None


class _Listener:
    """Also reads the output of a child, until its end."""

    def __init__(self, child: ScriptProcess, stdout: OutputHead, stderr: HeadAndTail, serve: Serve | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._child = child
        self._stdout = stdout
        self._stderr = stderr
        self._is_flooded = False
        self.end: asyncio.Future[ScriptOutcome] = self._loop.create_future()
        self._loop.add_reader(child.stdout, self._pump, child.stdout, self._on_stdout)
        self._loop.add_reader(child.stderr, self._pump, child.stderr, self._stderr.add)
        self._reports = StatusReader(child, self, serve)

    def close(self) -> None:
        self._reports.close()
        for descriptor in (self._child.stdout, self._child.stderr):
            self._loop.remove_reader(descriptor)
        self._child.close()

    def on_started(self) -> None:
        """Only its end is of interest."""

    def _on_stdout(self, data: bytes) -> bool:
        if not self._stdout.add(data) and not self._is_flooded:
            self._is_flooded = True
            self._child.send("kill")
        return not self._is_flooded

    def _pump(self, descriptor: int, take: Callable[[bytes], bool]) -> bool:
        """Read once; False if there is nothing more to read now."""
        try:
            data = os.read(descriptor, _AT_ONCE)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(descriptor)
            return False
        take(data)
        return True

    def on_ended(self, ended: ScriptOutcome) -> None:
        """See `ChildListener`."""
        for descriptor, take in ((self._child.stdout, self._on_stdout), (self._child.stderr, self._stderr.add)):
            for _ in range(_LAST_READS):
                if not self._pump(descriptor, take):
                    break
        if self._is_flooded:
            ended = replace(ended, reason="flood")
        if not self.end.done():
            self.end.set_result(replace(ended, stdout=self._stdout.content(), stderr=self._stderr.content()))


_REASONS: dict[str, Reason] = {"exit": "exit", "stop": "stop", "time": "time", "kill": "kill"}
