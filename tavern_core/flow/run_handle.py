"""A running run, for its starter or a follower; and the runs of one host, as far as memory allows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

from tavern_core.errors import UsageError
from tavern_core.flow.engine.cache import RunCache
from tavern_core.flow.engine.run import Run
from tavern_core.flow.engine.run_options import NodeQuestion
from tavern_core.model.run import RunEvent, RunResult


def is_end(event: RunEvent) -> bool:
    """Whether this event ends a run, at least for now."""
    return event.kind.startswith("run:") and event.kind != "run:running"


class RunHandle:
    """A run in the background. ``await handle`` returns its result."""

    def __init__(self, run: Run, task: asyncio.Task[RunResult]) -> None:
        self._run = run
        self._task = task
        self.id = run.id

    def cancel(self) -> bool:
        """End it; False: it is already over."""
        return self._run.cancel()

    def leave(self) -> bool:
        """End it as `waiting` once only questions are left; it can be resumed with their answers. False: it is already over."""
        return self._run.leave()

    def promise(self) -> None:
        """Record that the caller has the run's questions: they stay open when the host closes."""
        self._run.promised = True

    async def stop(self) -> None:
        """Cancel it, and wait for its end."""
        self._run.cancel()
        await asyncio.wait([self._task], timeout=2 * self._run.grace)

    def answer(self, question: str, value: Any) -> bool:
        """Answer a question of one of its nodes; False: it is not open.

        Raises:
            InputInvalid: the answer does not fit the question, which stays open (INPUT_SCHEMA_INVALID).
        """
        return self._run.answer(question, value)

    @property
    def is_over(self) -> bool:
        """True if it has ended."""
        return self._run.is_over

    @property
    def questions(self) -> tuple[NodeQuestion, ...]:
        """The open questions of its nodes."""
        return self._run.open_questions

    def __await__(self) -> Any:
        return self._task.__await__()

    def events(self, after: int = 0) -> AsyncIterator[RunEvent]:
        """The events after number `after`, until the run is over."""
        return follow_events(self._run, after, self._task)


async def follow_events(run: Run, after: int, task: asyncio.Task[RunResult] | None = None) -> AsyncIterator[RunEvent]:
    """The events of a run as they happen, on any loop; ends with the run (or with `task`, if that ends without one)."""
    happened, loop = asyncio.Event(), asyncio.get_running_loop()

    def wake() -> None:
        if run.loop is loop or run.loop is None:
            happened.set()
        else:
            with suppress(RuntimeError):  # the follower has closed its loop
                loop.call_soon_threadsafe(happened.set)

    stop = run.listen(wake)
    if task is not None:
        task.add_done_callback(lambda _: happened.set())
    try:
        while True:
            happened.clear()
            is_over = run.is_over or (task is not None and task.done())  # first: all its events are there then
            for event in run.events(after):
                after = event.seq
                yield event
                if is_end(event) and event.seq == run.event_count and run.started:  # not from before it was resumed
                    return
            if is_over:
                return
            await happened.wait()
    finally:
        stop()


MOST_RUNS: Final = 200
"""Maximum number of ended runs in memory."""
MOST_BYTES: Final = 256_000_000
"""Maximum bytes of the outputs of ended runs; the oldest runs are removed first, the last one stays."""
_EVENT: Final = 250
"""Approximate bytes of an event."""


class RecentRuns:
    """Runs by id, oldest first. Thread-safe."""

    def __init__(self) -> None:
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
        """Add a run that is about to start or to be resumed. Raises UsageError: there is one with its id (USAGE)."""
        with self._lock:
            if is_taken_up and self._runs.pop(run.id, None) is not None:
                self._bytes -= self._weights.pop(run.id, 0)
            if run.id in self._runs:
                raise UsageError(f"{run.id!r} cannot be the id of a new run", hint="use no id twice")
            self._runs[run.id] = run, cache

    def ended(self, run: Run) -> None:
        """Record that a run is over: it stays until there are too many runs or outputs."""
        weight = self._runs[run.id][1].weight() + _EVENT * run.event_count
        with self._lock:
            self._weights[run.id] = weight
            self._bytes += weight
            while len(self._weights) > 1 and (len(self._runs) > MOST_RUNS or self._bytes > MOST_BYTES):
                oldest = next(iter(self._weights))
                self._bytes -= self._weights.pop(oldest)
                del self._runs[oldest]
