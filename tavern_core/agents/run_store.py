"""Runs of agents on disk: one row for each run, one for each event; enough to show a run, to resume it and to replay it.

An event is stored before its consequences happen: a killed process loses nothing that was complete.
Secrets are masked before storing, as in the audit log.
"""

from __future__ import annotations

import builtins
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic_core import to_json

from tavern_core.errors import RunNotFound, StateDamaged, UsageError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.stores.sqlite_file import OnDamage, SqliteFile
from tavern_core.model.agent_run import AgentEvent, AgentOutcome, AgentRecord
from tavern_core.model.call import check_most
from tavern_core.model.nearest import did_you_mean

MOST_RUNS: Final = 500
"""The maximum number of stored runs; the oldest ended ones are removed first."""
_TIDY_EVERY: Final = 20
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, owner TEXT, profile TEXT, task TEXT, state TEXT, started REAL, process TEXT, facts TEXT, outcome TEXT
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    run TEXT, seq INTEGER, kind TEXT, time REAL, data TEXT, crc INTEGER, PRIMARY KEY (run, seq)
) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class StoredAgentRun:
    """A stored run, and data that only its host needs."""

    record: AgentRecord
    owner: str
    process: str
    """The process that last ran it."""


class AgentRuns:
    """The runs of one state folder. Safe for several threads and processes.

    Args:
        mask: returns plain JSON without its secrets.
        is_present: whether a process is alive.
    """

    def __init__(
        self,
        path: Path,
        mask: Callable[[Any], Any],
        process: str,
        is_present: Callable[[str], bool],
        on_damage: OnDamage,
    ) -> None:
        self._file = SqliteFile(path, _SCHEMA, on_damage=on_damage)
        self.mask = mask
        self._process = process
        self._is_present = is_present
        self._begun_count = 0

    def begin(self, record: AgentRecord, owner: str) -> None:
        """Write a new run. Raises StateDamaged (STATE_DAMAGED)."""
        row = (record.run_id, owner, record.profile, self.mask(record.task), "running", record.started, self._process,
               _text(self.mask(dict(record.facts))), "")  # fmt: skip
        with self._file.open() as db, db:
            db.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        self._begun_count += 1
        if self._begun_count % _TIDY_EVERY == 1:
            self.prune()

    def take_up(self, stored: StoredAgentRun) -> None:
        """Acquire a run to resume it. Raises UsageError: another process has it (USAGE)."""
        run = stored.record.run_id
        if stored.record.state == "running":
            raise UsageError(f"{run} is still running", hint="wait for its end, or cancel it where it runs")
        with self._file.open() as db, db:
            taken = db.execute(
                "UPDATE runs SET process = ?, state = 'running' WHERE id = ? AND process = ? AND state = ?",
                (self._process, run, stored.process, "running" if stored.record.state == "interrupted" else stored.record.state),
            ).rowcount  # fmt: skip
        if taken != 1:
            raise UsageError(f"{run} is being resumed by another process", hint="`tavern agent runs` shows its state")

    def add(self, run: str, event: AgentEvent) -> None:
        """Write one event. Raises StateDamaged (STATE_DAMAGED)."""
        text = _text(event.data)
        with self._file.open() as db, db:
            db.execute(
                "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)",
                (run, event.seq, event.kind, event.time, text, zlib.crc32(text.encode())),
            )

    def end(self, outcome: AgentOutcome) -> None:
        """Store the current outcome of a run, which may be resumed."""
        with self._file.open() as db, db:
            db.execute(
                "UPDATE runs SET state = ?, outcome = ? WHERE id = ?",
                (outcome.state, _text(self.mask(outcome.to_json())), outcome.run_id),
            )

    def list(self, owner: str | None, most: int) -> builtins.list[AgentRecord]:
        """Runs without their events, newest first; corrupt ones are left out.

        Raises:
            UsageError: `most` is not a number of runs (USAGE).
        """
        check_most(most)
        where, values = ("WHERE owner = ?", [owner]) if owner is not None else ("", [])
        with self._file.open() as db:
            rows = db.execute(f"SELECT * FROM runs {where} ORDER BY started DESC LIMIT ?", (*values, most)).fetchall()
        return [found.record for row in rows if (found := self._from_row(row, ())) is not None]

    def find(self, run: str, owner: str | None) -> StoredAgentRun:
        """A run with its events.

        Args:
            owner: the required owner; None: any.

        Raises:
            RunNotFound: there is no such run, or it is another caller's (RUN_NOT_FOUND).
            StateDamaged: its data cannot be read (STATE_DAMAGED).
            UsageError: `run` is not text (USAGE).
        """
        if not isinstance(run, str):
            raise UsageError(
                f"the id of a run is text, got {type(run).__name__}", hint="`tavern agent runs` lists them"
            )
        run = run.encode("utf-8", "replace").decode()
        with self._file.open() as db:
            row = db.execute("SELECT * FROM runs WHERE id = ?", (run,)).fetchone()
            events = db.execute("SELECT * FROM events WHERE run = ? ORDER BY seq", (run,)).fetchall() if row else []
        if row is None or (owner is not None and row[1] != owner):
            near = [record.run_id for record in self.list(owner, 100)]
            raise RunNotFound(
                f"there is no agent run {run!r:.80}", hint=did_you_mean(str(run), near) or "tavern agent runs"
            )
        if (found := self._from_row(row, tuple(_events(events)))) is None:
            raise StateDamaged(f"the record of the agent run {run} is corrupt", hint="start the agent again")
        return found

    def prune(self) -> None:
        """Remove the oldest runs beyond `MOST_RUNS`, except those in progress."""
        with self._file.open() as db, db:
            rows = db.execute(
                "SELECT id, state, process FROM runs ORDER BY started DESC LIMIT -1 OFFSET ?", (MOST_RUNS,)
            ).fetchall()
            old = [(run,) for run, state, process in rows if not self._is_going_on(state, process)]
            db.executemany("DELETE FROM events WHERE run = ?", old)
            db.executemany("DELETE FROM runs WHERE id = ?", old)

    def _is_going_on(self, state: str, process: str) -> bool:
        return state == "running" and (process == self._process or self._is_present(process))

    def close(self) -> None:
        self._file.close()

    def _from_row(self, row: tuple[Any, ...], events: tuple[AgentEvent, ...]) -> StoredAgentRun | None:
        try:
            run, owner, profile, task, state, started, process, facts, outcome = row
            if state == "running" and not self._is_going_on(state, process):
                state = "interrupted"
            ended = AgentOutcome.from_json(json.loads(outcome)) if outcome and state != "running" else None
            record = AgentRecord(run, profile, task, state, started, json.loads(facts), ended, events)
            return StoredAgentRun(record, owner, process)
        except (AttributeError, KeyError, TypeError, ValueError):
            return None


def _events(rows: Iterable[tuple[Any, ...]]) -> Iterable[AgentEvent]:
    """The events before the first corrupt one: later ones depend on it."""
    for _, seq, kind, at, text, crc in rows:
        if not isinstance(text, str) or zlib.crc32(text.encode("utf-8", "replace")) != crc:
            return
        yield AgentEvent(kind, at, json.loads(text), seq)


def _text(value: Mapping[str, Any]) -> str:
    return to_json(value, inf_nan_mode="strings").decode()
