"""Tools of upstreams as JSON: kept in the cache of listings, and crossing between the process of an adapter and the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tavern_core.contract.adapters import UpstreamTool
from tavern_core.model.tool import Example

_FIELDS: Final[Mapping[str, str]] = {
    "name": "name", "description": "description", "inputSchema": "input_schema", "outputSchema": "output_schema",
    "displayName": "display_name", "tags": "tags", "version": "version", "examples": "examples", "readOnly": "read_only",
    "destructive": "destructive", "idempotent": "idempotent", "capabilities": "capabilities", "job": "is_job",
    "timeoutMs": "timeout_ms", "forwardsKey": "forwards_key", "findsByKey": "finds_by_key", "data": "data",
}  # fmt: skip
"""Key → field of `UpstreamTool`."""


def tool_json(tool: UpstreamTool) -> dict[str, Any]:
    """All of a tool."""
    data = {key: getattr(tool, name) for key, name in _FIELDS.items()}
    data |= {"tags": list(tool.tags), "capabilities": sorted(tool.capabilities)}
    data["examples"] = [
        {"arguments": e.arguments, "description": e.description, "result": e.result} for e in tool.examples
    ]
    return data


def tool_of(data: Mapping[str, Any]) -> UpstreamTool:
    """The inverse of `tool_json`; what is missing has its default. Raises KeyError and TypeError: it is something else."""
    given = {"name": data["name"], "inputSchema": data["inputSchema"], **data}
    given["tags"] = tuple(given.get("tags", ()))
    given["capabilities"] = frozenset(given.get("capabilities", ()))
    given["examples"] = tuple(Example(e["arguments"], e["description"], e["result"]) for e in given.get("examples", ()))
    return UpstreamTool(**{name: given[key] for key, name in _FIELDS.items() if key in given})
