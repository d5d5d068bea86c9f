"""What the store did not take of calls with keys: known while this host is open, and made good as soon as the store works.

an answer                  is stored
the key of a call that     is removed, where it was stored nevertheless: other processes wait for it
does not run
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from tavern_core.contract.stores import Record, RecordStore
from tavern_core.errors import StateDamaged
from tavern_core.model.result import ToolResult

RUNNING: Final = "running"
UNKNOWN: Final = "unknown"
_MOST_UNSURE: Final = 10_000
_AGAIN_S: Final = 0.25
"""How often it is tried again."""


class UnstoredKeys:
    """What one host still has to write to its store, or to remove from it."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records
        self._lock = threading.Lock()
        self._answers: dict[str, tuple[ToolResult, str, Record | None]] = {}
        """By their keys, with the digest of the arguments; no record: it can never be stored."""
        self._unsure: dict[str, Record] = {}
        """Records of calls that do not run, by their data; they may stand in the store or not."""
        self._sent: set[str] = set()
        """Data of records that are being written or removed in a thread."""
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def answer(self, key: str) -> tuple[ToolResult, str] | None:
        """An answer that is not stored yet, and the digest of its arguments."""
        known = self._answers.get(key)
        return None if known is None else known[:2]

    def send(self, record: Record, method: Callable[..., Any], *args: Any) -> Any:
        """Write or remove the record of a call, in a thread."""
        self._sent.add(record.data)
        try:
            return method(*args)
        finally:
            self._sent.discard(record.data)

    def write(self, done: Record) -> None:
        """Store an answer, also where the store was lost meanwhile, or another process took this one for dead."""
        if self._records.replace(done):
            return
        known = self._records.add(replace(done, version=1, created=time.time()))
        if known is not None and known.state == UNKNOWN:
            self._records.replace(replace(done, version=known.version))

    def owe_answer(self, key: str, result: ToolResult, digest: str, done: Record | None) -> None:
        """Store the answer of a key later."""
        with self._lock:
            self._answers[key] = result, digest, done
            self._begin()

    def owe_removal(self, record: Record) -> None:
        """Remove the key of a call that does not run later."""
        with self._lock:
            if len(self._unsure) < _MOST_UNSURE:
                self._unsure[record.data] = record
                self._begin()

    def close(self) -> None:
        """Make good what can be, a last time. Raises StateDamaged."""
        self._closing.set()
        self._make_good()

    def _begin(self) -> None:
        if (self._thread is None or not self._thread.is_alive()) and not self._closing.is_set():
            self._thread = threading.Thread(target=self._catch_up, name="tavern-keys", daemon=True)
            self._thread.start()

    def _catch_up(self) -> None:
        while not self._closing.wait(_AGAIN_S):
            with suppress(StateDamaged):
                self._make_good()
            with self._lock:
                if not self._unsure and all(done is None for _, _, done in self._answers.values()):
                    self._thread = None
                    return

    def _make_good(self) -> None:
        for key, (_, _, done) in list(self._answers.items()):
            if done is not None:
                self.write(done)
                self._answers.pop(key, None)
        for data, record in list(self._unsure.items()):
            if data in self._sent:  # it may yet be written, or removed a second time, when the key is another call's
                continue
            found = self._records.get(record.kind, record.key)
            if found is not None and (found.state, found.data) == (RUNNING, data):
                self._records.remove(record.kind, record.key)
            self._unsure.pop(data, None)
