"""Corrupt SQLite files: detects and renames them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3


def is_damaged(error: sqlite3.Error) -> bool:
    """True when the file itself is broken; a lock, a full disk or a missing right is no reason to put it aside."""
    import sqlite3

    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)


def put_aside(path: Path) -> Path:
    """Rename the file and SQLite's side files, which would corrupt the next one; returns its new path."""
    aside = path.with_name(path.name + ".damaged")
    for ending in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + ending).replace(aside.with_name(aside.name + ending))
    return aside
