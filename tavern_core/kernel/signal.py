"""A change that others want to hear of.

Whoever remembers something worked out from elsewhere takes the signal when it is built and subscribes; whoever changes that
emits it and need not know who listens.
"""

from __future__ import annotations

from collections.abc import Callable


class Signal:
    """Subscribers are called in the order of subscribing, on the thread of whoever emits; they must not raise."""

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
