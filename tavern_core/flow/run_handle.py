"""A running run, for its starter or a follower."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

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
        """Its caller has its questions: they stay open when the host closes."""
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
