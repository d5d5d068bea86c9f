"""JSON at the borders: validation, size limits, and copies that share nothing.

    json_copy       for all that crosses a border: arguments, answers, settings, frames; refusals name the place
    json_or         the same with a replacement for a value that is not JSON
    converted_copy  the same with a conversion of a value that is not JSON, and a limit of text
    copied_parts    new lists and mappings, the same objects of plugins: between hooks, whose answers are judged later
    from_python     models, dates, sets and enums as JSON
    quick_copy      `json_copy` in one walk, for small and usual values

Other copies have other purposes: `kernel/nodes/json_values` writes bytes and Skip,
`flow/engine/node_value_encoding.deep_copy` copies any object, `schema/redact` masks secrets, `model/result` and
`kernel/log/record` replace values that are not JSON by text, `graph/json_patch` copies values that were already
measured (it may not import this layer).

Arguments, tool output and schemas are untrusted until measured: cyclic, a million levels deep, full of NaN, lone
surrogates, sets or objects. Everything here is iterative, bounded, linear and never raises. Values may be of classes
that overwrite everything, so none of their methods is called, and `isinstance`, which asks for `__class__`, is not used
on them.

JSON is what `json.loads` can produce: dict with str keys, list, str, int, float, bool, None. A subclass of one of
these (IntEnum, StrEnum, OrderedDict) counts as its base; tuples, sets, bytes, Decimal, dates and objects do not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from tavern_core.model import depths
from tavern_core.model.safe_printing import is_text
from tavern_core.schema.problem import SchemaProblem, json_type, pointer, printable

MAX_NODES = 500_000
"""Values in one value (a small shared structure can expand without limit)."""
MAX_CHARS = 64_000_000
"""Characters of text in one value, keys included."""
MAX_INT_BITS = 14_284
"""Python refuses to print integers above 4,300 digits, and so does jsonschema-rs."""

SMALL: Final = 1 << 63
"""Smaller integers need no second check."""
TOO_MUCH: Final = "holds more than"
"""The beginning of a problem about a value that is valid, but too large."""
ROOM: Final = 65_536
"""Values and characters, names included, in one quick copy. A shared part counts at each occurrence."""
NUMBERS: Final = frozenset({int, float, bool, type(None)})
"""The types of JSON that hold neither text nor other values."""
SCALARS: Final = NUMBERS | {str}
"""The JSON types that contain no other values."""
_Path: TypeAlias = "tuple[_Path, object, object] | None"
"""The parent path, the key or index below it, and the value that contains it."""


class NotPlainData(ValueError):
    """A value is not plain data, or too large."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint


_INSTEAD = {
    "tuple": "use a list",
    "set": "use a list",
    "frozenset": "use a list",
    "bytes": "use base64 text",
    "bytearray": "use base64 text",
    "memoryview": "use base64 text",
    "Decimal": "use a float, or a string to keep every digit",
    "complex": "use an array of two numbers",
    "datetime": "use .isoformat()",
    "date": "use .isoformat()",
    "time": "use .isoformat()",
    "timedelta": "use a number of seconds",
    "UUID": "use str(...)",
    "PosixPath": "use str(...)",
    "WindowsPath": "use str(...)",
    "mappingproxy": "use dict(...)",
}


def is_plain(value: object, max_depth: int = depths.VALUE, max_nodes: int = MAX_NODES) -> bool:
    """True if `value` is JSON made of exact builtin types within the limits.

    This runs before every validation, so it is the quick form of `measure`: no paths, no stack, no reasons.
    """
    return _plain([value], max_depth + 1, max_nodes) >= 0


def count_values(value: Any) -> int:
    """The number of values in JSON of bounded depth, itself included."""
    if isinstance(value, dict):
        return 1 + sum(map(count_values, value.values()))
    return 1 + sum(map(count_values, value)) if isinstance(value, list) else 1


