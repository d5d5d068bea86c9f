"""The events of a host, numbered and kept for a while, for the clients of a server.

    tavern.events (any thread) ──> waiting events ──> kept events ──> one position per client

A client has no queue of its own: it has a position among the kept events. A client whose position was dropped was too slow, and
loses its connection. So memory is bounded, whatever clients do: waiting and kept events have the same limits.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from pydantic_core import to_json

from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.log.recorder import Events
from tavern_core.model.event import Event
from tavern_core.model.result import iso_utc

CONNECTED: Final = "CONNECTED"
"""The first message of a stream: from here on the client gets everything. Its `id` is that of the event before."""
EVENTS_LOST: Final = "EVENTS_LOST"
"""The event from which the client wants to continue is not known any more: some events may be missing."""
_MOST_OWNERS: Final = 20_000
_IDS: Final = ("runId", "run", "job")
"""Members of events that say to which run or job they belong, besides the call."""


@dataclass(frozen=True, slots=True)
class FeedMessage:
    """An event as clients get it."""

    id: str
    text: str
    """JSON."""
    owner: tuple[str, str] | None
    """Principal and user id; None: not known, so only for those who see all events."""


@dataclass(frozen=True, slots=True)
class _PendingEvent:
    """An event that waits for its number."""

    event: Event
    members: str


class EventFeedReader:
    """The position of one client."""

    def __init__(self, position: int, *, is_behind: bool) -> None:
        self.position = position
        """Number of the next event."""
        self.is_behind = is_behind
        """Events before `position` may be missing."""
        self.cut: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the client was too slow."""


