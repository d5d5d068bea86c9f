"""Export of a tool to the formats of the APIs of model providers.

    json       {name, description, parameters}                              the full id as the name (seed 000 §4.4.3)
    openai     {type: function, function: {name, description, parameters}}  Chat Completions
    anthropic  {name, description, input_schema}                            Messages
    gemini     {name, description, parameters}                              functionDeclarations, its schema subset
    mcp        {name, title, description, inputSchema, outputSchema, annotations}

All but `json` use wire names. Our own marks (`x-tavern`) are not exported. The exports only describe the tool; calls are
validated against the real schema.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tavern_core.errors import NameConflict, UsageError
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.tool import ToolSpec
from tavern_core.schema.bounded_json_copying import json_copy
from tavern_core.schema.gemini import to_gemini
from tavern_core.schema.tree import SchemaReferences, nodes_of, normalise_schema

__all__ = ["DIALECTS", "WireNames", "export_tool", "wire_name"]

_ALTERNATIVES = ("anyOf", "oneOf")
_NOT_AT_THE_TOP = ("anyOf", "oneOf", "allOf", "$ref", "enum", "const", "not", "if", "then", "else")


def export_tool(tool: ToolSpec, dialect: str = "json") -> dict[str, Any]:
    """The tool in one dialect, as new builtin values.

    Args:
        tool: what to describe.
        dialect: one of `DIALECTS`.

    Raises:
        UsageError: no such dialect.
    """
    write = DIALECTS.get(dialect)
    if write is None:
        raise UsageError(
            f"there is no dialect {dialect!r}", hint=did_you_mean(dialect, DIALECTS) or ", ".join(DIALECTS)
        )
    return write(tool)


def _json(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.id, "description": tool.model_description, "parameters": _public(tool.input_schema)}


def _openai(tool: ToolSpec) -> dict[str, Any]:
    function = {
        "name": wire_name(tool.id),
        "description": tool.model_description,
        "parameters": _object_at_the_top(tool.input_schema),
    }
    return {"type": "function", "function": function}


def _anthropic(tool: ToolSpec) -> dict[str, Any]:
    return {
        "name": wire_name(tool.id),
        "description": tool.model_description,
        "input_schema": _object_at_the_top(tool.input_schema),
    }


def _gemini(tool: ToolSpec) -> dict[str, Any]:
    declaration: dict[str, Any] = {"name": wire_name(tool.id), "description": tool.model_description}
    parameters = to_gemini(_object_at_the_top(tool.input_schema))
    if parameters.get("properties"):  # an object without properties is refused; no parameters at all is accepted
        declaration["parameters"] = parameters
    return declaration


def _mcp(tool: ToolSpec) -> dict[str, Any]:
    exported: dict[str, Any] = {"name": wire_name(tool.id)}
    title = tool.display_name
    if title:
        exported["title"] = title
    exported["description"] = tool.model_description
    exported["inputSchema"] = _typed_object(_public(tool.input_schema))
    if tool.output_schema is not None and tool.output_schema.get("type") == "object":
        exported["outputSchema"] = _public(tool.output_schema)
    hints: dict[str, Any] = {"title": title} if title else {}
    hints["readOnlyHint"] = tool.read_only
    if not tool.read_only:
        hints |= {"destructiveHint": tool.is_destructive, "idempotentHint": tool.idempotent}
    exported["annotations"] = hints
    return exported


DIALECTS: Final[Mapping[str, Callable[[ToolSpec], dict[str, Any]]]] = {
    "json": _json,
    "openai": _openai,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "mcp": _mcp,
}


def _public(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy without our own marks; `defaultValue` becomes `default`."""
    copy = normalise_schema(schema)
    if not isinstance(copy, dict):
        return {"type": "object", "properties": {}}
    for node in nodes_of(copy):
        for keyword in [keyword for keyword in node if keyword.startswith("x-tavern")]:
            del node[keyword]
    return copy


def _typed_object(schema: dict[str, Any]) -> dict[str, Any]:
    return schema if schema.get("type") == "object" else {**schema, "type": "object"}


