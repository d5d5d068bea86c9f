"""`ToolLimits` as files write them: in tool files and in tavern.yaml."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, StrictInt

from tavern_core.model.call_limits import LIMIT_NAMES, MOST_RETRIES, Breaker, ToolLimits, parse_rate
from tavern_core.model.file_model_base import FilePart


def _rate(text: str) -> str:
    parse_rate(text)
    return text


class WrittenBreaker(FilePart):
    failures: Annotated[StrictInt, Field(gt=0, le=1_000_000)] = 5
    """Failures in a row after which it opens."""
    rest_ms: Annotated[StrictInt, Field(gt=0, le=86_400_000)] = 30_000
    """The time that calls are refused then."""


class WrittenLimits(FilePart):
    rate: Annotated[str, AfterValidator(_rate)] | None = None
    """Calls in a period of time: ``10/minute``."""
    concurrency: Annotated[StrictInt, Field(gt=0, le=100_000)] | None = None
    """Calls at the same time; further ones wait."""
    queue: Annotated[StrictInt, Field(ge=0, le=1_000_000)] | None = None
    """Calls that may wait."""
    retries: Annotated[StrictInt, Field(ge=0, le=MOST_RETRIES)] | None = None
    """Further attempts of a call after a temporary failure, if a retry does no harm."""
    cache_ms: Annotated[StrictInt, Field(ge=0, le=86_400_000)] | None = None
    """The time that an answer is cached, 0: not at all; only for read-only tools."""
    inline_ms: Annotated[StrictInt, Field(ge=0, le=86_400_000)] | None = None
    """The time that a caller waits before the call becomes a job."""
    attempt_ms: Annotated[StrictInt, Field(gt=0, le=86_400_000)] | None = None
    """Deadline of one attempt, for calls that may be retried."""
    idle_ms: Annotated[StrictInt, Field(gt=0, le=86_400_000)] | None = None
    """Deadline since the tool last reported progress."""
    breaker: WrittenBreaker | None = None
    """The circuit breaker for a failing tool."""

    def limits(self) -> ToolLimits:
        written = self.breaker
        breaker = None if written is None else Breaker(written.failures, written.rest_ms)
        return ToolLimits(**{**{name: getattr(self, name) for name in LIMIT_NAMES}, "breaker": breaker})
