"""The path of a call, watched: it counts calls and makes spans. A host that does neither has the plain path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tavern_core.kernel.calls.pipeline import Phase, Pipeline
from tavern_core.kernel.execution.modes import Mode
from tavern_core.kernel.observability.metrics import Metrics
from tavern_core.kernel.observability.spans import Spans
from tavern_core.model.call import CallContext
from tavern_core.model.result import ToolResult


class ObservedPipeline(Pipeline):
    """`Pipeline` with observation."""

    __slots__ = ("metrics", "spans")

    metrics: Metrics | None
    spans: Spans | None

    def __init__(self, pipeline: Pipeline, metrics: Metrics | None, spans: Spans | None) -> None:
        for part in fields(pipeline):
            object.__setattr__(self, part.name, getattr(pipeline, part.name))
        object.__setattr__(self, "metrics", metrics)
        object.__setattr__(self, "spans", spans)

    async def run(
        self,
        mode: Mode,
        written: str,
        arguments: Mapping[str, Any] | None,
        context: CallContext | None = None,
        purpose: str = "",
        key: str | None = None,
        door: str = "api",
        phase: Phase | None = None,
    ) -> ToolResult:
        """See `Pipeline.run`."""
        if self.spans is None:
            result = await Pipeline.run(self, mode, written, arguments, context, purpose, key, door, phase)
        else:
            caller = context if isinstance(context, CallContext) else None
            name = written if isinstance(written, str) else type(written).__name__
            with self.spans.around(name, caller, door) as span:
                result = await Pipeline.run(self, mode, written, arguments, context, purpose, key, door, phase)
                self.spans.end(span, result)
        if self.metrics is not None:
            self.metrics.called(result)
        return result
