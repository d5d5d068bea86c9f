"""Shared by both sides of a streaming call: writing without blocking, and a limited window of chunks.

    {"id": n, "chunk": …}                  the worker's node sends a chunk          {"id": n, "room": k}   k of them were consumed
    {"id": n, "in": s, "chunk" | "end" | "error": …}   of a stream that it reads    {"id": n, "took": s, "count": k}
                                                                                    {"id": n, "left": s}   it reads no further

The answer to the request ends the exchange, as it ends every call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from tavern_core.errors import OutputTooLarge
from tavern_core.isolation.transport import BrokenChannel, FrameChannel, encode

WINDOW: Final = 16
"""Maximum number of chunks that a side may be ahead of the other."""
REPORTED_AFTER: Final = WINDOW // 2
"""Consumed chunks before a report."""


def bounded_frame(message: dict[str, Any], limit: int | None) -> bytes:
    """`encode`, but OutputTooLarge for frames that the other side would refuse (OUTPUT_TOO_LARGE)."""
    frame = encode(message)
    if limit is not None and len(frame) > limit:
        raise OutputTooLarge(
            f"the answer takes {len(frame):,} bytes; at most {limit:,} cross to the host at once",
            hint="ask for less, or raise limits.outputBytes", outcome="done", limit=limit, size=len(frame),
        )  # fmt: skip
    return frame


class Outbox:
    """Writes frames to a connection in order, as fast as the other side reads them; for one event loop."""

    def __init__(self, channel: FrameChannel, loop: asyncio.AbstractEventLoop) -> None:
        self._channel = channel
        self._loop = loop
        self._rest = b""

    @property
    def is_empty(self) -> bool:
        """Whether everything was written."""
        return not self._rest

    def send(self, message: dict[str, Any], limit: int | None = None) -> None:
        """Write a message as soon as possible.

        Args:
            limit: its maximum size in bytes.

        Raises:
            BrokenChannel: the other side has closed the connection.
            ValueError: it is not JSON; also TypeError and RecursionError.
            OutputTooLarge: it is longer (OUTPUT_TOO_LARGE).
        """
        self.put(bounded_frame(message, limit))

    def put(self, frame: bytes) -> None:
        """`send` for a frame."""
        if self._rest:
            self._rest += frame
        elif rest := self._channel.give(frame):
            self._rest = rest
            self._loop.add_writer(self._channel.fd, self._flush)

    def close(self) -> None:
        """Stop writing."""
        if self._rest:
            self._loop.remove_writer(self._channel.fd)
            self._rest = b""

    def _flush(self) -> None:
        try:
            rest = self._channel.give(self._rest)
        except BrokenChannel:  # the reader of the connection detects that, too
            self.close()
            return
        if rest:
            self._rest = rest
        else:
            self.close()


class SendCredit:
    """The number of chunks that may still be sent."""

    def __init__(self) -> None:
        self._left = WINDOW
        self._more: asyncio.Future[None] | None = None

    async def take(self) -> None:
        """Acquire space for one chunk; waits until there is some."""
        while not self._left:
            self._more = asyncio.get_running_loop().create_future()
            await self._more
        self._left -= 1

    def give(self, count: int) -> None:
        """Record that the other side has consumed this many. Raises BrokenChannel: it had received fewer."""
        if type(count) is not int or not 0 < count <= WINDOW - self._left:
            raise BrokenChannel("that it took chunks which it was not given")
        self._left += count
        if self._more is not None and not self._more.done():
            self._more.set_result(None)


class ReceivedChunks:
    """Received chunks that were not consumed yet."""

    def __init__(self) -> None:
        self._waiting: deque[Any] = deque()
        self._more: asyncio.Future[None] | None = None
        self._unreported = 0
        self._ended: BaseException | None = None

    def put(self, chunk: Any) -> None:
        """Add a chunk. Raises BrokenChannel: the other side exceeds the window."""
        if len(self._waiting) + self._unreported >= WINDOW:
            raise BrokenChannel("more than it may be ahead")
        self._waiting.append(chunk)
        self._wake()

    def end(self, error: BaseException | None = None) -> None:
        """Mark the end; after the last chunk, a reader gets `StopAsyncIteration` or `error`."""
        self._ended = self._ended or error or StopAsyncIteration()
        self._wake()

    async def next(self) -> tuple[Any, int]:
        """(the next chunk, how many to report as consumed now). Raises StopAsyncIteration at the end, or the error."""
        while not self._waiting:
            if self._ended is not None:
                raise self._ended
            self._more = asyncio.get_running_loop().create_future()
            await self._more
        self._unreported += 1
        reported = 0
        if self._unreported >= REPORTED_AFTER:
            reported, self._unreported = self._unreported, 0
        return self._waiting.popleft(), reported

    def _wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)
