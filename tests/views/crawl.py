"""Everything that can be reached from an object by looking at it: what a curious plugin would try."""

from __future__ import annotations

import logging
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

STOP = (types.ModuleType, logging.Logger, str, bytes, int, float, bool, type(None), types.CodeType)
"""Modules and loggers are everybody's (`sys.modules`, `logging.root`); the rest holds no objects."""
NEVER = {"f_back", "__builtins__"}
"""Frames of whoever called lead anywhere; `docs/security.md` says so."""
LOOKED_AT = (
    "__self__", "__func__", "__wrapped__", "__closure__", "__globals__", "__defaults__", "__kwdefaults__", "__dict__",
    "func", "args", "keywords", "__objclass__", "__annotations__", "__signature__", "__class__", "__bases__", "__base__",
    "__traceback__", "__cause__", "__context__", "__notes__", "obj", "tb_frame", "tb_next", "f_locals", "f_globals",
    "cr_frame", "cr_await", "gi_frame", "gi_yieldfrom", "ag_frame", "_callbacks", "_coro", "_step", "fget", "__call__",
    "__get__", "__getattr__", "__reduce__", "__reduce_ex__", "__eq__", "__hash__", "__format__", "__weakref__", "__del__",
)  # fmt: skip
"""Besides what `dir` says: attributes that types have and hide."""


Known = dict[int, tuple[Any, list[Any]]]
"""Classes and functions by their id, and what each leads to: a search among the same ones need not look again."""


def reachable(*starts: Any, most: int = 1_200, known: Known | None = None) -> Iterator[Any]:
    """Every object that attributes, items, closures, globals, frames, classes and reductions lead to, the nearest first.

    Classes and functions of Python itself and of libraries are everybody's: the search does not go through them.
    """
    known = {} if known is None else known
    seen: dict[int, Any] = {}
    queue = deque(starts)
    while queue and len(seen) < most:
        thing = queue.popleft()
        if id(thing) in seen or isinstance(thing, STOP) or _is_everybodys(thing):
            continue
        seen[id(thing)] = thing
        yield thing
        if id(thing) in known:
            queue.extend(known[id(thing)][1])
            continue
        found = [_own(found) for found in _next(thing)]
        if isinstance(thing, type | types.FunctionType):
            known[id(thing)] = thing, found
        queue.extend(found)


def _is_everybodys(thing: Any) -> bool:
    if not isinstance(thing, type | types.FunctionType):
        return False
    module = thing.__module__ if isinstance(thing.__module__, str) else ""
    return module.partition(".")[0] not in ("tavern", "tavern_core", "tests", "__main__")


def _own(found: Any) -> Any:
    """A method written in C is made anew at each look; it leads to its object."""
    return found.__self__ if isinstance(found, types.BuiltinMethodType | types.MethodWrapperType) else found


def _next(thing: Any) -> Iterator[Any]:
    if isinstance(thing, dict | types.MappingProxyType) or type(thing).__name__ == "FrameLocalsProxy":  # Python 3.13
        items = dict(thing)
        yield from (value for key, value in items.items() if key not in NEVER)
        yield from items
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from tuple(thing)
    elif isinstance(thing, types.CellType):
        yield _tried(lambda: thing.cell_contents)
    elif isinstance(thing, types.FunctionType | types.MethodType):
        yield from (_tried(lambda name=name: getattr(thing, name)) for name in LOOKED_AT)
    else:
        yield from (
            _tried(lambda name=name: getattr(thing, name)) for name in {*_tried(lambda: dir(thing)), *LOOKED_AT} - NEVER
        )
        if isinstance(thing, type):
            yield from (*type.mro(thing), *type.__subclasses__(thing), *vars(thing).values())
        elif type(thing).__module__ != "builtins" or isinstance(thing, BaseException):
            yield from (_tried(lambda p=p: thing.__reduce_ex__(p)) for p in (0, 2, 4))
            yield from (_tried(lambda p=p: object.__reduce_ex__(thing, p)) for p in (0, 2, 4))


def _tried(look: Callable[[], Any]) -> Any:
    try:
        return look()
    except Exception:
        return ()


def leaks(secrets: Iterable[Any], *starts: Any) -> list[str]:
    """Which of `secrets` can be reached."""
    wanted = {id(secret): secret for secret in secrets}
    return [repr(type(thing)) for thing in reachable(*starts) if id(thing) in wanted]


def leaks_of_each(secrets: Iterable[Any], starts: Mapping[str, Sequence[Any]]) -> dict[str, list[str]]:
    """Which of `secrets` can be reached, for each group of objects that leads to one; each is searched by itself."""
    wanted = {id(secret) for secret in secrets}
    known: Known = {}
    found = {
        name: [repr(type(thing)) for thing in reachable(*group, known=known) if id(thing) in wanted]
        for name, group in starts.items()
    }
    return {name: reached for name, reached in found.items() if reached}
