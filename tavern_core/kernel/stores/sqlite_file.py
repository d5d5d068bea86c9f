"""SQLite files of the state folder: opened at their first use, renamed and replaced when they are corrupt.

file = SqliteFile(home / "agents.db", schema)
with file.open() as db, db:
    db.execute(...)
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from tavern_core.errors import StateDamaged, UsageError
from tavern_core.kernel.execution.portal import COPIED_HINT, fork_problem
from tavern_core.kernel.files.atomic_file import PRIVATE_FILE
from tavern_core.kernel.files.file_lock import locked, not_free

if TYPE_CHECKING:
    import sqlite3

OnDamage = Callable[[Path, Path], None]
OnRepair = Callable[[Path], None]
_VERSION: Final = 1
"""The version of all schemas, stored in the file."""
LOCK_S: Final = 10.0
"""Time that a statement waits for other processes."""
LOOK_S: Final = 0.1
"""Interval between checks that an open file still has this name: another process may have renamed it."""

_MOST_FRAMES: Final = 1_000
"""Maximum frames of a write-ahead log that are checked beyond those that SQLite reads."""
_LOOK_S: Final = 0.01
"""Pause between two reads of a log to which another process may be writing."""


class SqliteFile:
    """A database file. Safe for several threads and processes.

    Args:
        schema: statements that create the tables, separated by semicolons.
        is_cache: see `connect`; a file whose tables are not those of the schema is replaced, too.
        on_damage: called for a renamed file: its old name and its new one.
        wait_s: how long a statement waits for other processes.
    """

    def __init__(
        self,
        path: Path,
        schema: str,
        *,
        is_cache: bool = False,
        on_damage: OnDamage = lambda path, aside: None,
        wait_s: float = LOCK_S,
    ) -> None:
        self.path = path
        self._schema = schema
        self._is_cache = is_cache
        self._on_damage = on_damage
        self._wait_s = wait_s
        self._process = 0
        """The process that opened it."""
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self._inode = 0
        """The inode of the open file."""
        self._looked_at = 0.0

    @property
    def is_open(self) -> bool:
        return self._db is not None

    @contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread at a time.

        Raises:
            StateDamaged: the file cannot be read or written (STATE_DAMAGED).
            UsageError: this is a forked copy of the process that has it (USAGE).
        """
        import sqlite3

        if self._db is not None:
            refuse_copy(self._process)
        with self._lock:
            try:
                if self._db is not None and time.monotonic() - self._looked_at > LOOK_S:
                    self._looked_at = time.monotonic()
                    if self._inode != inode_of(self.path):
                        self._db.close()
                        self._db = None
                if self._db is None:
                    self._process = os.getpid()
                    self._db, self._inode = connect(
                        self.path, self._schema, is_cache=self._is_cache, on_damage=self._on_damage
                    )
                    self._db.execute(f"PRAGMA busy_timeout = {self._wait_s * 1000:.0f}")
                yield self._db
            except (sqlite3.DatabaseError, UnicodeDecodeError, OSError) as error:
                db = self._db
                if is_damaged(error, is_cache=self._is_cache):
                    self._db = None
                raise state_error(
                    error, self.path, self._inode, db,
                    is_cache=self._is_cache, on_damage=self._on_damage, wait_s=self._wait_s,
                ) from error  # fmt: skip

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def __del__(self) -> None:
        if self._db is not None:  # used after `close`
            self._db.close()  # Python 3.13 warns of unclosed connections


def refuse_copy(process: int) -> None:
    """Refuse the connection of `process` in a forked copy, which may corrupt the file. Raises UsageError (USAGE)."""
    if process != os.getpid():
        raise UsageError(fork_problem(process), hint=COPIED_HINT)


def _keep_damaged_log(db: sqlite3.Connection, path: Path) -> Path | None:
    """A copy of the write-ahead log, if it is damaged; SQLite ignores it from the damaged place on without a word, and goes on.

    Raises:
        sqlite3.DatabaseError: the database does not match the rest of the log.
        OSError, StateDamaged: it cannot be copied (STATE_DAMAGED).
    """
    import sqlite3

    log = path.with_name(path.name + "-wal")
    if (place := _damaged_place(db, log)) is None:
        return None
    with locked(log):
        time.sleep(_LOOK_S)
        if place != _damaged_place(db, log):  # another process is writing to it, or has kept it
            return None
        if db.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("the write-ahead log of the database is malformed")
        copy = _free_name(log)
        shutil.copyfile(log, copy)
        copy.chmod(PRIVATE_FILE)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # else each process that opens it would find the place again
    return copy


