"""Schemas of tools in the form of OpenAI's API, within a budget of tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from tavern_core.agents.tokens import tokens_of

_TEXTS: Final = ("description", "title", "examples")


def size_of(tool: Mapping[str, Any]) -> int:
    """The estimated tokens of a schema."""
    return tokens_of(json.dumps(tool, ensure_ascii=False))


def fitting(tools: list[dict[str, Any]], room: int) -> tuple[list[dict[str, Any]], list[str], bool]:
    """As many schemas as there is room for, the names of the others, and whether texts were taken out."""
    if sum(map(size_of, tools)) <= room:
        return tools, [], False
    found: list[dict[str, Any]] = []
    for tool in map(_bare, tools):
        room -= size_of(tool)
        if room < 0:
            break
        found.append(tool)
    return found, [tool["function"]["name"] for tool in tools[len(found) :]], True


def _bare(tool: dict[str, Any]) -> dict[str, Any]:
    """A schema without the texts of its parameters."""
    function = tool["function"]
    return {**tool, "function": {**function, "parameters": _without_texts(function["parameters"])}}


def _without_texts(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_texts(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _without_texts(part) for name, part in value.items()}
        if key in ("properties", "$defs") and isinstance(value, dict)
        else _without_texts(value)
        for key, value in schema.items()
        if key not in _TEXTS
    }
