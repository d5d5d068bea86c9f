"""What happened in a run, numbered from 1 on, for everybody who wants to know, when they want to know it.

How much a node gave is measured only when somebody reads of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from tavern_core.contract.nodes import Skip
from tavern_core.kernel.engine.values import weight
from tavern_core.model.run import RunEvent

Took = tuple[float, Mapping[str, Any] | None]
"""(when the node began, 0 if it did not; what it gave), of a node that has ended."""


class EventLog:
    """The events of one run.

    Args:
        before: how many events there are of a run that is taken up.
        earlier: reads those of them behind a number.
    """

    __slots__ = ("_before", "_earlier", "_events", "_listeners")

    def __init__(self, before: int = 0, earlier: Callable[[int], list[RunEvent]] = lambda after: []) -> None:
        self._before = before
        self._earlier = earlier
        self._events: list[tuple[float, str, str, Mapping[str, Any] | Took | None]] = []
        self._listeners: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return self._before + len(self._events)

    @property
    def is_followed(self) -> bool:
        """True while somebody listens."""
        return bool(self._listeners)

    def note(self, kind: str, path: str, data: Mapping[str, Any] | Took | None = None) -> float:
        """Something happened. Returns when: seconds since the epoch."""
        now = time.time()
        self._events.append((now, kind, path, data))
        if self._listeners:
            for listener in tuple(self._listeners):
                listener()
        return now

    def read(self, after: int = 0) -> list[RunEvent]:
        """What happened behind the event with the number `after`."""
        before = self._before
        found = [event for event in self._earlier(after) if event.seq <= before] if after < before else []
        first = max(after - before, 0)
        for at, (now, kind, path, data) in enumerate(self._events[first:], first):
            if type(data) is tuple:
                data = _measured(now, *data)
                self._events[at] = now, kind, path, data
            found.append(RunEvent(before + at + 1, now, kind, path, data or {}))  # type: ignore[arg-type]
        return found

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after each event, on the run's loop; returns what ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None


def _measured(ended: float, began: float, outputs: Mapping[str, Any] | None) -> dict[str, Any]:
    data: dict[str, Any] = {"durationMs": max(0.0, round((ended - began) * 1000, 3))} if began else {}
    if outputs is not None:
        data["bytes"] = sum(weight(value, 0) for value in outputs.values() if value is not Skip)
    return data
