"""The events of a run, numbered from 1, for any subscriber at any time.

The size of outputs is only measured when an event is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from tavern_core.flow.engine.node_value_encoding import size
from tavern_core.model.run import RunEvent

Took = tuple[float, Mapping[str, Any] | int | None]
"""For a node that has ended: (when it began, 0 if it did not; its outputs, or their size)."""
EventRow = tuple[int, float, str, str, Mapping[str, Any] | Took | None]
"""An event: its number, when, kind, path, data; for a node that has ended, the data are computed when they are read."""


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
