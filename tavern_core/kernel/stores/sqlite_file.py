"""SQLite files of the state folder: opened at their first use, renamed and replaced when they are corrupt.

file = SqliteFile(home / "agents.db", schema)
with file.open() as db, db:
    db.execute(...)
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tavern_core.errors import StateDamaged, UsageError
from tavern_core.kernel.execution.portal import COPIED_HINT, copied
from tavern_core.kernel.files.atomic_file import PRIVATE_FILE, make_private_folder

if TYPE_CHECKING:
    import sqlite3


class SqliteFile:
    """One file. Safe for several threads and processes.

    Args:
        schema: statements that create the tables, separated by semicolons.
        is_cache: see `connect`; a file whose tables are not those of the schema is replaced, too.
    """

    def __init__(self, path: Path, schema: str, *, is_cache: bool = False) -> None:
        self.path = path
        self._schema = schema
        self._is_cache = is_cache
        self._process = 0
        """Which one opened it."""
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None

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
                if self._db is None:
                    self._process = os.getpid()
                    self._db = connect(self.path, self._schema, is_cache=self._is_cache)
                yield self._db
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                hint = "free some disk space, and see that the folder can be written"
                if is_damaged(error, is_cache=self._is_cache):
                    if self._db is not None:
                        self._db.close()
                        self._db = None
                    aside = put_aside(self.path)
                    hint = f"it was renamed to {aside.name}, and the store starts empty"
                raise StateDamaged(f"{self.path}: {error}", hint=hint, path=str(self.path)) from error
            except OSError as error:
                raise StateDamaged(
                    f"{self.path}: {error}", hint="see that the folder can be written", path=str(self.path)
                ) from error

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None


def refuse_copy(process: int) -> None:
    """Raises UsageError: a connection that `process` opened is used in a forked copy of it, which may corrupt the file (USAGE)."""
    if process != os.getpid():
        raise UsageError(copied(process), hint=COPIED_HINT)


def _make_current(db: sqlite3.Connection, schema: str, version: int, *, is_cache: bool, is_checked: bool) -> bool:
    """Create the tables where they are missing; True: a newer version wrote the file. Raises sqlite3.DatabaseError: it is damaged."""
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    (found,) = db.execute("PRAGMA user_version").fetchone()
    if found > version and not is_cache:
        return True
    is_usable = found in (0, version) or not is_cache
    if is_checked and found == version:
        is_usable = db.execute("PRAGMA quick_check(1)").fetchone() == ("ok",)
    if not is_usable:
        import sqlite3

        raise sqlite3.DatabaseError("the database is malformed")
    if found < version:
        with db:
            db.execute("BEGIN IMMEDIATE")
            for statement in schema.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {version}")
    return False


def connect(
    path: Path,
    schema: str,
    version: int = 1,
    *,
    is_cache: bool = False,
    is_checked: bool = False,
    autocommit: bool = False,
    on_damage: Callable[[Path, Path], None] = lambda path, aside: None,
) -> sqlite3.Connection:
    """Open a database for all threads, and create its tables; a corrupt file is renamed and replaced.

    Args:
        schema: statements that create the tables, separated by semicolons.
        version: of the schema, from 1.
        is_cache: its content can be made again, so a file of another version is replaced instead of refused.
        is_checked: look for damage in the whole file.
        on_damage: called for a renamed file: its old name and its new one.

    Raises:
        StateDamaged: a newer version wrote it (STATE_DAMAGED).
        sqlite3.DatabaseError, OSError: it cannot be opened.
    """
    import sqlite3

    make_private_folder(path.parent)
    for is_second in (False, True):
        inode = inode_of(path)
        db = sqlite3.connect(
            path, timeout=10, check_same_thread=False, isolation_level=None if autocommit else "DEFERRED"
        )
        try:
            if _make_current(db, schema, version, is_cache=is_cache, is_checked=is_checked):
                text, hint = f"{path} was written by a newer version", "update this host, or use another TAVERN_HOME"
                raise StateDamaged(text, hint=hint, path=str(path))
            with contextlib.suppress(OSError):
                path.chmod(PRIVATE_FILE)
            return db
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            db.close()
            if is_second or not (is_damaged(error) or "malformed" in str(error)):
                raise
            if inode == inode_of(path):  # else another process was faster
                on_damage(path, put_aside(path))
        except BaseException:
            db.close()
            raise
    raise AssertionError("unreachable")


def is_damaged(error: Exception, *, is_cache: bool = False) -> bool:
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


def inode_of(path: Path) -> int:
    """What distinguishes a file from another one of the same name; 0: there is none."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def put_aside(path: Path) -> Path:
    """Rename the file and SQLite's side files, which would corrupt the next one; returns its new path. Earlier ones are kept."""
    aside, count = path.with_name(path.name + ".damaged"), 1
    while aside.exists():
        count += 1
        aside = path.with_name(f"{path.name}.damaged-{count}")
    for ending in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + ending).replace(aside.with_name(aside.name + ending))
    return aside
