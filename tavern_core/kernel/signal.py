"""A signal that announces changes to subscribers.

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

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback()` each time the signal is emitted, from now on, until what comes back is called."""
        self._subscribers += (callback,)

        def end() -> None:
            self._subscribers = tuple(one for one in self._subscribers if one is not callback)

        return end

    def emit(self) -> None:
        """Call every subscriber."""
        for callback in self._subscribers:
            callback()
