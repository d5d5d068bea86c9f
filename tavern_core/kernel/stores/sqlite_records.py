"""Records in one SQLite file for all processes of a state folder.

Each method is one transaction, and most are one statement: a record is on the disk when a method returns, as far as a killed
process is concerned. A corrupt file is renamed, and a new one started.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tavern_core.contract.stores import DAMAGED, Record
from tavern_core.kernel.files.atomic_file import PRIVATE_FILE, make_private_folder, state_errors
from tavern_core.kernel.files.file_lock import locked, take, take_at_once
from tavern_core.kernel.stores.memory_records import wait_for
from tavern_core.kernel.stores.sqlite_file import (
    LOCK_S,
    LOOK_S,
    connect,
    copied_aside,
    inode_of,
    is_busy,
    is_damaged,
    state_error,
)
from tavern_core.model.safe_printing import is_text

if TYPE_CHECKING:
    import sqlite3

_PURGE_EVERY: Final = 5_000
_LONGEST_LOG: Final = 16_000_000
"""Bytes of the write-ahead log before they go into the file, which waits for the disk: four times SQLite's own."""
_MEASURE_EVERY: Final = 128
"""Writes after which the write-ahead log is measured."""
_PAUSE_S: Final = 0.0002
"""Pause before a statement that another process blocks is tried again."""
_CHECKPOINT_S: Final = 0.5
"""Time that a checkpoint waits for other processes; the next one may succeed."""
_ENTER_S: Final = 1.0
"""Time that a process waits for the lock of its own file, which others take briefly to check whether it is alive."""
_CACHE_KB: Final = 8_000
"""The size of the page cache, four times SQLite's default: keys are hashes, so each call reads another page."""
_NEWEST: Final = "CREATE INDEX IF NOT EXISTS newest ON records (kind, created, owner, state) WHERE kind != 'answer'"
"""Files of earlier versions have no such index, and get it when they are opened."""
_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS records (
    kind TEXT NOT NULL, key TEXT NOT NULL, owner TEXT NOT NULL, state TEXT NOT NULL, data TEXT NOT NULL, created REAL NOT NULL,
    expires REAL NOT NULL, version INTEGER NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (kind, key)
) WITHOUT ROWID;
{_NEWEST};
CREATE TABLE IF NOT EXISTS uses (key TEXT, slot INTEGER, at REAL, PRIMARY KEY (key, slot)) WITHOUT ROWID
"""
_COLUMNS: Final = "kind, key, owner, state, data, created, expires, version, crc"
_ADD: Final = f"""
INSERT INTO records ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (kind, key) DO UPDATE SET
    owner = excluded.owner, state = excluded.state, data = excluded.data, created = excluded.created, expires = excluded.expires,
    version = excluded.version, crc = excluded.crc
