"""`typing.TypedDict` for pydantic on Python 3.11, which only accepts the one of `typing_extensions`.

On 3.12 and later annotations are left alone.
"""

from __future__ import annotations

import sys
import types
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints

from tavern_core.model import depths


def modern(annotation: Any, depth: int = 0) -> Any:
    """`annotation` with each `typing.TypedDict` in it replaced by an equal one that pydantic understands.

    A TypedDict that contains itself stays unchanged; the error of pydantic then explains the repair.
    """
    if sys.version_info >= (3, 12) or depth > depths.ANNOTATION:
        return annotation
    if isinstance(annotation, type) and type(annotation).__name__ == "_TypedDictMeta":
        return annotation if type(annotation).__module__ == "typing_extensions" else _rebuilt(annotation, depth)
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is None or origin is Literal or not parts:
        return annotation
    if origin is Annotated:
        inner = modern(parts[0], depth + 1)
        return annotation if inner is parts[0] else Annotated[(inner, *parts[1:])]
    changed = tuple(
        [modern(each, depth + 1) for each in part] if isinstance(part, list) else modern(part, depth + 1)
        for part in parts
    )
    if all(new is old or isinstance(old, list) for new, old in zip(changed, parts, strict=True)):
        return annotation
    if origin is Union or origin is types.UnionType:
        return reduce(or_, changed)
    return origin[changed if len(changed) > 1 else changed[0]]


def _rebuilt(old: Any, depth: int) -> Any:
    import typing_extensions

    members = {}
    for name, hint in get_type_hints(old, include_extras=True).items():
        bare = get_args(hint)[0] if get_origin(hint) in (Required, NotRequired) else hint
        new = modern(bare, depth + 1)
        members[name] = Required[new] if name in old.__required_keys__ else NotRequired[new]
    make: Any = typing_extensions.TypedDict  # its name and members are only known at run time
    rebuilt = make(old.__name__, members)
    rebuilt.__doc__, rebuilt.__module__ = old.__doc__, old.__module__
    return rebuilt
