"""What a published method does to its service: `@read_only` looks, `@mutates` changes something.

    class Store(Protocol):
        @read_only
        def fetch(self, key: str) -> str: ...

        @mutates
        def put(self, key: str, value: str) -> None: ...

Whoever was granted ``service:use:store`` may look; changing needs ``service:write:store``. In an interface that marks
anything, a method without a mark counts as changing. An interface that marks nothing promises nothing, and `use` covers all
of it, as it says to whoever grants it; the host tells its author (SERVICE_UNMARKED).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
MUTATES: Final = "__tavern_mutates__"
"""The attribute of a marked function: True for `@mutates`, False for `@read_only`."""


def read_only(method: F) -> F:
    """Mark a published method that changes nothing of its service; `service:use` is enough to call it."""
    setattr(method, MUTATES, False)
    return method


def mutates(method: F) -> F:
    """Mark a published method that changes something; a plugin of somebody else needs `service:write` to call it."""
    setattr(method, MUTATES, True)
    return method
