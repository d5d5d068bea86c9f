"""Writes a run to the store: when it starts, when a node has ended or asks a question, periodically, and when it ends."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from tavern_core.errors import InputInvalid, StateDamaged
from tavern_core.flow.engine.cache import RunCache
from tavern_core.flow.engine.journal import Journal, node_record
from tavern_core.flow.engine.node_value_encoding import encoded, is_large
from tavern_core.flow.engine.run import Run
from tavern_core.flow.engine.sqlite_run_store import EventRows, Fixed, RunStore, StoredRun
from tavern_core.model.run import RunResult

PAUSE_S: Final = 1.0
"""Interval between writes of the events of a running run."""
_LOOK_S: Final = 0.25
"""Interval between checks whether another process has cancelled the run."""
_MOST_OUTPUTS: Final = 1_000_000
"""Characters of the outputs that are stored as the result of a run; masking more would hold up others."""
_log = logging.getLogger("tavern.workflows")


class RunRecorder:
    """Writes one run. A store that cannot be written is reported once and blocks nothing.

    Args:
        cache: the answers of the run's nodes.
        about: the constant data of the run.
        journal: of a resumed run, which is already in the store.
    """

    def __init__(self, store: RunStore, cache: RunCache, about: StoredRun, journal: Journal | None = None) -> None:
        self._store = store
        self._cache = cache
        self._about = about
        self._fixed: Fixed = "", ()
        self._stamp: object = None
        self._errors: list[Mapping[str, Any]] = []
        """The already masked names of the run."""
        self._journal = journal
        self._saved = self._read_events = self._reads = 0
        """Events that are in the database; in the journal."""
        self._left: set[str] = set()
        """Questions whose answers are in files, which are removed when the run is stored with them."""
        self._rows: list[bytes] = []
        """The events between these, in stored form."""
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # the first events are written soon

    async def begin(self, run: Run) -> None:
        """Start writing the run. Raises RunContinuesElsewhere: another process has started one with its id (USAGE)."""
        if self._store.is_quick(self._about):
            self._fix()
        else:
            await asyncio.get_running_loop().run_in_executor(None, self._fix)
        self._saved = self._read_events = run.events_before
        run.begin()  # its state is written together with the corresponding event
        self._new_rows(run)
        try:
            if self._journal is None:
                self._journal = self._store.begin(self._to_stored(run, "running"), self._fixed, self._events())
            else:
                self._store.save(self._to_stored(run, "running"), self._fixed, self._events())
                for question in run.answers:
                    self._journal.forget_answer(question)  # it is recorded now
        except StateDamaged as error:
            self._give_up(error)
            return
        self._saved, self._rows = self._read_events, []
        if run.context.budget.max_tool_calls is not None:
            run.context.ledger.listeners += (self._called,)
        self._again(run)

    def _fix(self) -> None:
        self._stamp = self._store.stamp()
        self._fixed = self._store.fixed(self._about)
        self._errors = []

    def questions_changed(self, run: Run) -> None:
        """Store the questions after a node started to wait for a person, or got the answer."""
        self._write(run, _state(run))

    def node_ended(self, run: Run, path: str) -> None:
        """Record the end of a node and all earlier events before any dependent node begins."""
        unwritten, journal = self._cache.unwritten, self._journal
        if unwritten is None or journal is None or (entry := unwritten.pop(path, None)) is None:
            return
        key, mark, outputs = entry
        made = self._cache.encoded_answers.pop(path, None)
        if made is None:
            made = self._store.written(outputs)
        records = node_record(path, key, mark, made, self._new_rows(run))
        if len(reads := run.reads or ()) != self._reads:  # before the answer that may hold it
            self._reads = len(reads)
            records.insert(0, b'{"read":%b}' % encoded(list(reads)))
        try:
            journal.add(*records)
        except StateDamaged as error:
            self._give_up(error)

    def _new_rows(self, run: Run) -> bytes:
        """The events that are not yet in a file."""
        rows = run.rows(self._read_events)
        self._read_events += len(rows)
        text = self._store.rows(rows)
        if text:
            self._rows.append(text)
        return text

    def _events(self) -> EventRows:
        """The events that are not in the database."""
        return self._saved + 1, self._read_events, b",".join(self._rows)

    def _called(self, number: int) -> None:
        """Record a call before it is made, from any thread, so that the rest of the budget is known on resuming."""
        if (journal := self._journal) is not None:
            try:
                journal.add(b'{"calls":%d}' % number)
            except StateDamaged as error:
                _log.warning(
                    "run %s: what its calls took of the budget is not stored: %s", self._about.run_id, error.message
                )

    def _again(self, run: Run) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._tick, run)

    def _tick(self, run: Run) -> None:
        if self._journal is not None:
            if self._journal.is_asked_to_end:
                run.cancel()
            for question in list(run.questions):
                if (answer := self._journal.answer_to(question)) is not None:
                    with suppress(InputInvalid):  # it was already checked
                        run.answer(question, answer["value"])
                    self._left.add(question)
        if self._left:
            self._write(run, _state(run))
        if run.event_count > self._saved and time.monotonic() >= self._due:
            self._write(run, _state(run))
            self._due = time.monotonic() + PAUSE_S
        if self._journal is not None:
            self._again(run)

    def answered(self, question: str, value: Any) -> None:
        """Store an answer in a file, from any thread, until the run is stored with it."""
        if self._journal is None:
            return
        with suppress(StateDamaged, TypeError, ValueError):  # it is stored with the run in a moment, if that can be
            if not self._store.holds_secret({question: value}):
                self._store.leave_answer(self._about.run_id, question, value)
        self._left.add(question)

    def end(self, run: Run, result: RunResult | None) -> None:
        """Write the end of the run; None: it was cancelled together with its caller."""
        ledger = run.context.ledger
        ledger.listeners = tuple(each for each in ledger.listeners if each != self._called)
        self._write(run, result.state if result is not None else "cancelled", result)
        self.let_go()

    def let_go(self) -> None:
        """Stop writing, so that another process can resume the run."""
        if self._timer is not None:
            self._timer.cancel()
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        self._cache.unwritten = None
        self._cache.encoded_answers.clear()

    def _write(self, run: Run, state: str, result: RunResult | None = None) -> None:
        """Write new data."""
        if (journal := self._journal) is None:
            return
        used_answers = list(self._left)  # first: what comes from now on may not be in what is stored
        if self._stamp is not self._store.stamp():
            self._fix()  # there are new secrets
        self._new_rows(run)
        try:
            self._store.save(self._to_stored(run, state, result), self._fixed, self._events())
        except StateDamaged as error:
            self._give_up(error)
            return
        self._saved, self._rows = self._read_events, []
        for question in used_answers:
            journal.forget_answer(question)
            self._left.discard(question)

    def _to_stored(self, run: Run, state: str, result: RunResult | None = None) -> StoredRun:
        took = result.latency_ms if result is not None else (time.time() - run.started) * 1000 if run.started else 0.0
        questions = tuple(
            question.to_json()
            for name, question in [*list(run.questions.items()), *list(run.unanswered.items())]
            if name not in run.answers
        )
        self._errors += [self._store.masked(error.to_json()) for error in list(run.errors)[len(self._errors) :]]
        caller = self._about.caller
        if caller is not None and "calls" in caller:
            caller = {**caller, "calls": run.context.ledger.drawn}
            if run.context.ledger.content_read:
                caller["contentRead"] = run.context.ledger.content_read.to_json()
        outputs = None
        if result is not None and result.ok and (self._about.times_taken_up or run.answers):
            # No caller may be waiting for it when it ends. What is too large for a row is stored with its nodes.
            outputs = None if is_large([result.outputs], _MOST_OUTPUTS) else self._store.masked(result.outputs)
        return replace(
            self._about, outputs=outputs, state=state, latency_ms=self._about.latency_ms + took, caller=caller, answers=dict(run.answers),
            questions=questions, errors=tuple(self._errors), updated=time.time(),
            may_have_changed=result is None or result.may_have_changed,
        )  # fmt: skip

    def _give_up(self, error: StateDamaged) -> None:
        _log.warning("run %s is no longer stored: %s", self._about.run_id, error.message)
        self.let_go()  # the stored part stays useful


def _state(run: Run) -> str:
    return "waiting" if run.questions else "running"
