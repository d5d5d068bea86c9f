"""Trying a workflow without consequences: a scripted model answers for every model, and tools are checked instead of run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from tavern_core.contract.core_services import Llms
from tavern_core.contract.llm import LLM
from tavern_core.flow.llm_calls import Invoke, Models
from tavern_core.model import depths
from tavern_core.model.call import CallContext
from tavern_core.model.result import ToolResult

OutputSchema = Callable[[str, CallContext | None], Awaitable[Mapping[str, Any] | None]]
"""(tool, context): the schema of a tool's result; None: it is not known."""
_SAMPLES: Final[Mapping[str, Any]] = {
    "string": "sample", "integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}, "null": None,
}  # fmt: skip


class DryRunModels(Models):
    """`models`, for all of which `llm` answers; a wrong name is still an error."""

    def __init__(self, models: Models, llm: LLM, invoke: Invoke) -> None:
        self._models, self._llm = models, llm
        self.invoke = invoke

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


def dry_run_invoke(dry: Invoke, output_schema: OutputSchema) -> Invoke:
    """Calls that pass all checks and then give a sample of the tool's result.

    Args:
        dry: a call that does everything but run the tool.
    """

    async def invoke(
        tool: str, arguments: Mapping[str, Any] | None, context: CallContext | None, purpose: str
    ) -> ToolResult:
        result = await dry(tool, arguments, context, purpose)
        if result.error is not None:
            return result
        schema = await output_schema(tool, context)
        return result.replace(value="sample" if schema is None else sample_of(schema))

    return invoke


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
