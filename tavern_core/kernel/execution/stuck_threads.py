"""Reports code that still runs after its caller stopped waiting."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tavern_core.model.event import THREADS_STUCK

if TYPE_CHECKING:
    from tavern_core.kernel.diagnostics import Diagnostics
    from tavern_core.kernel.execution.threads import ThreadPool
    from tavern_core.kernel.log.recorder import Recorder


class StuckThreads:
    """Counts over all pools of a host. Reports each time that a count has doubled, and when it is over."""

    def __init__(self, diagnostics: Diagnostics, recorder: Recorder) -> None:
        self._diagnostics = diagnostics
        self._recorder = recorder
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], dict[ThreadPool, int]] = {}

    def report(self, pool: ThreadPool, owner: tuple[str, str]) -> None:
        """How much of an owner's code is stuck in a pool has changed."""
        plugin, what = owner
        with self._lock:
            counts = self._counts.setdefault(owner, {})
            counts[pool] = pool.stuck(owner)
            count = sum(counts.values())
            if not count:
                del self._counts[owner]
            if count & (count - 1):
                return
            self._diagnostics.withdraw(THREADS_STUCK, of=what)
            if count:
                self._diagnostics.add(
                    "THREADS_STUCK", f"{count} × {what} still runs after its caller stopped waiting, and keeps a thread each", plugin=plugin,
                    hint="sync code cannot be stopped: set a time limit on what it waits for; restarting the host ends it",
                    details={"of": what, "threads": count},
                )  # fmt: skip
            self._recorder.note(THREADS_STUCK, {"of": what, "threads": count}, plugin=plugin)
