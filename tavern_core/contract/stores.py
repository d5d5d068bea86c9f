"""The store of the host for what must survive a process: keys and their answers, approvals, jobs, rates.

One Protocol for all of it. The host has two stores, one in SQLite and one in memory; the extra ``redis`` adds a third.
A record belongs to one kind and has a unique key there; to change it, pass the version that you read.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol

from tavern_core.frozen_dataclass import dataclass

DAMAGED: Final = "damaged"
"""State of a record whose data are not what was written; they are empty."""


@dataclass(frozen=True, slots=True)
class Record:
    """A stored record."""

    kind: str
    key: str
    owner: str
    """Its owner; no other caller can see it."""
    state: str
    data: str
    """JSON; its content depends on the kind."""
    created: float
    """Seconds since the epoch, UTC."""
    expires: float = 0.0
    """Seconds since the epoch, UTC, when it expires; 0: never."""
    version: int = 1


class RecordStore(Protocol):
    """Thread-safe; stores that outlive a process are also safe for several processes.

    Every method may raise `StateDamaged` (STATE_DAMAGED): the store cannot be read or written.
    """

    is_quick: bool
    """Whether its methods return within microseconds. Others are called in a worker thread."""

    def add(self, record: Record) -> Record | None:
        """Store a new record; returns the existing one if there is one that has not expired."""
        ...

    def get(self, kind: str, key: str) -> Record | None:
        """The record; None if there is none, or it has expired."""
        ...

    def replace(self, record: Record) -> bool:
        """Change state, data and expiry of a record; False if its version is not `record.version` any more, or it was removed.

        The stored version is one higher afterwards.
        """
        ...

    def remove(self, kind: str, key: str) -> bool:
        """Remove a record; False if there was none."""
        ...

    def list(
        self, kind: str, *, owner: str | None = None, states: Collection[str] = (), most: int = 100
    ) -> tuple[Record, ...]:
        """Records of a kind, newest first.

        Args:
            owner: only records of this owner; None: of all owners.
            states: only records in one of these states; empty: in any.
        """
        ...

    def count(self, kind: str, *, owner: str, state: str, since: float) -> int:
        """The number of records of a kind, an owner and a state that were created after `since`; reads no data."""
        ...

    def take(self, key: str, most: int, seconds: float, now: float) -> float:
        """Count one use of `key`, unless there were already `most` within the last `seconds`.

        Returns:
            0 if it was counted; else the seconds to wait.
        """
        ...

    def used(self, key: str, most: int, seconds: float, now: float) -> int:
        """The number of uses of `key` that count at `now`; counts none itself. Same arguments as `take`."""
        ...

    def enter(self, process: str) -> None:
        """Record that `process` is alive, until `leave` or until it ends in any way."""
        ...

    def leave(self, process: str) -> None: ...

    def is_present(self, process: str) -> bool:
        """Whether `process` has entered and is alive."""
        ...

    def close(self) -> None: ...
