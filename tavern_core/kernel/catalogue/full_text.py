"""The words of tools in SQLite's full text search (FTS5), in memory.

Words arrive already tokenized (`tokenizer.py`), so no text of a caller is ever read as a query expression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from typing import Final

from tavern_core.errors import UsageError

COLUMNS: Final[Mapping[str, float]] = {
    "id": 10.0,
    "name": 8.0,
    "tags": 5.0,
    "parameters": 2.0,
    "description": 3.0,
    "examples": 1.0,
    "plugin": 2.0,
}
"""The indexed parts of a tool, and the weight of a word in each."""
IndexRow = tuple[str, Mapping[str, Sequence[str]]]
"""(tool id, words per column)."""
Fits = Callable[[str], bool]
"""Whether the tool with this id may be among the results."""
_COMMON: Final = 0.3
_FEW: Final = 50
_IN_NAME, _ANYWHERE = 2e-9, 1e-9  # below every BM25 score
_MOST_COMPLETIONS: Final = 16


class FullText:
    """An FTS5 table in memory: rows are added, removed and ranked. Called by one thread at a time.

    Raises:
        UsageError: the SQLite of this Python has no FTS5 (USAGE).
    """

    def __init__(self) -> None:
        import sqlite3  # here: a host that is never searched does without it

        connection = self._connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._rowids: dict[str, int] = {}  # also of dropped rows: a tool that comes back keeps its number
        self._ids: dict[int, str] = {}
        self._last = ""
        self._in_order = True
        """Whether the numbers of the rows ascend with their ids."""
        self._counts: dict[str, int] = {}
        # `ascii` keeps all other characters: words are tokenized and folded before they come here.
        try:
            connection.execute(
                f"CREATE VIRTUAL TABLE tools USING fts5({', '.join(COLUMNS)}, tokenize='ascii', prefix='3')"
            )
        except sqlite3.OperationalError as error:
            raise UsageError(
                f"tools cannot be searched: {error}",
                hint="use a Python whose SQLite has FTS5, as those of python.org and of Debian",
            ) from None
        connection.execute("CREATE VIRTUAL TABLE vocabulary USING fts5vocab(tools, 'row')")
        weights = ", ".join(str(weight) for weight in COLUMNS.values())
        connection.execute("INSERT INTO tools(tools, rank) VALUES ('rank', ?)", (f"bm25({weights})",))

    def __del__(self) -> None:
        self._connection.close()  # Python 3.13 warns of unclosed connections

    def put(self, rows: Sequence[IndexRow]) -> None:
        """Add rows with new ids."""
        values = []
        for tool_id, fields in sorted(rows, key=lambda row: row[0]):
            if tool_id not in self._rowids:
                self._in_order &= tool_id > self._last
                self._last = max(self._last, tool_id)
                self._rowids[tool_id] = len(self._rowids) + 1
            self._ids[self._rowids[tool_id]] = tool_id
            values.append((self._rowids[tool_id], *(" ".join(fields.get(column, ())) for column in COLUMNS)))
        marks = ", ".join("?" for _ in COLUMNS)
        self._write(f"INSERT INTO tools(rowid, {', '.join(COLUMNS)}) VALUES (?, {marks})", values)

    def drop(self, ids: Sequence[str]) -> None:
        """Remove rows."""
        rowids = [self._rowids[tool_id] for tool_id in ids]
        for rowid in rowids:
            del self._ids[rowid]
        self._write("DELETE FROM tools WHERE rowid = ?", [(rowid,) for rowid in rowids])

    def _write(self, statement: str, values: Sequence[tuple[object, ...]]) -> None:
        self._connection.execute("BEGIN")
        self._connection.executemany(statement, values)
        self._connection.execute("COMMIT")
        self._counts.clear()

    def rank(self, words: Sequence[str], most: int, fits: Fits, *, few: bool = False) -> list[tuple[str, float]]:
        """(id, score) of the `most` best rows that fit, best first; equal scores by id.

        Args:
            few: a hint that hardly any row fits.
        """
        known = dict.fromkeys(k for word in words for k in ([word] if self._count(word) else self._completions(word)))
        most_common = max(_FEW, _COMMON * len(self._ids))
        # A word in a third of the tools says little next to a rare one, and scoring its rows costs the most:
        # common words are not scored; they only fill the places that rare words leave free.
        found = self._by_rank([word for word in known if self._count(word) <= most_common], most, fits, few)
        if (
            len(found) < most
            and not (few and found)
            and (common := [word for word in known if self._count(word) > most_common])
        ):
            found_ids = {tool_id for tool_id, _ in found}
            found += self._by_place(
                common, most - len(found), lambda tool_id: tool_id not in found_ids and fits(tool_id)
            )
        return found

    def _by_rank(self, words: Sequence[str], most: int, fits: Fits, few: bool) -> list[tuple[str, float]]:
        scored: list[tuple[str, float]] = []
        limits = (-1,) if few else (most * 4 + 100, -1)
        for most_rows in limits if words else ():
            rows = self._connection.execute(
                "SELECT rowid, rank FROM tools WHERE tools MATCH ? ORDER BY rank LIMIT ?", (_any_of(words), most_rows)
            ).fetchall()
            scored = [(tool_id, -rank) for rowid, rank in rows if fits(tool_id := self._ids[rowid])]
            # Rows that tie with the last one were cut arbitrarily: search again without a limit, so that the answer
            # does not depend on the order in which plugins were installed.
            if len(rows) < most_rows or (len(scored) > most and scored[most][1] != -rows[-1][1]):
                break
        return sorted(scored, key=_best_first)[:most]

    def _by_place(self, words: Sequence[str], most: int, fits: Fits) -> list[tuple[str, float]]:
        """Matches of words that BM25 cannot rank by: in id, name or tags first, then by id."""
        found: dict[str, float] = {}
        for columns, score in (("{id name tags} : ", _IN_NAME), ("", _ANYWHERE)):
            matching = self._matching(f"{columns}({_any_of(words)})")
            new = (tool_id for tool_id in matching if tool_id not in found and fits(tool_id))
            wanted = most - len(found)
            found.update(
                (tool_id, score) for tool_id in (islice(new, wanted) if self._in_order else nsmallest(wanted, new))
            )
            if len(found) == most:
                break
        return list(found.items())

    def _matching(self, expression: str) -> Iterator[str]:
        rows = self._connection.execute("SELECT rowid FROM tools WHERE tools MATCH ? ORDER BY rowid", (expression,))
        return (self._ids[row[0]] for row in rows)

    def _count(self, word: str) -> int:
        if (known := self._counts.get(word)) is None:
            row = self._connection.execute("SELECT doc FROM vocabulary WHERE term = ?", (word,)).fetchone()
            if len(self._counts) > 10_000:  # queries have any number of words, and the cache must be bounded
                self._counts.clear()
            known = self._counts[word] = row[0] if row else 0
        return known

    def _completions(self, word: str) -> list[str]:
        """Indexed words that begin with a word that is not indexed: the caller has not finished typing."""
        if len(word) < 2:
            return []
        rows = self._connection.execute(
            "SELECT term FROM vocabulary WHERE term >= ? AND term < ? LIMIT ?",
            (word, word + "\U0010ffff", _MOST_COMPLETIONS),
        )
        return [term for (term,) in rows]


def _best_first(item: tuple[str, float]) -> tuple[float, str]:
    return -item[1], item[0]


def _any_of(words: Sequence[str]) -> str:
    return " OR ".join(f'"{word}"' for word in words)
