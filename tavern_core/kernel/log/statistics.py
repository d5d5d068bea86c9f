"""Statistics of tools from the audit log: calls, failures, durations."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import field
from typing import Any, Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.log.reader import LogRecord
from tavern_core.model.event import POLICY_DENIED, RETRY, TOOL_RESULT

BUCKETS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000)
"""Upper ends of the classes of the histogram; the last class has none."""
TYPES: Final = (TOOL_RESULT, POLICY_DENIED, RETRY)


@dataclass(frozen=True, slots=True)
class ToolStatistics:
    """The calls of one tool."""

    tool: str
    calls: int
    failed: int
    denied: int
    retries: int
    p50_ms: float
    p95_ms: float
    max_ms: float
    histogram: tuple[int, ...]
    """Numbers of calls by `BUCKETS_MS`; the last one is of calls that took longer."""
    errors: dict[str, int] = field(default_factory=dict)
    """Kind of error → number."""

    def to_json(self) -> dict[str, Any]:
        return {
            "tool": self.tool, "calls": self.calls, "failed": self.failed, "denied": self.denied, "retries": self.retries,
            "p50Ms": self.p50_ms, "p95Ms": self.p95_ms, "maxMs": self.max_ms, "bucketsMs": list(BUCKETS_MS),
            "histogram": list(self.histogram), "errors": dict(self.errors),
        }  # fmt: skip


def statistics_of(records: Iterable[LogRecord], tool: str = "") -> list[ToolStatistics]:
    """The tools that the records name, most called first.

    Args:
        tool: only this one; empty: all.
    """
    times: dict[str, list[float]] = {}
    errors: dict[str, Counter[str]] = {}
    denied: Counter[str] = Counter()
    retries: Counter[str] = Counter()
    for record in records:
        name = str(record.data.get("tool", ""))
        if tool and name != tool:
            continue
        if record.type == POLICY_DENIED:
            denied[name] += 1
        elif record.type == RETRY:
            retries[name] += 1
        elif record.type == TOOL_RESULT:
            took = record.data.get("durationMs")
            times.setdefault(name, []).append(float(took) if isinstance(took, int | float) else 0.0)
            error = record.data.get("error")
            if isinstance(error, dict):
                errors.setdefault(name, Counter())[str(error.get("kind", ""))] += 1
    found = []
    for name in {*times, *denied, *retries}:
        took_ms = sorted(times.get(name, ()))
        counts = [0] * (len(BUCKETS_MS) + 1)
        for one in took_ms:
            counts[bisect_left(BUCKETS_MS, one)] += 1
        kinds = errors.get(name, Counter())
        found.append(
            ToolStatistics(
                name, len(took_ms), sum(kinds.values()), denied[name], retries[name], _at(took_ms, 0.5), _at(took_ms, 0.95),
                _at(took_ms, 1.0), tuple(counts), dict(kinds.most_common()),
            )
        )  # fmt: skip
    return sorted(found, key=lambda one: (-one.calls, one.tool))


def _at(values: list[float], share: float) -> float:
    """The value below which a share of the sorted values lies; 0 without any."""
    return values[min(int(len(values) * share), len(values) - 1)] if values else 0.0
