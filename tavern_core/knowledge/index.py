"""The passages of one knowledge base in SQLite's full text search (FTS5), kept in a file below the state folder.

It follows the folders: before each search, files whose time or size changed are read again, and indexed again if their content
did. Words come in already cut (`catalogue/tokenizer.py`), so no text of a caller is ever read as a query expression. The file is a
cache: a damaged one, or one of another version, is made anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tavern_core.errors import Finding, Location, StateDamaged, ToolFailed, UsageError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.catalogue.tokenizer import is_spaceless, query_words, words_of
from tavern_core.kernel.files.file_stamp import Stamp
from tavern_core.kernel.stores.sqlite_file import SqliteFile, is_damaged
from tavern_core.knowledge.chunking import CODE, KnowledgeDocument, read_document
from tavern_core.knowledge.folders import MARKDOWN, list_documents, read_file

if TYPE_CHECKING:
    import sqlite3

_BATCH: Final = 200
"""Files of one transaction: an interrupted first reading goes on where it stopped."""
_WAIT_S: Final = 30.0
"""Seconds that it waits for another process that reads many files for the first time."""
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS files (id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, changed INTEGER NOT NULL,
    touched INTEGER NOT NULL, size INTEGER NOT NULL, inode INTEGER NOT NULL, hash TEXT NOT NULL, trusted INTEGER NOT NULL, findings TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS parts (id INTEGER PRIMARY KEY, file INTEGER NOT NULL, number INTEGER NOT NULL, anchor TEXT NOT NULL,
    heading TEXT NOT NULL, body TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS parts_of ON parts (file, number);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(heading, body, tokenize='ascii')
"""
_UNRELIABLE: Final = (-1, 0, 0, 0)
"""Stands for the stamp of a file that is read again before each search."""
_FOUND: Final = "files.path, parts.anchor, parts.heading, parts.body, files.trusted"


@dataclass(frozen=True, slots=True)
class PassageRow:
    """A passage as it is stored."""

    path: str
    anchor: str
    heading: str
    text: str
    trusted: bool
    score: float = 0.0


class PassageIndex:
    """The passages below some folders. Safe for threads and processes.

    Args:
        roots: the folders; of files with the same path below them, that of the first folder is used.
        file: where the index is kept.
    """

    def __init__(self, roots: Sequence[Path], file: Path) -> None:
        self._roots = tuple(roots)
        self._file = SqliteFile(file, _SCHEMA, is_cache=True, wait_s=_WAIT_S)

    def search(self, query: str, most: int) -> list[PassageRow]:
        """The passages that fit best, best first; equal scores by path and place."""
        with self._fresh() as (db, _):
            words = query_words(query)
            rows = self._matching(db, words, most)
            if not rows:  # a pair of characters that occurs nowhere: look for each of them
                rows = self._matching(db, list(dict.fromkeys(c for w in words if is_spaceless(w) for c in w)), most)
            return rows

    def read(self, path: str, anchor: str, most: int) -> list[PassageRow]:
        """The passage with this anchor and what follows of its section; without an anchor, the document."""
        statement = (
            f"SELECT {_FOUND} FROM parts JOIN files ON files.id = parts.file WHERE files.path = ? AND"
            " (? = '' OR parts.anchor = ? OR substr(parts.anchor, 1, ?) = ?) ORDER BY parts.number LIMIT ?"
        )
        start = f"{anchor}~"
        with self._fresh() as (db, _):
            values = (path, anchor, anchor, len(start), start, most)
            return [_row(row) for row in db.execute(statement, values)]

    def state(self) -> tuple[int, int, tuple[Finding, ...]]:
        """The number of documents and of passages, and what could not be read."""
        with self._fresh() as (db, findings):
            files, parts = (db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("files", "parts"))
            return files, parts, findings

    def close(self) -> None:
        self._file.close()

    @staticmethod
    def _matching(db: sqlite3.Connection, words: Sequence[str], most: int) -> list[PassageRow]:
        if not words:
            return []
        statement = (
            f"SELECT {_FOUND}, bm25(words, 4.0, 1.0) AS score FROM words JOIN parts ON parts.id = words.rowid"
            " JOIN files ON files.id = parts.file WHERE words MATCH ? ORDER BY score, files.path, parts.number LIMIT ?"
        )
        expression = " OR ".join(f'"{word}"' for word in words)
        return [_row(row) for row in db.execute(statement, (expression, most))]

    # Following the folders ---------------------------------------------------------------------------------------------

    @contextmanager
    def _fresh(self) -> Iterator[tuple[sqlite3.Connection, tuple[Finding, ...]]]:
        """The index as the folders are now, and what could not be read.

        Raises:
            StateDamaged: it cannot be kept (STATE_DAMAGED).
            UsageError: the SQLite of this Python has no FTS5, or this is a forked copy of the process that opened it (USAGE).
        """
        for is_second in (False, True):
            try:
                with ExitStack() as opening:
                    db = opening.enter_context(self._file.open())
                    findings = self._follow(db)
                    opened = opening.pop_all()
                break
            except StateDamaged as error:
                cause = error.__cause__
                if "no such module: fts5" in str(cause):
                    hint = "use a Python whose SQLite has FTS5, as those of python.org and of Debian"
                    raise UsageError(f"knowledge cannot be searched: {cause}", hint=hint) from None
                if is_second or cause is None or not is_damaged(cause, is_cache=True):
                    raise
        with opened:  # without a gap: no other thread or process may replace the file before it is read
            yield db, findings

    def _follow(self, db: sqlite3.Connection) -> tuple[Finding, ...]:
        findings: list[Finding] = []
        wanted: dict[str, tuple[Path, Stamp]] = {}
        for root in self._roots:
            listing = list_documents(root)
            findings += listing.findings
            for path, stamp in listing.files.items():
                wanted.setdefault(path, (root, stamp or _UNRELIABLE))
        rows = db.execute("SELECT path, id, changed, touched, size, inode FROM files")
        known = {path: (id_, tuple(stamp)) for path, id_, *stamp in rows}
        stale = [
            path
            for path, (_, stamp) in wanted.items()
            if stamp == _UNRELIABLE or path not in known or known[path][1] != stamp
        ]
        gone = [known[path][0] for path in known.keys() - wanted.keys()]
        for start in range(0, max(len(stale), bool(gone)), _BATCH):
            db.execute("BEGIN IMMEDIATE")
            try:
                for file in gone:
                    _drop(db, file)
                for path in stale[start : start + _BATCH]:
                    _put(db, path, *wanted[path])
                db.execute("COMMIT")
            except BaseException:
                db.execute("ROLLBACK")
                raise
            gone = []
        for path, stored in db.execute("SELECT path, findings FROM files WHERE findings != '[]' ORDER BY path"):
            root = wanted[path][0] if path in wanted else self._roots[0]
            for message, hint, line in json.loads(stored):
                findings.append(
                    Finding(CODE, message, hint, Location(str(root / path), line, 1 if line else 0), "warning")
                )
        return tuple(findings)


