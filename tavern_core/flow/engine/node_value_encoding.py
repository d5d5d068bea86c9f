"""Values that nodes exchange: copied, measured, and converted to their stored form."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from pydantic_core import PydanticSerializationError, to_json

from tavern_core.contract.nodes import Skip
from tavern_core.kernel.nodes.json_values import TAGS, to_plain
from tavern_core.schema.bounded_json_copying import NUMBERS

_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
SIMPLE: Final = frozenset({str, int, float, bool, bytes, type(None)})
_LARGE: Final = 8_192
"""Characters and, weighted eightfold, values that may be visited without yielding to the event loop."""
CONTAINERS: Final = frozenset({dict, list, set, bytearray})
"""Mutable types that nodes could share."""


def deep_copy(value: Any) -> Any:
    """A copy that shares nothing mutable with `value`; objects that refuse to be copied are passed on unchanged."""
    kind = type(value)
    if kind in SIMPLE or value is Skip:
        return value
    try:
        if kind is dict:
            return {key: item if type(item) in SIMPLE else deep_copy(item) for key, item in value.items()}
        if kind is list:
            return [item if type(item) in SIMPLE else deep_copy(item) for item in value]
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - objects of plugins may refuse
        return value


def private(value: Any) -> Any:
    """The same value; a copy of a list or mapping, which a node could change."""
    return deep_copy(value) if type(value) in CONTAINERS else value


def copy_containers(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values, with private lists and mappings; objects unchanged."""
    return {key: private(value) for key, value in values.items()}


def weight(value: Any, each_takes: int = 50) -> int:
    """The approximate bytes of a value; for objects, only their own size.

    Args:
        each_takes: Python's overhead per value.
    """
    total, stack = 0, [value]
    while stack:
        each = stack.pop()
        total += each_takes
        if isinstance(each, str | bytes | bytearray):
            total += len(each)
        elif isinstance(each, Mapping):
            stack.extend(each)
            stack.extend(each.values())
        elif isinstance(each, list | tuple | set | frozenset):
            stack.extend(each)
        elif type(each) in SIMPLE:
            total += 8
        else:
            with suppress(Exception):  # an object may refuse to be measured
                total += sys.getsizeof(each)
    return total


def is_large(values: Iterable[Any], room: int = _LARGE) -> bool:
    """Whether visiting everything in `values` takes so long that it should not block others; itself fast.

    Args:
        room: characters and bytes, about.
    """
    stack = [values]
    while stack:
        for value in stack.pop():
            kind = type(value)
            if kind in NUMBERS:
                continue
            if kind is str or kind is bytes or kind is bytearray:
                room -= len(value)
            elif kind is dict or kind is list or kind is tuple:
                room -= 8 * len(value)
                stack.append(value)
                if kind is dict:
                    stack.append(value.values())
            elif value is not Skip:
                return True  # its content is unknown
            if room < 0:
                return True
    return False


def size(outputs: Mapping[str, Any], each_takes: int = 0) -> int:
    """`weight` of a node's outputs, without names and skipped ones; fast for texts and numbers."""
    total = 0
    for value in outputs.values():
        kind = type(value)
        if kind in NUMBERS:
            total += each_takes + 8
        elif kind is str:
            total += each_takes + len(value)
        elif value is not Skip:
            total += weight(value, each_takes)
    return total


def encoded(plain: Any) -> bytes:
    """Plain JSON as text in UTF-8; with surrogates unchanged."""
    try:
        return to_json(plain)
    except (PydanticSerializationError, ValueError):  # surrogates
        return _encode(plain).encode("utf-8", "surrogatepass")


def written(outputs: Mapping[str, Any], most: int, holds_secret: Callable[[Any], bool]) -> bytes | str:
    """A node's outputs in their stored form, or why they cannot be stored: `object`, `size` or `secret`.

    Args:
        most: approximate bytes.
    """
    plain: Any = outputs
    is_flat, has_texts = type(outputs) is dict and TAGS.isdisjoint(outputs), False
    for value in outputs.values():
        if type(value) not in NUMBERS:
            has_texts = True
            is_flat = is_flat and type(value) is str
    if not is_flat:
        try:
            plain = to_plain(dict(outputs))
        except Exception:  # noqa: BLE001 - NotPlainData, or any error of a plugin's objects
            return "object"
        if weight(plain) > most:
            return "size"
    elif has_texts and size(outputs) > most:
        return "size"
    if has_texts and holds_secret(plain):
        return "secret"
    return encoded(plain)
