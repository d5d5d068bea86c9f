"""What streams of the 2025 era sent lately: a client that lost one comes back with the last event that it has, and gets the rest.

Each session has a store of its own, because the library names streams by the ids of requests, which are the same in all
sessions. Ids of events name their stream by a random number that only its client was sent.
"""

from __future__ import annotations

import itertools
import secrets
from collections import OrderedDict, deque
from typing import Any, Final

from mcp.server.streamable_http import EventCallback, EventId, EventMessage, EventStore, StreamId
from mcp_types import JSONRPCMessage, JSONRPCResponse
from pydantic_core import to_json

from tavern_core.server.mcp.service import Pages

_MOST_STREAMS: Final = 2_000
_MOST_EVENTS: Final = 200
"""Of one stream."""
_MOST_BYTES: Final = 64_000_000


class _Stream:
    def __init__(self, session: SessionEvents, id_: StreamId) -> None:
        self.session = session
        self.id = id_
        self.name = secrets.token_hex(12)
        self.numbers = itertools.count(1)
        self.events: deque[tuple[int, JSONRPCMessage | None, bytes | None]] = deque(maxlen=_MOST_EVENTS)
        self.size = 0
        """Bytes of all that it was sent."""


class RecentEvents:
    """The events of one process, in memory: a session does not outlive it either. What was sent longest ago is dropped first.

    Args:
        pages: of lists, which events name.
    """

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._size = 0

    def find(self, name: str) -> _Stream | None:
        """The stream of a name; None: it is not known any more."""
        return self._streams.get(name)

    def grown(self, stream: _Stream, size: int) -> None:
        """A stream was sent something: it is the last one to be dropped."""
        self._streams[stream.name] = stream
        self._streams.move_to_end(stream.name)
        stream.size += size
        self._size += size
        while len(self._streams) > 1 and (len(self._streams) > _MOST_STREAMS or self._size > _MOST_BYTES):
            _, dropped = self._streams.popitem(last=False)
            self._size -= dropped.size
            dropped.session.forget(dropped)


class SessionEvents(EventStore):
    """The events of one session."""

    def __init__(self, recent: RecentEvents) -> None:
        self._recent = recent
        self._streams: dict[StreamId, _Stream] = {}

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        """Keep an event; its id."""
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = self._streams[stream_id] = _Stream(self, stream_id)
        number = next(stream.numbers)
        stream.events.append((number, message, self._page_of(message)))
        self._recent.grown(stream, 0 if message is None else len(to_json(message)))
        return f"{stream.name}-{number}"

    async def replay_events_after(self, last_event_id: EventId, send_callback: EventCallback) -> StreamId | None:
        """Send what followed an event; the stream that it belongs to, None: this session has no such stream any more."""
        name, _, number = last_event_id.partition("-")
        stream = self._recent.find(name)
        if stream is None or stream.session is not self or not (number.isdecimal() and len(number) < 20):
            return None
        for known, message, page in list(stream.events):
            if known > int(number) and message is not None:
                if page is not None:
                    self._recent.pages.name(page)  # it may have been forgotten since
                await send_callback(EventMessage(message, f"{name}-{known}"))
        return stream.id

    def forget(self, stream: _Stream) -> None:
        """One of its streams was dropped."""
        self._streams.pop(stream.id, None)

    def _page_of(self, message: JSONRPCMessage | None) -> bytes | None:
        result: Any = message.result if isinstance(message, JSONRPCResponse) else {}
        tools = result.get("tools") if isinstance(result, dict) else None
        return self._recent.pages.page(tools) if isinstance(tools, str) else None
