"""Plain data: its digest, the fields of a value as JSON, and two kinds of copies.

A copy has other leaves, such as each text masked, or it is immutable.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from tavern_core.model import depths
from tavern_core.model.naming_rules import camel


def json_digest(value: Any, *, is_compact: bool = False) -> str:
    """The SHA-256, in hex, of plain data, the same for every order of its keys. Other values count as their text.

    Args:
        is_compact: no blanks between the parts. Stored digests were made in both forms.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":") if is_compact else None, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def with_leaves(
    value: Any, change: Callable[[Any], Any], *, with_keys: bool = False, levels: int = depths.WRAPPED
) -> Any:
    """A copy in which each part that is neither a mapping nor a list is ``change(part)``; what is nested deeper is cut.

    Args:
        with_keys: the keys are changed, too.
    """
    if isinstance(value, Mapping):
        if levels == 0:
            return "…"
        return {
            change(key) if with_keys else key: with_leaves(item, change, with_keys=with_keys, levels=levels - 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        if levels == 0:
            return "…"
        return [with_leaves(item, change, with_keys=with_keys, levels=levels - 1) for item in value]
    return change(value)


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of JSON in which each text, keys included, is ``change(text)``."""
    return with_leaves(value, lambda leaf: change(leaf) if isinstance(leaf, str) else leaf, with_keys=True)


def json_members(value: object, *names: str) -> dict[str, Any]:
    """The fields `names` of a value, in this order. Parts with `to_json` give their own JSON; sequences become lists."""
    return {camel(name): _json(getattr(value, name)) for name in names}


def _json(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, list | tuple):
        return [_json(part) for part in value]
    return dict(value) if isinstance(value, Mapping) else value


K = TypeVar("K")
V = TypeVar("V")


def _refuse(self: object, *_: object, **__: object) -> NoReturn:
    raise TypeError("this belongs to the host and cannot be changed; change a copy of it: copy.deepcopy(...)")


class FrozenDict(dict[K, V]):
    """A mapping that cannot be changed; see `frozen`."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class FrozenList(list[V]):
    """A list that cannot be changed."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def frozen(value: Any) -> Any:
    """An immutable copy of JSON, to be shared. A deep copy of it is plain again.

    Its mappings and lists are real ones, so everything that accepts JSON accepts them. This prevents mistakes, not
    attacks: ``dict.update(frozen, …)`` still changes one.

    >>> frozen({"a": [1]}) == {"a": [1]}
    True
    """
    if isinstance(value, Mapping):
        return FrozenDict({key: frozen(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return FrozenList(frozen(item) for item in value)
    return value
