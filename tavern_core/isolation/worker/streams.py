"""The worker's end of a streaming call: sends the output of its node, receives its input."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import aclosing
from contextvars import copy_context
from typing import Any, Final

from tavern_core.contract.nodes import Final as FinalAnswer
from tavern_core.isolation.error_codec import unpack_error
from tavern_core.isolation.node_codec import ANSWERS, ENDED, VALUES
from tavern_core.isolation.stream_window import Outbox, ReceivedChunks, SendCredit

_ENDED: Final = object()


class StreamingCall:
    """A streaming call.

    Args:
        number: of its request.
        streams: the number of streams that the node reads.
        limit: maximum bytes of one chunk.
    """

    def __init__(self, number: int, streams: int, out: Outbox, limit: int) -> None:
        self.number = number
        self._limit = limit
        self._out = out
        self._room = SendCredit()
        self.streams = [_HostStream(at, self) for at in range(streams)]
        """The input streams of the node by number: async iterators."""
        self._is_over = False

    def receive_message(self, message: dict[str, Any]) -> None:
        """Handle a message of the host."""
        if "room" in message:
            self._room.give(message["room"])
        else:
            self.streams[message["in"]].receive_message(message)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, unless the call is over."""
        if not self._is_over:
            self._out.send({"id": self.number, **message}, self._limit)

    async def send_chunks(self, chunks: AsyncGenerator[Any, None]) -> Any:
        """Send what a node yields, as fast as it is consumed; returns its answer."""
        async with aclosing(chunks):
            async for chunk in chunks:
                if isinstance(chunk, FinalAnswer):
                    return ANSWERS.encode(chunk)
                await self._room.take()
                self.send({"chunk": ANSWERS.encode(chunk)})
        return ENDED

    def end(self) -> None:
        """Stop sending."""
        self._is_over = True
        for stream in self.streams:
            stream.leave()


class _HostStream(AsyncIterator[Any]):
    """A stream of the host."""

    def __init__(self, number: int, talk: StreamingCall) -> None:
        self._number = number
        self._call = talk
        self._chunks = ReceivedChunks()

    def receive_message(self, message: dict[str, Any]) -> None:
        if "chunk" in message:
            self._chunks.put(message["chunk"])
        else:
            error = unpack_error(message["error"]) if "error" in message else None
            self._chunks.end(error)

    def leave(self) -> None:
        """Stop reading."""
        self._chunks.end()

    async def __anext__(self) -> Any:
        chunk, count = await self._chunks.next()
        if count:
            self._call.send({"took": self._number, "count": count})
        return VALUES.decode(chunk)

    async def aclose(self) -> None:
        self._call.send({"left": self._number})
        self.leave()


async def in_thread(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Run sync code of a node. A thread cannot be stopped: a cancelled task waits for it, or dies with the process."""
    context = copy_context()
    running = asyncio.get_running_loop().run_in_executor(None, lambda: context.run(function, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


async def in_threads(chunks: Generator[Any, None, Any]) -> AsyncGenerator[Any, None]:
    """A sync generator, with each step in a thread."""
    try:
        while (chunk := await in_thread(next, chunks, _ENDED)) is not _ENDED:
            yield chunk
    finally:
        chunks.close()
