"""Functions that hide what they call.

A Python function exposes everything: its closure, its globals, its defaults, and as a bound method its object. The callable
that `functools.lru_cache` makes is written in C and keeps the function it calls in a field that no attribute reads. With
``maxsize=0`` it caches nothing: it calls through, at a cost of some 40 ns.

It does not hide what any Python code in the process can reach: `gc`, running frames, `ctypes`, `sys.modules`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any, Final

_LIKE: Final = functools.lru_cache(maxsize=0)(len)
_SEALED: Final[Any] = type(_LIKE)
"""Called directly: `lru_cache` would also copy what the function says of itself, which must go again, at five times the cost."""
_COUNTS: Final = type(_LIKE.cache_info())


def hidden(
    function: Callable[..., Any], holder: object, name: str = "", doc: str = "", **said: Any
) -> Callable[..., Any]:
    """``function(holder, ...)`` as a callable from which neither `function` nor `holder` can be reached.

    Args:
        name, doc: name and docstring of the callable.
        said: further attributes; plain data, because they are public.
    """
    sealed: Callable[..., Any] = _SEALED(MethodType(function, holder), 0, False, _COUNTS)
    vars(sealed).update(__name__=name, __qualname__=name, __doc__=doc, __module__="tavern", **said)
    return sealed
