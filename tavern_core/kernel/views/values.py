"""The values that pass through a view: plain data, copied.

JSON goes in and out: mappings with text keys, lists, text, numbers, booleans, None. A tuple arrives as a list, a subclass
(OrderedDict, IntEnum) and a read-only mapping as what they stand for. Text and numbers are immutable and passed on;
mutable values are copied, never shared. Everything else is refused, with its form in JSON.
"""

from __future__ import annotations

from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    FunctionType,
    MappingProxyType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import Any, Final

from tavern_core.model import depths
from tavern_core.schema.bounded_json_copying import MAX_NODES, ROOM, SCALARS, NotPlainData, converted_copy, quick_copy

_FEW: Final = 64
_SHORT: Final = 4096
_CODE: Final = (
    type, FunctionType, BuiltinFunctionType, MethodType, MethodWrapperType,
    WrapperDescriptorType, MethodDescriptorType, ClassMethodDescriptorType,
)  # fmt: skip


def copy_builtins(value: Any, most_chars: int) -> Any:
    """A copy of `value` in exact builtin types.

    Args:
        most_chars: text in it, keys included.

    Raises:
        NotPlainData: it is not JSON, or too large.
    """
    if type(value) is str:
        if len(value) <= most_chars:
            return value
        raise NotPlainData(f"it has {len(value):,} characters; the limit is {most_chars:,}", "ask for less")
    if (quick := quick_copy(value, min(ROOM, most_chars))) is not None:
        return quick
    copy, problem = converted_copy(value, most_chars, _as_json)
    if problem is not None:
        raise NotPlainData(str(problem), problem.hint or "pass JSON")
    return copy


def flat_copy(value: dict[Any, Any]) -> dict[str, Any] | None:
    """The copy of a small mapping of numbers and short texts, the common answer; None when it must be looked at with care."""
    if len(value) > _FEW:
        return None
    copy = value.copy()  # at once, so that no other thread changes it meanwhile
    for key in copy:
        if type(key) is not str:
            return None
    for item in copy.values():
        kind = type(item)
        if kind not in SCALARS or (kind is str and len(item) > _SHORT):
            return None
    return copy


def _as_json(value: Any, problem: object) -> Any:
    kind = type(value)  # not `isinstance`, which asks the value for its class
    name = kind.__name__
    if hasattr(kind, "__next__") or hasattr(kind, "__anext__"):
        raise NotPlainData(f"{name} is an iterator, which would run code behind the view", "use a list")
    if issubclass(kind, _CODE):
        raise NotPlainData(f"a {name} can be called back, and a view passes no code", "pass data")
    return _unfrozen(value, depths.VALUE, [MAX_NODES])


def _unfrozen(value: Any, depth: int, budget: list[int]) -> Any:
    """Convert tuples to lists and read-only mappings to mappings; bounded, as a shared part may occur many times."""
    kind = type(value)
    budget[0] -= 1
    if depth < 0 or budget[0] < 0:
        return value  # it is checked as it is, and refused
    if kind is dict or kind is MappingProxyType:
        return {
            str.__str__(key) if issubclass(type(key), str) else key: _unfrozen(item, depth - 1, budget)
            for key, item in list(value.items())
        }
    if issubclass(kind, tuple):
        return [_unfrozen(item, depth - 1, budget) for item in tuple.__iter__(value)]
    if kind is list:
        return [_unfrozen(item, depth - 1, budget) for item in list.copy(value)]
    return value


def exact(name: object) -> str:
    """A name as plain text: a subclass of str may give one name to the check of rights and another to the look-up.

    Raises:
        TypeError: it is not text.
    """
    if type(name) is str:
        return name
    if not isinstance(name, str):
        raise TypeError(f"a name is a text, got {type(name).__name__}")
    return str.__str__(name)
