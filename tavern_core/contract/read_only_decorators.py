"""What a published method does to its service: `@read_only` only reads, `@mutates` changes something.

    class Store(Protocol):
        @read_only
        def fetch(self, key: str) -> str: ...

        @mutates
        def put(self, key: str, value: str) -> None: ...

A plugin with ``service:use:store`` may only call methods marked `@read_only`; changing needs
``service:write:store``. A method without a mark always counts as changing. The host reports it to
the author (SERVICE_UNMARKED), and `tavern plugins check` shows the line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
MUTATES: Final = "__tavern_mutates__"
"""The attribute of a marked function: True for `@mutates`, False for `@read_only`."""


def read_only(method: F) -> F:
    """Mark a published method that changes nothing of its service; `service:use` is enough to call it.

    Raises:
        ValueError: it is marked `@mutates` already.
    """
    return _marked(method, False)


def mutates(method: F) -> F:
    """Mark a published method that changes something; another plugin needs `service:write` to call it.

    Raises:
        ValueError: it is marked `@read_only` already.
    """
    return _marked(method, True)


def function_of(member: object) -> object:
    """The function inside a staticmethod or classmethod; anything else as it is."""
    return member.__func__ if isinstance(member, staticmethod | classmethod) else member


def _marked(method: F, changes: bool) -> F:
    function = function_of(method)
    if getattr(function, MUTATES, changes) is not changes:
        raise ValueError(
            f"{getattr(function, '__qualname__', method)} is marked both @read_only and @mutates: leave one out"
        )
    setattr(function, MUTATES, changes)
    return method
