"""Values of nodes as plain JSON and back: bytes as base64, everything that JSON cannot hold refused."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, Final

from tavern_core.contract.nodes import Skip
from tavern_core.model import depths
from tavern_core.model.safe_printing import shortened
from tavern_core.schema.bounded_json_copying import SCALARS, NotPlainData

_BYTES: Final = "$bytes"
_SKIP: Final = "$skip"
TAGS: Final = frozenset({_BYTES, _SKIP, "$plain"})
"""Keys that mark values without a JSON form."""


def to_plain(
    value: Any, depth: int = depths.WRAPPED, *, tagged: bool = True, large: Callable[[bytes], Any] | None = None
) -> Any:
    """`value` as JSON.

    Args:
        tagged: mark bytes and Skip for `from_plain`; else, for other readers, bytes are base64 text and Skip is null.
        large: returns a replacement for large bytes; None from it: they stay.

    Raises:
        NotPlainData: it holds an object that JSON cannot hold, or is nested too deeply.
    """
    kind = type(value)
    if kind in SCALARS:
        return value
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if value is Skip:
        return {_SKIP: True} if tagged else None
    if isinstance(value, bytes | bytearray):
        if large is not None and (link := large(bytes(value))) is not None:
            return link
        text = base64.b64encode(value).decode()
        return {_BYTES: text} if tagged else text
    if depth == 0:
        raise NotPlainData("nested too deeply")
    if kind is list or kind is tuple or isinstance(value, list | tuple):
        return [
            item if type(item) in SCALARS else to_plain(item, depth - 1, tagged=tagged, large=large) for item in value
        ]
    if kind is dict or isinstance(value, Mapping):
        if not all(type(key) is str or isinstance(key, str) for key in value):
            raise NotPlainData("a key that is not text")
        plain = {
            key: item if type(item) in SCALARS else to_plain(item, depth - 1, tagged=tagged, large=large)
            for key, item in value.items()
        }
        return {"$plain": plain} if tagged and TAGS & plain.keys() else plain
    raise NotPlainData(type(value).__name__)


def from_plain(value: Any) -> Any:
    """The inverse of `to_plain`; tuples have become lists."""
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    if isinstance(value, dict):
        if len(value) == 1:
            if _BYTES in value:
                return base64.b64decode(value[_BYTES])
            if _SKIP in value:
                return Skip
            if "$plain" in value:
                return {key: from_plain(item) for key, item in value["$plain"].items()}
        return {key: from_plain(item) for key, item in value.items()}
    return value


def displayable(value: Any, longest: int = 2_000) -> Any:
    """`value` for people and events: plain and shortened; values without a JSON form as the name of their type."""
    try:
        plain = to_plain(value, tagged=False)
    except NotPlainData:
        return f"<{type(value).__name__}>"
    return shortened(plain, longest) if isinstance(plain, str) else plain
