"""Puts a run into the store: when it begins, when a node has ended or asks a person, now and then, and when it ends."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from tavern_core.errors import StateDamaged
from tavern_core.kernel.engine.cache import Kept, RunCache
from tavern_core.kernel.engine.journal import Journal
from tavern_core.kernel.engine.run import Run
from tavern_core.kernel.engine.store import KeptRun, RunStore
from tavern_core.kernel.engine.values import fresh
from tavern_core.model.run import RunResult
from tavern_core.model.workflow import Workflow

PAUSE_S: Final = 1.0
"""How often the events of a run that goes on are written."""
_LOOK_S: Final = 0.25
"""How often it is looked whether another process wants the run to end."""
_log = logging.getLogger("tavern.workflows")


class Keeper:
    """Writes one run. A store that cannot be written is told once and holds nothing up."""

    def __init__(self, store: RunStore, run: Run, cache: RunCache, workflow: Workflow) -> None:
        self._store = store
        self._run = run
        self._cache = cache
        self._workflow = workflow
        self._written = 0
        self._inputs: Mapping[str, Any] = {}
        self._journal: Journal | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # what happened in the first moments is written soon

    def begin(self, started: float) -> None:
        """From now on the run is written.

        Args:
            started: when it began, in seconds since the epoch.
        """
        self._inputs = fresh(dict(self._run.inputs))  # as they are now: what nodes do to theirs is no input
        try:
            self._journal = self._store.begin(self._kept("running", started))
        except StateDamaged as error:
            self._give_up(error)
            return
        self._cache.on_keep = self._keep
        self._run.on_question = lambda: self.write("waiting" if self._run.questions else "running")
        self._again()

    def _keep(self, path: str, kept: Kept) -> None:
        """A node has ended: on the record before anything that depends on it begins."""
        if self._journal is not None:
            try:
                self._journal.add(self._store.record(path, *kept))
            except StateDamaged as error:
                self._give_up(error)

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
        if self._timer is not None:
            self._timer.cancel()
        self._cache.on_keep = None
        self.write(result.state if result is not None else "cancelled", result)
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def write(self, state: str, result: RunResult | None = None) -> None:
        """Write what is new."""
        if self._journal is None:
            return
        events = self._run.events(self._written)
        try:
            self._store.save(self._kept(state, self._run.started, result), events)
        except StateDamaged as error:
            self._give_up(error)
            return
        self._written += len(events)

    def _kept(self, state: str, started: float, result: RunResult | None = None) -> KeptRun:
        run = self._run
        questions = tuple(
            {"id": q.id, "path": q.path, "schema": dict(q.schema), "prompt": q.prompt} for q in [*list(run.questions.values()), *list(run.unanswered.values())]
        )
        errors = tuple(error.to_json() for error in (result.errors if result is not None else list(run.errors)))
        return KeptRun(
            run.id, self._workflow.id, state, started, result.latency_ms if result is not None else 0.0,
            self._workflow.raw, self._inputs, dict(run.answers), questions, errors,
        )  # fmt: skip

    def _give_up(self, error: StateDamaged) -> None:
        _log.warning("run %s is not kept any more: %s", self._run.id, error.message)
        if self._timer is not None:
            self._timer.cancel()
        if self._journal is not None:
            self._journal.close()  # what is there already is worth having
            self._journal = None
