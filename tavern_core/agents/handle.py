"""A run of an agent in the background, for its starter."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import suppress
from typing import Any

from tavern_core.agents.run_store import AgentRuns
from tavern_core.kernel.log.recorder import Recorder
from tavern_core.model.agent_run import AgentEvent, AgentOutcome
from tavern_core.model.event import AGENT_COMPACTED, AGENT_STEP


class RunEvents:
    """The events of one run: stored, then passed to followers.

    Args:
        seq: the number of the last stored event.
    """

    def __init__(self, run: str, runs: AgentRuns, recorder: Recorder, seq: int = 0) -> None:
        self._run = run
        self._runs = runs
        self._recorder = recorder
        self._seq = seq
        self._all: list[AgentEvent] = []
        self._happened = asyncio.Event()
        self.has_begun = self.is_over = False
        self.is_cancelled = False
        """Whether its starter has cancelled the run, so that the outcome says so."""

    def record(self, kind: str, data: Mapping[str, Any]) -> None:
        """Store an event. Raises StateDamaged: it cannot be stored (STATE_DAMAGED)."""
        whole = dict(data)
        clean = self._runs.mask(whole)
        if clean != whole:
            clean["masked"] = True
        self._seq += 1
        event = AgentEvent(kind, time.time(), clean, self._seq)  # type: ignore[arg-type]
        self._runs.add(self._run, event)
        self._pass_on(event)
        if kind == "answer":
            data_of_step = {
                "run": self._run,
                "step": data["step"],
                "finishReason": data["finishReason"],
                **data["usage"],
                "dropped": data["dropped"],
            }
            self._recorder.note(AGENT_STEP, data_of_step)
        elif kind == "compacted":
            names = ("step", "tokensBefore", "tokensAfter")
            self._recorder.note(AGENT_COMPACTED, {"run": self._run, **{name: data[name] for name in names}})

    def piece(self, step: int, piece: str) -> None:
        """Pass a piece of an answer to followers; it is not stored."""
        self._pass_on(AgentEvent("text", time.time(), {"step": step, "text": piece}))

    def _pass_on(self, event: AgentEvent) -> None:
        self._all.append(event)
        self._wake()

    def end(self) -> None:
        """Mark the end of the events."""
        self.is_over = True
        self._wake()

    def _wake(self) -> None:
        happened, self._happened = self._happened, asyncio.Event()
        happened.set()

    async def follow(self) -> AsyncIterator[AgentEvent]:
        """The events since the run was started or resumed in this process, until its end."""
        at = 0
        while True:
            while at < len(self._all):
                yield self._all[at]
                at += 1
            if self.is_over:
                return
            await self._happened.wait()


class AgentHandle:
    """A run in the background. ``await handle`` returns its outcome."""

    def __init__(self, run: str, events: RunEvents, task: asyncio.Task[AgentOutcome]) -> None:
        self.id = run
        self._events = events
        self._task = task

    @property
    def is_over(self) -> bool:
        """True if it has ended, or waits for a person."""
        return self._task.done()

    def cancel(self) -> bool:
        """End it; its outcome is ``cancelled``. False: it has already ended."""
        self._events.is_cancelled = True
        # A task that is cancelled before its first step never runs, and so could not record its end.
        return cancel_task(self._task) if self._events.has_begun else not self.is_over

    async def wait(self) -> AgentOutcome:
        """Wait for its outcome. Cancelling the wait does not end the run."""
        return await asyncio.shield(self._task)

    def __await__(self) -> Generator[Any, None, AgentOutcome]:
        return self.wait().__await__()

    def events(self) -> AsyncIterator[AgentEvent]:
        """Its events since it was started or resumed here, until its end."""
        return self._events.follow()


def cancel_task(task: asyncio.Task[Any]) -> bool:
    """Cancel a task, from any thread; False: it has ended."""
    if task.done():
        return False
    try:
        is_here = task.get_loop() is asyncio.get_running_loop()
    except RuntimeError:
        is_here = False
    if is_here:
        return task.cancel()
    with suppress(RuntimeError):  # its loop has been closed
        task.get_loop().call_soon_threadsafe(task.cancel)
        return True
    return False
