"""Schemas of tools in the form of OpenAI's API, and examples of native calls, within a budget of tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tavern_core.agents.notices import PromptTexts
from tavern_core.kernel.catalogue.manual import best_examples
from tavern_core.kernel.catalogue.parameter_text import fold_lines, harmless
from tavern_core.model.token_estimate import tokens_of
from tavern_core.model.tool import ToolSpec
from tavern_core.schema.provider_tool_export import wire_name

_TEXTS: Final = ("description", "title", "examples")
_LONGEST_EXAMPLE: Final = 1_000
"""Characters of an example call's arguments; a longer example is not shown."""
_VALUES: Final = ("default", "const", "enum")
"""Keys whose values are data, not schemas."""


def tokens_of_schema(tool: Mapping[str, Any]) -> int:
    """The estimated tokens of a schema."""
    return tokens_of(json.dumps(tool, ensure_ascii=False))


def fitting(tools: list[dict[str, Any]], room: int) -> tuple[list[dict[str, Any]], bool]:
    """As many schemas as there is room for, in order, and whether the texts of their parameters were removed."""
    if sum(map(tokens_of_schema, tools)) <= room:
        return tools, False
    found: list[dict[str, Any]] = []
    for tool in map(_bare, tools):
        room -= tokens_of_schema(tool)
        if room < 0:
            break
        found.append(tool)
    return found, True


def with_examples(texts: PromptTexts, specs: Sequence[ToolSpec], task: str, room: int) -> str:
    """The note that replaces the manual for native calls, with the example calls that fit the task best."""
    lines = [texts.examples]
    for spec, example in best_examples(specs, task):
        arguments = json.dumps(dict(example.arguments), ensure_ascii=False, default=str)
        line = harmless(
            f"- {wire_name(spec.id)} {fold_lines(arguments, _LONGEST_EXAMPLE)}: {fold_lines(example.description, 300)}"
        )
        if len(arguments) <= _LONGEST_EXAMPLE and tokens_of("\n".join([texts.native, *lines, line])) <= room:
            lines.append(line)
    return "\n".join([texts.native, *lines]) if len(lines) > 1 else texts.native


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
        else (value if key in _VALUES else _without_texts(value))
        for key, value in schema.items()
        if key not in _TEXTS
    }
