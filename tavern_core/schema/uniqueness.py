"""Equality of JSON values, and duplicate items of an array, for values and schemas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator as Engine


def unique_items(engine: Engine, wanted: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    """`uniqueItems` in linear time; jsonschema compares all pairs of items if it cannot sort them."""
    from jsonschema.exceptions import ValidationError

    if wanted and isinstance(value, list) and len({identity(item) for item in value}) < len(value):
        yield ValidationError("the array has repeated items")


def identity(value: Any) -> Any:
    """The key for the equality of JSON values: 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(value, dict):
        return "object", frozenset((name, identity(item)) for name, item in value.items())
    if isinstance(value, list):
        return "array", tuple(map(identity, value))
    return ("boolean", value) if isinstance(value, bool) else value
