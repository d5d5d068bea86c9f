"""Detects agents that go round in circles. Pure; the same run gives the same findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.plain_data import json_digest
from tavern_core.model.result import ToolResult

WARN_AT: Final = 2
"""The same call with the same result, or the same error of the same tool: so often, and the model is warned."""
STOP_AT: Final = 3
"""So often, and the run stops."""
_TAIL: Final = 4_000
"""Characters at the end of an answer that are searched for repetition."""
_LONGEST_PERIOD: Final = 400


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call that was made."""

    tool: str
    arguments: Mapping[str, Any]
    result: ToolResult
    reads: bool
    """Whether its tool only reads."""


class Repetition:
    """Counts what repeats itself.

    What is counted is forgotten when a call that had not been made before changed something: the world may be another one.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._problems: Counter[str] = Counter()
        self._known: set[str] = set()

    def see(self, calls: Iterable[PastCall]) -> int:
        """Count the calls of one step, equal ones once; returns how often the most frequent of them, or its error, has occurred."""
        seen: set[str] = set()
        for made in calls:
            result = made.result
            call = json_digest([made.tool, made.arguments])
            self._problems.clear()
            if result.ok and not made.reads and call not in self._known:
                self._counts.clear()
            self._known.add(call)
            seen.add(json_digest([call, result.ok, result.value, list(result.content)]))
            if (error := result.error) is not None:
                seen.add(json_digest([made.tool, error.kind, error.message]))
        self._counts.update(seen)
        return max((self._counts[each] for each in seen), default=0)

    def problem(self, code: str) -> int:
        """Count an answer that led to no call; returns how often this has happened since the last call."""
        self._problems[code] += 1
        return self._problems[code]

    def forget(self) -> None:
        """The model has lost results from its context, and may ask for them again."""
        self._counts.clear()
        self._problems.clear()


def is_looping(text: str) -> bool:
    """Whether the end of a text is one short passage over and over."""
    tail = text[-_TAIL:]
    if len(tail) < _TAIL:
        return False
    size = _TAIL - _LONGEST_PERIOD
    period = tail.find(tail[:size], 1)
    return 0 < period <= _LONGEST_PERIOD and tail[period:] == tail[: _TAIL - period]
