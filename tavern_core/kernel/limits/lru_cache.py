"""A cache in memory with bounds."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """A cache that removes the least recently used entry first. Thread-safe.

    Args:
        most: entries.
        most_bytes: of all entries; a larger one is not cached.
    """

    def __init__(self, most: int, most_bytes: int = 0) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._entries: dict[K, tuple[V, int]] = {}

    def find(self, key: K) -> V | None:
        with self._lock:
            if (entry := self._entries.pop(key, None)) is None:
                return None
            self._entries[key] = entry  # at the end: the last one to be removed
            return entry[0]

    def put(self, key: K, value: V, size: int = 0) -> None:
        """Cache a value of about `size` bytes."""
        if size > self._most_bytes:
            return
        with self._lock:
            _, before = self._entries.pop(key, (None, 0))
            self._entries[key] = value, size
            self._bytes += size - before
            while len(self._entries) > self._most or self._bytes > self._most_bytes:
                self._bytes -= self._entries.pop(next(iter(self._entries)))[1]
