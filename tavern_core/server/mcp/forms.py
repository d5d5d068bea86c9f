"""Questions as forms: clients show only flat objects of text, numbers, booleans and choices, and questions may want anything.

{type: object, properties: {name: {type: string}}}     as it is
{type: integer}                                        one field, `value`
anything else                                          one field of text, in which the person writes JSON
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal

Form = Literal["fields", "value", "json"]
_FIELD_TYPES: Final = frozenset({"string", "number", "integer", "boolean"})
VALUE: Final = "value"


def form_of(schema: Mapping[str, Any]) -> Form:
    """How an answer that fits `schema` is asked for."""
    properties = schema.get("properties", {})
    if (schema.get("type") == "object" or "properties" in schema) and isinstance(properties, Mapping):
        if all(_is_field(member) for member in properties.values()):
            return "fields"
        return "json"
    return "value" if _is_field(schema) else "json"


def requested_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What a client is asked to fill in."""
    form = form_of(schema)
    if form == "fields":
        asked = {"type": "object", "properties": dict(schema.get("properties", {}))}
        if schema.get("required"):
            asked["required"] = list(schema["required"])
        return asked
    field = dict(schema) if form == "value" else {"type": "string", "title": "JSON", "description": _described(schema)}
    return {"type": "object", "properties": {VALUE: field}, "required": [VALUE]}


def answer_of(schema: Mapping[str, Any], content: Mapping[str, Any]) -> Any:
    """The answer in what a client filled in."""
    form = form_of(schema)
    if form == "fields":
        return content
    value = content.get(VALUE)
    if form == "value" or not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value  # it fits or it does not: the question says so


def _is_field(member: Any) -> bool:
    """Whether a client shows a member as one field."""
    if not isinstance(member, Mapping):
        return False
    if member.get("type") == "array":
        items = member.get("items")
        return isinstance(items, Mapping) and ("enum" in items or "anyOf" in items)
    return member.get("type") in _FIELD_TYPES


def _described(schema: Mapping[str, Any]) -> str:
    return f"JSON that fits {json.dumps(dict(schema), ensure_ascii=False)[:1000]}"