def _plain(value: Any, depth: int, budget: int) -> int:
    """The remaining `budget` (values) after walking a dict or list, negative if something is not plain."""
    budget -= len(value)
    if depth == 0 or budget < 0:
        return -1
    items: Any = value
    if type(value) is dict:
        for key in value:
            if type(key) is not str or not (key.isascii() or is_text(key)):
                return -1
        items = value.values()
    for item in items:
        kind = type(item)
        if kind is int:
            if -SMALL < item < SMALL or item.bit_length() <= MAX_INT_BITS:
                continue
            return -1
        if kind is str:
            if item.isascii() or is_text(item):
                continue
            return -1
        if kind is dict or kind is list:
            budget = _plain(item, depth - 1, budget)
            if budget < 0:
                return -1
        elif kind is float:
            if item - item != 0.0:
                return -1
        elif kind is not bool and item is not None:
            return -1
    return budget


def measure(
    value: object, max_depth: int = depths.VALUE, max_nodes: int = MAX_NODES, max_chars: int = MAX_CHARS
) -> SchemaProblem | None:
    """The first reason why `value` is not JSON or is too large, or None.

    Args:
        value: anything at all.
        max_depth: levels of nesting; a scalar has none, ``[]`` has one.
        max_nodes: values, counting every occurrence of a shared one.
        max_chars: characters in all strings and keys together.
    """
    return _Measure(max_depth, max_nodes, max_chars).run(value)


class _Measure:
    """A walk over one value."""

    __slots__ = ("chars", "depth", "most_chars", "nodes")

    def __init__(self, depth: int, nodes: int, chars: int) -> None:
        self.depth, self.nodes = depth, nodes
        self.chars = self.most_chars = chars

    def run(self, root: object) -> SchemaProblem | None:
        stack: list[tuple[Any, int, _Path]] = [(root, 0, None)]
        nodes = self.nodes
        while stack:
            value, depth, path = stack.pop()
            nodes -= 1
            if nodes < 0:
                return _too(path, f"{TOO_MUCH} {self.nodes:,} values", f"at most {self.nodes:,} values")
            kind = type(value)
            if value is None or kind is bool:
                continue
            base = _EXACT.get(id(kind)) or next((base for base in _BASES if issubclass(kind, base)), None)
            if base is None:
                return _foreign(value, path)
            if base is dict or base is list:
                if depth >= self.depth:
                    return _too_deep(value, path, self.depth)
                if len(stack) + base.__len__(value) > nodes:  # before it is walked through: it may be far larger
                    return _too(path, f"{TOO_MUCH} {self.nodes:,} values", f"at most {self.nodes:,} values")
                if base is list:
                    stack.extend((item, depth + 1, (path, at, value)) for at, item in enumerate(_items(value)))
                elif found := self._members(value, depth, path, stack):
                    return found
            elif found := self._scalar(value, base, path):
                return found
        return None

    def _members(
        self, value: Any, depth: int, path: _Path, stack: list[tuple[Any, int, _Path]]
    ) -> SchemaProblem | None:
        for key, item in dict.items(value):
            if not issubclass(type(key), str):
                return SchemaProblem(
                    _where(path),
                    f"an object's keys must be strings, one is {json_type(key)}",
                    "string keys",
                    json_type(key),
                    "write the key as a string",
                    "json",
                )
            if found := self._scalar(key, str, path):
                return found
            stack.append((item, depth + 1, (path, key if type(key) is str else str.__str__(key), value)))
        return None

    def _scalar(self, value: Any, base: type, path: _Path) -> SchemaProblem | None:
        if base is str:
            self.chars -= str.__len__(value)
            if self.chars < 0:
                at_most = f"{self.most_chars:,} characters"
                return _too(path, f"{TOO_MUCH} {at_most} of text", f"at most {at_most}")
            return None if str.isascii(value) or is_text(value) else _surrogate(path)
        if base is int:
            if int.bit_length(value) > MAX_INT_BITS:
                return _too(path, "is an integer too large to be written", f"at most {MAX_INT_BITS} bits")
        elif float.__sub__(value, value) != 0.0:
            name = "NaN" if float.__ne__(value, value) else "Infinity"
            return SchemaProblem(
                _where(path), f"{name} is not a JSON number", "finite number", name, "use null, or leave it out", "json"
            )
        return None


