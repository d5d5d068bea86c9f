"""Subscriptions to changes of settings, in their order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

Callback = Callable[[Any], None]


@dataclass(frozen=True, slots=True, eq=False)
class Watch:
    """One subscription."""

    key: str
    callback: Callback
    owner: str
    """The subscribing plugin; empty for the host and its program."""


class SettingWatches:
    """All of them; safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: tuple[Watch, ...] = ()

    def add(self, key: str, callback: Callback, owner: str) -> Callable[[], None]:
        """Add one; returns a function that ends it."""
        watch = Watch(key, callback, owner)
        with self._lock:
            self._watches += (watch,)

        def end() -> None:
            with self._lock:
                self._watches = tuple(w for w in self._watches if w is not watch)

        return end

    def forget(self, owner: str) -> None:
        """End all of a plugin."""
        with self._lock:
            self._watches = tuple(w for w in self._watches if w.owner != owner)

    def on(self, keys: Container[str]) -> list[Watch]:
        """Those on one of `keys`."""
        return [watch for watch in self._watches if watch.key in keys]