def _object_at_the_top(schema: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAI and Anthropic require `type: object` and no combinators at the top: they are merged into one object.

    The object has the members of every alternative; those that all alternatives require are required.
    """
    public = _public(schema)
    for keyword in ("$schema", "$comment"):
        public.pop(keyword, None)
    if not any(keyword in public for keyword in _NOT_AT_THE_TOP):
        return {"type": "object", "properties": {}, **public} | {"type": "object"}
    properties, required = _flattened(public, SchemaReferences(public), set())
    object_schema = {key: value for key, value in public.items() if key not in _NOT_AT_THE_TOP}
    flat = {**object_schema, "type": "object", "properties": properties}
    if required:
        flat["required"] = [name for name in properties if name in required]
    copy: dict[str, Any] = json_copy(flat)[0]
    return copy


def _flattened(node: Any, refs: SchemaReferences, visited: set[int]) -> tuple[dict[str, Any], set[str]]:
    """Every property of a place, and the names that all alternatives require."""
    if not isinstance(node, dict) or id(node) in visited:
        return {}, set()
    visited = visited | {id(node)}
    properties: dict[str, Any] = dict(node.get("properties", {}))
    required: set[str] = set(node.get("required", ()))
    for part in [*node.get("allOf", ()), refs.resolve(node)]:
        inner, needed = _flattened(part, refs, visited)
        properties = {**inner, **properties}
        required |= needed
    for keyword in _ALTERNATIVES:
        branches = [_flattened(branch, refs, visited) for branch in node.get(keyword, ())]
        for inner, _ in branches:
            properties = {**inner, **properties}
        if branches:
            required |= set.intersection(*(needed for _, needed in branches))
    for keyword in ("then", "else"):
        properties = {**_flattened(node.get(keyword), refs, visited)[0], **properties}
    return properties, required


# Wire names -----------------------------------------------------------------------------------------------------------
# Tool ids in the form that the APIs of model providers allow: at most 64 of `A-Z a-z 0-9 _ -`, a letter or `_` first.
#
#     text:count  ->  text__count          reversible by itself: a plugin's name has no `_`, so the first `__` is the colon
#     a_b:c       ->  a_b__c_5f1e6d2a90    anything lost or ambiguous gets a prefix of the SHA-256 of the id
#
# A name depends only on the id: it does not change when other tools are added or removed.

LONGEST = 64
_DIGEST = 10
_CLEAN = re.compile(r"[A-Za-z][A-Za-z0-9-]*(?::[A-Za-z0-9_-]+)?\Z")
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]+")


def wire_name(tool_id: str) -> str:
    """The name of a tool in a provider's API.

    >>> wire_name("text:count")
    'text__count'
    """
    readable = tool_id.replace(":", "__", 1)
    if _CLEAN.match(tool_id) and len(readable) <= LONGEST:
        return readable
    digest = hashlib.sha256(tool_id.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    readable = _FOREIGN.sub("_", readable).strip("_-")[: LONGEST - _DIGEST - 1].rstrip("_-")
    if not readable[:1].isalpha():
        readable = f"tool_{readable}"[: LONGEST - _DIGEST - 1].rstrip("_-")
    return f"{readable}_{digest}"


class WireNames:
    """From wire names back to ids.

    Args:
        ids: every tool id that may be called.

    Raises:
        NameConflict: two ids have the same wire name; both are named.
    """

    def __init__(self, ids: Iterable[str]) -> None:
        self._ids: dict[str, str] = {}
        for tool_id in ids:
            other = self._ids.setdefault(wire_name(tool_id), tool_id)
            if other != tool_id:
                raise NameConflict(
                    f"the tools {other!r} and {tool_id!r} have the same wire name {wire_name(tool_id)!r}",
                    hint="rename one of them",
                )

    def tool_id(self, name: str) -> str | None:
        """The id of a wire name; a full id is accepted, too. None if there is no such tool."""
        found = self._ids.get(name)
        if found is None and self._ids.get(wire_name(name)) == name:
            return name
        return found

    def all(self) -> list[str]:
        """Every wire name, sorted."""
        return sorted(self._ids)
