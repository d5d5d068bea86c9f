"""Limits for the calls of a tool, a plugin, a caller or an upstream: rate, concurrency, and the reaction to failures.

rate: 10/minute          calls in any minute; also second, hour, day, or a number of them: 100/15minutes
concurrency: 2           calls at the same time; further ones wait in a queue
queue: 10                how many may wait
retries: 2               further attempts after a temporary failure
cacheMs: 60000           how long the answer of a tool that only reads is reused
breaker: {failures: 5, restMs: 30000}
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

from tavern_core.errors import UsageError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.naming_rules import camel

MOST_RATE: Final = 1_000_000
MOST_RETRIES: Final = 20
QUEUE: Final = 100
"""Default of `queue`: how many calls may wait."""
_UNITS: Final = {
    "second": 1,
    "s": 1,
    "minute": 60,
    "min": 60,
    "m": 60,
    "hour": 3600,
    "h": 3600,
    "day": 86400,
    "d": 86400,
}
_RATE: Final = re.compile(r"([0-9]{1,7})\s*/\s*([0-9]{0,4})\s*([a-z]+)", re.ASCII)


def parse_rate(text: str) -> tuple[int, float]:
    """``10/minute`` as (most, seconds). Raises ValueError: it is not a rate."""
    found = _RATE.fullmatch(text.strip().lower()) if isinstance(text, str) and len(text) < 40 else None
    unit = found and (
        _UNITS.get(found[3]) or (len(found[3]) > 2 and _UNITS.get(found[3].removesuffix("s")))
    )  # not `ms`
    if found is None or not unit or not (0 < int(found[1]) <= MOST_RATE) or not int(found[2] or 1):
        raise ValueError(
            f"{text!r:.60} is not a rate: write 10/minute (second, minute, hour, day; 100/15minutes; at most {MOST_RATE:,})"
        )
    return int(found[1]), float(unit * int(found[2] or 1))


@dataclass(frozen=True, slots=True)
class Breaker:
    """After so many failures in a row, calls are refused for a while; then one call tries."""

    failures: int = 5
    rest_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """Limits of a tool, a plugin, a caller or an upstream; None: no limit of that kind.

    Args:
        rate: calls in a period of time: ``"10/minute"``.
        concurrency: calls at the same time.
        queue: calls that may wait for their turn.
        retries: further attempts of one call, if a retry does no harm.
        cache_ms: how long an answer is cached, 0: not at all; only for read-only tools.
        breaker: when to stop calling a failing tool.
        inline_ms: how long a caller waits before the call becomes a job.
        attempt_ms: deadline of one attempt, for calls that may be retried.
        idle_ms: deadline since the tool last reported progress.
    """

    rate: str | None = None
    concurrency: int | None = None
    queue: int | None = None
    retries: int | None = None
    cache_ms: int | None = None
    breaker: Breaker | None = None
    inline_ms: int | None = None
    attempt_ms: int | None = None
    idle_ms: int | None = None

    def __post_init__(self) -> None:
        if self.rate is not None:
            try:
                parse_rate(self.rate)
            except ValueError as error:
                raise UsageError(f"limits: {error}", hint='rate="10/minute"') from None
        for name, least, most in _NUMBERS:
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not least <= value <= most):
                raise UsageError(
                    f"limits: {name} is {value!r:.60}; it takes a whole number from {least} to {most:,}",
                    hint="leave it out for no limit",
                )

    def over(self, below: ToolLimits) -> ToolLimits:
        """These limits, completed by those of `below`."""
        set_limits = {name: value for name in LIMIT_NAMES if (value := getattr(self, name)) is not None}
        return replace(below, **set_limits)

    def to_json(self) -> dict[str, Any]:
        """The limits that are set, camelCase."""
        data: dict[str, Any] = {
            camel(name): value for name in LIMIT_NAMES if (value := getattr(self, name)) is not None
        }
        if self.breaker is not None:
            data["breaker"] = {"failures": self.breaker.failures, "restMs": self.breaker.rest_ms}
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ToolLimits:
        """The inverse of `to_json`. Raises UsageError: unknown or wrong (USAGE)."""
        names = {spelling: name for name in LIMIT_NAMES for spelling in (name, camel(name))}
        if not isinstance(data, dict) or (unknown := [key for key in data if key not in names]):
            reason = f"{unknown[0]!r:.60} is not a limit" if isinstance(data, dict) else f"got {type(data).__name__}"
            raise UsageError(f"limits: {reason}", hint=f"there are: {', '.join(sorted(LIMIT_NAMES))}")
        values = {names[key]: value for key, value in data.items()}
        if isinstance(breaker := values.get("breaker"), dict):
            known = {"failures": "failures", "restMs": "rest_ms", "rest_ms": "rest_ms"}
            numbers = {known[key]: value for key, value in breaker.items() if key in known}
            if len(numbers) < len(breaker) or any(type(value) is not int or value < 1 for value in numbers.values()):
                raise UsageError(f"limits: breaker is {breaker!r:.80}", hint='breaker={"failures": 5, "restMs": 30000}')
            values["breaker"] = Breaker(**numbers)
        elif breaker is not None and not isinstance(breaker, Breaker):
            raise UsageError(f"limits: breaker is {breaker!r:.80}", hint='breaker={"failures": 5, "restMs": 30000}')
        return cls(**values)


_NUMBERS: Final = (
    ("concurrency", 1, 100_000),
    ("queue", 0, 1_000_000),
    ("retries", 0, MOST_RETRIES),
    ("cache_ms", 0, 86_400_000),
    ("inline_ms", 0, 86_400_000),
    ("attempt_ms", 1, 86_400_000),
    ("idle_ms", 1, 86_400_000),
)
LIMIT_NAMES: Final = ("rate", *(name for name, _, _ in _NUMBERS), "breaker")
NO_LIMITS: Final = ToolLimits()
