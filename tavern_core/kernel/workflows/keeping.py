"""Puts a run into the store: when it begins, when a node has ended or asks a person, now and then, and when it ends."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import Final

from tavern_core.errors import StateDamaged
from tavern_core.kernel.engine.cache import Kept, RunCache
from tavern_core.kernel.engine.journal import Journal
from tavern_core.kernel.engine.run import Run
from tavern_core.kernel.engine.store import KeptRun, RunStore
from tavern_core.model.run import RunResult

PAUSE_S: Final = 1.0
"""How often the events of a run that goes on are written."""
_LOOK_S: Final = 0.25
"""How often it is looked whether another process wants the run to end."""
_log = logging.getLogger("tavern.workflows")


class Keeper:
    """Writes one run. A store that cannot be written is told once and holds nothing up.

    Args:
        about: what of it stays as it is.
        journal: of a run that is taken up, which is in the store already.
    """

    def __init__(self, store: RunStore, run: Run, cache: RunCache, about: KeptRun, journal: Journal | None = None) -> None:
        self._store = store
        self._run = run
        self._cache = cache
        self._about = about
        self._journal = journal
        self._written = run.told
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # what happened in the first moments is written soon

    def begin(self) -> None:
        """From now on the run is written. Raises GoesOn: another process has begun one with its id (USAGE)."""
        try:
            if self._journal is None:
                self._journal = self._store.begin(self._kept("running"))
            else:
                self._store.save(self._kept("running"))
        except StateDamaged as error:
            self._give_up(error)
            return
        self._cache.on_keep = self._keep
        self._run.on_question = lambda: self.write("waiting" if self._run.questions else "running")
        if self._run.context.budget.max_tool_calls is not None:
            self._run.context.ledger.listeners += (self._called,)
        self._again()

    def _keep(self, path: str, kept: Kept) -> None:
        """A node has ended: on the record before anything that depends on it begins."""
        if self._journal is not None:
            try:
                self._journal.add(self._store.record(path, *kept))
            except StateDamaged as error:
                self._give_up(error)

    def _called(self, number: int) -> None:
        """A tool is about to be called, from whatever thread: whoever takes the run up knows what is left of the budget."""
        if (journal := self._journal) is not None:
            try:
                journal.add({"calls": number})
            except StateDamaged as error:
                _log.warning("run %s: what its calls took of the budget is not kept: %s", self._run.id, error.message)

    def _again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._tick)

    def _tick(self) -> None:
        if self._journal is not None and self._journal.is_asked_to_end:
            self._run.cancel()
        if self._run.told > self._written and time.monotonic() >= self._due:
            self.write("waiting" if self._run.questions else "running")
            self._due = time.monotonic() + PAUSE_S
        if self._journal is not None:
            self._again()

    def end(self, result: RunResult | None) -> None:
        """The run is over; None: it was cancelled together with whoever waited for it."""
        self._cache.on_keep = None
        ledger = self._run.context.ledger
        ledger.listeners = tuple(each for each in ledger.listeners if each != self._called)
        self.write(result.state if result is not None else "cancelled", result)
        self.let_go()

    def let_go(self) -> None:
        """Nothing more is written: somebody else may take the run up."""
        if self._timer is not None:
            self._timer.cancel()
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def write(self, state: str, result: RunResult | None = None) -> None:
        """Write what is new."""
        if self._journal is None:
            return
        events = self._run.events(self._written)
        try:
            self._store.save(self._kept(state, result), events)
        except StateDamaged as error:
            self._give_up(error)
            return
        self._written += len(events)

    def _kept(self, state: str, result: RunResult | None = None) -> KeptRun:
        run = self._run
        took = result.latency_ms if result is not None else (time.time() - run.started) * 1000 if run.started else 0.0
        questions = tuple(
            {"id": q.id, "path": q.path, "schema": dict(q.schema), "prompt": q.prompt} for q in [*list(run.questions.values()), *list(run.unanswered.values())]
        )
        errors = tuple(error.to_json() for error in (result.errors if result is not None else list(run.errors)))
        caller = self._about.caller
        if caller is not None and "calls" in caller:
            caller = {**caller, "calls": run.context.ledger.drawn}
        return replace(
            self._about, state=state, latency_ms=self._about.latency_ms + took, caller=caller, answers=dict(run.answers),
            questions=questions, errors=errors,
        )  # fmt: skip

    def _give_up(self, error: StateDamaged) -> None:
        _log.warning("run %s is not kept any more: %s", self._run.id, error.message)
        self.let_go()  # what is there already is worth having
