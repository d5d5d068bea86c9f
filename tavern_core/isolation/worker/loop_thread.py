"""The event loop of a worker, in a separate thread that starts with the first use."""

from __future__ import annotations

import asyncio
import threading
from typing import Any


class LoopThread:
    """Not a `Portal`: if plugin code blocks the loop, calls must stay unanswered, so that the host ends the process."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tavern-loop", daemon=True)
        self._starting = threading.Lock()

    def started(self) -> asyncio.AbstractEventLoop:
        """The running loop."""
        with self._starting:
            if not self._thread.is_alive():
                self._thread.start()
        return self.loop

    def wait(self, awaitable: Any) -> Any:
        """Run an awaitable of the plugin on the loop, for a thread that waits for it."""
        return asyncio.run_coroutine_threadsafe(_awaited(awaitable), self.started()).result()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


async def _awaited(awaitable: Any) -> Any:
    return await awaitable
