"""One change of a plugin at a time: activating, stopping and reloading exclude each other, over threads and event loops.

async with transitions.of("text"):      # waits for the present change of it
    ...                                 # only this block changes it
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from contextvars import ContextVar

from tavern_core.errors import PluginError

_mine: ContextVar[frozenset[tuple[int, str]]] = ContextVar("tavern_transitions", default=frozenset())
"""What the running code is itself in the middle of changing; hooks run in threads with a copy of it."""


class Transitions:
    """The changes of one host's plugins that are under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: dict[str, Future[None]] = {}

    def under_way(self, name: str) -> bool:
        """True while the plugin is being changed."""
        return name in self._now

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """Be the only one who changes the plugin.

        Raises:
            PluginError: the caller runs inside a change of this very plugin, and would wait for itself (PLUGIN_FAILED).
        """
        key = (id(self), name)
        if key in _mine.get():
            raise PluginError(
                f"{name} cannot be used by its own code while it is being activated or stopped",
                hint="do it when a tool is called",
            )
        while True:
            with self._lock:
                before = self._now.get(name)
                if before is None:
                    mine = self._now[name] = Future()
                    break
            # Not awaited itself: a waiter that is cancelled must not cancel what others wait for.
            await asyncio.wait([asyncio.wrap_future(before)])
        token = _mine.set(_mine.get() | {key})
        try:
            yield
        finally:
            _mine.reset(token)
            with self._lock:
                del self._now[name]
            mine.set_result(None)
