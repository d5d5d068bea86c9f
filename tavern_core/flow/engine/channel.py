"""A stream between nodes: one writer, any number of readers, each at its own pace; the slowest one blocks the writer.

A reader that waits must not block the node that it waits for. A reader blocks its writer only while its node could
read: not before the node can begin, and not while it waits for a lazy input or for another stream. So a node that also
needs the writer's final answer, or reads two streams one after the other, cannot cause a deadlock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from tavern_core.errors import UpstreamError

AHEAD: Final = 16
"""Chunks that the writer may be ahead of a reader."""
_END: Final = object()
ReleaseSlots = Callable[[], AbstractAsyncContextManager[None]]
"""Releases the slots of a waiting node, and acquires them again."""


class Channel:
    """The stream of one output of one running node.

    Args:
        is_handled: the file says what happens if its writer fails, so the run does not fail if its readers do.
    """

    __slots__ = ("_error", "_is_closed", "_readers", "_room", "is_handled")

    def __init__(self, *, is_handled: bool = False) -> None:
        self._readers: list[ChannelReader] = []
        self._room: asyncio.Future[None] | None = None
        self._is_closed = False
        self._error: BaseException | None = None
        self.is_handled = is_handled

    @classmethod
    def of(cls, chunks: Iterable[Any]) -> ChannelReader:
        """A reader of existing chunks."""
        channel = cls()
        reader = channel.reader()
        for chunk in chunks:
            reader.push(chunk)
        channel.close()
        return reader

    def reader(self, rest: ReleaseSlots | None = None) -> ChannelReader:
        """A further reader; if created before the writer begins, it gets everything."""
        reader = ChannelReader(self, rest)
        self._readers.append(reader)
        if self._is_closed:
            reader.push(_END)
        return reader

    async def write(self, chunk: Any, rest: ReleaseSlots | None = None) -> None:
        """Send a chunk to every reader; waits while one is too far behind."""
        for reader in self._readers:
            reader.push(chunk)
        if self._is_full():
            if rest is None:
                await self._until_room()
            else:
                async with rest():
                    await self._until_room()

    async def _until_room(self) -> None:
        while self._is_full():
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    @property
    def is_read(self) -> bool:
        """False once every reader has left."""
        return bool(self._readers)

    def _is_full(self) -> bool:
        return not self._is_closed and any(reader.is_full for reader in self._readers)

    def close(self, error: BaseException | None = None) -> None:
        """End the stream; with an error, readers raise it after the last chunk."""
        if not self._is_closed:
            self._is_closed, self._error = True, error
            for reader in self._readers:
                reader.push(_END)

    def made_room(self) -> None:
        """Called by a reader that read something, left, or paused."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None

    def forget(self, reader: ChannelReader) -> None:
        """Stop sending to a reader that left."""
        if reader in self._readers:
            self._readers.remove(reader)

    @property
    def error(self) -> BaseException | None:
        """The error for readers after the last chunk."""
        if self._error is None or isinstance(self._error, Exception):
            return self._error
        return UpstreamError(f"the stream broke off: {type(self._error).__name__} in the node that wrote it")


class ChannelReader(AsyncIterator[Any]):
    """A reader's end of a channel: an async iterator of chunks."""

    __slots__ = ("_channel", "_has_left", "_more", "_paused", "_rest", "_waiting", "is_skipped", "siblings")

    def __init__(self, channel: Channel, rest: ReleaseSlots | None = None) -> None:
        self._channel = channel
        self._rest = rest
        self._waiting: deque[Any] = deque()
        self._more: asyncio.Future[None] | None = None
        self._paused = 1  # until the reading node can begin
        self._has_left = False
        self.is_skipped = False
        """It got the error of a writer whose failure is handled: if the reading node fails, it is skipped."""
        self.siblings: list[ChannelReader] = []
        """All readers of the reading node."""

    def fork(self, rest: ReleaseSlots | None = None) -> ChannelReader:
        """Another reader that starts at this one's position."""
        other = self._channel.reader(rest)
        other._waiting = self._waiting.copy()
        return other

    def push(self, chunk: Any) -> None:
        if self._has_left:
            return
        self._waiting.append(chunk)
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= AHEAD and not self._paused

    def pause(self, by: int) -> None:
        """Increment (1) or decrement (-1) the reasons why the node does not read."""
        self._paused += by
        if by > 0:
            self._channel.made_room()

    def leave(self) -> None:
        """Stop reading; the writer does not wait for it any more."""
        if not self._has_left:
            self._has_left = True
            self._waiting.clear()
            self._channel.forget(self)
            self._channel.made_room()

    def __aiter__(self) -> ChannelReader:
        return self

    async def __anext__(self) -> Any:
        if not self._waiting and not self._has_left:
            if self._rest is None:
                await self._until_more()
            else:
                async with self._rest():
                    await self._until_more()
        if self._has_left:
            raise StopAsyncIteration
        chunk = self._waiting.popleft()
        if chunk is _END:
            self._waiting.append(_END)  # further reads stay at the end
            if (error := self._channel.error) is not None:
                self.is_skipped = self._channel.is_handled
                raise error
            raise StopAsyncIteration
        if len(self._waiting) < AHEAD:
            self._channel.made_room()
        return chunk

    async def _until_more(self) -> None:
        others = [reader for reader in self.siblings if reader is not self]
        for reader in others:
            reader.pause(1)
        try:
            while not self._waiting and not self._has_left:
                self._more = asyncio.get_running_loop().create_future()
                await self._more
        finally:
            for reader in others:
                reader.pause(-1)

    async def aclose(self) -> None:
        self.leave()
