"""What streams of the 2025 era sent lately: a client that lost one comes back with the last event that it has, and gets the rest.

Ids name their stream by a random number that only its client was sent, so that no client can request another's events.
"""

from __future__ import annotations

import itertools
import secrets
from collections import OrderedDict, deque
from typing import Any, Final

from mcp.server.streamable_http import EventCallback, EventId, EventMessage, EventStore, StreamId
from mcp_types import JSONRPCMessage, JSONRPCResponse

from tavern_core.server.mcp.service import Pages

_MOST_STREAMS: Final = 2_000
_MOST_EVENTS: Final = 200
"""Of one stream."""


class _Stream:
    def __init__(self, id_: StreamId) -> None:
        self.id = id_
        self.name = secrets.token_hex(12)
        self.numbers = itertools.count(1)
        self.events: deque[tuple[int, JSONRPCMessage | None, bytes | None]] = deque(maxlen=_MOST_EVENTS)


class RecentEvents(EventStore):
    """The events of one process, in memory: a session does not outlive it either.

    Args:
        pages: of lists, which events name.
    """

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._streams: OrderedDict[StreamId, _Stream] = OrderedDict()
        self._names: dict[str, _Stream] = {}

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        """Keep an event; its id."""
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = self._streams[stream_id] = _Stream(stream_id)
            self._names[stream.name] = stream
            if len(self._streams) > _MOST_STREAMS:
                self._names.pop(self._streams.popitem(last=False)[1].name)
        number = next(stream.numbers)
        stream.events.append((number, message, self._page_of(message)))
        return f"{stream.name}-{number}"

    async def replay_events_after(self, last_event_id: EventId, send_callback: EventCallback) -> StreamId | None:
        """Send what followed an event; the stream that it belongs to, None: it is not known any more."""
        name, _, number = last_event_id.partition("-")
        stream = self._names.get(name)
        if stream is None or not number.isdecimal():
            return None
        for known, message, page in list(stream.events):
            if known > int(number) and message is not None:
                if page is not None:
                    self._pages.name(page)  # it may have been forgotten since
                await send_callback(EventMessage(message, f"{name}-{known}"))
        return stream.id

    def _page_of(self, message: JSONRPCMessage | None) -> bytes | None:
        result: Any = message.result if isinstance(message, JSONRPCResponse) else {}
        tools = result.get("tools") if isinstance(result, dict) else None
        return self._pages.page(tools) if isinstance(tools, str) else None
