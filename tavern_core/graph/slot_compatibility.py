"""Which slots may be connected, and which values an input accepts (WORKFLOWS.md of the design; ComfyTavern's rules).

Two slots connect when their types are the same, INTEGER → FLOAT, INTEGER, FLOAT or BOOLEAN → STRING, one of them is
WILDCARD or CONVERTIBLE_ANY; streams only with streams; and where both name categories, one is shared.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Literal

from tavern_core.model import depths
from tavern_core.model.node import COMBO, Slot
from tavern_core.model.safe_printing import printed

ANY_TYPES: Final = frozenset({"WILDCARD", "CONVERTIBLE_ANY"})
_WIDER: Final = frozenset({("INTEGER", "FLOAT"), ("INTEGER", "STRING"), ("FLOAT", "STRING"), ("BOOLEAN", "STRING")})
_FLAT: Final = frozenset({str, int, float, bool, bytes, type(None)})
_MATCHES_ALL: Final = "BehaviorWildcard"

MismatchCode = Literal["TYPE_MISMATCH", "STREAM_MISMATCH"]


def mismatch(source: Slot, target: Slot) -> tuple[MismatchCode, str] | None:
    """Why an edge from `source` to `target` is refused: code and reason; None if it fits."""
    if source.is_stream != target.is_stream:
        one, other = ("a stream", "no stream") if source.is_stream else ("no stream", "a stream")
        return "STREAM_MISMATCH", f"{source.key!r} is {one} and {target.key!r} is {other}"
    if source.multi and not target.multi and not source.is_stream:
        return (
            None
            if types_fit("ARRAY", target.type)
            else ("TYPE_MISMATCH", f"{source.key!r} gives a list, {target.key!r} takes {target.type}")
        )
    if not types_fit(source.type, target.type):
        return "TYPE_MISMATCH", f"{source.key!r} gives {source.type}, {target.key!r} takes {target.type}"
    source_categories, target_categories = set(source.categories), set(target.categories)
    if (
        source_categories
        and target_categories
        and not source_categories & target_categories
        and _MATCHES_ALL not in source_categories | target_categories
    ):
        gives, takes = ", ".join(sorted(source_categories)), ", ".join(sorted(target_categories))
        return "TYPE_MISMATCH", f"{source.key!r} gives {gives}, {target.key!r} takes {takes}"
    return None


def types_fit(source: str, target: str) -> bool:
    """Whether a value of one `dataFlowType` may flow into the other."""
    return source == target or source in ANY_TYPES or target in ANY_TYPES or (source, target) in _WIDER


def conversion(source: str, target: str) -> tuple[str, str] | None:
    """The types for `convert_value`, if values are converted on their way from `source` to `target`."""
    return (source, target) if (source, target) in _WIDER else None


def convert_value(value: Any, source: str, target: str) -> Any:
    """A value as it arrives: for a STRING input, INTEGER, FLOAT and BOOLEAN become text; for FLOAT, INTEGER becomes a float."""
    if target == "STRING" and source != "STRING" and isinstance(value, bool | int | float):
        return ("true" if value else "false") if isinstance(value, bool) else str(value)
    return as_float(value) if target == "FLOAT" and type(value) is int else value


def as_float(value: int) -> int | float:
    """The number as a float; unchanged if no float is that large, which `value_mismatch` reports."""
    try:
        return float(value)
    except OverflowError:
        return value


def chosen(slot: Slot, value: Any) -> Any:
    """The value of an input from JSON: for a combo option ``{value, label}`` the value, for bytes the decoded base64.

    Text that is not base64 stays text; `value_mismatch` reports it.
    """
    if COMBO in slot.categories and isinstance(value, Mapping) and "value" in value:
        return value["value"]
    if slot.type == "BINARY":
        return [_bytes(item) for item in value] if slot.multi and isinstance(value, list) else _bytes(value)
    return value


def _bytes(value: Any) -> Any:
    if isinstance(value, str):
        with suppress(ValueError):
            return base64.b64decode(value, validate=True)
    return value


def nesting_mismatch(value: Any) -> str:
    """Why no slot accepts `value`, whatever its type: it is nested too deeply, or contains itself; empty if it is not."""
    level = [value]
    for _ in range(depths.WRAPPED + 1):
        inner: dict[int, Any] = {}
        for each in level:
            parts = each.values() if isinstance(each, Mapping) else each if isinstance(each, list | tuple) else ()
            inner.update((id(part), part) for part in parts if type(part) not in _FLAT)
        if not inner:
            return ""
        level = [*inner.values()]
    return f"is nested deeper than {depths.WRAPPED} levels, or contains itself"


def value_mismatch(slot: Slot, value: Any) -> str:
    """Why `value` does not fit the input; empty if it fits.

    Args:
        value: JSON, or the output of a node. None means "nothing" if the input is not required.
    """
    if slot.multi:
        if not isinstance(value, list | tuple):
            return f"takes a list, got {_name(value)}"
        return next((f"item {at}: {why}" for at, item in enumerate(value) if (why := _item_mismatch(slot, item))), "")
    return _item_mismatch(slot, value)


def _item_mismatch(slot: Slot, value: Any) -> str:
    if value is None:
        return "" if slot.required is not True or slot.type in ANY_TYPES else "takes a value, got null"
    if not _is_a(slot.type, value):
        return f"takes {'bytes, in JSON as base64' if slot.type == 'BINARY' else slot.type}, got {_name(value)}"
    if slot.is_closed and not any(value == choice and type(value) is type(choice) for choice in slot.choices):
        return f"takes one of {', '.join(map(repr, slot.choices))}, got {printed(value):.80}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = slot.config.get("min"), slot.config.get("max")
        if isinstance(low, int | float) and value < low:
            return f"must be at least {low}, got {printed(value):.40}"
        if isinstance(high, int | float) and value > high:
            return f"must be at most {high}, got {printed(value):.40}"
    return ""


def _is_a(type_: str, value: Any) -> bool:
    match type_:
        case "STRING":
            return isinstance(value, str)
        case "INTEGER":
            return isinstance(value, int) and not isinstance(value, bool)
        case "FLOAT":
            if not isinstance(value, int | float) or isinstance(value, bool):
                return False
            return math.isfinite(value) if isinstance(value, float) else type(as_float(value)) is float
        case "BOOLEAN":
            return isinstance(value, bool)
        case "OBJECT":
            return not isinstance(value, str | bytes | int | float | list | tuple)
        case "ARRAY":
            return isinstance(value, list | tuple)
        case "BINARY":
            return isinstance(value, bytes | bytearray | memoryview)
    return True


def _name(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return f"the boolean {value}".lower()
        case int() | float():
            return f"the number {printed(value):.40}"
        case str():
            return f"the text {printed(value):.60}"
        case list() | tuple():
            return "a list"
        case Mapping():
            return "an object"
    return type(value).__name__
