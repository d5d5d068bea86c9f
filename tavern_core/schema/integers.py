"""Integers that were written as 2.0: JSON Schema accepts them, and some models write them. A tool gets 2.

Only unambiguous values are changed: a float where the schema admits integers and no other numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tavern_core.model.plain_data import with_leaves
from tavern_core.schema.tree import SAME_PLACE_LISTS, SchemaReferences, nodes_of

Whole = Callable[[Any], Any]


def whole_numbers(value: Any) -> Any:
    """A copy of plain data with each whole number as an integer; no value loses precision.

    Raises:
        RecursionError: it is nested too deeply.
    """

    def whole(leaf: Any) -> Any:
        return int(leaf) if isinstance(leaf, float) and leaf.is_integer() else leaf

    return with_leaves(value, whole, levels=sys.maxsize)


def compile_integers(schema: Mapping[str, Any] | bool) -> Whole | None:
    """A function that writes the integers of arguments as integers, or None if the schema declares none.

    Args:
        schema: a checked JSON Schema.

    Returns:
        ``whole(arguments) -> dict``, for arguments that fit the schema: themselves if there is nothing to change; else a copy
        that shares the unchanged parts. The arguments are not changed.
    """
    if not isinstance(schema, dict) or not any("integer" in _types(node) for node in nodes_of(schema)):
        return None
    refs = SchemaReferences(schema)
    return lambda arguments: _whole([schema], arguments, refs) if _has_whole_float(arguments) else arguments


def _types(node: dict[str, Any]) -> list[Any]:
    held = node.get("type", ())
    return list(held) if isinstance(held, list | tuple) else [held]


def _has_whole_float(value: Any) -> bool:
    waiting = [value]
    for item in waiting:  # the list grows while it is read
        if type(item) is float:
            if item.is_integer():
                return True
        elif isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return False


def _whole(schemas: list[Any], value: Any, refs: SchemaReferences) -> Any:
    """Convert the whole numbers of `value`, to which all of `schemas` apply, to integers if they must be."""
    if type(value) is float:
        admitted = {name for node in refs.together(schemas, SAME_PLACE_LISTS) for name in _types(node)}
        return int(value) if value.is_integer() and "integer" in admitted and "number" not in admitted else value
    if not isinstance(value, dict | list):
        return value
    nodes = list(refs.together(schemas, SAME_PLACE_LISTS))
    if isinstance(value, dict):
        return {name: _whole([each for node in nodes for each in _of_member(node, name)], item, refs)
                for name, item in value.items()}  # fmt: skip
    return [
        _whole([each for node in nodes for each in _of_item(node, at)], item, refs) for at, item in enumerate(value)
    ]


def _of_member(node: dict[str, Any], name: str) -> Iterator[Any]:
    if name in (properties := node.get("properties", {})):
        yield properties[name]
    elif "patternProperties" not in node:
        yield node.get("additionalProperties")


def _of_item(node: dict[str, Any], at: int) -> Iterator[Any]:
    items = node.get("items")
    first = node.get("prefixItems", items if isinstance(items, list) else [])
    if at < len(first):
        yield first[at]
    else:
        yield items if not isinstance(items, list) else node.get("additionalItems")
