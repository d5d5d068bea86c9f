"""Cached answers: within a run, within the host, on disk, and those of a resumed run."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tavern_core.contract.nodes import Skip
from tavern_core.errors import StateDamaged
from tavern_core.flow.engine.cache_keys import joined_key
from tavern_core.flow.engine.node_outputs import SKIPPED, Outputs
from tavern_core.flow.engine.node_value_encoding import SIMPLE, deep_copy, is_large, size, weight, written
from tavern_core.flow.engine.plan_tables import PreparedStep
from tavern_core.flow.engine.protocols import RunPart
from tavern_core.kernel.calls.taint_tracking import has_read
from tavern_core.kernel.limits.lru_cache import LruCache
from tavern_core.kernel.nodes.json_values import from_plain
from tavern_core.kernel.stores.sqlite_file import SqliteFile

StoredOutputs = tuple[bytes, bytes, Outputs]
"""(key, mark, outputs) of a node."""
_SOURCES: Final = "\0untrusted"
"""Key beside the outputs of a cached answer, which no slot can have: where the untrusted content in them comes from."""
MOST_ANSWERS: Final = 10_000
MOST_BYTES: Final = 256_000_000
"""Maximum bytes of the answers in the host, and of the cache on disk; the oldest are removed first."""
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, outputs TEXT, crc INTEGER, size INTEGER, made REAL)"
)


class SessionCache(LruCache[bytes, Outputs]):
    """Answers cached in the host while it is open."""

    def __init__(self, most: int = MOST_ANSWERS, most_bytes: int = MOST_BYTES) -> None:
        super().__init__(most, most_bytes)

    def store(self, key: bytes, outputs: Outputs, size: int | None = None) -> None:
        """Cache an answer. `size`: its approximate bytes, if known."""
        self.put(key, outputs, weight(outputs) if size is None else size)


class DiskCache:
    """Answers in an SQLite file of the state folder; values that are not plain data, or hold secrets, are not stored.

    A file that is corrupt or not such a cache is set aside and replaced, because a cache may forget. An answer is only returned
    unchanged, for the key under which it was stored.
    """

    def __init__(self, path: Path, is_secret: Callable[[Any], bool] = lambda plain: False) -> None:
        self._file = SqliteFile(path, _SCHEMA, is_cache=True)
        self._is_secret = is_secret

    def find(self, key: bytes) -> Outputs | None:
        with suppress(StateDamaged, ValueError), self._file.open() as db:
            row = db.execute("SELECT outputs, crc FROM answers WHERE key = ?", (key,)).fetchone()
            if row is not None and isinstance(row[0], str) and _crc(key, row[0]) == row[1]:
                found: Outputs = from_plain(json.loads(row[0]))
                return found
        return None

    def store(self, key: bytes, outputs: Outputs, made: bytes | str | None = None) -> None:
        """Cache an answer, if it can be stored in a file.

        Args:
            made: `node_value_encoding.written` of `outputs`, if already computed.
        """
        if made is None:
            made = written(outputs, MOST_BYTES, self._is_secret)
        if isinstance(made, str):
            return
        try:
            text, size = made.decode(), len(made)
        except ValueError:  # surrogates cannot be stored
            return
        with suppress(StateDamaged), self._file.open() as db, db:
            db.execute(
                "INSERT OR REPLACE INTO answers (key, outputs, crc, size, made) VALUES (?, ?, ?, ?, ?)",
                (key, text, _crc(key, text), size, time.time()),
            )
            (size,) = db.execute("SELECT coalesce(sum(size), 0) FROM answers").fetchone()
            if size > MOST_BYTES:
                db.execute(
                    "DELETE FROM answers WHERE key IN (SELECT key FROM answers ORDER BY made LIMIT (SELECT count(*) / 4 + 1 FROM answers))"
                )

    def close(self) -> None:
        self._file.close()


def _crc(key: bytes, text: str) -> int:
    return zlib.crc32(text.encode(), zlib.crc32(key))


class EarlierResults:
    """The earlier results of a resumed run.

    Args:
        steps: path → (key, mark, outputs) of each node that was complete.
        without: paths of nodes and groups that must run again, whatever their outputs were.
        lost: path → why the outputs of a complete node are not available any more.
        is_same: the run itself continues: its earlier outputs are already recorded.
    """

    def __init__(
        self,
        steps: Mapping[str, StoredOutputs],
        without: Iterable[str] = (),
        lost: Mapping[str, str] | None = None,
        *,
        is_same: bool = False,
    ) -> None:
        self._steps = steps
        self.is_same = is_same
        self.lost = lost or {}
        self._without = frozenset(without)

    def find(self, path: str, key: bytes) -> StoredOutputs | None:
        """The outputs of the node at `path` under the same key."""
        found = self._steps.get(path)
        return found if found is not None and found[0] == key else None

    @property
    def has_anew(self) -> bool:
        """True if a node must run again."""
        return bool(self._without)

    def is_anew(self, path: str, *, also_inside: bool = False) -> bool:
        """True if the node must run again. `also_inside`: or one inside of it."""
        if not self._without:
            return False
        parts = path.split("/")
        return any("/".join(parts[:at]) in self._without for at in range(1, len(parts) + 1)) or (
            also_inside and any(name.startswith(f"{path}/") for name in self._without)
        )


class RunCache:
    """The answers that one run may reuse, and the place for its own."""

    def __init__(
        self, session: SessionCache, disk: DiskCache, earlier: EarlierResults | None = None, *, is_off: bool = False,
        write: Callable[[Outputs], bytes | str] | None = None, is_stored: bool = False,
    ) -> None:  # fmt: skip
        self._session = session
        self._disk = disk
        self._earlier = earlier
        self._is_off = is_off
        self._run = SessionCache()
        self.steps: dict[str, StoredOutputs] = {}
        """Path → (key, mark, outputs) of this run's nodes, for resuming it."""
        self.unwritten: dict[str, StoredOutputs] | None = {} if is_stored else None
        """For a stored run: the entries of `steps` that are not yet recorded."""
        self._write = write
        self.encoded_answers: dict[str, bytes | str] = {}
        """Path → an answer in its stored form, or why it cannot be stored, as determined by `make`."""
        self.sizes: dict[str, int] = {}
        """Path → the approximate bytes of answers that `make` processed."""

    @property
    def has_anew(self) -> bool:
        """Whether a node of the earlier run must run again."""
        return self._earlier is not None and self._earlier.has_anew

    def is_anew(self, path: str) -> bool:
        """Whether the node at `path`, or one inside of it, must run again."""
        return self._earlier is not None and self._earlier.is_anew(path, also_inside=True)

    def find(
        self, run: RunPart, path: str, key: bytes, work: PreparedStep, is_pure: bool
    ) -> tuple[Outputs, bytes] | None:
        """(outputs, content key) of an answer cached under `key`, or None. Not `is_pure`: only earlier outputs of the same run."""
        if self._earlier is not None:
            if self._earlier.is_anew(path):
                return None
            if (before := self._earlier.find(path, key)) is not None:
                if self._earlier.is_same:
                    self.steps[path] = before
                else:
                    self._record(path, before)
                return _copied(before[2]), before[1]
            if (why := self._earlier.lost.get(path)) is not None:
                run.emit("again", path, {"why": why})
        if self._is_off or not is_pure or not work.is_kept or work.has_streams:
            return None
        found = self._place(work).find(key)
        if found is None:
            return None
        if _SOURCES in found:
            has_read(run, found[_SOURCES])
            found = {name: value for name, value in found.items() if name != _SOURCES}
        self._record(path, (key, key, found))
        return _copied(found), key

    def must_make(self, path: str, work: PreparedStep, outputs: Outputs, is_marked: bool) -> bool:
        """Whether `make` must run in a thread before an answer is stored: it is slow, and the event loop must not wait.

        Args:
            is_marked: it was already stored, or never is.
        """
        unwritten = self.unwritten
        if is_marked:
            is_for_file = unwritten is not None and path in unwritten
        else:
            is_for_file = unwritten is not None or work.step.exec.cache == "disk"
        return is_for_file and self._write is not None and is_large(outputs.values())

    def make(self, run: RunPart, path: str, key: bytes, work: PreparedStep, outputs: Outputs, is_pure: bool) -> None:
        """Do the slow part of storing an answer: check and encode it, write it to disk if its step requires that."""
        assert self._write is not None
        self.sizes[path] = size(outputs)
        self.encoded_answers[path] = made = self._write(outputs)
        if work.step.exec.cache == "disk" and self._is_function(path, work, is_pure) and self._is_for_others(outputs):
            marked = _marked(outputs, run.reads)
            self._disk.store(key, marked, made if marked is outputs else None)

    def store(self, run: RunPart, path: str, key: bytes, work: PreparedStep, outputs: Outputs, is_pure: bool) -> bytes:
        """Cache an answer if its step allows it; returns its content key."""
        if outputs is SKIPPED and work.batch:
            return joined_key(key, [run.turn.encode(), path.encode()])
        private_copy = _copied(outputs)
        mark = key
        if not self._is_function(path, work, is_pure):
            mark = joined_key(key, [run.turn.encode(), path.encode()])
        elif self._is_for_others(private_copy):
            place = self._place(work)
            if isinstance(place, SessionCache):
                place.store(key, _marked(private_copy, run.reads), self.sizes.get(path))
            elif path not in self.sizes:
                place.store(key, _marked(private_copy, run.reads))
        self._record(path, (key, mark, private_copy))
        return mark

    def _is_function(self, path: str, work: PreparedStep, is_pure: bool) -> bool:
        """Whether the answer depends only on its key."""
        is_anew = self._earlier is not None and self._earlier.is_anew(path)
        return is_pure and work.is_kept and not work.has_streams and not is_anew

    def _is_for_others(self, outputs: Outputs) -> bool:
        """Whether other runs may reuse an answer that is a function of its key."""
        return not self._is_off and not any(value is Skip for value in outputs.values())

    def weight(self) -> int:
        """The approximate bytes of the answers of this run's nodes."""
        sizes = self.sizes
        return sum(
            sizes[path] if path in sizes else 150 + size(outputs, 50) for path, (_, _, outputs) in self.steps.items()
        )

    def _place(self, work: PreparedStep) -> SessionCache | DiskCache:
        match work.step.exec.cache:
            case "run":
                return self._run
            case "disk":
                return self._disk
            case _:
                return self._session

    def _record(self, path: str, kept: StoredOutputs) -> None:
        self.steps[path] = kept
        if self.unwritten is not None:
            self.unwritten[path] = kept


def _marked(outputs: Outputs, sources: Collection[str] | None) -> Outputs:
    """Outputs as other runs may reuse them: with the sources of untrusted content that they may hold."""
    return {**outputs, _SOURCES: list(sources)} if sources else outputs


def _copied(outputs: Outputs) -> Outputs:
    """A copy that the nodes of the run cannot change."""
    return {key: value if type(value) in SIMPLE else deep_copy(value) for key, value in outputs.items()}