def _damaged_place(db: sqlite3.Connection, log: Path) -> tuple[bytes, int] | None:
    """The header of a write-ahead log, and the number of the frame at which SQLite stops although later ones were committed.

    A process that is killed while it writes causes no damage: it leaves frames without a commit, one whose page is
    missing, and whole ones that no other process knows of yet.
    """
    import sqlite3

    try:
        with log.open("rb", buffering=0) as file:
            head, size = file.read(32), os.fstat(file.fileno()).st_size
            if size <= 32 or len(head) < 32:  # or another process began it between the two looks
                return None
            if _log_checksum(head[:24], head, bytes(8)) != head[24:]:
                return head, 0
            if (known := _known_frames(db)) is None:
                return None
            frame, stopped = 24 + int.from_bytes(head[8:12], "big"), 0
            file.seek(32 + (known - 1) * frame + 16 if known else 24)
            before = file.read(8)
            for number in range(known + 1, min(known + _MOST_FRAMES, (size - 32) // frame) + 1):
                file.seek(32 + (number - 1) * frame)
                frame_head = file.read(24)
                is_of_log = frame_head[8:16] == head[16:24]  # not of an earlier one
                if not any(frame_head[:16]):  # SQLite writes no such frame
                    return head, stopped or number
                if stopped:
                    if is_of_log and any(frame_head[4:8]):
                        return head, stopped
                elif (
                    not is_of_log
                    or _log_checksum(frame_head[:8] + file.read(frame - 24), head, before) != frame_head[16:]
                ):
                    stopped = number
                elif any(frame_head[4:8]):  # it is committed, and about to be known
                    return None
                before = frame_head[16:]
    except (FileNotFoundError, sqlite3.OperationalError):  # or it is locked, or cannot be written
        pass
    return None


def _known_frames(db: sqlite3.Connection) -> int | None:
    """Number of frames of the write-ahead log that SQLite reads; None: another process is busy with it for long."""
    for _ in range(5):
        known: int = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
        if known >= 0:
            return known
        time.sleep(_LOOK_S)
    return None


def _log_checksum(data: bytes, head: bytes, before: bytes) -> bytes:
    """The checksum of `data` in the log with this header, continued from the checksum before."""
    order: Literal["little", "big"] = "big" if head[3] & 1 else "little"
    first, second = int.from_bytes(before[:4], "big"), int.from_bytes(before[4:], "big")
    for at in range(0, len(data), 8):
        first = (first + int.from_bytes(data[at : at + 4], order) + second) & 0xFFFFFFFF
        second = (second + int.from_bytes(data[at + 4 : at + 8], order) + first) & 0xFFFFFFFF
    return first.to_bytes(4, "big") + second.to_bytes(4, "big")


def _is_whole(db: sqlite3.Connection, path: Path, on_repair: OnRepair) -> bool:
    """Whether a file is sound. If only its indexes are damaged, they are rebuilt from the tables; a copy is kept."""
    if (wrong := _flaws(db)) and all(" index " in flaw for flaw in wrong):
        with locked(path):
            if wrong := _flaws(db):  # no other process was faster
                on_repair(copied_aside(path, db))
                db.execute("REINDEX")
                wrong = _flaws(db)
    return not wrong


def _flaws(db: sqlite3.Connection) -> list[str]:
    return [flaw for (flaw,) in db.execute("PRAGMA integrity_check") if flaw != "ok"]


def _make_current(
    db: sqlite3.Connection, path: Path, schema: str, *, is_cache: bool, on_repair: OnRepair | None
) -> None:
    """Create the tables where they are missing.

    Raises:
        StateDamaged: a newer version wrote the file (STATE_DAMAGED).
        sqlite3.DatabaseError: it is corrupt.
    """
    db.execute("PRAGMA synchronous = NORMAL")
    (found,) = db.execute("PRAGMA user_version").fetchone()
    if found > _VERSION and not is_cache:
        text, hint = f"{path} was written by a newer version", "update this host, or use another TAVERN_HOME"
        raise StateDamaged(text, hint=hint, path=str(path))
    is_usable = found in (0, _VERSION) or not is_cache
    if on_repair is not None and found == _VERSION:
        is_usable = _is_whole(db, path, on_repair)
    if found == _VERSION and not is_cache:
        is_usable = is_usable and _columns_of(schema) <= _columns(db)
    if not is_usable:
        import sqlite3

        raise sqlite3.DatabaseError("the database is malformed")
    if found < _VERSION:
        with db:
            db.execute("BEGIN IMMEDIATE")
            for statement in schema.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {_VERSION}")


def _columns(db: sqlite3.Connection) -> set[tuple[str, str]]:
    """(table, column) of each column of a database."""
    found = "SELECT tables.name, columns.name FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns"
    return set(db.execute(f"{found} WHERE tables.type = 'table'").fetchall())


@cache
def _columns_of(schema: str) -> set[tuple[str, str]]:
    import sqlite3

    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.executescript(schema)
        return _columns(db)


def connect(
    path: Path,
    schema: str,
    *,
    is_cache: bool = False,
    autocommit: bool = False,
    on_damage: OnDamage = lambda path, aside: None,
    on_repair: OnRepair | None = None,
) -> tuple[sqlite3.Connection, int]:
    """Open a database for all threads, and create its tables; a corrupt file is renamed and replaced.

    A write-ahead log that is damaged is copied; what comes before the damaged place is used.

    Args:
        schema: statements that create the tables, separated by semicolons.
        is_cache: its content can be made again, so a file of another version is replaced instead of refused.
        on_damage: called for a file that was renamed or copied: its old name and its new one.
        on_repair: look for damage in the whole file; called with the copy of one whose indexes alone were damaged.

    Returns:
        the connection, and the inode of the file.

    Raises:
        StateDamaged: a newer version wrote it (STATE_DAMAGED).
        sqlite3.DatabaseError, OSError: it cannot be opened.
    """

    def prepare(db: sqlite3.Connection) -> None:
        if (log := _keep_damaged_log(db, path)) is not None:
            on_damage(path.with_name(path.name + "-wal"), log)
        _make_current(db, path, schema, is_cache=is_cache, on_repair=on_repair)

    return _prepared(path, None if autocommit else "DEFERRED", prepare, on_damage)


def _prepared(
    path: Path,
    isolation: Literal["DEFERRED"] | None,
    prepare: Callable[[sqlite3.Connection], None],
    on_damage: OnDamage,
) -> tuple[sqlite3.Connection, int]:
    """See `connect`."""
    import sqlite3

    for is_second in (False, True):
        db, inode = None, 0
        try:
            # `put_aside` renames three files: without the lock, this could open some that belong to different databases. And of
            # two processes that change the journal at once, SQLite would refuse one without waiting.
            with locked(path):
                db = sqlite3.connect(path, timeout=LOCK_S, check_same_thread=False, isolation_level=isolation)
                inode = inode_of(path)
                db.execute("PRAGMA journal_mode = WAL")
            prepare(db)
            with contextlib.suppress(OSError):
                path.chmod(PRIVATE_FILE)
            return db, inode
        except BaseException as error:
            is_corrupt = is_damaged(error) or (
                isinstance(error, sqlite3.DatabaseError) and any(word in str(error) for word in ("malformed", "decode"))
            )
            if is_corrupt and not is_second and (aside := put_aside(path, inode, db)) is not None:
                on_damage(path, aside)
            if db is not None:
                db.close()
            if is_second or not is_corrupt:
                raise
    raise AssertionError("unreachable")


def is_damaged(error: BaseException, *, is_cache: bool = False) -> bool:
    """True when the file itself is broken; a lock, a full disk or a missing right is no reason to put it aside.

    A UnicodeDecodeError comes from SQLite's message about a broken schema, which quotes it.

    Args:
        is_cache: a file whose tables are not as expected counts as broken, too.
    """
    import sqlite3

    if isinstance(error, UnicodeDecodeError):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    broken = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, *((sqlite3.SQLITE_ERROR,) if is_cache else ()))
    return code is not None and code & 0xFF in broken


def is_busy(error: Exception) -> bool:
    """True when another process holds the lock that a statement needs."""
    import sqlite3

    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def inode_of(path: Path) -> int:
    """A number that distinguishes a file from another one of the same name; 0: there is none."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def copied_aside(path: Path, db: sqlite3.Connection) -> Path:
    """Copy a file that is partly corrupt and stays in use; returns the path of the copy."""
    import sqlite3

    aside = _free_name(path)
    with contextlib.closing(sqlite3.connect(aside)) as copy:
        db.backup(copy)
    aside.chmod(PRIVATE_FILE)
    return aside


def _free_name(path: Path) -> Path:
    kept, count = path.with_name(path.name + ".damaged"), 1
    while kept.exists():
        count += 1
        kept = path.with_name(f"{path.name}.damaged-{count}")
    return kept


def put_aside(path: Path, inode: int, db: sqlite3.Connection | None = None) -> Path | None:
    """Rename the file and SQLite's side files, which would corrupt the next one; returns its new path. Earlier ones are kept.

    Args:
        inode: of the corrupt file; if there is another one now, another process was faster, and nothing is renamed (None).
        db: a connection to it, which is closed; the write-ahead log that this removes is kept, too.
    """
    with locked(path):
        if inode != inode_of(path):
            if db is not None:
                db.close()
            return None
        aside = _free_name(path)
        if db is not None:
            log, kept_log = (one.with_name(one.name + "-wal") for one in (path, aside))
            with contextlib.suppress(OSError):
                kept_log.hardlink_to(log)
            db.close()
            if kept_log.exists():
                log.unlink(missing_ok=True)
        for ending in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + ending).replace(aside.with_name(aside.name + ending))
        return aside


def state_error(
    error: Exception,
    path: Path,
    inode: int,
    db: sqlite3.Connection | None,
    *,
    is_cache: bool = False,
    on_damage: OnDamage,
    wait_s: float = LOCK_S,
) -> StateDamaged:
    """Convert a database error to an error of the host. A corrupt file is put aside, and its connection `db` closed."""
    if is_busy(error):
        return not_free(path, wait_s)
    hint = "free some disk space, and see that the folder can be written"
    if is_damaged(error, is_cache=is_cache):
        if (aside := put_aside(path, inode, db)) is not None:
            on_damage(path, aside)
            hint = f"it was renamed to {aside.name}, and a new one was started: its content is lost"
        else:
            hint = "another process has renamed it and started a new one: its content is lost"
    return StateDamaged(f"{path}: {error}", hint=hint, path=str(path))
