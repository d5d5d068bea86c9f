"""Functions that hide what they call.

A Python function exposes everything: its closure, its globals, its defaults, and as a bound method its object. The callable
that `functools.lru_cache` makes is written in C and keeps the function it calls in a field that no attribute reads. With
``maxsize=0`` it caches nothing: it calls through, at a cost of some 40 ns.

It does not hide what any Python code in the process can reach: `gc`, running frames, `ctypes`, `sys.modules`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any

from tavern_core.kernel.views.clean_errors import fresh


def hidden(
    function: Callable[..., Any], holder: object, name: str = "", doc: str = "", **said: Any
) -> Callable[..., Any]:
    """``function(holder, ...)`` as a callable from which neither `function` nor `holder` can be reached.

    Args:
        name, doc: name and docstring of the callable.
        said: further attributes; plain data, because they are public.
    """
    sealed = functools.lru_cache(maxsize=0)(MethodType(function, holder))
    facts = vars(sealed)
    facts.clear()  # __wrapped__ among them, which is the function
    facts |= {"__name__": name, "__qualname__": name, "__doc__": doc, "__module__": "tavern", **said}
    return sealed


def sealed_object(facilities: object, names: Iterable[str], label: str) -> Any:
    """An object with the methods `names` of `facilities`; neither it nor its errors lead to `facilities`."""
    body: dict[str, Any] = {
        name: staticmethod(hidden(_through, getattr(facilities, name), name, getattr(facilities, name).__doc__ or ""))
        for name in names
    }
    return type(label, (), body | {"__slots__": (), "__module__": "tavern"})()


def _through(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - raised again below
        failed = fresh(error, "the host")
    # The traceback keeps this frame: clear its variables.
    function = args = kwargs = None  # type: ignore[assignment]
    try:
        raise failed
    finally:
        del failed
