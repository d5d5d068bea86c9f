"""A run that goes on, for whoever began it or follows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from tavern_core.flow.engine.run import Question, Run
from tavern_core.model.run import RunEvent, RunResult


def is_end(event: RunEvent) -> bool:
    """Whether a run ends with it, for now at least."""
    return event.kind.startswith("run:") and event.kind != "run:running"


class RunHandle:
    """A run that goes on in the background. ``await handle`` gives its result."""

    def __init__(self, run: Run, task: asyncio.Task[RunResult]) -> None:
        self._run = run
        self._task = task
        self.id = run.id

    def cancel(self) -> bool:
        """End it; False: it is over already."""
        return self._run.cancel()

    def leave(self) -> bool:
        """End it as `waiting` once nothing goes on but its questions; it can be taken up with their answers. False: it is over already."""
        return self._run.leave()

    async def stop(self) -> None:
        """Cancel it, and wait for its end."""
        self._run.cancel()
        await asyncio.wait([self._task], timeout=2 * self._run.grace)

    def answer(self, question: str, value: Any) -> bool:
        """Answer a question of one of its nodes; False: nobody waits for it.

        Raises:
            InputInvalid: the answer does not fit the question, which stays open (INPUT_SCHEMA_INVALID).
        """
        return self._run.answer(question, value)

    @property
    def is_over(self) -> bool:
        """True when it has ended."""
        return self._run.is_over

    @property
    def questions(self) -> tuple[Question, ...]:
        """What its nodes wait to be told."""
        return tuple(self._run.questions.values())

    def __await__(self) -> Any:
        return self._task.__await__()

    def events(self, after: int = 0) -> AsyncIterator[RunEvent]:
        """What happens, from the event behind `after` on until the run is over."""
        return followed(self._run, after, self._task)


async def followed(run: Run, after: int, task: asyncio.Task[RunResult] | None = None) -> AsyncIterator[RunEvent]:
    """The events of a run as they happen, on whatever loop; ends with the run (or with `task`, should that end without one)."""
    happened, loop = asyncio.Event(), asyncio.get_running_loop()

    def tell() -> None:
        if run.loop is loop or run.loop is None:
            happened.set()
        else:
            with suppress(RuntimeError):  # whoever followed has closed its loop
                loop.call_soon_threadsafe(happened.set)

    stop = run.listen(tell)
    if task is not None:
        task.add_done_callback(lambda _: happened.set())
    try:
        while True:
            happened.clear()
            for event in run.events(after):
                after = event.seq
                yield event
                if is_end(event) and event.seq == run.told and run.started:  # not that of before it was taken up
                    return
            if (task is not None and task.done()) or (run.is_over and not run.events(after)):
                return
            await happened.wait()
    finally:
        stop()