def _row(columns: tuple[Any, ...]) -> PassageRow:
    path, anchor, heading, body, trusted, *score = columns
    return PassageRow(path, anchor, heading, body, bool(trusted), -score[0] if score else 0.0)


def _drop(db: sqlite3.Connection, file: int) -> None:
    db.execute("DELETE FROM words WHERE rowid IN (SELECT id FROM parts WHERE file = ?)", (file,))
    db.execute("DELETE FROM parts WHERE file = ?", (file,))
    db.execute("DELETE FROM files WHERE id = ?", (file,))


def _put(db: sqlite3.Connection, path: str, root: Path, stamp: Stamp) -> None:
    """Index a file, or note that only its stamp changed."""
    try:
        content = read_file(root, path)
        digest = hashlib.sha256(content).hexdigest()
    except ToolFailed as error:
        stamp = _UNRELIABLE
        digest, document = "", KnowledgeDocument(findings=(Finding(CODE, error.message, error.hint, None, "warning"),))
    else:
        row = db.execute("SELECT id, hash FROM files WHERE path = ?", (path,)).fetchone()
        if row is not None and row[1] == digest:
            update = "UPDATE files SET changed = ?, touched = ?, size = ?, inode = ? WHERE id = ?"
            db.execute(update, (*stamp, row[0]))
            return
        document = read_document(content, path, is_markdown=path.lower().endswith(MARKDOWN))
    for (file,) in db.execute("SELECT id FROM files WHERE path = ?", (path,)).fetchall():
        _drop(db, file)
    findings = json.dumps([(f.message, f.hint, f.where.line if f.where else 0) for f in document.findings])
    values = (path, *stamp, digest, document.trusted, findings)
    insert = (
        "INSERT INTO files (path, changed, touched, size, inode, hash, trusted, findings)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
    )
    file = db.execute(insert, values).lastrowid
    stem = path.rpartition(".")[0]
    for number, part in enumerate(document.parts):
        columns = (file, number, part.anchor, part.heading, part.text)
        id_ = db.execute(
            "INSERT INTO parts (file, number, anchor, heading, body) VALUES (?, ?, ?, ?, ?)", columns
        ).lastrowid
        words = " ".join(words_of(f"{stem} {part.heading}")), " ".join(words_of(part.text))
        db.execute("INSERT INTO words (rowid, heading, body) VALUES (?, ?, ?)", (id_, *words))
