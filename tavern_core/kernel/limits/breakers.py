"""Pauses something that fails again and again; then one call tries whether it works again.

closed --failures in a row--> open --rest--> half-open --one call works--> closed
                                ^------------------------ it fails
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal

from tavern_core.model.call_limits import Breaker

BreakerState = Literal["closed", "open", "half-open"]


class CircuitBreaker:
    """A circuit breaker.

    Args:
        rule: when it opens, and for how long.
        changed: called with each new state, outside the lock.
        clock: seconds, never set back.
    """

    def __init__(
        self,
        rule: Breaker,
        changed: Callable[[BreakerState], None] = lambda state: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rule = rule
        self._changed = changed
        self._clock = clock
        self._lock = threading.Lock()
        self._state: BreakerState = "closed"
        self.failures = 0
        """Number of failures in a row."""
        self._opened_at = 0.0
        self._trial: object = None
        """The trial call, until it has ended: also if another call, which began before, opens the breaker again."""

    @property
    def state(self) -> BreakerState:
        """The state in which the next call finds it."""
        is_rested = self._state == "open" and self._clock() >= self._opened_at + self.rule.rest_ms / 1000
        return "half-open" if is_rested else self._state

    def enter(self, call: object) -> float | None:
        """Begin a call; None: make it, and report its outcome with `leave`. Else the seconds before another try."""
        if self._state == "closed":
            return None
        with self._lock:
            remaining = self._opened_at + self.rule.rest_ms / 1000 - self._clock()
            if self._state == "open" and remaining > 0:
                return remaining
            if self._trial is not None:
                return min(self.rule.rest_ms / 1000, 1.0)
            is_new = self._state != "half-open"
            self._state, self._trial = "half-open", call
        if is_new:
            self._changed("half-open")
        return None

    def leave(self, call: object, failed: bool | None) -> None:
        """Record the outcome of a call: it failed, it worked, or (None) it shows nothing about the upstream."""
        if failed is False and self._state == "closed" and self._trial is None:
            self.failures = 0
            return
        before = self._state
        with self._lock:
            if self._trial is call:
                self._trial = None
            if failed:
                self.failures += 1
                if self._state == "half-open" or self.failures >= self.rule.failures:
                    self._state, self._opened_at = "open", self._clock()
            elif failed is False and self._state != "open":
                self._state, self.failures = "closed", 0
            now = self._state
        if now != before:
            self._changed(now)
