"""Runs on disk: inputs, events, outputs of each node; enough to show a run and to resume it.

One SQLite file for all processes of a state folder, and one journal for each run (`journal.py`). A run is written when it
starts, when a node asks a question, periodically while it runs, and when it ends; the outputs of a node are in the journal
before anything that depends on it begins.

Secrets are masked before storing, as in the audit log. Outputs with secrets, outputs that JSON cannot express, and huge outputs
are not stored: such a node runs again when its run is resumed, and the events say why.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tavern_core.errors import RunNotFound, StateDamaged
from tavern_core.flow.engine import journal
from tavern_core.flow.engine.journal import Journal, RunContinuesElsewhere
from tavern_core.flow.engine.node_outputs import Outputs
from tavern_core.flow.engine.node_value_encoding import encoded, is_large, written
from tavern_core.flow.engine.run_event_log import EventRow
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.nodes.json_values import from_plain, to_plain
from tavern_core.kernel.settings.result_redaction import judging, masking
from tavern_core.kernel.settings.secret_masking import KnownSecrets
from tavern_core.kernel.stores.sqlite_file import OnDamage, SqliteFile
from tavern_core.model.naming_rules import is_run_id
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.result import iso_utc
from tavern_core.model.run import RunEvent
from tavern_core.model.safe_printing import encodable
from tavern_core.model.workflow import InterfaceSlot
from tavern_core.schema.bounded_json_copying import NotPlainData

if TYPE_CHECKING:
    import sqlite3

MOST_RUNS: Final = 500
"""Maximum number of stored runs that have ended, and of those that have not; the oldest are removed first."""
MOST_BYTES: Final = 1_000_000_000
"""Maximum bytes of the outputs of all stored runs."""
MOST_RECORD: Final = 32_000_000
"""Maximum approximate bytes of one node's outputs; a node with more runs again when its run is resumed."""
_TIDY_EVERY: Final = 50
"""Number of cached runs."""
_MEASURED: Final = frozenset({"complete", "cached", "skipped", "interrupted"})
"""Events that contain only numbers."""
_WAITING, _CANCELLED = "waiting", "cancelled"
_ENDED: Final = frozenset({"complete", "error", _CANCELLED})
"""States of runs whose process ended them."""
_SLOT_FIELDS: Final = frozenset(field.alias or name for name, field in InterfaceSlot.model_fields.items())
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, workflow TEXT, state TEXT, started REAL, latency REAL, data TEXT, crc INTEGER, content TEXT, content_crc INTEGER
);
CREATE TABLE IF NOT EXISTS events (run TEXT, first INTEGER, last INTEGER, data TEXT, PRIMARY KEY (run, first)) WITHOUT ROWID;
"""
_MOST_DOCUMENTS: Final = 50
Mask = Callable[[Any], Any]
"""Returns plain JSON without its secrets."""
Fixed = tuple[str, tuple[str, ...]]
"""See `RunStore.fixed`."""
EventRows = tuple[int, int, bytes]
"""(number of the first, of the last, `RunStore.rows` of all)."""
LostOutputs = Mapping[str, str]
"""Path → why the outputs of the node are not stored: `secret`, `object` or `size`."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as stored."""

    run_id: str
    workflow: str
    state: str
    """`interrupted`: its process ended before it did."""
    started: float
    """Seconds since the epoch, UTC."""
    latency_ms: float = 0.0
    content: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The document of the workflow that ran."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """As passed."""
    changed: Mapping[str, Any] | None = None
    """The inputs as changed by hooks; None: unchanged."""
    caller: Mapping[str, Any] | None = None
    """Its caller (`flow/run_caller.py`); None: stored by an older version."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the run that apply again when it is resumed."""
    times_taken_up: int = 0
    may_have_changed: bool = True
    """Whether its nodes may have changed something; known when it ends."""
    answers: Mapping[str, Any] = field(default_factory=dict)
    """Question → the answer of a person."""
    questions: tuple[Mapping[str, Any], ...] = ()
    """The open questions: id, path, schema, prompt."""
    errors: tuple[Mapping[str, Any], ...] = ()
    """Already masked."""
    outputs: Mapping[str, Any] | None = None
    """The outcome of a run that asked a person, or was resumed, without its secrets; None: not stored. Plain."""
    masked: tuple[str, ...] = ()
    """Inputs, changed inputs (``changed/<name>``) and answers (``answers/<question>``) with secrets or without plain data; ``content`` if
    the document has secrets."""
    updated: float = 0.0
    """When it was last stored, in seconds since the epoch, UTC."""

    @property
    def started_text(self) -> str:
        return iso_utc(self.started)

    def to_json(self) -> dict[str, Any]:
        return {
            "runId": self.run_id,
            "workflow": self.workflow,
            "state": self.state,
            "started": iso_utc(self.started),
            "updated": iso_utc(self.updated),
            "latencyMs": round(self.latency_ms, 3),
            "questions": [dict(question) for question in self.questions],
            "errors": [dict(error) for error in self.errors],
        }


