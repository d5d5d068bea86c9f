"""A streaming call: both sides send chunks on its connection until the worker answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from tavern_core.isolation.error_codec import pack_error
from tavern_core.isolation.node_codec import VALUES
from tavern_core.isolation.stream_window import Outbox, ReceivedChunks, SendCredit
from tavern_core.isolation.transport import BrokenChannel, FrameChannel, FrameDecoder, validated_message
from tavern_core.isolation.worker_client import GRACE_S, PendingRequest, WorkerClient
from tavern_core.isolation.worker_process import CALL_ENDLESS
from tavern_core.kernel.calls.running_call import current

_ANSWERED = ("ok", "error")


class StreamingRequest:
    """The streaming call of a request.

    Args:
        pending: the request, as far as it was written.
        streams: the streams that the worker's node reads, by their number in the request.
    """

    def __init__(
        self,
        worker: WorkerClient,
        pending: PendingRequest,
        channel: FrameChannel,
        streams: Sequence[AsyncIterator[Any]],
    ) -> None:
        self._worker = worker
        self._number = pending.number
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._incoming = FrameDecoder(channel.limit)
        self._out = Outbox(channel, self._loop)
        self._chunks = ReceivedChunks()
        self._rooms = [SendCredit() for _ in streams]
        self._answer: dict[str, Any] | None = None
        self._channel_error: BrokenChannel | None = None
        self._is_let_go = False
        self._ended: asyncio.Future[None] = self._loop.create_future()
        if pending.frame:
            self._out.put(pending.frame)
        self._loop.add_reader(channel.fd, self._listen)
        self._feeders = [self._loop.create_task(self._feed(at, stream)) for at, stream in enumerate(streams)]

    async def chunks(self) -> AsyncIterator[Any]:
        """The output chunks of the worker's node, one by one; a slow reader blocks it. Ends with the answer or an error."""
        while True:
            try:
                chunk, count = await self._chunks.next()
            except StopAsyncIteration:
                return
            if count:
                self._send({"id": self._number, "room": count})
            yield chunk

    async def answer(self) -> Any:
        """The answer, after all chunks were consumed.

        Raises:
            Exception: the error of the plugin's code, or UpstreamError if the worker died (UPSTREAM_ERROR).
        """
        await self._ended
        is_free = await self._stop_sending()
        if self._channel_error is not None:
            await self._loop.run_in_executor(None, self._worker.report_end, self._channel_error)
            self._is_let_go = True
            raise self._worker.error_of_channel(
                self._channel, "loop", self._channel_error, delivered=True
            ) from self._channel_error
        self._let_go(is_free)
        assert self._answer is not None
        return self._worker.value_of(self._answer)

    async def stop(self) -> None:
        """Abandon it: if it is not answered, cancel it gently, and then end its process."""
        if self._is_let_go:
            return
        if not self._ended.done():
            self._worker.send_now({"cancel": self._number})
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([self._ended], timeout=GRACE_S)
        is_free = await self._stop_sending()
        self._let_go(is_free and self._answer is not None)
        if self._answer is None:
            self._worker.kill(CALL_ENDLESS)

    async def _stop_sending(self) -> bool:
        """Stop sending and receiving; returns whether the connection is free for another call."""
        self._loop.remove_reader(self._channel.fd)
        for feeder in self._feeders:
            feeder.cancel()
        if self._feeders:
            await asyncio.wait(self._feeders)
        self._worker.frames.pop(self._number, None)
        is_free = self._incoming.is_whole and self._out.is_empty
        self._out.close()
        return is_free

    def _let_go(self, is_free: bool) -> None:
        self._is_let_go = True
        (self._worker.give_back if is_free else self._worker.drop)(self._channel, "loop")

    def _listen(self) -> None:
        """Handle received data."""
        try:
            for message in self._incoming.feed(self._channel.received()):
                self._receive(message)
        except (BrokenChannel, ValueError, TypeError, KeyError, IndexError) as error:
            self._end(
                error
                if isinstance(error, BrokenChannel)
                else BrokenChannel(f"a message that is not part of a stream: {error!r:.100}")
            )

    def _receive(self, message: dict[str, Any]) -> None:
        if self._answer is not None or message.get("id") != self._number:
            raise BrokenChannel("an answer without a request")
        if any(key in message for key in _ANSWERED):
            self._answer = message
            self._end(None)
        elif "chunk" in message:
            self._chunks.put(validated_message(message["chunk"]))
        elif "took" in message:
            self._rooms[_number(message["took"])].give(message["count"])
        else:
            self._feeders[_number(message["left"])].cancel()

    def _end(self, broken: BrokenChannel | None) -> None:
        self._channel_error = broken
        self._loop.remove_reader(self._channel.fd)
        self._chunks.end()
        if not self._ended.done():
            self._ended.set_result(None)

    async def _feed(self, at: int, stream: AsyncIterator[Any]) -> None:
        """Forward the chunks of one stream, as fast as the node consumes them."""
        end: dict[str, Any] = {"end": True}
        try:
            await self._rooms[at].take()
            async for chunk in stream:
                self._send({"id": self._number, "in": at, "chunk": VALUES.encode(chunk)})
                await self._rooms[at].take()
        except Exception as error:  # noqa: BLE001 - its writer has failed; the reading node gets the error
            end = {"error": pack_error(error)}
        finally:
            await stream.aclose()  # type: ignore[attr-defined]
        self._send({"id": self._number, "in": at, **end})

    def _send(self, message: dict[str, Any]) -> None:
        if self._answer is None and self._channel_error is None:
            with contextlib.suppress(BrokenChannel):  # the reader gets the error
                self._out.send(message)


async def begin_node(
    worker: WorkerClient, given: Mapping[str, Any], streams: Sequence[AsyncIterator[Any]]
) -> StreamingRequest:
    """Run a node whose answer is streamed. Raises Undelivered: the worker had already died."""
    pending = worker.begin_request("node", given, "loop")
    if (channel := pending.channel) is None:
        channel = await worker.take_later("loop")
        worker.frames[pending.number] = current.get()
    if pending.error is not None:
        worker.frames.pop(pending.number, None)
        await asyncio.get_running_loop().run_in_executor(None, worker.report_end, pending.error)
        raise worker.error_of_channel(channel, "loop", pending.error, delivered=False)
    return StreamingRequest(worker, pending, channel, streams)


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise BrokenChannel("the number of a stream that it does not have")
    return value
