"""Recent events of the streams of the 2025 era: a client that lost a stream resumes it with its last event.

Each session has a store of its own, because the library names streams by the ids of requests, which are the same in all
sessions. Ids of events name their stream by a random number that only its client was sent. Principals share the memory:
when it runs out, the one that uses most of it loses its oldest stream, so no client evicts the events of another.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import anyio
from mcp.server.streamable_http import EventCallback, EventId, EventMessage, EventStore, StreamId
from mcp_types import JSONRPCMessage, JSONRPCResponse
from pydantic_core import to_json

from tavern_core.server.mcp.service import ListPages

_MOST_STREAMS: Final = 2_000
_MOST_EVENTS: Final = 200
"""Limit for one stream."""
_MOST_BYTES: Final = 64_000_000


class _StoredStream:
    def __init__(self, session: SessionEvents, id_: StreamId) -> None:
        self.session = session
        self.id = id_
        self.name = secrets.token_hex(12)
        self.numbers = itertools.count(1)
        self.events: deque[tuple[int, JSONRPCMessage | None, bytes | None, int]] = deque()
        """Number, message, the page that it names, bytes."""
        self.size = 0
        """Bytes of `events`."""
        self.resumed: EventCallback | None = None
        """Sends to the connection that resumed it last."""

    def add(self, message: JSONRPCMessage | None, page: bytes | None) -> int:
        """Keep an event and return its number. If there are too many, the oldest is dropped."""
        number, size = next(self.numbers), 0 if message is None else len(to_json(message))
        self.events.append((number, message, page, size))
        self.size += size
        if len(self.events) > _MOST_EVENTS:
            self.size -= self.events.popleft()[3]
        return number

    def after(self, number: int) -> tuple[int, JSONRPCMessage, bytes | None] | None:
        """The first message after an event: its number, the message, the page that it names."""
        for event_number, message, page, _ in self.events:
            if event_number > number and message is not None:
                return event_number, message, page
        return None


class RecentEvents:
    """The events of one process, in memory: a session does not outlive it either.

    Args:
        pages: the pages of lists that events name.
    """

    def __init__(self, pages: ListPages) -> None:
        self.pages = pages
        self._streams: OrderedDict[str, _StoredStream] = OrderedDict()
        """The stream with the most recent event is the last one."""
        self._numbers: Counter[str] = Counter()
        """Principal → its streams."""
        self._sizes: Counter[str] = Counter()
        """Principal → bytes of its streams."""

    def find(self, name: str) -> _StoredStream | None:
        """The stream of a name; None: it is not known any more."""
        return self._streams.get(name)

    def add(self, stream: _StoredStream, message: JSONRPCMessage | None, page: bytes | None) -> int:
        """Keep an event of a stream and return its number. When the memory runs out, streams are dropped."""
        owner, before = stream.session.owner, stream.size
        if stream.name not in self._streams:
            self._numbers[owner] += 1
        self._streams[stream.name] = stream
        self._streams.move_to_end(stream.name)
        number = stream.add(message, page)
        self._sizes[owner] += stream.size - before
        while len(self._streams) > _MOST_STREAMS:
            self._drop(self._numbers)
        while len(self._streams) > 1 and self._sizes.total() > _MOST_BYTES:
            self._drop(self._sizes)
        return number

    def _drop(self, shares: Counter[str]) -> None:
        """Drop the oldest stream of the principal with the largest share."""
        [(principal, _)] = shares.most_common(1)
        dropped = next(stream for stream in self._streams.values() if stream.session.owner == principal)
        del self._streams[dropped.name]
        self._numbers[principal] -= 1
        self._sizes[principal] -= dropped.size
        if not self._numbers[principal]:
            del self._numbers[principal], self._sizes[principal]
        dropped.session.forget(dropped)


class SessionEvents(EventStore):
    """The events of one session.

    Args:
        owner: the principal whose session it is.
    """

    def __init__(self, recent: RecentEvents, owner: str) -> None:
        self.owner = owner
        self.is_followed: Callable[[StreamId], bool] = lambda stream_id: True
        """Whether the library sends the events of a stream to a connection. Set when the session is admitted: the library builds the
        transport, which knows it, and wants its store before."""
        self._recent = recent
        self._streams: dict[StreamId, _StoredStream] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        """Keep an event and return its id."""
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = self._streams[stream_id] = _StoredStream(self, stream_id)
        event_id = f"{stream.name}-{self._recent.add(stream, message, self._page_of(message))}"
        if message is not None and stream.resumed is not None and not self.is_followed(stream_id):
            # It came after the earlier ones were sent again, and before the library follows the stream: no one else sends it.
            sending = asyncio.ensure_future(_send(stream.resumed, EventMessage(message, event_id)))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)
        return event_id

    async def replay_events_after(self, last_event_id: EventId, send_callback: EventCallback) -> StreamId | None:
        """Send the events after an event; returns its stream, or None if this session has no such stream any more."""
        name, _, number = last_event_id.partition("-")
        stream = self._recent.find(name)
        if stream is None or stream.session is not self or not (number.isdecimal() and len(number) < 20):
            return None
        last = int(number)
        while (event := stream.after(last)) is not None:  # also what comes while the earlier ones are sent
            last, message, page = event
            if page is not None:
                self._recent.pages.name(page)  # it may have been forgotten since
            await send_callback(EventMessage(message, f"{name}-{last}"))
        stream.resumed = send_callback
        return stream.id

    def forget(self, stream: _StoredStream) -> None:
        """Remove a stream that was dropped."""
        self._streams.pop(stream.id, None)

    def _page_of(self, message: JSONRPCMessage | None) -> bytes | None:
        result: Any = message.result if isinstance(message, JSONRPCResponse) else {}
        tools = result.get("tools") if isinstance(result, dict) else None
        return self._recent.pages.page(tools) if isinstance(tools, str) else None


async def _send(send: EventCallback, event: EventMessage) -> None:
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # its client has gone, and comes back for it
        await send(event)
