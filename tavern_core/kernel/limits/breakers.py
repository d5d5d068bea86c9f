"""Something that fails again and again is left alone for a while; then one call tries whether it is back.

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
    """One breaker.

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
        """In a row."""
        self._opened_at = 0.0
        self._trial: object = None
        """The call that tries, until it has ended: also where another call, which began before, opens the breaker again."""

    @property
    def state(self) -> BreakerState:
        """As the next call finds it."""
        is_rested = self._state == "open" and self._clock() >= self._opened_at + self.rule.rest_ms / 1000
        return "half-open" if is_rested else self._state

    def enter(self, call: object) -> float | None:
        """None: make the call, and report its outcome with `leave`. Else the seconds after which it is worth trying again."""
        if self._state == "closed":
            return None
        with self._lock:
            left = self._opened_at + self.rule.rest_ms / 1000 - self._clock()
            if self._state == "open" and left > 0:
                return left
            if self._trial is not None:
                return min(self.rule.rest_ms / 1000, 1.0)
            is_new = self._state != "half-open"
            self._state, self._trial = "half-open", call
        if is_new:
            self._changed("half-open")
        return None

    def leave(self, call: object, failed: bool | None) -> None:
        """The outcome of a call: it failed, it worked, or (None) it says nothing about the upstream."""
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
