"""Immutable JSON for sharing: mappings and lists that refuse changes. A deep copy is plain again.

They are real dicts and lists, so everything that accepts JSON accepts them. This prevents mistakes, not attacks:
``dict.update(frozen, …)`` still changes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")


def _refuse(self: object, *_: object, **__: object) -> NoReturn:
    raise TypeError("this belongs to the host and cannot be changed; change a copy of it: copy.deepcopy(...)")


class FrozenDict(dict[K, V]):
    """A mapping that cannot be changed."""

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
    """An immutable copy of JSON.

    >>> frozen({"a": [1]}) == {"a": [1]}
    True
    """
    if isinstance(value, Mapping):
        return FrozenDict({key: frozen(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return FrozenList(frozen(item) for item in value)
    return value