_BASES: Final[tuple[type, ...]] = (dict, list, str, int, float)
_EXACT: Final = {id(base): base for base in _BASES}
"""By id: to look up a class itself would call the methods of its metaclass."""


def json_copy(
    value: object, max_depth: int = depths.VALUE, max_nodes: int = MAX_NODES
) -> tuple[Any, SchemaProblem | None]:
    """A deep copy made of exact builtin types that shares no mutable part with `value`, or the problem.

    Args:
        value: anything at all.
        max_depth: levels of nesting; it is copied recursively, so a few hundred at most.
        max_nodes: values in it.

    Returns:
        ``(copy, None)`` or ``(None, problem)``. The copy of a subclass instance is of its base type.
    """
    kind = type(value)
    if value is None or kind is bool:
        return value, None
    # the quick check first
    return (_copy(value), None) if is_plain(value, max_depth, max_nodes) else measured_copy(value, max_depth, max_nodes)


def measured_copy(
    value: object, max_depth: int = depths.VALUE, max_nodes: int = MAX_NODES
) -> tuple[Any, SchemaProblem | None]:
    """`json_copy` for a value that is not plain."""
    problem = measure(value, max_depth, max_nodes)
    return (_copy(value), None) if problem is None else (None, problem)


def json_or(value: object, instead: Any) -> Any:
    """`json_copy` of `value`, or `instead` where it is not JSON."""
    copy, problem = json_copy(value)
    return copy if problem is None else instead


def converted_copy(
    value: object, most_chars: int, convert: Callable[[Any, SchemaProblem], Any]
) -> tuple[Any, SchemaProblem | None]:
    """`json_copy` of a value with at most `most_chars` of text; of ``convert(value, problem)`` if the value itself is not JSON."""
    copy, problem = json_copy(value)
    if problem is not None:
        copy, problem = json_copy(convert(value, problem))
    return copy, problem or measure(copy, max_chars=most_chars)


