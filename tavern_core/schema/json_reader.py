"""Strict JSON: exactly RFC 8259, with limits on depth and on the length of numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from tavern_core.model import depths
from tavern_core.model.message_translation import Row, say

_LONGEST_NUMBER: Final = 1000
_NO_BRACKETS: Final = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[^]["{}]++', re.DOTALL)
"""A string, or text without brackets between two strings."""


WORDS: Final[Mapping[str, Row]] = {
    "not_allowed": ("{name} is not allowed", "不允许 {name}"),
    "number_too_long": ("a number of {digits} digits is too long", "{digits} 位的数太长"),
    "number_too_large": ("the number is too large", "数太大"),
    "twice_in_object": ("{name!r} appears twice in one object", "{name!r} 在一个对象中出现了两次"),
    "nested_deeper": ("nested deeper than {most} levels", "嵌套超过 {most} 层"),
    "no_json": ("not valid JSON: {why} at character {at}", "不是有效的 JSON：第 {at} 个字符处（{why!r}）"),
}


class NotJson(ValueError):
    """The text is not strict JSON."""


def _refuse_constant(name: str) -> NoReturn:
    raise NotJson(say(WORDS["not_allowed"], name=name))


def _read_int(text: str) -> int:
    if len(text) > _LONGEST_NUMBER:
        raise NotJson(say(WORDS["number_too_long"], digits=len(text)))
    return int(text)


def _read_float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise NotJson(say(WORDS["number_too_large"]))
    return value


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1) if len(names) < 1000 else "a name"
        raise NotJson(say(WORDS["twice_in_object"], name=twice))
    return value


_DECODER = json.JSONDecoder(
    object_pairs_hook=_read_object, parse_int=_read_int, parse_float=_read_float, parse_constant=_refuse_constant
)


def read_json(text: str) -> Any:
    """Strict JSON: no NaN, no Infinity, no duplicate names, numbers a double can hold, at most 100 levels deep.

    Raises:
        NotJson: with the reason.
    """
    if text.count("[") + text.count("{") > depths.WRAPPED and _depth(text) > depths.WRAPPED:
        raise NotJson(say(WORDS["nested_deeper"], most=depths.WRAPPED))
    try:
        return _DECODER.decode(text)
    except NotJson:
        raise
    except json.JSONDecodeError as error:
        raise NotJson(say(WORDS["no_json"], why=error.msg, at=error.pos + 1)) from None
    except (ValueError, RecursionError) as error:
        raise NotJson(f"not valid JSON: {error}") from None


def _depth(text: str) -> int:
    """How deep the brackets outside strings are nested; stops counting at the limit."""
    depth = deepest = 0
    for sign in _NO_BRACKETS.sub("", text):
        if sign in "[{":
            depth += 1
            deepest = max(deepest, depth)
            if deepest > depths.WRAPPED:
                return deepest
        else:
            depth -= 1
    return deepest
