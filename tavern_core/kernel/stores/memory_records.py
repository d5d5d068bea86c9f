"""Records of one process; they end with it."""

from __future__ import annotations

import builtins
import threading
import time
from collections import deque
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from tavern_core.contract.stores import Record

_PURGE_EVERY: Final = 5_000
_MOST_RATES: Final = 100_000


class MemoryRecords:
    """A `RecordStore` in memory."""

    is_quick = True

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], Record] = {}
        self._uses: dict[str, deque[float]] = {}
        self._present: set[str] = set()
        self._added = 0
        self._lock = threading.Lock()

    def add(self, record: Record) -> Record | None:
        with self._lock:
            place = record.kind, record.key
            known = self._records.get(place)
            if known is not None and not _is_over(known, max(record.created, time.time())):
                return known
            self._records.pop(place, None)  # newest last
            self._records[place] = record
            self._added += 1
            if self._added % _PURGE_EVERY == 0:
                now = time.time()
                self._records = {key: stored for key, stored in self._records.items() if not _is_over(stored, now)}
        return None

    def get(self, kind: str, key: str) -> Record | None:
        known = self._records.get((kind, key))
        return None if known is None or _is_over(known, time.time()) else known

    def replace(self, record: Record) -> bool:
        with self._lock:
            known = self._records.get((record.kind, record.key))
            if known is None or known.version != record.version:
                return False
            changed = replace(
                known, state=record.state, data=record.data, expires=record.expires, version=known.version + 1
            )
            self._records[record.kind, record.key] = changed
        return True

    def remove(self, kind: str, key: str) -> bool:
        with self._lock:
            return self._records.pop((kind, key), None) is not None

    def list(
        self, kind: str, *, owner: str | None = None, states: Collection[str] = (), most: int = 100
    ) -> tuple[Record, ...]:
        now, found = time.time(), builtins.list[Record]()
        with self._lock:
            for record in reversed(self._records.values()):
                if record.kind != kind or (owner is not None and record.owner != owner):
                    continue
                if (states and record.state not in states) or _is_over(record, now):
                    continue
                found.append(record)
                if len(found) >= most:
                    break
        return tuple(found)

    def count(self, kind: str, *, owner: str, state: str, since: float) -> int:
        wanted = kind, owner, state
        with self._lock:
            return sum((r.kind, r.owner, r.state) == wanted and r.created > since for r in self._records.values())

    def take(self, key: str, most: int, seconds: float, now: float) -> float:
        with self._lock:
            uses = self._uses.get(key)
            if uses is None:
                if len(self._uses) >= _MOST_RATES:
                    self._forget_idle(now)
                uses = self._uses[key] = deque(maxlen=most)
            elif uses.maxlen != most:  # the limit was changed
                uses = self._uses[key] = deque(uses, maxlen=most)
            if len(uses) == most and (wait := wait_for(uses[0], seconds, now)) > 0:
                if uses[0] > now:  # the clock was set back: from now on they count as uses of now
                    uses.extend([min(at, now) for at in uses])
                return wait
            uses.append(now)
        return 0.0

    def used(self, key: str, most: int, seconds: float, now: float) -> int:
        with self._lock:
            return sum(wait_for(at, seconds, now) > 0 for at in self._uses.get(key, ()))

    def _forget_idle(self, now: float) -> None:
        """Drop the keys that were unused for the longest time; the code that chooses the keys bounds the rest."""
        for key in sorted(self._uses, key=lambda one: self._uses[one][-1] if self._uses[one] else now)[
            : _MOST_RATES // 2
        ]:
            del self._uses[key]

    def enter(self, process: str) -> None:
        self._present.add(process)

    def leave(self, process: str) -> None:
        self._present.discard(process)

    def is_present(self, process: str) -> bool:
        return process in self._present

    def close(self) -> None:
        self._records.clear()


def wait_for(earlier: float, seconds: float, now: float) -> float:
    """Seconds until a use at `earlier` is `seconds` old. A time in the future, after the clock was set back, counts as now."""
    return min(earlier, now) + seconds - now


def _is_over(record: Record, now: float) -> bool:
    return 0 < record.expires <= now
