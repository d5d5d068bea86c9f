"""The two sides of one connection through the gateway: bytes are counted, and idle time is limited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

AT_ONCE: Final = 65_536
IDLE_S: Final = 120.0
"""Maximum idle time of a connection."""
_FAREWELL_S: Final = 2.0
_T = TypeVar("_T")


class ByteLimitReached(Exception):
    """The call has reached its limit of bytes."""


@dataclass(slots=True)
class ByteLimit:
    """The byte limit of all connections of one call, in both directions together."""

    left: int

    def take(self, count: int) -> None:
        """Count bytes. Raises ByteLimitReached."""
        self.left -= count
        if self.left < 0:
            raise ByteLimitReached


class RelayState:
    """The shared state of both sides of one connection."""

    def __init__(self, allowance: ByteLimit) -> None:
        self._allowance = allowance
        self._loop = asyncio.get_running_loop()
        self._last_transfer = self._loop.time()

    def transferred(self, count: int) -> None:
        """Record transferred bytes. Raises ByteLimitReached."""
        self._allowance.take(count)
        self._last_transfer = self._loop.time()

    async def while_active(self, make: Callable[[], Awaitable[_T]]) -> _T:
        """Wait for the awaitable of `make`, which may be cancelled and created again, while the other side is still active.

        Raises:
            TimeoutError: both sides were idle for too long.
        """
        while True:
            remaining = self._last_transfer + IDLE_S - self._loop.time()
            if remaining <= 0:
                raise TimeoutError
            try:
                async with asyncio.timeout(remaining) as bound:
                    return await make()
            except TimeoutError:
                if not bound.expired():  # the system's error for a lost connection
                    raise


class RelaySide:
    """One side of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: RelayState) -> None:
        self.reader = reader
        self._writer = writer
        self._line = line
        self.has_answered = False
        """Something else than an interim answer was written."""

    async def read(self, most: int = AT_ONCE) -> bytes:
        """Some bytes; none at the end. Raises TimeoutError, ByteLimitReached, OSError."""
        await asyncio.sleep(0)  # available data returns without waiting, so yield to others first
        data = await self._line.while_active(lambda: self.reader.read(most))
        self._line.transferred(len(data))
        return data

    async def write(self, data: bytes | None, *, is_interim: bool = False) -> None:
        """Write, and wait while the other end does not read. Raises TimeoutError, OSError."""
        if data:
            self.has_answered |= not is_interim
            self._writer.write(data)
            await self._line.while_active(self._writer.drain)

    def end(self) -> None:
        """Signal the end of the output."""
        with contextlib.suppress(OSError, RuntimeError):
            if self._writer.can_write_eof():
                self._writer.write_eof()

    async def finish(self) -> None:
        """Let the other end read everything before closing, because its unread input would make the system drop the output."""
        self.end()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                while await self.reader.read(AT_ONCE):
                    pass
            self._writer.close()
            await self._line.while_active(self._writer.wait_closed)

    def abort(self) -> None:
        """Close at once."""
        self._writer.transport.abort()


async def carry(source: RelaySide, sink: RelaySide) -> None:
    """Copy all bytes of one side to the other, and its end. Raises as `RelaySide.read` and `RelaySide.write`."""
    while data := await source.read():
        await sink.write(data)
    sink.end()


async def both(one: Awaitable[None], other: Awaitable[None], *, until_other: bool = False) -> None:
    """Wait for both; the first error ends both.

    Args:
        until_other: end together with `other`.
    """
    tasks = [asyncio.ensure_future(one), asyncio.ensure_future(other)]
    try:
        waiting = set(tasks)
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if until_other and tasks[1].done():
                return
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
