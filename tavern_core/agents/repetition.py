"""Detects agents that repeat themselves. Pure; the same run gives the same findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.plain_data import json_digest
from tavern_core.model.result import ToolError, ToolResult

WARN_AT: Final = 2
"""After this many equal calls with equal results, or equal errors of a tool, the model is warned."""
STOP_AT: Final = 3
"""After this many, the run stops."""
_TAIL: Final = 4_000
"""Characters at the end of an answer that are searched for repetition."""
_LONGEST_PERIOD: Final = 400


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call of the past."""

    tool: str
    arguments: Mapping[str, Any]
    result: ToolResult
    reads: bool
    """Whether its tool only reads."""


class Repetition:
    """Counts repetitions.

    A new call that changed something resets the counts: repeating an earlier call may now have another result.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._problems: Counter[str] = Counter()
        self._seen_calls: set[str] = set()

    def see(self, calls: Iterable[PastCall]) -> int:
        """Count the calls of one step, equal ones once; return the count of the most frequent call or error."""
        digests: set[str] = set()
        for past in calls:
            result = past.result
            call = json_digest([past.tool, past.arguments])
            self._problems.clear()
            if result.ok and not past.reads and call not in self._seen_calls:
                self._counts.clear()
            self._seen_calls.add(call)
            digests.add(json_digest([call, result.ok, result.value, list(result.content)]))
            if (error := result.error) is not None:
                digests.add(json_digest([past.tool, error.kind, _stable(error)]))
        self._counts.update(digests)
        return max((self._counts[each] for each in digests), default=0)

    def problem(self, code: str) -> int:
        """Count an answer without a valid call; return how many there were since the last call."""
        self._problems[code] += 1
        return self._problems[code]

    def forget(self) -> None:
        """Reset the counts, because the model has lost results from its context and may request them again."""
        self._counts.clear()
        self._problems.clear()


def _stable(error: ToolError) -> str:
    """The part of an error that is equal whenever it occurs again: the message of a used-up budget counts the calls."""
    if error.kind == "BUDGET_EXCEEDED" and not error.retryable and (limit := error.details.get("limit")):
        return str(limit)
    return error.message


def is_looping(text: str) -> bool:
    """Whether the end of a text repeats one short passage."""
    tail = text[-_TAIL:]
    if len(tail) < _TAIL:
        return False
    size = _TAIL - _LONGEST_PERIOD
    period = tail.find(tail[:size], 1)
    return 0 < period <= _LONGEST_PERIOD and tail[period:] == tail[: _TAIL - period]
