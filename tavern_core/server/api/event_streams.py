"""Events for clients: as Server-Sent Events and over a WebSocket, with the same messages.

A stream ends when its token does, when its client is too slow, and when the server closes.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from tavern_core.server.api.event_feed import EventFeedReader
from tavern_core.server.api.exchange import Exchange
from tavern_core.server.api.problem import RequestFailed
from tavern_core.server.listening import ABORT
from tavern_core.server.request_access import has_role

SUBPROTOCOL: Final = "tavern"
"""The subprotocol to accept if a WebSocket offers it: browsers insist on an answer to their offer."""
_BEAT_S: Final = 15.0
"""After so long without an event the token is checked, and SSE clients get a sign of life."""
_GOING_AWAY, _UNSUPPORTED, _POLICY = 1001, 1003, 1008
_REASONS: Final = {
    _GOING_AWAY: "the server closes",
    _UNSUPPORTED: "this server only sends",
    _POLICY: "the token is not valid any more",
}
"""Why a WebSocket is closed (RFC 6455)."""


class ServerSentEvents:
    """Sends messages to a client over HTTP."""

    async def start(self, send: Send) -> None:
        """Begin the answer."""
        headers = [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def put(self, send: Send, text: str, id_: str) -> None:
        """Send one message."""
        await self._write(send, f"id: {id_}\ndata: {text}\n\n")

    async def beat(self, send: Send) -> None:
        """Send a sign of life."""
        await self._write(send, ": nothing new\n\n")

    async def finish(self, send: Send, code: int) -> None:
        """End the stream, with a code of WebSockets."""
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def listen(self, receive: Receive) -> int:
        """Wait until the client goes away (0), or sends something (the code with which its connection is closed)."""
        while (await receive())["type"] != "http.disconnect":
            pass
        return 0

    async def _write(self, send: Send, text: str) -> None:
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


class WebSocketMessages:
    """Sends messages to a client over a WebSocket. The server sends pings itself."""

    def __init__(self, scope: Scope) -> None:
        self._subprotocol = SUBPROTOCOL if SUBPROTOCOL in scope.get("subprotocols", ()) else None

    async def start(self, send: Send) -> None:
        await send({"type": "websocket.accept", "subprotocol": self._subprotocol, "headers": []})

    async def put(self, send: Send, text: str, id_: str) -> None:
        await send({"type": "websocket.send", "text": text})

    async def beat(self, send: Send) -> None:
        """Send nothing: the server sends pings itself."""

    async def finish(self, send: Send, code: int) -> None:
        await send({"type": "websocket.close", "code": code, "reason": _REASONS[code]})

    async def listen(self, receive: Receive) -> int:
        while (message := await receive())["type"] != "websocket.disconnect":
            if message["type"] == "websocket.receive":
                return _UNSUPPORTED
        return 0


Wire = ServerSentEvents | WebSocketMessages


class EventStream:
    """The events of one client: an ASGI application that is called once.

    Args:
        since: id of the last event that the client has; empty: it wants what happens from now on.

    Raises:
        RequestFailed: the server has no room for another stream (BUDGET_EXCEEDED).
    """

    def __init__(self, exchange: Exchange, wire: Wire, since: str) -> None:
        self._feed, most = exchange.state.feed, exchange.state.config.streams
        if self._feed.readers >= most:
            raise RequestFailed(
                503, "BUDGET_EXCEEDED", f"there are {most} event streams already", "raise server.streams"
            )
        self._is_valid = exchange.is_valid
        self._sees_all = has_role(exchange.holder, "viewer")
        self._owner = (exchange.holder.principal, exchange.holder.user_id)
        self._wire = wire
        self._since = since

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._feed.reading(self._since) as reader:
            sending = asyncio.ensure_future(self._send_all(reader, send))
            listening = asyncio.ensure_future(self._wire.listen(receive))
            try:
                first: list[asyncio.Future[Any]] = [sending, listening, reader.cut]
                await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
                if reader.cut.done():
                    sending.cancel()
                    if abort := scope.get("state", {}).get(ABORT):  # data that the client did not read are dropped
                        abort()
                        await listening
                elif not sending.done() and (code := listening.result()):
                    sending.cancel()
                    await self._wire.finish(send, code)
            finally:
                sending.cancel()
                listening.cancel()
                await asyncio.gather(sending, listening, return_exceptions=True)

    async def _send_all(self, reader: EventFeedReader, send: Send) -> None:
        await self._wire.start(send)
        for message in self._feed.first_messages(reader):
            await self._wire.put(send, message.text, message.id)
        while not self._feed.is_closed:
            if reader.cut.done():
                return None
            is_checked = False
            while (event := self._feed.next(reader)) is not None:
                if not self._sees_all and event.owner != self._owner:
                    continue
                if not is_checked and not (is_checked := await self._is_valid()):
                    return await self._wire.finish(send, _POLICY)
                await self._wire.put(send, event.text, event.id)
            if not await self._feed.wait(reader, _BEAT_S):
                if not await self._is_valid():
                    return await self._wire.finish(send, _POLICY)
                await self._wire.beat(send)
        await self._wire.finish(send, _GOING_AWAY)
        return None


async def sse(exchange: Exchange) -> EventStream:
    """The events as `text/event-stream`."""
    since = exchange.connection.headers.get("last-event-id") or exchange.query.get("since", "")
    return EventStream(exchange, ServerSentEvents(), since)


async def websocket(exchange: Exchange) -> EventStream:
    """The events over a WebSocket."""
    return EventStream(exchange, WebSocketMessages(exchange.connection.scope), exchange.query.get("since", ""))
