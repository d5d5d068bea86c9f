"""A span for each call, where OpenTelemetry is installed: ``execute_tool {name}`` with the attributes of its GenAI conventions.

The parent is the span of the caller, or the context's `trace_id` if that is a W3C ``traceparent``. In-process tools
run inside the span, so their own spans belong to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tavern_core.contract.tracing import traceparent_of
from tavern_core.errors import UsageError
from tavern_core.model.call import CallContext
from tavern_core.model.result import ToolResult


class Spans:
    """Begins and ends spans with the tracer that the program has set up."""

    def __init__(self, version: str) -> None:
        """
        Raises:
            UsageError: OpenTelemetry is not installed (USAGE).
        """
        try:
            from opentelemetry import trace
        except ImportError as error:
            raise UsageError(
                "metrics.spans is set, and OpenTelemetry is not installed", hint="pip install 'tavern-core[otel]'"
            ) from error

        self._trace = trace
        self._tracer = trace.get_tracer("tavern_core", version)

    @contextmanager
    def around(self, tool: str, context: CallContext | None, door: str) -> Iterator[Any]:
        """A span for one call; give what came of it to `end` before it is left."""
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool[:200],
            "gen_ai.tool.type": "function",
            "tavern.door": door,
        }
        if context is not None and context.agent_id:
            attributes["gen_ai.agent.id"] = context.agent_id
        with self._tracer.start_as_current_span(
            f"execute_tool {tool[:200]}",
            context=self._parent(context),
            kind=self._trace.SpanKind.INTERNAL,
            attributes=attributes,
            record_exception=False,
        ) as span:
            yield span

    def end(self, span: Any, result: ToolResult) -> None:
        """Say what came of the call."""
        if result.call_id:
            span.set_attribute("gen_ai.tool.call.id", result.call_id)
        if result.error is not None:
            span.set_attribute("error.type", result.error.kind)
            span.set_status(self._trace.StatusCode.ERROR, result.error.kind)

    def _parent(self, context: CallContext | None) -> Any:
        """Where the call comes from; None: from the span that is current."""
        headers = {} if context is None else traceparent_of(context.trace_id)
        if not headers:
            return None
        around = self._trace.get_current_span().get_span_context()
        if around.is_valid and headers["traceparent"][3:35] == f"{around.trace_id:032x}":
            return (
                None  # the current span is nearer: that of the call around this one, or of the call that began the job
            )
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        return TraceContextTextMapPropagator().extract(headers)
