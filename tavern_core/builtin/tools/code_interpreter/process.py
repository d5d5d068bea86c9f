"""One program, run to its end or to one of its bounds; nothing of it is left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

_AT_ONCE: Final = 65_536


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended and what it said."""

    why: Literal["exit", "time", "flood"]
    code: int
    """Exit code; below 0: minus the signal."""
    stdout: bytes
    stderr: bytes


class _Kept:
    """The first `most` bytes of a stream."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.content = bytearray()
        self.is_full = False

    def add(self, data: bytes) -> None:
        room = self._most - len(self.content)
        self.content += data[:room]
        self.is_full = self.is_full or len(data) > room


async def run_program(
    command: Sequence[str], environment: Mapping[str, str], folder: str, *, seconds: float, stdout: int, stderr: int
) -> Ran:
    """Run `command` without input. Cancelling ends it.

    Args:
        seconds: when its time is over.
        stdout: bytes after which it is stopped.
        stderr: bytes that are kept; what follows is dropped.

    Raises:
        OSError: it cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(environment),
        cwd=folder,
        start_new_session=True,
    )
    said, complained = _Kept(stdout), _Kept(stderr)
    try:
        why = await _listen(process, said, complained, seconds)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()  # its box, and all that is in it, ends with it
        code = await asyncio.shield(_ended(process))
    return Ran(why, code, bytes(said.content), bytes(complained.content))


async def _ended(process: asyncio.subprocess.Process) -> int:
    """Wait for a killed process. What it had written is read away: its streams never end otherwise, nor does the waiting."""
    for stream in (process.stdout, process.stderr):
        while stream is not None and await stream.read(_AT_ONCE):
            pass
    return await process.wait()


async def _listen(
    process: asyncio.subprocess.Process, said: _Kept, complained: _Kept, seconds: float
) -> Literal["exit", "time", "flood"]:
    async def read(stream: asyncio.StreamReader | None, kept: _Kept, *, ends: bool) -> None:
        while stream is not None and (data := await stream.read(_AT_ONCE)):
            kept.add(data)
            if ends and kept.is_full:
                return

    try:
        async with asyncio.timeout(seconds):
            reading = asyncio.ensure_future(read(process.stderr, complained, ends=False))
            try:
                await read(process.stdout, said, ends=True)
                if said.is_full:
                    return "flood"
                await reading
                await process.wait()
            finally:
                reading.cancel()
    except TimeoutError:
        return "time"
    return "exit"