def copied_parts(value: Any) -> Any:
    """New mappings, lists and tuples; other objects in them, such as those of plugins, are not copied."""
    kind = type(value)
    if kind in SCALARS:
        return value
    if isinstance(value, Mapping):
        return {key: item if type(item) in SCALARS else copied_parts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [item if type(item) in SCALARS else copied_parts(item) for item in value]
    return tuple(map(copied_parts, value)) if kind is tuple else value


def quick_copy(value: Any, room: int = ROOM, levels: int = depths.VALUE) -> Any | None:
    """`json_copy` of an exact dict or list, or None when the full check is needed: it is large or unusual, not wrong.

    Args:
        value: anything; a cycle ends when there is no room any more.
        room: maximum number of values and characters in total.
        levels: maximum nesting of dicts and lists, itself included.
    """
    if type(value) is not dict and type(value) is not list:
        return None
    copy = value.copy()
    level = [copy]
    while level and levels > 0:
        levels -= 1
        deeper: list[Any] = []
        for container in level:
            room -= len(container) + 1
            if room < 0:
                return None
            places: Any
            if type(container) is dict:
                places = container.items()
                for key in container:
                    if type(key) is not str or not (key.isascii() or is_text(key)):
                        return None
                    room -= len(key)
            else:
                places = enumerate(container)
            for place, item in places:
                kind = type(item)
                if kind is str:
                    room -= len(item)
                    if room < 0 or not (item.isascii() or is_text(item)):
                        return None
                elif kind is int:
                    if not -SMALL < item < SMALL:
                        return None
                elif kind is float:
                    if item - item != 0.0:  # not finite
                        return None
                elif kind is dict or kind is list:
                    container[place] = inner = item.copy()
                    deeper.append(inner)
                elif kind is not bool and item is not None:
                    return None
        level = deeper
    return None if level or room < 0 else copy


def from_python(value: object, **options: Any) -> Any:
    """`value` as JSON if it holds models, dataclasses, dates, enums, sets or keys that are not text.

    Args:
        options: of `pydantic_core.to_json`.

    Raises:
        ValueError, TypeError, RecursionError: it cannot be written, or two keys of a mapping become the same text. Also errors of its own code.
    """
    from pydantic_core import to_json

    # Through text, because direct conversion would let the second of two equal keys replace the first.
    text = to_json(value, **options)
    collided = False

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal collided
        found = dict(pairs)
        collided = collided or len(found) < len(pairs)
        return found

    found = json.loads(text, object_pairs_hook=members)
    if collided:
        raise TwoKeys(_collision(json.loads(text, object_pairs_hook=tuple)))
    return found


class TwoKeys(ValueError):
    """Two keys of a mapping become the same text, and one of their values would be lost."""


def _collision(value: Any) -> str:
    """The place of the first two equal keys in JSON whose objects are tuples of pairs."""
    stack: list[tuple[Any, _Path]] = [(value, None)]
    while stack:
        here, path = stack.pop()
        members = list(here) if isinstance(here, tuple) else list(enumerate(here)) if isinstance(here, list) else []
        names = [name for name, _ in members]
        if len(set(names)) < len(names):
            twice = next(name for at, name in enumerate(names) if name in names[:at])
            return f"{_where(path)}: two keys become the same text {twice!r:.80}".removeprefix(": ")
        stack += [(item, (path, name, here)) for name, item in reversed(members)]
    return ""


def _copy(value: Any) -> Any:
    """The copy of a measured value; recursion is bounded by depths.VALUE."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if issubclass(kind, dict):
        return {str.__str__(key): _copy(item) for key, item in dict.items(value)}
    if issubclass(kind, list):
        return [_copy(item) for item in _items(value)]
    if issubclass(kind, str):
        return str.__str__(value)
    return int.__int__(value) if issubclass(kind, int) else float.__float__(value)


def _items(value: Any) -> Iterator[Any]:
    return list.__iter__(value)


def _where(path: _Path) -> str:
    parts: list[object] = []
    while path is not None:
        path, part, _ = path
        parts.append(part)
    return pointer(reversed(parts))


def _too(path: _Path, message: str, expected: str) -> SchemaProblem:
    return SchemaProblem(_where(path), message, expected, keyword="limit", hint="send less, or in several calls")


def _too_deep(value: object, path: _Path, limit: int) -> SchemaProblem:
    keys: list[object] = []
    path_ids = [id(value)]
    while path is not None:
        path, key, holder = path
        keys.append(key)
        path_ids.append(id(holder))
    keys.reverse()
    visited: set[int] = set()
    for at, each in enumerate(reversed(path_ids)):
        if each in visited:
            return SchemaProblem(
                pointer(keys[:at]), "contains itself", "a tree", "a cycle", "remove the reference", "limit"
            )
        visited.add(each)
    return SchemaProblem(
        pointer(keys[:8]),
        f"is nested deeper than {limit} levels",
        f"at most {limit} levels",
        keyword="limit",
        hint="flatten it",
    )


def _surrogate(path: _Path) -> SchemaProblem:
    return SchemaProblem(
        _where(path),
        "holds a lone surrogate, which is not text",
        "Unicode text",
        "half of a surrogate pair",
        "decode the text with the right encoding",
        "json",
    )


def _foreign(value: object, path: _Path) -> SchemaProblem:
    name = printable(type(value).__name__)
    if hint := _INSTEAD.get(name):
        pass
    elif hasattr(type(value), "model_dump"):
        hint = "use .model_dump(mode='json')"
    elif hasattr(type(value), "__dataclass_fields__"):
        hint = "use dataclasses.asdict(...)"
    else:
        hint = "use an object, array, string, number, boolean or null"
    return SchemaProblem(_where(path), f"{name} is not JSON", "a JSON value", name, hint, "json")
