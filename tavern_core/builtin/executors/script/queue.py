"""A number of slots, acquired in the order of arrival, for tasks of any event loop in any thread.

`asyncio.Semaphore` belongs to one loop; a host may be used from several.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator


class ScriptSlots:
    """`async with places.one():` holds one of `count` slots."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._lock = threading.Lock()
        self._waiting: deque[asyncio.Future[None]] = deque()

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        await self._take()
        try:
            yield
        finally:
            self._give_back()

    async def _take(self) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError as error:
            error.begun = False  # type: ignore[attr-defined]
            with self._lock:
                was_waiting = turn in self._waiting
                if was_waiting:
                    self._waiting.remove(turn)
            if not was_waiting:  # the slot was already ours
                self._give_back()
            raise

    def _give_back(self) -> None:
        """Pass the slot to the oldest waiter whose loop still runs."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._free += 1
                    return
                turn = self._waiting.popleft()
            try:
                turn.get_loop().call_soon_threadsafe(_wake, turn)
            except RuntimeError:  # its loop is closed, so it does not wait any more
                continue
            return


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
