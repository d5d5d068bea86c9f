"""Changes that the host's store did not accept, or may have accepted: made as soon as it works again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from tavern_core.errors import TavernError

_log: Final = logging.getLogger("tavern.stores")
_AGAIN_S: Final = 0.25
"""Interval between attempts."""
_MOST: Final = 10_000


class UnwrittenChanges:
    """The pending writes of one part of a host. Each change is tried in a thread until the store accepts it.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._changes: dict[str, Callable[[], Any]] = {}
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def defer(self, name: str, change: Callable[[], Any], *, is_dispensable: bool = False) -> None:
        """Make this change as soon as the store works, from any thread.

        Args:
            name: a later change of the same name replaces it.
            change: may raise StateDamaged, and may run more than once; False: it cannot be made yet.
            is_dispensable: whether it is dropped if 10,000 are pending already.
        """
        with self._lock:
            if is_dispensable and len(self._changes) >= _MOST:
                return
            self._changes[name] = change
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._catch_up, name=self._name, daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Try to make all changes for the last time. Raises StateDamaged."""
        self._closing.set()
        self._make_good()

    def _catch_up(self) -> None:
        while not self._closing.wait(_AGAIN_S):
            with suppress(TavernError):
                self._make_good()
            with self._lock:
                if not self._changes:
                    self._thread = None
                    return

    def _make_good(self) -> None:
        for name, change in list(self._changes.items()):
            try:
                if change() is False:
                    continue
            except TavernError:
                raise
            except Exception:  # noqa: BLE001 - a fault in the change itself: it is given up, and the others are made
                _log.exception("a change of the store cannot be made: %s", name)
            with self._lock:
                if self._changes.get(name) is change:
                    del self._changes[name]
