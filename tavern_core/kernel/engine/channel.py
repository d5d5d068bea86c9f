"""A stream between nodes: one writer, any number of readers, each at its own pace, the writer held up by the slowest.

A reader that has not begun yet holds nobody up: what was written waits for it. So a reader that also needs the writer's
final answer, or that stands in a queue, cannot lock the two.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final

AHEAD: Final = 16
"""Chunks that the writer may be ahead of a reader."""
_END: Final = object()


class Channel:
    """The stream of one output of one running node."""

    __slots__ = ("_error", "_is_closed", "_readers", "_room")

    def __init__(self) -> None:
        self._readers: list[Reader] = []
        self._room: asyncio.Future[None] | None = None
        self._is_closed = False
        self._error: BaseException | None = None

    def reader(self) -> Reader:
        """A further reader; made before the writer begins, it sees everything."""
        reader = Reader(self)
        self._readers.append(reader)
        return reader

    async def write(self, chunk: Any) -> None:
        """Give a chunk to every reader; waits while one that has begun is too far behind."""
        for reader in self._readers:
            reader.push(chunk)
        while any(reader.is_full for reader in self._readers):
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def close(self, error: BaseException | None = None) -> None:
        """No more chunks; with an error, readers raise it behind the last one."""
        if not self._is_closed:
            self._is_closed, self._error = True, error
            for reader in self._readers:
                reader.push(_END)

    def made_room(self) -> None:
        """Called by a reader that took something or left."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None

    @property
    def error(self) -> BaseException | None:
        return self._error


class Reader(AsyncIterator[Any]):
    """One reader's end: an async iterator of chunks."""

    __slots__ = ("_channel", "_has_begun", "_has_left", "_more", "_waiting")

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._waiting: deque[Any] = deque()
        self._more: asyncio.Future[None] | None = None
        self._has_begun = False
        self._has_left = False

    def push(self, chunk: Any) -> None:
        if self._has_left:
            return
        self._waiting.append(chunk)
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    @property
    def is_full(self) -> bool:
        return self._has_begun and len(self._waiting) >= AHEAD

    def leave(self) -> None:
        """Read no further; the writer does not wait for it any more."""
        self._has_left = True
        self._waiting.clear()
        self._channel.made_room()

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> Any:
        self._has_begun = True
        while not self._waiting:
            if self._has_left:
                raise StopAsyncIteration
            self._more = asyncio.get_running_loop().create_future()
            await self._more
        chunk = self._waiting.popleft()
        if chunk is _END:
            self._waiting.append(_END)  # reading on stays at the end
            if self._channel.error is not None:
                raise self._channel.error
            raise StopAsyncIteration
        if len(self._waiting) < AHEAD:
            self._channel.made_room()
        return chunk

    async def aclose(self) -> None:
        self.leave()
