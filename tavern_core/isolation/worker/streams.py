"""The worker's end of a conversation: what its node yields goes out, what it reads comes in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import aclosing
from contextvars import copy_context
from typing import Any, Final

from tavern_core.contract.nodes import Final as FinalAnswer
from tavern_core.isolation.error_codec import unpack_error
from tavern_core.isolation.node_codec import ANSWERS, ENDED, VALUES
from tavern_core.isolation.stream_window import Chunks, Outbox, Room

_ENDED: Final = object()


class InsideTalk:
    """One conversation.

    Args:
        number: of the request that began it.
        streams: how many the node reads.
        limit: most bytes of one chunk.
    """

    def __init__(self, number: int, streams: int, out: Outbox, limit: int) -> None:
        self.number = number
        self._limit = limit
        self._out = out
        self._room = Room()
        self.streams = [_Incoming(at, self) for at in range(streams)]
        """What the node reads, by number: async iterators."""
        self._is_over = False

    def hear(self, message: dict[str, Any]) -> None:
        """The host said something."""
        if "room" in message:
            self._room.give(message["room"])
        else:
            self.streams[message["in"]].hear(message)

    def say(self, message: dict[str, Any]) -> None:
        """Say something, unless the conversation is over."""
        if not self._is_over:
            self._out.say({"id": self.number, **message}, self._limit)

    async def given(self, chunks: AsyncGenerator[Any, None]) -> Any:
        """Send what a node yields, as fast as it is taken; its answer."""
        async with aclosing(chunks):
            async for chunk in chunks:
                if isinstance(chunk, FinalAnswer):
                    return ANSWERS.encode(chunk)
                await self._room.take()
                self.say({"chunk": ANSWERS.encode(chunk)})
        return ENDED

    def end(self) -> None:
        """Nothing is said any more."""
        self._is_over = True
        for stream in self.streams:
            stream.leave()


class _Incoming(AsyncIterator[Any]):
    """A stream of the host."""

    def __init__(self, number: int, talk: InsideTalk) -> None:
        self._number = number
        self._talk = talk
        self._chunks = Chunks()

    def hear(self, message: dict[str, Any]) -> None:
        if "chunk" in message:
            self._chunks.put(message["chunk"])
        else:
            error = unpack_error(message["error"]) if "error" in message else None
            self._chunks.end(error)

    def leave(self) -> None:
        """Read no further."""
        self._chunks.end()

    async def __anext__(self) -> Any:
        chunk, told = await self._chunks.next()
        if told:
            self._talk.say({"took": self._number, "count": told})
        return VALUES.decode(chunk)

    async def aclose(self) -> None:
        self._talk.say({"left": self._number})
        self.leave()


async def in_thread(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Run sync code of a node. A thread cannot be stopped: whoever is cancelled waits for it, or dies with the process."""
    context = copy_context()
    running = asyncio.get_running_loop().run_in_executor(None, lambda: context.run(function, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


async def in_threads(chunks: Generator[Any, None, Any]) -> AsyncGenerator[Any, None]:
    """A sync generator, each of its steps in a thread."""
    try:
        while (chunk := await in_thread(next, chunks, _ENDED)) is not _ENDED:
            yield chunk
    finally:
        chunks.close()
