"""Functions that hide what they call.

A Python function shows everything: its closure, its globals, its defaults, and as a bound method its object. The callable
that `functools.lru_cache` makes is written in C and keeps the function it calls in a field that no attribute reads. With
``maxsize=0`` it caches nothing: it calls through, and costs some 40 ns.

Still within reach is what is within reach of any Python code in the process: `gc`, running frames, `ctypes`, `sys.modules`.
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
        name, doc: what the callable says of itself.
        said: further attributes; plain data, for everybody sees them.
    """
    sealed = functools.lru_cache(maxsize=0)(MethodType(function, holder))
    facts = vars(sealed)
    facts.clear()  # __wrapped__ among them, which is the function
    facts |= {"__name__": name, "__qualname__": name, "__doc__": doc, "__module__": "tavern", **said}
    return sealed


def sealed_doors(doors: object, names: Iterable[str], label: str) -> Any:
    """An object with the methods `names` of `doors`, from which `doors` cannot be reached, nor by the errors it raises."""
    body: dict[str, Any] = {
        name: staticmethod(hidden(_through, getattr(doors, name), name, getattr(doors, name).__doc__ or ""))
        for name in names
    }
    return type(label, (), body | {"__slots__": (), "__module__": "tavern"})()


def _through(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - raised again below
        failed = fresh(error, "the host")
    # The traceback keeps this frame: nothing may be left in it.
    function = args = kwargs = None  # type: ignore[assignment]
    try:
        raise failed
    finally:
        del failed
