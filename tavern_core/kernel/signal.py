"""A change that others want to hear of.

A cache of derived values receives the signal at construction and subscribes; the code that changes the source
emits it and need not know its subscribers.
"""

from __future__ import annotations

from collections.abc import Callable


class Signal:
    """Subscribers are called in the order of subscribing, on the emitting thread; they must not raise."""

    __slots__ = ("_subscribers",)

    def __init__(self) -> None:
        self._subscribers: tuple[Callable[[], None], ...] = ()

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call `callback()` each time the signal is emitted, from now on."""
        self._subscribers += (callback,)

    def emit(self) -> None:
        """Call every subscriber."""
        for callback in self._subscribers:
            callback()
