"""A signal that announces changes to subscribers.

A cache of derived values receives the signal at construction and subscribes; the code that changes the source
emits it and need not know its subscribers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Subscribers(Generic[T]):
    """Subscriptions in their order. Safe from several threads."""

    __slots__ = ("_lock", "current")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.current: tuple[T, ...] = ()
        """All of them; another tuple after each change."""

    def add(self, entry: T) -> Callable[[], None]:
        """Add a subscription; returns a function that ends it."""
        with self._lock:
            self.current += (entry,)
        return lambda: self.drop(lambda one: one is entry)

    def drop(self, which: Callable[[T], bool]) -> None:
        """End the subscriptions that `which` selects."""
        with self._lock:
            self.current = tuple(one for one in self.current if not which(one))


class Signal:
    """Subscribers are called in the order of subscribing, on the emitting thread; they must not raise."""

    __slots__ = ("_subscribers",)

    def __init__(self) -> None:
        self._subscribers = Subscribers[Callable[[], None]]()

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback()` each time the signal is emitted; returns a function that ends the subscription."""
        return self._subscribers.add(callback)

    def emit(self) -> None:
        """Call every subscriber."""
        for callback in self._subscribers.current:
            callback()
