"""The events of a run, numbered from 1, for any subscriber at any time.

The size of outputs is only measured when an event is read. The text of stream chunks is without known secrets, even if
a secret is split between chunks: a possible prefix of one is emitted with the next chunk, or when the node ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from tavern_core.flow.engine.node_value_encoding import size
from tavern_core.kernel.settings.secret_masking import KnownSecrets
from tavern_core.model.run import RunEvent
from tavern_core.schema.secret_encodings import StreamRedactor, secret_redactor

Took = tuple[float, Mapping[str, Any] | int | None]
"""For a node that has ended: (its start, 0 if there was none; its outputs, or their size)."""
EventRow = tuple[int, float, str, str, Mapping[str, Any] | Took | None]
"""An event: its number, time, kind, path, data; for a node that has ended, the data are computed when they are read."""


class RunEventLog:
    """The events of one run.

    Args:
        before: the number of earlier events of a resumed run.
        earlier: reads those after a number.
    """

    __slots__ = ("_earlier", "_events", "_listeners", "before")

    def __init__(self, before: int = 0, earlier: Callable[[int], list[RunEvent]] = lambda after: []) -> None:
        self.before = before
        self._earlier = earlier
        self._events: list[EventRow] = []
        self._listeners: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return self.before + len(self._events)

    @property
    def is_followed(self) -> bool:
        """True while there are listeners."""
        return bool(self._listeners)

    def add(self, kind: str, path: str, data: Mapping[str, Any] | Took | None = None) -> float:
        """Add an event. Returns its time in seconds since the epoch."""
        now = time.time()
        events = self._events
        events.append((self.before + len(events) + 1, now, kind, path, data))
        if self._listeners:
            for listener in tuple(self._listeners):
                listener()
        return now

    def read(self, after: int = 0) -> list[RunEvent]:
        """The events after number `after`."""
        earlier = [event for event in self._earlier(after) if event.seq <= self.before] if after < self.before else []
        return [*earlier, *(RunEvent(*row[:4], row[4] or {}) for row in self.rows(after))]  # type: ignore[arg-type]

    def rows(self, after: int = 0) -> list[EventRow]:
        """The same as raw rows, without events from before the run was resumed."""
        events, first = self._events, max(after - self.before, 0)
        for at in range(first, len(events)):
            number, now, kind, path, data = events[at]
            if type(data) is tuple:
                events[at] = number, now, kind, path, _measured(now, *data)
        return events[first:]

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after each event, on the run's loop; returns a function that ends the subscription."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None


def _measured(ended: float, began: float, outputs: Mapping[str, Any] | int | None) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if began:
        data["durationMs"] = int((ended - began) * 1e6 + 0.5) / 1000 if ended > began else 0.0
    if isinstance(outputs, int):
        data["bytes"] = outputs
    elif outputs is not None:
        data["bytes"] = size(outputs)
    return data


LONGEST_CHUNK: Final = 4_000
"""Maximum characters of one chunk in an event."""


class ChunkRedactor:
    """The streams of one run."""

    def __init__(self, known: KnownSecrets) -> None:
        self._known = known
        self._streams: dict[str, dict[str, StreamRedactor]] = {}
        self._numbers: dict[str, int] = {}

    def __bool__(self) -> bool:
        """True while something may be held back."""
        return bool(self._streams)

    def reported(self, path: str, number: int, chunks: Mapping[str, Any]) -> dict[str, str | None]:
        """The text of chunks of the node at `path` that may be emitted; None for other data."""
        known = self._known.values
        if not known and path not in self._streams:
            return {key: value[:LONGEST_CHUNK] if isinstance(value, str) else None for key, value in chunks.items()}
        self._numbers[path] = max(number, self._numbers.get(path, 0))
        streams = self._streams.setdefault(path, {})
        texts: dict[str, str | None] = {}
        for key, value in chunks.items():
            if isinstance(value, str):
                if key not in streams:
                    streams[key] = StreamRedactor(secret_redactor(known))
                texts[key] = streams[key].feed(value)[:LONGEST_CHUNK]
            else:
                texts[key] = None
        return texts

    def rest(self, path: str) -> Iterator[tuple[int, dict[str, str | None]]]:
        """The remaining (number, chunks) of a node that has ended."""
        streams = self._streams.pop(path, {})
        number = self._numbers.pop(path, 0)
        remaining: dict[str, str | None] = {
            key: text[:LONGEST_CHUNK] for key, stream in streams.items() if (text := stream.end())
        }
        if remaining:
            yield number + 1, remaining
