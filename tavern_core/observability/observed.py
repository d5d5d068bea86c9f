"""The path of a call, watched: it counts calls and makes spans. A host that can do neither has the plain path."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tavern_core.contract.trace_context import traceparent_of
from tavern_core.errors import UsageError
from tavern_core.kernel.calls.pipeline import Pipeline
from tavern_core.kernel.execution.sync_async_drivers import ExecutionMode
from tavern_core.model.call import CallContext
from tavern_core.model.result import ToolResult

if TYPE_CHECKING:
    from tavern_core.kernel.calls.running_call import RunningCall
    from tavern_core.kernel.catalogue.call_plan import CallPlan
    from tavern_core.model.tool import ToolSpec
    from tavern_core.observability.metrics import Metrics

_LONGEST_DESCRIPTION: Final = 1_000
_SDK: Final = "opentelemetry.sdk.trace"
_ALWAYS: Final = "sys"
_modules: Final = sys.modules


class ObservedPipeline(Pipeline):
    """`Pipeline` with metrics and spans.

    Args:
        wanted: `metrics.spans`; None: make spans as soon as the program has loaded the SDK of OpenTelemetry.
        is_inner: whether it makes calls that are observed already.

    Raises:
        UsageError: spans are wanted, and OpenTelemetry is not installed (USAGE).
    """

    __slots__ = ("awaits", "inner", "metrics", "spans", "version")

    metrics: Metrics | None
    spans: Spans | None
    awaits: bool
    """Whether there will be spans once the SDK is loaded."""
    version: str
    inner: ObservedPipeline
    """Makes the calls themselves; it has none of its own."""

    def __init__(
        self,
        pipeline: Pipeline,
        metrics: Metrics | None,
        version: str,
        *,
        wanted: bool | None,
        is_inner: bool = False,
    ) -> None:
        for part in Pipeline.__slots__:
            setattr(self, part, getattr(pipeline, part))
        self.metrics, self.version, self.awaits = metrics, version, wanted is None
        self.spans = None
        if not is_inner:
            self.inner = ObservedPipeline(pipeline, metrics, version, wanted=False, is_inner=True)
            self.observed_from = _SDK if metrics is None and not wanted else _ALWAYS
        if wanted:
            self._begin_spans()

    def observed(self, mode: ExecutionMode, written: str, *rest: Any) -> Coroutine[Any, Any, ToolResult]:
        """See `Pipeline.observed`."""
        if self.awaits and _SDK in _modules:
            self._begin_spans()
        call = self.inner.run(mode, written, *rest)
        if self.spans is not None:
            _, context, _, _, door, _ = rest
            call = self._spanned(self.spans, call, written, context, door)
        return call if self.metrics is None else self._counted(self.metrics, call, written)

    async def _spanned(
        self, spans: Spans, call: Coroutine[Any, Any, ToolResult], written: str, context: CallContext | None, door: str
    ) -> ToolResult:
        caller = context if isinstance(context, CallContext) else None
        name = written if isinstance(written, str) else type(written).__name__
        with spans.around(name, caller, door) as span:
            try:
                result = await call
            except asyncio.CancelledError:
                spans.fail(span, "CANCELLED")
                raise
            spans.end(span, result)
            tool_id = written if (trace := result._trace) is None else trace[0]
            if span.is_recording() and (plan := self.ready(tool_id)) is not None:
                spans.describe(span, plan.spec)
        return result

    async def _counted(self, metrics: Metrics, call: Coroutine[Any, Any, ToolResult], written: str) -> ToolResult:
        try:
            result = await call
        except asyncio.CancelledError:
            metrics.cut_off(written)
            raise
        metrics.called(result)
        return result

    async def _detached(self, plan: CallPlan, call: RunningCall, mode: ExecutionMode) -> ToolResult:
        """See `Pipeline._detached`; what became a job counts as that alone, also where its caller gets the answer at once."""
        result = await Pipeline._detached(self, plan, call, mode)
        if self.metrics is not None:
            self.metrics.is_counted(result)
        return result

    def _begin_spans(self) -> None:
        self.spans, self.awaits, self.observed_from = Spans(self.version), False, _ALWAYS


class Spans:
    """Begins and ends a span for each call, ``execute_tool {name}`` with the attributes of OpenTelemetry's GenAI conventions.

    The parent is the span of the caller, or the context's `trace_id` if that is a W3C ``traceparent``. In-process tools
    run inside the span, so their own spans belong to it.
    """

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
        """A span for one call; give its outcome to `end` before it is left."""
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
        """Report the outcome of the call."""
        if result.call_id:
            span.set_attribute("gen_ai.tool.call.id", result.call_id)
        if result.error is not None:
            self.fail(span, result.error.kind)

    def describe(self, span: Any, tool: ToolSpec) -> None:
        """Name the tool by its id, however its caller wrote it, and say what it does."""
        span.update_name(f"execute_tool {tool.id}")
        span.set_attribute("gen_ai.tool.name", tool.id)
        if tool.description:
            span.set_attribute("gen_ai.tool.description", tool.description[:_LONGEST_DESCRIPTION])

    def fail(self, span: Any, kind: str) -> None:
        """Mark the span of a failed call."""
        span.set_attribute("error.type", kind)
        span.set_status(self._trace.StatusCode.ERROR, kind)

    def _parent(self, context: CallContext | None) -> Any:
        """The context of the caller's span; None: the current span."""
        headers = {} if context is None else traceparent_of(context.trace_id)
        if not headers:
            return None
        current = self._trace.get_current_span().get_span_context()
        if current.is_valid and headers["traceparent"][3:35] == f"{current.trace_id:032x}":
            # The current span is nearer: that of the call around this one, or of the call that began the job.
            return None
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        return TraceContextTextMapPropagator().extract(headers)
