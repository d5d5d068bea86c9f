"""Answers and keys that the store did not accept: held while this host is open, written once the store works.

an answer                  is stored
the key of a call that     is removed, where it was stored nevertheless: other processes wait for it
does not run
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from tavern_core.contract.stores import Record, RecordStore
from tavern_core.kernel.stores.unwritten_changes import UnwrittenChanges
from tavern_core.model.result import ToolResult

RUNNING: Final = "running"
UNKNOWN: Final = "unknown"


class UnstoredKeys:
    """Changes that one host still has to write to its store, and keys to remove from it."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records
        self._deferred = UnwrittenChanges("tavern-keys")
        self._answers: dict[str, tuple[ToolResult, str]] = {}
        """Answers that are not stored, by key, with the digest of the arguments."""
        self._sent: set[str] = set()
        """The data of records that a thread is writing or removing."""

    def answer(self, key: str) -> tuple[ToolResult, str] | None:
        """An answer that is not stored yet, and the digest of its arguments."""
        return self._answers.get(key)

    def send(self, record: Record, method: Callable[..., Any], *args: Any) -> Any:
        """Write or remove the record of a call in a thread."""
        self._sent.add(record.data)
        try:
            return method(*args)
        finally:
            self._sent.discard(record.data)

    def write(self, done: Record) -> None:
        """Store an answer, even if the store was lost meanwhile, or another process assumed that this one had died."""
        if self._records.replace(done):
            return
        known = self._records.add(replace(done, version=1, created=time.time()))
        if known is not None and known.state == UNKNOWN:
            self._records.replace(replace(done, version=known.version))

    def defer_answer(self, key: str, result: ToolResult, digest: str, done: Record | None) -> None:
        """Store the answer of a key later; without a record, it can never be stored."""
        self._answers[key] = result, digest
        if done is not None:
            self._deferred.defer(f"answer {key}", partial(self._written, key, done))

    def _written(self, key: str, done: Record) -> None:
        self.write(done)
        self._answers.pop(key, None)

    def defer(self, name: str, change: Callable[[], object]) -> None:
        """Make another change of the keys in a thread, when the store works."""
        self._deferred.defer(name, change)

    def defer_removal(self, record: Record) -> None:
        """Later remove the key of a call that does not run."""
        self._deferred.defer(f"key {record.data}", partial(self._removed, record), is_dispensable=True)

    def _removed(self, record: Record) -> bool:
        if record.data in self._sent:  # a second write or removal could hit the record of another call
            return False
        found = self._records.get(record.kind, record.key)
        if found is not None and (found.state, found.data) == (RUNNING, record.data):
            self._records.remove(record.kind, record.key)
        return True

    def close(self) -> None:
        """Try to write everything for the last time. Raises StateDamaged."""
        self._deferred.close()
