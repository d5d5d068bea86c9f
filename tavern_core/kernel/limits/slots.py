"""Slots for concurrent calls. Further calls wait in a queue, and callers take turns."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from tavern_core.errors import BudgetExceeded
from tavern_core.frozen_dataclass import dataclass

held: Final[ContextVar[frozenset[object]]] = ContextVar("tavern_held", default=frozenset())
"""Slots, with their tickets, and idempotency keys of the enclosing calls. A holder does not wait for its own."""
PAUSE_MS: Final = 1_000
"""Delay before another call if it is not known when the calls before it end."""


class QueueFull(Exception):
    """The queue is full."""


class Slots:
    """Slots for calls.

    Args:
        size: number of slots.
        queue: number of calls that may wait for one.
        displaces: whether, in a full queue, a call displaces the newest call of a caller with more waiting calls.
    """

    def __init__(self, size: int, queue: int, *, displaces: bool = False) -> None:
        self._displaces = displaces
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, deque[Future[None]]] = OrderedDict()
        """Caller → its waiting calls; the caller whose turn is next comes first."""
        self.size = size
        self.queue = queue
        self.taken = 0
        self.waiting = 0

    @property
    def is_full(self) -> bool:
        """Whether a call that wants a slot now would wait for it."""
        return self.taken >= self.size or self.waiting > 0

    def enter_at_once(self) -> bool:
        """Take a slot if one is free and no other call waits."""
        with self._lock:
            if self.taken < self.size and not self.waiting:
                self.taken += 1
                return True
            return False

    def enter_anyway(self) -> None:
        """Take a slot even if none is free: work that has begun cannot wait."""
        with self._lock:
            self.taken += 1

    def enter(self, caller: str) -> Future[None] | None:
        """Take a slot, or wait for one in the queue.

        Returns:
            None: the call has a slot. Else a future that is done when it has one; it fails with QueueFull if callers
            with fewer waiting calls displace this one.

        Raises:
            QueueFull: none is free, and too many wait.
        """
        with self._lock:
            if self.taken < self.size and not self.waiting:
                self.taken += 1
                return None
            if self.waiting >= self.queue and not (self._displaces and self._displaced_for(caller)):
                raise QueueFull
            place: Future[None] = Future()
            self._waiting.setdefault(caller, deque()).append(place)
            self.waiting += 1
            return place

    def _displaced_for(self, caller: str) -> bool:
        """Make room for a caller with a smaller part of the queue, so that no one can fill it and block all others."""
        greedy = max(self._waiting, key=lambda one: len(self._waiting[one]), default=None)
        if greedy is None or len(line := self._waiting[greedy]) <= len(self._waiting.get(caller, ())) + 1:
            return False
        line.pop().set_exception(QueueFull())
        self.waiting -= 1
        return True

    def leave(self) -> None:
        """Pass a slot to the next waiting call: one call of each caller in turn."""
        with self._lock:
            self.taken -= 1
            if self.waiting:
                self._hand_out()

    def give_up(self, caller: str, place: Future[None]) -> None:
        """Stop waiting; a slot that was assigned meanwhile passes to the next call."""
        with self._lock:
            if place.done() and place.exception() is not None:
                return
            line = self._waiting.get(caller)
            if line is not None and place in line:
                line.remove(place)
                self.waiting -= 1
                if not line:
                    del self._waiting[caller]
                return
            self.taken -= 1
            self._hand_out()

    def resize(self, size: int, queue: int) -> None:
        """Change the sizes from now on."""
        with self._lock:
            self.size, self.queue = size, queue
            self._hand_out()

    def _hand_out(self) -> None:
        while self.taken < self.size and self._waiting:
            caller, line = next(iter(self._waiting.items()))
            place = line.popleft()
            self.waiting -= 1
            if line:
                self._waiting.move_to_end(caller)
            else:
                del self._waiting[caller]
            self.taken += 1
            place.set_result(None)


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """Identifies one call among the holders of the same slots."""

    slots: tuple[Slots, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Wait:
    held: frozenset[object]
    wanted: object
    """Slots, or the name of a key."""


_lock: Final = threading.Lock()
_waits: Final[set[_Wait]] = set()
"""Calls that wait while they hold something: only these can block each other."""
_held_by_waits: Final[Counter[object]] = Counter()
"""Thing → number of them that hold it. Usually none holds what another one waits for, and no cycle must be searched."""


@contextmanager
def waiting_for(wanted: object, tool: str) -> Iterator[None]:
    """Mark a call as waiting for slots or for a key.

    Raises:
        BudgetExceeded: the wait would not end, as its target waits for what this call holds (BUDGET_EXCEEDED).
    """
    if not (holds := held.get()):
        yield
        return
    wait = _Wait(holds, wanted)
    with _lock:
        _waits.add(wait)
        _held_by_waits.update(holds)
        is_stuck = wanted in _held_by_waits and wait in _stuck()
    try:
        if is_stuck:
            raise BudgetExceeded(
                f"{tool}: the call would wait without end for a call that waits for the calls around this one",
                hint="call it again later, or raise the `concurrency` of the tools that call each other",
                retryable=True,
                retry_after_ms=PAUSE_MS,
            )
        yield
    finally:
        with _lock:
            _waits.discard(wait)
            for one in holds:
                _held_by_waits[one] -= 1
                if not _held_by_waits[one]:
                    del _held_by_waits[one]


def _stuck() -> set[_Wait]:
    """The calls that wait only for each other."""
    stuck = set(_waits)
    while True:
        resolvable = {wanted for wanted in {wait.wanted for wait in stuck} if not _is_blocked(wanted, stuck)}
        if not resolvable:
            return stuck
        stuck = {wait for wait in stuck if wait.wanted not in resolvable}


def _is_blocked(wanted: object, stuck: set[_Wait]) -> bool:
    if not isinstance(wanted, Slots):
        return any(wanted in wait.held for wait in stuck)
    holders = {one for wait in stuck for one in wait.held if isinstance(one, Ticket) and wanted in one.slots}
    return len(holders) >= wanted.size