WHERE records.expires > 0 AND records.expires <= ?
"""
_OF_KIND: Final = "kind = ? AND kind != 'answer'"
"""Without the second condition SQLite does not use the index."""
_ANSWERS: Final = "kind = ?"
"""Answers have no index, which each keyed call would have to keep: they are listed every ten minutes, by reading all."""
_GARBAGE: Final = "kind GLOB '*[^ -~]*' OR (kind = 'answer' AND key GLOB '*[^0-9a-f]*')"
"""Records that could not be found again, because their names are damaged: those of answers are hexadecimal."""
_LONGEST_PERIOD_S: Final = 7 * 86_400.0
"""The longest period of a rate that another process may count here; this process knows its own rates."""
_FORGET_USES: Final = (
    "DELETE FROM uses WHERE key IN (SELECT key FROM uses WHERE slot >= 0 GROUP BY key HAVING max(at) < ?)"
)
_NTH_NEWEST: Final = "SELECT at FROM uses WHERE key = ? AND slot >= 0 ORDER BY at DESC LIMIT 1 OFFSET ?"
_FORGET_OLD: Final = "DELETE FROM uses WHERE key = ? AND slot BETWEEN 0 AND ? AND at <= ?"
_REPLACE: Final = (
    "UPDATE records SET state = ?, data = ?, expires = ?, crc = ?, version = version + 1"
    " WHERE kind = ? AND key = ? AND version = ?"
)
_Row = tuple[str, str, str, str, str, float, float, int, int]


def _execute(on: sqlite3.Connection | sqlite3.Cursor, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
    """Execute a statement; wait for other processes, at most `LOCK_S`.

    SQLite's own pauses grow to a tenth of a second. A process that writes all the time takes the lock again within
    microseconds, so the others would hardly ever find it free.
    """
    end = 0.0
    while True:
        try:
            return on.execute(statement, values)
        except Exception as error:
            if not is_busy(error) or 0 < end < time.monotonic():
                raise
            end = end or time.monotonic() + LOCK_S
            time.sleep(_PAUSE_S)


class SqliteRecords:
    """A `RecordStore` in a file.

    Args:
        path: of the file; created, with its folder, at first use.
        on_damage: called for a renamed corrupt file: its old name and its new one.
        on_garbage: called with the number of records that were removed because their names were damaged, and the copy of the
            file; 0: the names or states of records were damaged in a way that leaves them usable.
    """

    is_quick = True

    def __init__(
        self,
        path: Path,
        on_damage: Callable[[Path, Path], None] = lambda path, aside: None,
        on_garbage: Callable[[int, Path], None] = lambda count, copy: None,
    ) -> None:
        self._db: sqlite3.Connection | None = None
        self._path = path
        self._log = f"{path}-wal"
        self._on_damage = on_damage
        self._on_garbage = on_garbage
        self._presence = Presence(path.with_name("processes"))
        self._lock = threading.Lock()
        self._cursor: sqlite3.Cursor | None = None
        """The cursor for writes; creating one for each statement costs as much as the lock."""
        self._inode = 0
        """The inode of the open file."""
        self._looked_at = 0.0
        self._added = self._taken = self._written = 0
        self._longest_s = _LONGEST_PERIOD_S
        self._longest_log = _LONGEST_LOG

    def add(self, record: Record) -> Record | None:
        if not 0 <= record.created - self._looked_at < LOOK_S:
            self._check_file(record.created)
        data = record.data
        values = (
            record.kind, record.key, record.owner, record.state, data, record.created, record.expires, record.version,
            zlib.crc32(data.encode()),
        )  # fmt: skip
        while True:
            if self._run(_ADD, (*values, max(record.created, time.time()))):  # `get` goes by the time of now, too
                self._added += 1
                if self._added % _PURGE_EVERY == 1:
                    self._run("DELETE FROM records WHERE expires > 0 AND expires <= ?", (record.created,))
                return None
            if (known := self.get(record.kind, record.key)) is not None:  # None: it expired in between
                return known

    def _check_file(self, now: float) -> None:
        """Check that the file is still the store: another process may have renamed a corrupt one and begun anew."""
        self._looked_at = now
        if self._inode and self._inode != inode_of(self._path):
            self._forget_connection()

    def get(self, kind: str, key: str) -> Record | None:
        found = self._rows(f"SELECT {_COLUMNS} FROM records WHERE kind = ? AND key = ?", (kind, key))
        return None if not found or 0 < found[0][6] <= time.time() else _record(found[0])

    def replace(self, record: Record) -> bool:
        data = record.data
        crc = zlib.crc32(data.encode())
        values = (record.state, data, record.expires, crc, record.kind, record.key, record.version)
        return self._run(_REPLACE, values) == 1

    def remove(self, kind: str, key: str) -> bool:
        return self._run("DELETE FROM records WHERE kind = ? AND key = ?", (kind, key)) == 1

    def list(
        self, kind: str, *, owner: str | None = None, states: Collection[str] = (), most: int = 100
    ) -> tuple[Record, ...]:
        of_kind = _ANSWERS if kind == "answer" else _OF_KIND
        where, values = [of_kind, "(expires = 0 OR expires > ?)"], builtins.list[object]([kind, time.time()])
        if owner is not None:
            where.append("owner = ?")
            values.append(owner)
        if states:
            where.append(f"state IN ({', '.join('?' * len(states))})")
            values += states
        rows = self._rows(
            f"SELECT {_COLUMNS} FROM records WHERE {' AND '.join(where)} ORDER BY created DESC LIMIT ?", (*values, most)
        )
        return tuple(map(_record, rows))

    def count(self, kind: str, *, owner: str, state: str, since: float) -> int:
        statement = f"SELECT count(*) FROM records WHERE {_OF_KIND} AND created > ? AND owner = ? AND state = ?"
        return int(self._rows(statement, (kind, since, owner, state))[0][0])

    def take(self, key: str, most: int, seconds: float, now: float) -> float:
        # Slot -1 counts all uses, and use n is in slot n: whatever the rate was before, slot n - `most` holds the oldest that counts.
        # Earlier versions used the slots below `most` again and again.
        self._longest_s = max(self._longest_s, seconds)
        self._taken += 1
        with self._open() as db:
            _execute(db, "BEGIN IMMEDIATE")
            try:
                if self._taken % _PURGE_EVERY == 1:
                    db.execute(_FORGET_USES, (now - 2 * self._longest_s,))
                (number,) = db.execute("SELECT at FROM uses WHERE key = ? AND slot = -1", (key,)).fetchone() or (0.0,)
                slot = int(number)
                oldest = None
                if slot >= most:
                    found = db.execute("SELECT at FROM uses WHERE key = ? AND slot = ?", (key, slot - most)).fetchone()
                    oldest = found or db.execute(_NTH_NEWEST, (key, most - 1)).fetchone()
                if oldest is not None and (wait := wait_for(earlier := oldest[0], seconds, now)) > 0:
                    if earlier > now:  # the clock was set back: from now on they count as uses of now
                        db.execute("UPDATE uses SET at = ? WHERE key = ? AND slot >= 0 AND at > ?", (now, key, now))
                    return wait
                db.execute(
                    "INSERT OR REPLACE INTO uses VALUES (?, ?, ?), (?, -1, ?)", (key, slot, now, key, number + 1)
                )
                db.execute(_FORGET_OLD, (key, slot - most, now - seconds))
                return 0.0
            finally:
                db.execute("COMMIT")
                if self._taken % _MEASURE_EVERY == 0:
                    self._shorten_log()

    def used(self, key: str, most: int, seconds: float, now: float) -> int:
        statement = "SELECT count(*) FROM uses WHERE key = ? AND slot >= 0 AND at > ?"
        return int(self._rows(statement, (key, now - seconds))[0][0])

    def enter(self, process: str) -> None:
        self._presence.enter(process)

    def leave(self, process: str) -> None:
        self._presence.leave(process)

    def is_present(self, process: str) -> bool:
        return self._presence.is_present(process)

    def close(self) -> None:
        self._forget_connection()
        self._presence.close()

    def __del__(self) -> None:
        if self._db is not None:  # used after `close`
            self._db.close()  # Python 3.13 warns of unclosed connections

    def _forget_connection(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = self._cursor = None

    def _run(self, statement: str, values: Sequence[object]) -> int:
        """Run a statement as a transaction; returns the number of changed rows. `_open` would take twice as long."""
        with self._lock:
            try:
                if (cursor := self._cursor) is None:
                    cursor = self._cursor = self._opened().cursor()
                count = _execute(cursor, statement, values).rowcount
                self._written += 1
                if self._written % _MEASURE_EVERY == 0:
                    self._shorten_log()
                return count
            except Exception as error:
                raise self._damage(error) from error

    def _rows(self, statement: str, values: Sequence[object]) -> builtins.list[_Row]:
        with self._lock:
            try:
                db = self._db or self._opened()
                try:
                    return _execute(db, statement, values).fetchall()
                except Exception as error:
                    if "decode" not in str(error):
                        raise
                    db.text_factory = (
                        _any_text  # a damaged row, which is reported as such; all others cost nothing more
                    )
                    try:
                        return _execute(db, statement, values).fetchall()
                    finally:
                        db.text_factory = str
            except Exception as error:
                raise self._damage(error) from error

    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            db, inode = connect(
                self._path, _SCHEMA, autocommit=True, on_damage=self._on_damage,
                on_repair=lambda copy: self._on_garbage(0, copy),
            )  # fmt: skip
            db.execute(_NEWEST)
            db.execute("PRAGMA wal_autocheckpoint = 0")
            db.execute("PRAGMA journal_size_limit = 0").fetchone()  # a log that is begun anew is a short file again
            db.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
            db.execute("PRAGMA busy_timeout = 0")  # `_execute` waits
            self._db, self._inode = db, inode
            if _has_garbage(db):
                with locked(self._path):
                    if _has_garbage(db):  # no other process was faster
                        copy = copied_aside(self._path, db)
                        self._on_garbage(_execute(db, f"DELETE FROM records WHERE {_GARBAGE}").rowcount, copy)
        return self._db

    def _shorten_log(self) -> None:
        """Move a long write-ahead log into the file.

        SQLite's own checkpoints let others write in the meantime. Then a log to which two processes write all the time is never
        begun anew, and fills the disk.
        """
        import sqlite3

        db, end = self._opened(), time.monotonic() + _CHECKPOINT_S
        with contextlib.suppress(OSError, sqlite3.OperationalError):  # no harm: the log is as good as the file
            while (size := os.stat(self._log).st_size) > self._longest_log:  # noqa: PTH116 - a Path costs as much as the call
                (is_held_up, *_) = db.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
                if not is_held_up:
                    self._longest_log = _LONGEST_LOG
                    return
                if time.monotonic() > end:  # a process reads for long: not every few writes wait for it
                    self._longest_log = size + _LONGEST_LOG
                    return
                time.sleep(_PAUSE_S)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._opened()
            except Exception as error:
                raise self._damage(error) from error

    def _damage(self, error: Exception) -> Exception:
        """Translates an error of the database; a corrupt file is renamed. Any other error stays unchanged."""
        import sqlite3

        if not isinstance(error, sqlite3.Error | OSError | UnicodeDecodeError):
            return error
        db = self._db
        if is_damaged(error):
            self._db = self._cursor = None
        return state_error(error, self._path, self._inode, db, on_damage=self._on_damage)


class Presence:
    """The living processes of a state folder: each locks its own file, and the system releases the lock at its end.

    Args:
        folder: created when the first process enters.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}
        self._entering = threading.Lock()

    def enter(self, process: str) -> None:
        """Hold the file of `process`. The first time, those of processes that were killed are removed.

        Raises:
            StateDamaged: the folder cannot be written (STATE_DAMAGED).
        """
        with self._entering:  # a second thread of this process would wait for the lock that the first one holds
            if process not in self._held:
                self._enter(process)

    def _enter(self, process: str) -> None:
        make_private_folder(self._folder)
        path, is_first = self._folder / process, not self._held
        with state_errors(path, "make"):
            while True:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), PRIVATE_FILE)
                take(descriptor, _ENTER_S)
                if os.fstat(descriptor).st_ino == inode_of(path):
                    break
                os.close(descriptor)  # another process removed it before it was locked
            self._held[process] = descriptor
            for other in list(self._folder.iterdir()) if is_first else ():
                self.is_present(other.name)

    def leave(self, process: str) -> None:
        """Release the file and remove it."""
        if (descriptor := self._held.pop(process, None)) is not None:
            with contextlib.suppress(OSError):
                (self._folder / process).unlink()
            os.close(descriptor)

    def is_present(self, process: str) -> bool:
        """Whether the file is locked; an unlocked one is removed."""
        if process in self._held:
            return True
        path = self._folder / process
        try:
            descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
        except OSError:
            return False
        try:
            if not take_at_once(descriptor):
                return True
            if os.fstat(descriptor).st_ino == inode_of(path):
                with contextlib.suppress(OSError):
                    path.unlink()
                return False
        finally:
            os.close(descriptor)
        return self.is_present(process)  # the file was removed before it was locked, and perhaps made anew

    def close(self) -> None:
        """Close the database for all users in this process."""
        for process in list(self._held):
            self.leave(process)


def _has_garbage(db: sqlite3.Connection) -> bool:
    return _execute(db, f"SELECT 1 FROM records WHERE {_GARBAGE} LIMIT 1").fetchone() is not None


def _any_text(text: bytes) -> str:
    """Decode text of the file, whatever its bytes are; invalid UTF-8 becomes surrogates."""
    return text.decode("utf-8", "surrogateescape")


def _record(row: _Row) -> Record:
    kind, key, owner, state, data, created, expires, version, crc = row
    if not all(isinstance(text, str) and is_text(text) for text in (owner, state)):
        return Record(kind, key, "", DAMAGED, "", created, expires, version)
    if not isinstance(data, str) or zlib.crc32(data.encode("utf-8", "surrogateescape")) != crc:
        return Record(kind, key, owner, DAMAGED, "", created, expires, version)
    return Record(kind, key, owner, state, data, created, expires, version)
