"""Trying a workflow without consequences: a scripted model answers for every model, and tools are checked instead of run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tavern_core.contract.core_services import Llms
from tavern_core.contract.llm import LLM
from tavern_core.flow.llm_calls import DOOR, Models
from tavern_core.kernel.calls.pipeline import DRY_RUN, Pipeline
from tavern_core.model import depths
from tavern_core.model.call import CallContext
from tavern_core.model.result import ToolResult

_SAMPLES: Final[Mapping[str, Any]] = {
    "string": "sample", "integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}, "null": None,
}  # fmt: skip


class DryRunModels(Models):
    """`models`, for all of which `llm` answers; a wrong name is still an error."""

    def __init__(self, models: Models, llm: LLM, pipeline: Pipeline) -> None:
        self._models, self._llm, self._pipeline = models, llm, pipeline
        self.invoke = self._dry_run

    @property
    def replacement(self) -> Llms | None:
        return None

    def find(self, name: str) -> LLM:
        if name:
            self._models.find(name)
        return self._llm

    async def prepare(self) -> None:
        await self._models.prepare()

    def asked_by(self, name: str, context: CallContext | None, purpose: str, asker: str = "") -> LLM:
        return self.find(name)

    async def _dry_run(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None,
        context: CallContext | None,
        purpose: str,
        key: str | None,
    ) -> ToolResult:
        """Pass all checks of a call and return a sample of the tool's result."""
        pipeline = self._pipeline
        mode = pipeline.compiler.base.mode
        result = await pipeline.run(mode, tool, arguments, context, purpose, key, DOOR, DRY_RUN)
        if result.error is not None:
            return result
        schema = (await pipeline.compiler.find(tool, context)).spec.output_schema
        return result.replace(value="sample" if schema is None else sample_of(schema))


def sample_of(schema: Any, deep: int = 0) -> Any:
    """A value for a JSON Schema, as far as types, choices, defaults and bounds say."""
    if not isinstance(schema, Mapping) or deep > depths.SAMPLE:
        return "sample" if deep <= depths.SAMPLE else None
    for key in ("default", "const"):
        if key in schema:
            return schema[key]
    for key in ("examples", "enum"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            return sample_of(schema[key][0], deep + 1)
    kind = schema.get("type")
    name = kind[0] if isinstance(kind, list) and kind else kind
    if name == "object" or "properties" in schema:
        properties = schema.get("properties")
        return (
            {key: sample_of(each, deep + 1) for key, each in properties.items()}
            if isinstance(properties, Mapping)
            else {}
        )
    if name == "array":
        return [sample_of(schema["items"], deep + 1)] if isinstance(schema.get("items"), Mapping) else []
    if name in ("integer", "number") and isinstance(schema.get("minimum"), int | float):
        return schema["minimum"]
    return _SAMPLES.get(str(name), "sample")
