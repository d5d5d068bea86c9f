"""Values as JSON: their fields, under names in camelCase."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tavern_core.model.naming_rules import camel


def json_members(value: object, *names: str) -> dict[str, Any]:
    """The fields `names` of a value, in this order. Parts with `to_json` give their own JSON; sequences become lists."""
    return {camel(name): _json(getattr(value, name)) for name in names}


def _json(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, list | tuple):
        return [_json(part) for part in value]
    return dict(value) if isinstance(value, Mapping) else value
