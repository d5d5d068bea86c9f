"""The runs of one host: running ones, and the last ended ones, as far as memory allows."""

from __future__ import annotations

import threading
from typing import Final

from tavern_core.errors import UsageError
from tavern_core.flow.engine.cache import RunCache
from tavern_core.flow.engine.run import Run

MOST_RUNS: Final = 200
"""Maximum number of ended runs in memory."""
MOST_BYTES: Final = 256_000_000
"""Maximum bytes of the outputs of ended runs; the oldest runs are removed first, the last one stays."""


_EVENT: Final = 250
"""Approximate bytes of an event."""


class RecentRuns:
    """Runs by id, oldest first. Thread-safe."""

    def __init__(self, most: int = MOST_RUNS, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._runs: dict[str, tuple[Run, RunCache]] = {}
        self._weights: dict[str, int] = {}
        """Run id → size, for ended runs."""
        self._bytes = 0

    def __contains__(self, run_id: object) -> bool:
        return run_id in self._runs

    def get(self, run_id: str) -> tuple[Run, RunCache] | None:
        """A run and its outputs, or None."""
        return self._runs.get(run_id)

    def ids(self) -> list[str]:
        """The ids, oldest first."""
        with self._lock:
            return [*self._runs]

    def all(self) -> list[Run]:
        """The runs, oldest first."""
        with self._lock:
            return [run for run, _ in self._runs.values()]

    def add(self, run: Run, cache: RunCache, *, is_taken_up: bool = False) -> None:
        """A run is about to start or to be resumed. Raises UsageError: there is one with its id (USAGE)."""
        with self._lock:
            if is_taken_up and self._runs.pop(run.id, None) is not None:
                self._bytes -= self._weights.pop(run.id, 0)
            if run.id in self._runs:
                raise UsageError(f"{run.id!r} cannot be the id of a new run", hint="use no id twice")
            self._runs[run.id] = run, cache

    def ended(self, run: Run) -> None:
        """A run is over: it stays until there are too many runs or outputs."""
        weight = self._runs[run.id][1].weight() + _EVENT * run.event_count
        with self._lock:
            self._weights[run.id] = weight
            self._bytes += weight
            while len(self._weights) > 1 and (len(self._runs) > self._most or self._bytes > self._most_bytes):
                oldest = next(iter(self._weights))
                self._bytes -= self._weights.pop(oldest)
                del self._runs[oldest]
