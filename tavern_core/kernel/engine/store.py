"""Runs on the disk: what was asked for, what happened, what each node gave; enough to look at one, and to take it up again.

One SQLite file for all processes of a state folder. A run is written when it begins, when a node asks a person, now and
then while it goes on, and when it ends; a process that dies leaves it as it was last written. What JSON cannot hold is
left out: such a node is run again when its run is taken up.
"""

from __future__ import annotations

import builtins
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tavern_core.errors import StateDamaged
from tavern_core.kernel.engine.answers import Outputs
from tavern_core.kernel.engine.values import NotPlain, from_plain, to_plain
from tavern_core.model.result import iso_utc
from tavern_core.model.run import RunEvent

if TYPE_CHECKING:
    import sqlite3

MOST_RUNS: Final = 500
"""Runs that are kept; the oldest go first."""
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS runs (id TEXT PRIMARY KEY, workflow TEXT, state TEXT, started REAL, latency REAL, data TEXT);
CREATE TABLE IF NOT EXISTS events (run TEXT, seq INTEGER, time REAL, kind TEXT, path TEXT, data TEXT, PRIMARY KEY (run, seq));
CREATE TABLE IF NOT EXISTS steps (run TEXT, path TEXT, key BLOB, mark BLOB, outputs TEXT, PRIMARY KEY (run, path));
"""


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A run as the store has it."""

    run_id: str
    workflow: str
    state: str
    started: float
    """Seconds since the epoch, UTC."""
    latency_ms: float = 0.0
    content: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The workflow's document as it was run."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[str, Any] = field(default_factory=dict)
    """Question → what a person answered."""
    questions: tuple[Mapping[str, Any], ...] = ()
    """What nobody answered yet: id, path, schema, prompt."""
    errors: tuple[Mapping[str, Any], ...] = ()

    @property
    def started_text(self) -> str:
        return iso_utc(self.started)

    def to_json(self) -> dict[str, Any]:
        return {
            "runId": self.run_id,
            "workflow": self.workflow,
            "state": self.state,
            "started": iso_utc(self.started),
            "latencyMs": round(self.latency_ms, 3),
            "questions": [dict(question) for question in self.questions],
            "errors": [dict(error) for error in self.errors],
        }


class RunStore:
    """The runs of one state folder. Safe for threads and processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None

    def save(
        self, run: KeptRun, events: Sequence[RunEvent] = (), steps: Mapping[str, tuple[bytes, bytes, Outputs]] | None = None
    ) -> None:
        """Write a run and what is new of it, all or nothing.

        Raises:
            StateDamaged: the file cannot be written (STATE_DAMAGED).
        """
        data = {
            "content": run.content, "inputs": _plain(run.inputs), "answers": _plain(run.answers),
            "questions": list(run.questions), "errors": list(run.errors),
        }  # fmt: skip
        rows = [(run.run_id, e.seq, e.time, e.kind, e.path, json.dumps(_plain(e.data), ensure_ascii=False)) for e in events]
        kept = [(run.run_id, path, *step) for path, given in (steps or {}).items() if (step := _step(given)) is not None]
        with self._open() as db, db:
            db.execute(
                "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?)",
                (run.run_id, run.workflow, run.state, run.started, run.latency_ms, json.dumps(data, ensure_ascii=False)),
            )
            db.executemany("INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?, ?, ?)", rows)
            db.executemany("INSERT OR REPLACE INTO steps VALUES (?, ?, ?, ?, ?)", kept)

    def tidy(self) -> None:
        """Forget the oldest runs beyond `MOST_RUNS`."""
        old = "SELECT id FROM runs ORDER BY started DESC LIMIT -1 OFFSET ?"
        with self._open() as db, db:
            for table, column in (("events", "run"), ("steps", "run"), ("runs", "id")):
                db.execute(f"DELETE FROM {table} WHERE {column} IN ({old})", (MOST_RUNS,))

    def list(self, workflow: str = "", most: int = 100) -> builtins.list[KeptRun]:
        """The runs that are kept, newest first."""
        where, values = ("WHERE workflow = ?", [workflow]) if workflow else ("", [])
        with self._open() as db:
            rows = db.execute(f"SELECT * FROM runs {where} ORDER BY started DESC LIMIT ?", (*values, most)).fetchall()
        return [_kept(row) for row in rows]

    def get(self, run_id: str) -> KeptRun | None:
        """One run, or None."""
        with self._open() as db:
            row = db.execute("SELECT * FROM runs WHERE id = ?", (run_id,)).fetchone()
        return None if row is None else _kept(row)

    def events(self, run_id: str, after: int = 0) -> builtins.list[RunEvent]:
        """The events of a run behind the number `after`."""
        with self._open() as db:
            rows = db.execute("SELECT seq, time, kind, path, data FROM events WHERE run = ? AND seq > ? ORDER BY seq", (run_id, after)).fetchall()
        return [RunEvent(seq, at, kind, path, from_plain(json.loads(data))) for seq, at, kind, path, data in rows]

    def steps(self, run_id: str) -> dict[str, tuple[bytes, bytes, Outputs]]:
        """Path → (key, mark, outputs) of the nodes of a run that were complete."""
        with self._open() as db:
            rows = db.execute("SELECT path, key, mark, outputs FROM steps WHERE run = ?", (run_id,)).fetchall()
        return {path: (key, mark, from_plain(json.loads(outputs))) for path, key, mark, outputs in rows}

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        import sqlite3

        with self._lock:
            try:
                if self._db is None:
                    self._db = _connect(self._path)
                yield self._db
            except sqlite3.DatabaseError as error:
                raise StateDamaged(
                    f"{self._path}: {error}", hint="free some disk space, or move the file aside: runs begin anew without it", path=str(self._path)
                ) from error


def _connect(path: Path) -> sqlite3.Connection:
    """Open the file; one that is no database any more is kept beside a new one."""
    import sqlite3

    path.parent.mkdir(parents=True, exist_ok=True)
    for is_second in (False, True):
        db = sqlite3.connect(path, timeout=10, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.executescript(_SCHEMA)
            return db
        except sqlite3.DatabaseError:
            db.close()
            if is_second:
                raise
            path.replace(path.with_name(path.name + ".damaged"))
    raise AssertionError("unreachable")


def _step(given: tuple[bytes, bytes, Outputs]) -> tuple[bytes, bytes, str] | None:
    key, mark, outputs = given
    try:
        return key, mark, json.dumps(to_plain(dict(outputs)), ensure_ascii=False)
    except NotPlain:
        return None


def _plain(value: Mapping[str, Any]) -> Any:
    found = {}
    for key, item in value.items():
        try:
            found[key] = to_plain(item)
        except NotPlain:
            found[key] = f"<{type(item).__name__}>"
    return found


def _kept(row: tuple[Any, ...]) -> KeptRun:
    run_id, workflow, state, started, latency, text = row
    data = json.loads(text)
    return KeptRun(
        run_id, workflow, state, started, latency, data["content"], from_plain(data["inputs"]), from_plain(data["answers"]),
        tuple(data["questions"]), tuple(data["errors"]),
    )  # fmt: skip
