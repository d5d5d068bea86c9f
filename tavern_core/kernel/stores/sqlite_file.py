"""A SQLite file of the state folder: opened at its first use, renamed and replaced when it is corrupt.

file = SqliteFile(home / "agents.db", schema)
with file.open() as db, db:
    db.execute(...)
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tavern_core.errors import StateDamaged
from tavern_core.kernel.files.atomic_file import PRIVATE_FILE, make_private_folder

if TYPE_CHECKING:
    import sqlite3


class SqliteFile:
    """One file. Safe for several threads and processes.

    Args:
        schema: statements that create the tables, separated by semicolons.
        version: of the schema, from 1; a file of a newer version is refused.
    """

    def __init__(self, path: Path, schema: str, version: int = 1) -> None:
        self.path = path
        self._schema = schema
        self._version = version
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
        """
        import sqlite3

        with self._lock:
            try:
                if self._db is None:
                    self._db = self._connect()
                yield self._db
            except sqlite3.DatabaseError as error:
                hint = "free some disk space, and see that the folder can be written"
                if is_damaged(error):
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

    def _connect(self) -> sqlite3.Connection:
        """Open the file; an invalid database is set aside and replaced."""
        import sqlite3

        make_private_folder(self.path.parent)
        for is_second in (False, True):
            db = sqlite3.connect(self.path, timeout=10, check_same_thread=False)
            try:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = NORMAL")
                (version,) = db.execute("PRAGMA user_version").fetchone()
                if version > self._version:
                    raise StateDamaged(
                        f"{self.path} was written by a newer version",
                        hint="update this host, or use another TAVERN_HOME",
                        path=str(self.path),
                    )
                if version < self._version:
                    with db:
                        db.execute("BEGIN IMMEDIATE")
                        for statement in self._schema.split(";"):
                            db.execute(statement)
                        db.execute(f"PRAGMA user_version = {self._version}")
                with contextlib.suppress(OSError):
                    self.path.chmod(PRIVATE_FILE)
                return db
            except sqlite3.DatabaseError as error:
                db.close()
                if is_second or not is_damaged(error):
                    raise
                put_aside(self.path)
            except BaseException:
                db.close()
                raise
        raise AssertionError("unreachable")


def is_damaged(error: sqlite3.Error) -> bool:
    """True when the file itself is broken; a lock, a full disk or a missing right is no reason to put it aside."""
    import sqlite3

    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)


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
