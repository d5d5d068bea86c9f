"""Where the host keeps what must survive a process: keys and their answers, approvals, jobs, rates.

One Protocol for all of it. The host brings two stores, one in SQLite and one in memory; the extra ``redis`` brings a third.
A record belongs to one kind and has a key of its own there; whoever changes it says which version was read.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from tavern_core.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that is kept."""

    kind: str
    key: str
    owner: str
    """Whose it is: nobody else is shown it."""
    state: str
    data: str
    """JSON; what is in it is the business of the kind."""
    created: float
    """Seconds since the epoch, UTC."""
    expires: float = 0.0
    """Seconds since the epoch, UTC, from when on it counts as absent; 0: never."""
    version: int = 1


class RecordStore(Protocol):
    """Safe for threads; those that outlive a process also for processes.

    Every method may raise `StateDamaged` (STATE_DAMAGED): the store cannot be read or written.
    """

    is_quick: bool
    """Whether a method returns within microseconds. Others are called in a worker thread."""

    def add(self, record: Record) -> Record | None:
        """Keep a new record; the one that is there already, where there is one that has not expired."""
        ...

    def get(self, kind: str, key: str) -> Record | None:
        """The record; None where there is none, or it has expired."""
        ...

    def replace(self, record: Record) -> bool:
        """Change state, data and expiry of a record; False when its version is not `record.version` any more, or it is gone.

        The stored version is one higher afterwards.
        """
        ...

    def remove(self, kind: str, key: str) -> bool:
        """Forget a record; False when there was none."""
        ...

    def list(
        self, kind: str, *, owner: str | None = None, states: Collection[str] = (), most: int = 100
    ) -> tuple[Record, ...]:
        """Records of a kind, newest first.

        Args:
            owner: only those of this owner; None: of all.
            states: only those in one of these; empty: in any.
        """
        ...

    def take(self, key: str, most: int, seconds: float, now: float) -> float:
        """Count one use of `key`, unless there were `most` within the last `seconds`.

        Returns:
            0 when it was counted; else the seconds after which there is room again.
        """
        ...

    def used(self, key: str, most: int, seconds: float, now: float) -> int:
        """How many uses of `key` count at `now`; counts none itself. The arguments are those of `take`."""
        ...

    def enter(self, process: str) -> None:
        """Say that `process` is alive, until `leave` or until it ends, however it ends."""
        ...

    def leave(self, process: str) -> None: ...

    def is_present(self, process: str) -> bool:
        """Whether `process` has entered and is alive."""
        ...

    def close(self) -> None: ...