class RunStore:
    """The runs of one state folder. Safe for several threads and processes.

    Args:
        path: of the SQLite file; the journals are next to it.
        known: the secrets of the host; none of them is stored.
        on_damage: called for a corrupt file: its old name and its new one.
    """

    def __init__(self, path: Path, known: KnownSecrets, on_damage: OnDamage = lambda path, aside: None) -> None:
        self._path = path
        self._folder = path.with_suffix("")
        self._known_secrets = known
        self._mask, self.holds_secret = masking(known), judging(known)
        self._documents: dict[int, tuple[Mapping[str, Any], object, str]] = {}
        self._file = SqliteFile(path, _SCHEMA, on_damage=on_damage)
        self._begun_count = 0

    def stamp(self) -> object:
        """A new object when there are new secrets."""
        return self._known_secrets.values

    # Writing -------------------------------------------------------------------------------------------------------------

    def begin(self, run: StoredRun, fixed: Fixed, events: EventRows) -> Journal:
        """Write a new run with its first events; the outputs of its nodes go into the returned journal.

        Raises:
            StateDamaged: the files cannot be written (STATE_DAMAGED).
        """
        new_journal = Journal(self._folder, run.run_id)
        try:
            content = self._document(run.content)
            with self._file.open() as db, db:
                db.execute(
                    "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        run.run_id,
                        run.workflow,
                        run.state,
                        run.started,
                        run.latency_ms,
                        *_summed(self._data(run, fixed)),
                        *_summed(content),
                    ),
                )
                _insert(db, run.run_id, events)
        except BaseException:
            new_journal.close()
            raise
        self._begun_count += 1
        if self._begun_count % _TIDY_EVERY == 0:
            self.prune()
        return new_journal

    def take_up(self, run_id: str) -> tuple[StoredRun, Journal]:
        """Acquire a stopped run to resume it; no other process can until its journal is closed.

        Raises:
            RunContinuesElsewhere: another process has it (USAGE).
            RunNotFound: there is none (RUN_NOT_FOUND).
            StateDamaged: its data cannot be read (STATE_DAMAGED).
        """
        self.find(run_id)  # before its journal is created
        run_journal = Journal(self._folder, run_id)
        try:
            run = self.find(run_id)  # as its last process left it
            self._end_events(run)
            return run, run_journal
        except BaseException:
            run_journal.close()
            raise

    def save(self, run: StoredRun, fixed: Fixed, events: EventRows = (0, 0, b"")) -> None:
        """Write the new data of a run, all or nothing. Raises as `begin`."""
        with self._file.open() as db, db:
            db.execute(
                "UPDATE runs SET state = ?, started = ?, latency = ?, data = ?, crc = ? WHERE id = ?",
                (run.state, run.started, run.latency_ms, *_summed(self._data(run, fixed)), run.run_id),
            )
            _insert(db, run.run_id, events)

    def written(self, outputs: Outputs) -> bytes | str:
        """A node's outputs as stored in the journal, or why they are not stored: `object`, `size` or `secret`."""
        return written(outputs, MOST_RECORD, self.holds_secret)

    def rows(self, events: Sequence[EventRow]) -> bytes:
        """Events as they are stored, joined by commas; secrets are masked."""
        reported = [
            row if row[4] is None or row[2] in _MEASURED else (*row[:4], self.masked(row[4]))  # type: ignore[arg-type]
            for row in events
        ]
        return encoded(reported)[1:-1]

    def masked(self, reported: Mapping[str, Any]) -> Mapping[str, Any]:
        """The data of a run in stored form: plain, and without secrets."""
        found: Mapping[str, Any] = self._mask(_plain(reported))
        return found

    def fixed(self, run: StoredRun) -> Fixed:
        """The constant part of a stored run: its JSON, and the names of masked parts. It may be slow."""
        masked: list[str] = []
        data = {"inputs": self._masked_values(run.inputs, "", masked)}
        if run.changed is not None:
            data["changed"] = self._masked_values(run.changed, "changed/", masked)
        self._document(run.content)
        return _text(data)[1:-1], tuple(masked)

    def is_quick(self, run: StoredRun) -> bool:
        """Whether `fixed` is fast."""
        known = self._documents.get(id(run.content))
        return known is not None and known[0] is run.content and not is_large([run.inputs, run.changed])

    def prune(self) -> None:
        """Remove the oldest runs beyond `MOST_RUNS` and `MOST_BYTES`, except running ones.

        Ended ones never push out those that can still go on, for example when their question is answered: the two are counted
        apart. A process that has neither read nor stored a run removes nothing. Raises as `begin`.
        """
        if not self._file.is_open:
            return
        with self._file.open() as db, db:
            rows = db.execute("SELECT id, state FROM runs ORDER BY started DESC").fetchall()
            rows = [(run, state) for run, state in rows if is_run_id(run)]  # one that is damaged names no file
            ended = [run for run, state in rows if state in _ENDED]
            unfinished = [run for run, state in rows if state not in _ENDED]
            old, total = [], 0
            for at, run in (*enumerate(unfinished), *enumerate(ended)):
                total += journal.size(self._folder, run)
                if at and (at >= MOST_RUNS or total > MOST_BYTES) and not self.is_going_on(run):
                    old.append(run)
            for table, column in (("events", "run"), ("runs", "id")):
                db.executemany(f"DELETE FROM {table} WHERE {column} = ?", [(run,) for run in old])
        for run in old:
            with contextlib.suppress(OSError):
                journal.forget(self._folder, run)

    def _document(self, content: Mapping[str, Any]) -> str:
        """The workflow's document without secrets; computed once per document and set of secrets."""
        stamp = self.stamp()
        known = self._documents.get(id(content))
        if known is None or known[0] is not content or known[1] is not stamp:
            document = _plain(content)
            is_masked = self.holds_secret(_with_nameless_slots(document))
            if is_masked:
                document, _ = self._clean(document)
            if len(self._documents) >= _MOST_DOCUMENTS:
                self._documents.clear()
            text = _text({"document": document, "isMasked": is_masked})
            known = self._documents[id(content)] = content, stamp, text
        return known[2]

    def _data(self, run: StoredRun, fixed: Fixed) -> str:
        text, names = fixed
        masked = [*names]
        answers = self._masked_values(run.answers, "answers/", masked)
        reported: dict[str, Any] = {
            "timesTakenUp": run.times_taken_up, "mayHaveChanged": run.may_have_changed, "answers": answers, "masked": masked, "errors": [*run.errors], "updated": run.updated,
        }  # fmt: skip
        if run.outputs is not None:
            reported["outputs"] = run.outputs
        asked = self._mask(_plain({"questions": [*run.questions], "caller": run.caller, "options": run.options}))
        return f"{{{text},{_text({**reported, **asked})[1:]}"

    def _masked_values(self, values: Mapping[str, Any], prefix: str, masked: builtins.list[str]) -> dict[str, Any]:
        """Values as plain JSON without secrets; the names of changed ones are added to `masked`."""
        found = {}
        for key, value in values.items():
            try:
                clean, is_masked = self._clean({key: to_plain(value)})
                found[key] = clean.get(key)
            except NotPlainData:
                found[key], is_masked = f"<{type(value).__name__}>", True
            if is_masked:
                masked.append(prefix + key)
        return found

    def _clean(self, plain: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """An object without its secrets, and whether there were any. Parts that the mask does not cover are omitted."""
        if not self.holds_secret(plain):
            return plain, False
        clean = self._mask(plain)
        return {} if clean == plain else clean, True

    # Reading -------------------------------------------------------------------------------------------------------------

    def list(self, workflow: str = "", most: int = 100) -> builtins.list[StoredRun]:
        """The stored runs, newest first, without corrupt rows."""
        where, values = ("WHERE workflow = ?", [workflow]) if workflow else ("", [])
        with self._file.open() as db:
            rows = db.execute(f"SELECT * FROM runs {where} ORDER BY started DESC LIMIT ?", (*values, most)).fetchall()
        return [run for row in rows if (run := self._from_row(row)) is not None]

    def get(self, run_id: str) -> StoredRun | None:
        """A stored run, or None. Raises StateDamaged: its data cannot be read (STATE_DAMAGED)."""
        if not is_run_id(run_id):
            return None
        row = self._row(run_id)
        if row is not None and (found := self._from_row(row)) is not None:
            return found
        if row is not None:
            raise StateDamaged(
                f"{self._path}: the record of {run_id} is corrupt",
                hint="start the workflow again",
                path=str(self._path),
            )
        return None

    def find(self, run_id: str) -> StoredRun:
        """`get`; raises RunNotFound, with the closest id, if there is none (RUN_NOT_FOUND)."""
        if (found := self.get(run_id)) is None:
            near = [run.run_id for run in self.list()]
            raise RunNotFound(f"there is no run {run_id!r}", hint=did_you_mean(run_id, near) or "tavern workflows runs")
        return found

    def sources(self, run_id: str) -> tuple[str, ...]:
        """The sources of untrusted content that the nodes of a run had read when the last of them was recorded."""
        records = (record.get("read") for record in journal.read(self._folder, run_id))
        return tuple(dict.fromkeys(str(source) for found in records if isinstance(found, list) for source in found))

    def calls(self, run_id: str) -> int:
        """The number of calls of its caller's budget that the journal of a run counts."""
        counts = (record.get("calls") for record in journal.read(self._folder, run_id))
        return max((count for count in counts if type(count) is int), default=0)

    def events(self, run_id: str, after: int = 0) -> builtins.list[RunEvent]:
        """The events of a run after number `after`."""
        found, _ = self.read_on(run_id, after, 0)
        return found

    def read_on(self, run_id: str, after: int, place: int) -> tuple[builtins.list[RunEvent], int]:
        """The events after number `after`, and the read position in its journal.

        Args:
            place: the earlier read position. All events of an ended run are in the database.
        """
        with self._file.open() as db:
            (state,) = db.execute("SELECT state FROM runs WHERE id = ?", (run_id,)).fetchone() or ("",)
            stored = db.execute(
                "SELECT data FROM events WHERE run = ? AND last > ? ORDER BY first", (run_id, after)
            ).fetchall()
        found = [event for (text,) in stored for event in _events(text) if event.seq > after]
        if state in _ENDED:
            return found, place
        last = found[-1].seq if found else after
        rows, end = journal.events(self._folder, run_id, place)
        later = sorted((event for event in _of_rows(rows) if event.seq > last), key=lambda event: event.seq)
        if later and later[-1].seq != last + len(later):
            return found, place  # missing events are meanwhile in the database
        return [*found, *later], end

    def events_to_end(self, run_id: str, after: int = 0) -> builtins.list[RunEvent]:
        """`events`; if its process died before the run ended, the last one is `run:` with the state that remains."""
        goes_on = self.is_going_on(run_id)
        run = self.find(run_id)
        if goes_on or run.state in _ENDED or run.state == "running":  # running: a process has taken it up just now
            return self.events(run_id, after)
        return self._to_end(run, run.state, after)

    def _end_events(self, run: StoredRun) -> None:
        """Complete the database before resuming a run whose process died: add what that process could not write."""
        if run.state in _ENDED:
            return
        state = "interrupted" if run.state == "running" else run.state  # the journal is that of this process already
        if unwritten := self._to_end(run, state, self._last_stored(run.run_id)):
            rows: builtins.list[EventRow] = [(e.seq, e.time, e.kind, e.path, e.data) for e in unwritten]
            with self._file.open() as db, db:
                _insert(db, run.run_id, (rows[0][0], rows[-1][0], self.rows(rows)))

    def _to_end(self, run: StoredRun, state: str, after: int) -> builtins.list[RunEvent]:
        """The events after number `after`, up to the end of a run that no process continues."""
        kind, last = f"run:{state}", self._last_stored(run.run_id)
        found = self.events(run.run_id, min(after, max(last - 1, 0)))  # with the last one, which may be the end
        if not found:
            found = [RunEvent(last + 1, run.started, kind)]
        elif found[-1].kind != kind:
            found.append(RunEvent(found[-1].seq + 1, found[-1].time, kind))
        return [event for event in found if event.seq > after]

    def _last_stored(self, run_id: str) -> int:
        """The number of the last event in the database; 0 without one."""
        with self._file.open() as db:
            (last,) = db.execute("SELECT coalesce(max(last), 0) FROM events WHERE run = ?", (run_id,)).fetchone()
        return int(last)

    def steps(self, run_id: str) -> tuple[dict[str, tuple[bytes, bytes, Outputs]], LostOutputs]:
        """(path → (key, content key, outputs) of the completed nodes of a run, path → why others are not stored)."""
        found: dict[str, tuple[bytes, bytes, Outputs]] = {}
        lost: dict[str, str] = {}
        for record in journal.read(self._folder, run_id):
            try:
                path = record["path"]
                if "why" in record:
                    lost[path] = str(record["why"])
                    found.pop(path, None)
                else:
                    found[path] = (
                        bytes.fromhex(record["key"]),
                        bytes.fromhex(record["mark"]),
                        from_plain(record["outputs"]),
                    )
                    lost.pop(path, None)
            except (KeyError, TypeError, ValueError):
                continue
        return found, lost

    def is_going_on(self, run_id: str) -> bool:
        """Whether a process runs it now."""
        return is_run_id(run_id) and journal.is_going_on(self._folder, run_id)

    def leave_answer(self, run_id: str, question: str, value: Any) -> bool:
        """Store an answer for the process that runs or resumes the run; False: another answer came first. Raises as `begin`."""
        return journal.leave_answer(self._folder, run_id, question, value)

    def answers(self, run_id: str) -> dict[str, Any]:
        """Question → its stored answer that was not used yet."""
        return journal.answers(self._folder, run_id)

    def ask_to_end(self, run_id: str) -> bool:
        """Request its process to cancel it; False: no process runs it. Raises as `begin`."""
        if not self.is_going_on(run_id):
            return False
        journal.ask_to_end(self._folder, run_id)
        return True

    def give_up(self, run_id: str) -> bool:
        """Cancel a run that no process runs and that waits for answers; False: it is not such a run. Raises as `begin`."""
        if (run := self.get(run_id)) is None or run.state != _WAITING:
            return False
        try:
            _, run_journal = self.take_up(run_id)
        except RunContinuesElsewhere:
            return False
        try:
            with self._file.open() as db, db:
                stored = db.execute("SELECT data FROM runs WHERE id = ? AND state = ?", (run_id, _WAITING)).fetchone()
                if stored is None:
                    return False
                data = _summed(_text({**json.loads(stored[0]), "updated": time.time()}))
                db.execute("UPDATE runs SET state = ?, data = ?, crc = ? WHERE id = ?", (_CANCELLED, *data, run_id))
                (last,) = db.execute("SELECT coalesce(max(last), 0) FROM events WHERE run = ?", (run_id,)).fetchone()
                row: EventRow = (last + 1, time.time(), f"run:{_CANCELLED}", "", {})
                _insert(db, run_id, (last + 1, last + 1, self.rows([row])))
        finally:
            run_journal.close()
        return True

    def close(self) -> None:
        self._file.close()

    def _row(self, run_id: str) -> tuple[Any, ...] | None:
        with self._file.open() as db:
            return db.execute("SELECT * FROM runs WHERE id = ?", (run_id,)).fetchone()  # type: ignore[no-any-return]

    def _from_row(self, row: tuple[Any, ...], *, is_newest: bool = False) -> StoredRun | None:
        try:
            run_id, workflow, state, started, latency, text, crc, content, content_crc = row
            if _crc(text) != crc or _crc(content) != content_crc:
                return None
            data, document = json.loads(text), json.loads(content)
            masked = [*data["masked"], *(["content"] if document["isMasked"] else [])]
            if state == "running" and not self.is_going_on(run_id):
                if not is_newest and (newest := self._row(run_id)) is not None:  # it may have ended since it was read
                    return self._from_row(newest, is_newest=True)
                state = "interrupted"
            changed = from_plain(data["changed"]) if "changed" in data else None
            return StoredRun(
                run_id, workflow, state, float(started), float(latency), document["document"], from_plain(data["inputs"]), changed,
                data.get("caller"), dict(data.get("options") or {}), int(data.get("timesTakenUp", 0)),
                data.get("mayHaveChanged") is not False, from_plain(data["answers"]),
                tuple(data["questions"]), tuple(data["errors"]), data.get("outputs"), tuple(masked),
                float(data.get("updated") or started + latency / 1000),
            )  # fmt: skip
        except (AttributeError, KeyError, TypeError, ValueError):
            return None


def _insert(db: sqlite3.Connection, run_id: str, events: EventRows) -> None:
    first, last, text = events
    if text:
        db.execute("INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?)", (run_id, first, last, f"[{_decoded(text)}]"))


def _text(value: Any) -> str:
    return _decoded(encoded(value))


def _decoded(text: bytes) -> str:
    """Decode JSON for SQLite: half a character is written as its escape."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return encodable(text.decode("utf-8", "surrogatepass"))


def _crc(text: str) -> int:
    return zlib.crc32(text.encode("utf-8"))


def _summed(text: str) -> tuple[str, int]:
    return text, _crc(text)


def _events(text: str) -> builtins.list[RunEvent]:
    """The events of one batch; none for a corrupt one."""
    try:
        return _of_rows(json.loads(text))
    except (TypeError, ValueError):
        return []


def _of_rows(rows: Sequence[Any]) -> builtins.list[RunEvent]:
    return [RunEvent(seq, at, kind, path, from_plain(data or {})) for seq, at, kind, path, data in rows]


def _with_nameless_slots(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document in which a slot is no secret because of its name; the values in it still may be."""
    found = dict(document)
    for key in ("interfaceInputs", "interfaceOutputs"):
        slots = document.get(key)
        if isinstance(slots, dict):
            parts = [(name, part) for name, slot in slots.items() if isinstance(slot, dict) for part in _values(slot)]
            found[key] = [*slots.values(), *({name: part} for name, part in parts)]
    return found


def _values(slot: Mapping[str, Any]) -> builtins.list[Any]:
    """What may be a value of a slot: all but its own description."""
    config = slot.get("config")
    return [
        *(config.values() if isinstance(config, dict) else [config]),
        *(value for key, value in slot.items() if key not in _SLOT_FIELDS),
    ]


def _plain(value: Mapping[str, Any]) -> Any:
    found = {}
    for key, item in value.items():
        try:
            found[key] = to_plain(item)
        except NotPlainData:
            found[key] = f"<{type(item).__name__}>"
    return found