class EventFeed:
    """The events of one host from the first reader on. All methods belong to one event loop.

    Args:
        most: maximum number of kept events.
        most_bytes: their maximum size.
    """

    def __init__(self, events: Events, most: int, most_bytes: int) -> None:
        self._events = events
        self._most, self._most_bytes = most, most_bytes
        self._name = secrets.token_hex(6)
        """Part of every id: a client that comes back to another process is not taken for one that missed nothing."""
        self._kept: deque[FeedMessage] = deque()
        self._first = 1
        """Number of the oldest kept event."""
        self._bytes = 0
        self._owners: OrderedDict[str, tuple[str, str]] = OrderedDict()
        """Id of a call, run or job → its owner."""
        self._waiting: deque[_PendingEvent] = deque()
        self._waiting_bytes = 0
        self._has_overrun = False
        """Waiting events were dropped."""
        self._lock = threading.Lock()
        self._readers: set[EventFeedReader] = set()
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: Callable[[], None] = lambda: None
        self.is_closed = False

    @property
    def readers(self) -> int:
        """The number of clients."""
        return len(self._readers)

    @contextmanager
    def reading(self, since: str) -> Iterator[EventFeedReader]:
        """Register a client while the context is open.

        Args:
            since: id of the last event that it has; empty: it wants what happens from now on.
        """
        self._begin()
        position, is_behind = self._position(since)
        reader = EventFeedReader(position, is_behind=is_behind)
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)

    def first_messages(self, reader: EventFeedReader) -> list[FeedMessage]:
        """The first messages of a stream."""
        id_ = self._id(reader.position - 1)
        connected = FeedMessage(id_, json.dumps({"type": CONNECTED, "id": id_, "payload": {}}), None)
        lost = FeedMessage(id_, json.dumps({"type": EVENTS_LOST, "id": id_, "payload": {}}), None)
        return [connected, lost] if reader.is_behind else [connected]

    def next(self, reader: EventFeedReader) -> FeedMessage | None:
        """The next event of a reader; None: there is none yet."""
        if not self._first <= reader.position <= self._last:
            return None
        reader.position += 1
        return self._kept[reader.position - 1 - self._first]

    async def wait(self, reader: EventFeedReader, seconds: float) -> bool:
        """Wait until there is an event behind the position of a reader, or the feed is closed; False: the time is over."""
        if self.is_closed or reader.position <= self._last:
            return True
        try:
            async with asyncio.timeout(seconds):
                return await self._changed.wait()
        except TimeoutError:
            return False

    def close(self) -> None:
        """End the feed; its readers end."""
        self._end()
        self.is_closed = True
        self._changed.set()

    # Events --------------------------------------------------------------------------------------------------------------

    @property
    def _last(self) -> int:
        return self._first + len(self._kept) - 1

    def _id(self, number: int) -> str:
        return f"{self._name}-{number}"

    def _position(self, since: str) -> tuple[int, bool]:
        """The number from which on a client gets events, and whether it may have missed some."""
        if not since:
            return self._last + 1, False
        name, _, number = since.rpartition("-")
        if name == self._name and number.isascii() and number.isdecimal() and len(number) < 20:
            wanted = int(number) + 1
            if self._first <= wanted <= self._last + 1:
                return wanted, False
        return self._first, True

    def _begin(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._end = self._events.subscribe(self._on_event)

    def _on_event(self, event: Event) -> None:
        """Queue an event. Called on the thread that caused it."""
        pending = _PendingEvent(event, _members(event))
        with self._lock:
            self._waiting.append(pending)
            self._waiting_bytes += len(pending.members)
            if self._is_too_much(len(self._waiting), self._waiting_bytes):
                self._waiting.clear()
                self._waiting_bytes, self._has_overrun = 0, True
            elif len(self._waiting) > 1:  # the loop is about to look
                return
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        """Keep a part of the waiting events, on the loop, so that quick clients get them before they are dropped."""
        with self._lock:
            taken: list[_PendingEvent] = []
            size = 0
            while self._waiting and not self._is_too_much(4 * len(taken), 4 * size):
                taken.append(self._waiting.popleft())
                size += len(taken[-1].members)
            self._waiting_bytes -= size
            has_more, has_overrun, self._has_overrun = bool(self._waiting), self._has_overrun, False
        if has_overrun:
            self._first, self._bytes = self._last + 2, 0
            self._kept.clear()
        for each in taken:
            self._keep(each)
        for reader in list(self._readers):
            if reader.position < self._first:
                self._readers.discard(reader)
                reader.cut.set_result(None)
        self._changed.set()
        self._changed = asyncio.Event()
        if has_more and self._loop is not None:
            self._loop.call_soon(self._take)

    def _is_too_much(self, count: int, size: int) -> bool:
        return count > self._most or (size > self._most_bytes and count > 1)

    def _keep(self, pending: _PendingEvent) -> None:
        number = self._last + 1
        id_ = self._id(number)
        text = f'{{"seq":{number},"id":"{id_}",{pending.members}'
        self._kept.append(FeedMessage(id_, text, self._owner(pending.event)))
        self._bytes += len(text)
        while self._is_too_much(len(self._kept), self._bytes):
            self._bytes -= len(self._kept.popleft().text)
            self._first += 1

    def _owner(self, event: Event) -> tuple[str, str] | None:
        """The owner of an event: from the event itself, or from an earlier one of the same call, run or job."""
        data = event.data
        ids = [id_ for id_ in (event.call_id, *(data.get(name) for name in _IDS)) if isinstance(id_, str) and id_]
        owner = next((self._owners[id_] for id_ in ids if id_ in self._owners), None)
        principal = data.get("principal")
        if isinstance(principal, str) and (owner is None or owner[0] != principal):
            owner = (principal, str(data.get("userId") or ""))
        if owner is not None:
            for id_ in ids:
                self._owners.setdefault(id_, owner)
            while len(self._owners) > _MOST_OWNERS:
                self._owners.popitem(last=False)
        return owner


def _members(event: Event) -> str:
    """The members of the message of an event, without its number, and the end of the object."""
    message = {
        "type": event.type,
        "time": iso_utc(event.time),
        "callId": event.call_id or None,
        "plugin": event.plugin or None,
        "payload": event.data,
    }
    try:
        return to_json(message, inf_nan_mode="null", fallback=str)[1:].decode()
    except ValueError:  # a lone surrogate in a name
        return json.dumps(message, default=str)[1:]
