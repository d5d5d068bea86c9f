"""Puts a run into the store: when it begins, when a node asks a person, now and then, and when it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from tavern_core.errors import StateDamaged
from tavern_core.kernel.engine.answers import Outputs
from tavern_core.kernel.engine.cache import RunCache
from tavern_core.kernel.engine.run import Run
from tavern_core.kernel.engine.store import KeptRun, RunStore
from tavern_core.model.run import RunResult
from tavern_core.model.workflow import Workflow

PAUSE_S: Final = 1.0
"""How often a run that goes on is written."""
_log = logging.getLogger("tavern.workflows")


class Keeper:
    """Writes one run. A store that cannot be written is told once and holds nothing up."""

    def __init__(self, store: RunStore, run: Run, cache: RunCache, workflow: Workflow) -> None:
        self._store = store
        self._run = run
        self._cache = cache
        self._workflow = workflow
        self._written = 0
        self._steps: set[str] = set()
        self._inputs: Mapping[str, Any] = {}
        self._has_failed = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """From now on the run is written now and then."""
        self._inputs = dict(self._run.inputs)
        self._again()

    def _again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(PAUSE_S, self._tick)

    def _tick(self) -> None:
        self.write("waiting" if self._run.questions else "running")
        self._again()

    def end(self, result: RunResult | None) -> None:
        """The run is over; None: it was cancelled together with whoever waited for it."""
        if self._timer is not None:
            self._timer.cancel()
        self.write(result.state if result is not None else "cancelled", result)

    def write(self, state: str, result: RunResult | None = None) -> None:
        """Write what is new."""
        if self._has_failed:
            return
        run = self._run
        events = run.events(self._written)
        steps: dict[str, tuple[bytes, bytes, Outputs]] = {
            path: step for path, step in list(self._cache.steps.items()) if path not in self._steps
        }
        questions = tuple(
            {"id": q.id, "path": q.path, "schema": dict(q.schema), "prompt": q.prompt} for q in list(run.questions.values())
        )
        errors = tuple(error.to_json() for error in (result.errors if result is not None else run.errors))
        kept = KeptRun(
            run.id, self._workflow.id, state, run.started, result.latency_ms if result is not None else 0.0,
            self._workflow.raw, self._inputs, run.answers, questions, errors,
        )  # fmt: skip
        try:
            self._store.save(kept, events, steps)
        except StateDamaged as error:
            self._has_failed = True
            _log.warning("run %s is not kept: %s", run.id, error.message)
            return
        self._written += len(events)
        self._steps.update(steps)
