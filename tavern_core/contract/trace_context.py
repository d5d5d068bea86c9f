"""The trace that a call belongs to, for other programs: W3C `traceparent` and `tracestate`.

OpenTelemetry is asked where the program has loaded it; nothing here loads it.
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
"""What came along with the call, where this process makes no spans."""


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
    """Do `work` as a part of a trace that came from another process; its awaitable, too."""
    token, leave = _passed.set(headers), _entered(headers)
    try:
        done: Any = work()
    finally:
        leave()
        _passed.reset(token)
    return _later(headers, done) if isawaitable(done) else done  # type: ignore[return-value]


async def _later(headers: Mapping[str, str], work: Any) -> Any:
    token, leave = _passed.set(headers), _entered(headers)
    try:
        return await work
    finally:
        leave()
        _passed.reset(token)


def _entered(headers: Mapping[str, str]) -> Callable[[], object]:
    """Make the trace that of what follows here; what ends that."""
    if _API not in sys.modules:
        return lambda: None
    from opentelemetry import context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    token = context.attach(TraceContextTextMapPropagator().extract(headers))
    return lambda: context.detach(token)
