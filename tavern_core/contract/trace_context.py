"""The trace that a call belongs to, for other programs: W3C `traceparent` and `tracestate`.

OpenTelemetry is used if the program has loaded it; nothing here loads it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from inspect import isawaitable
from types import MappingProxyType
from typing import Any, Final, TypeVar

T = TypeVar("T")
_API: Final = "opentelemetry.trace"
_NONE: Final[Mapping[str, str]] = MappingProxyType({})
_TRACEPARENT: Final = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_passed: Final[ContextVar[Mapping[str, str]]] = ContextVar("tavern_trace", default=_NONE)
"""The headers that came with the call; used where this process makes no spans."""


def trace_headers() -> Mapping[str, str]:
    """`traceparent`, and `tracestate` if there is one, of what runs now; empty without a trace."""
    if _API not in sys.modules:
        return _passed.get()
    from opentelemetry.trace import get_current_span

    if not get_current_span().get_span_context().is_valid:
        return _passed.get()
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    found: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(found)
    return found


def traceparent_of(trace_id: str) -> Mapping[str, str]:
    """The headers of the trace that a caller belongs to; empty where its id is not a W3C `traceparent`."""
    return {"traceparent": trace_id} if _TRACEPARENT.fullmatch(trace_id) else _NONE


def within_trace(headers: Mapping[str, str], work: Callable[[], T]) -> T:
    """Do `work`, and an awaitable that it returns, within a trace that came from another process."""
    token, leave = _passed.set(headers), _enter(headers)
    try:
        done: Any = work()
    finally:
        leave()
        _passed.reset(token)
    return _await_within(headers, done) if isawaitable(done) else done  # type: ignore[return-value]


async def _await_within(headers: Mapping[str, str], work: Any) -> Any:
    token, leave = _passed.set(headers), _enter(headers)
    try:
        return await work
    finally:
        leave()
        _passed.reset(token)


def _enter(headers: Mapping[str, str]) -> Callable[[], object]:
    """Make the trace current, and return the function that ends that."""
    if _API not in sys.modules:
        return lambda: None
    from opentelemetry import context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    token = context.attach(TraceContextTextMapPropagator().extract(headers))
    return lambda: context.detach(token)
