"""The tool that reads long results, and text that compaction left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tavern_core.contract.python_targets import PythonTarget
from tavern_core.kernel.artifacts.artifacts import Artifacts
from tavern_core.kernel.catalogue.call_plan import InternalOperation
from tavern_core.model.tool import ToolSpec

READ_RESULT: Final = "agent:read_result"
"""The id of the tool."""
READ_CHARS: Final = 8_000
_PARAMETERS: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "artifact": {"type": "string", "description": "The address that the shortened result names: artifact:…"},
        "start": {"type": "integer", "minimum": 0, "default": 0, "description": "From which byte on."},
        "length": {"type": "integer", "minimum": 1, "maximum": READ_CHARS, "default": READ_CHARS, "description": "Bytes."},
    },
    "required": ["artifact"],
    "additionalProperties": False,
}  # fmt: skip


def reading_tool(artifacts: Artifacts) -> InternalOperation:
    """The operation `READ_RESULT`: every agent may call it, and it only finds artifacts of its caller."""

    def read_result(artifact: str, start: int = 0, length: int = READ_CHARS) -> dict[str, Any]:
        stored = artifacts.get(artifact)
        text = artifacts.read(artifact, start, length).decode("utf-8", "replace")
        end = min(start + length, stored.size)
        return {"text": text, "start": start, "next": end if end < stored.size else None, "size": stored.size}

    tool = ToolSpec(
        READ_RESULT,
        "Reads on in a result that was too long to show, or that was left out of the conversation to save room.",
        plugin="core-system",
        input_schema=_PARAMETERS,
        read_only=True,
        impl=PythonTarget(read_result),
    )
    return InternalOperation(tool)
