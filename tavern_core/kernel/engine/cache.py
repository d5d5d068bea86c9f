"""Answers that are kept: within a run, within the host, on the disk, and those of a run that is taken up again."""

from __future__ import annotations

import copy
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from tavern_core.contract.nodes import Skip
from tavern_core.kernel.engine.answers import SKIPPED, Outputs
from tavern_core.kernel.engine.keys import joined_key
from tavern_core.kernel.engine.parts import RunPart
from tavern_core.kernel.engine.prepared import Work
from tavern_core.kernel.engine.values import NotPlain, from_plain, to_plain

if TYPE_CHECKING:
    import sqlite3

Kept = Literal["none", "run", "session", "disk"]
MOST_ANSWERS: Final = 10_000
MOST_BYTES: Final = 256_000_000
"""Of the cache on the disk; the oldest go first."""


class SessionCache:
    """Answers that the host keeps while it is open; the least used go first. Safe for threads."""

    def __init__(self, most: int = MOST_ANSWERS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, Outputs] = OrderedDict()

    def find(self, key: bytes) -> Outputs | None:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
        return found

    def keep(self, key: bytes, outputs: Outputs) -> None:
        with self._lock:
            self._kept[key] = outputs
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._kept.clear()


class DiskCache:
    """Answers in an SQLite file of the state folder; what cannot be written as plain data is not kept.

    A file that is damaged is put aside and begun anew: a cache is allowed to forget.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None

    def find(self, key: bytes) -> Outputs | None:
        import sqlite3

        with self._lock, suppress(sqlite3.Error, ValueError):
            row = self._open().execute("SELECT outputs FROM answers WHERE key = ?", (key,)).fetchone()
            if row is not None:
                found: Outputs = from_plain(json.loads(row[0]))
                return found
        return None

    def keep(self, key: bytes, outputs: Outputs) -> None:
        try:
            text = json.dumps(to_plain(dict(outputs)), ensure_ascii=False)
        except NotPlain:
            return
        import sqlite3

        with self._lock, suppress(sqlite3.Error):
            db = self._open()
            with db:
                db.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", (key, text, len(text), time.time()))
                (size,) = db.execute("SELECT coalesce(sum(size), 0) FROM answers").fetchone()
                if size > MOST_BYTES:
                    db.execute(
                        "DELETE FROM answers WHERE key IN (SELECT key FROM answers ORDER BY made LIMIT (SELECT count(*) / 4 + 1 FROM answers))"
                    )

    def clear(self) -> None:
        """Forget everything."""
        import sqlite3

        with self._lock, suppress(sqlite3.Error):
            db = self._open()
            with db:
                db.execute("DELETE FROM answers")

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def _open(self) -> sqlite3.Connection:
        import sqlite3

        if self._db is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._db = _connect(self._path)
            except sqlite3.DatabaseError:
                self._path.replace(self._path.with_suffix(".damaged"))
                self._db = _connect(self._path)
        return self._db


def _connect(path: Path) -> sqlite3.Connection:
    import sqlite3

    db = sqlite3.connect(path, timeout=5, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = OFF")
    db.execute("CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, outputs TEXT, size INTEGER, made REAL)")
    return db


class Earlier:
    """What a run that is taken up again did before.

    Args:
        steps: path → (key, mark, outputs) of each node that was complete.
        without: paths that are to be run again, whatever they gave.
    """

    def __init__(self, steps: Mapping[str, tuple[bytes, bytes, Outputs]], without: frozenset[str] = frozenset()) -> None:
        self.steps = steps
        self.without = without


class RunCache:
    """The answers that one run may take, and where it puts its own."""

    def __init__(self, session: SessionCache, disk: DiskCache, earlier: Earlier | None = None, *, is_off: bool = False) -> None:
        self._session = session
        self._disk = disk
        self._earlier = earlier
        self._is_off = is_off
        self._run = SessionCache()
        self.steps: dict[str, tuple[bytes, bytes, Outputs]] = {}
        """Path → (key, mark, outputs) of this run's nodes, for whoever takes it up again."""

    def find(self, path: str, key: bytes, work: Work, inputs: Mapping[str, Any], run: RunPart) -> tuple[Outputs, bytes] | None:
        """(outputs, mark) of an answer kept under `key`, or None."""
        if self._earlier is not None:
            if path in self._earlier.without:
                return None
            before = self._earlier.steps.get(path)
            if before is not None and before[0] == key:
                self.steps[path] = before
                return before[2], before[1]
        kept = _kept(work)
        if kept == "none" or self._is_off or work.step.index in run_readers(work):
            return None
        place = self._run if kept == "run" else self._session if kept == "session" else self._disk
        found = place.find(key)
        if found is None:
            return None
        own = copy.deepcopy(dict(found))
        self.steps[path] = key, key, own
        return own, key

    def keep(self, path: str, key: bytes, work: Work, outputs: Outputs, run: RunPart) -> bytes:
        """Keep an answer where its step allows it; returns its mark."""
        kept = _kept(work)
        if outputs is SKIPPED:
            return joined_key(key, [run.id.encode(), path.encode()])
        is_anew = self._earlier is not None and path in self._earlier.without
        if kept == "none" or is_anew or work.step.spec.streams:
            mark = joined_key(key, [run.id.encode(), path.encode()])
        else:
            mark = key
            if not self._is_off and not any(value is Skip for value in outputs.values()):
                place = self._run if kept == "run" else self._session if kept == "session" else self._disk
                place.keep(key, _copied(outputs))
        self.steps[path] = key, mark, outputs
        return mark


def run_readers(work: Work) -> tuple[int, ...]:
    """A step whose stream somebody reads is never taken from a cache: its chunks are gone."""
    return (work.step.index,) if work.step.listeners or work.step.spec.streams else ()


def _kept(work: Work) -> Kept:
    wish = work.step.exec.cache
    return wish if wish is not None else "session" if work.step.spec.cache else "none"


def _copied(outputs: Outputs) -> Outputs:
    """A copy that later nodes of the run cannot change; what cannot be copied is kept as it is."""
    try:
        return copy.deepcopy(dict(outputs))
    except Exception:  # noqa: BLE001 - objects of plugins may refuse
        return dict(outputs)


