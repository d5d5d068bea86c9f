"""The state of a host's limits: occupied slots, open breakers, used rates, valid cached answers.

They outlive the plans of tools, which are compiled again after any change: a limit is identified by its place in the
configuration, and its counts stay.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from tavern_core.contract.stores import RecordStore
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.access.limit_rules import OWN, LimitRule, LimitRules
from tavern_core.kernel.access.tool_access import caller_keys, own_keys
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.execution.sync_async_drivers import ExecutionMode
from tavern_core.kernel.limits.breakers import BreakerState, CircuitBreaker
from tavern_core.kernel.limits.result_cache import ResultCache
from tavern_core.kernel.limits.slots import Slots
from tavern_core.kernel.log.recorder import Recorder
from tavern_core.kernel.stores.store_offload import ask
from tavern_core.model.call import CallContext, owner_of
from tavern_core.model.call_limits import QUEUE, Breaker, ToolLimits, parse_rate
from tavern_core.model.event import CIRCUIT_CHANGED
from tavern_core.model.tool import ToolSpec

_EVERYBODY: Final = "*"
BLOCKS: Final = 100
"""Parts into which a large rate is divided: a process takes a part at a time from the store, and uses it within as small a part of
the period. So a rate of 100 or more may be off by a hundredth."""
_PARTS: Final = "\x1f"
"""Separates a place in the configuration from the caller whose own limit it is."""
_MOST_CALLERS: Final = 10_000
"""Callers whose slots are stored although they use none."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A number of uses of `key` in a number of seconds."""

    place: str
    written: str
    key: str
    most: int
    seconds: float

    @property
    def block(self) -> int:
        """Number of uses that are taken from the store at a time: one, and of large rates a hundredth."""
        return max(1, self.most // BLOCKS)


@dataclass(frozen=True, slots=True)
class ConcurrencyLimit:
    """Calls at a time, and the place of this limit."""

    place: str
    slots: Slots


@dataclass(frozen=True, slots=True)
class GuardingBreaker:
    """A breaker of a tool, and the place of its rule."""

    place: str
    breaker: CircuitBreaker
    is_shared: bool
    """Whether calls of other tools count for it, too."""


@dataclass(frozen=True, slots=True)
class ToolLimiter:
    """The limits of one tool."""

    table: LimitTable
    rates: tuple[Rate, ...]
    places: tuple[ConcurrencyLimit, ...]
    breakers: tuple[GuardingBreaker, ...]
    limits: ToolLimits
    """The tool's own, completed by those that it shares."""
    is_personal: bool
    """Whether some limits apply to each caller separately."""

    @property
    def has_any(self) -> bool:
        """Whether there is a limit at all."""
        own = self.limits
        numbers = own.cache_ms, own.retries, own.attempt_ms, own.idle_ms, self.is_personal, own.inline_ms is not None
        return bool(self.rates or self.places or self.breakers or any(numbers))

    def rates_of(self, context: CallContext) -> tuple[Rate, ...]:
        """The rates for which a call counts; its caller's first, so that a refused call uses up no shared rate."""
        return (*self.table.of_caller(context)[0], *self.rates) if self.is_personal else self.rates

    def places_of(self, context: CallContext) -> tuple[ConcurrencyLimit, ...]:
        return (*self.table.of_caller(context)[1], *self.places) if self.is_personal else self.places

    def words(self) -> dict[str, str]:
        """The description of each step that these limits add; see `calls/optional_steps.py`."""
        found, own_limits = {}, self.limits
        if own_limits.cache_ms:
            found["result_cache"] = f"gives an answer again for {own_limits.cache_ms / 1000:g} s"
        if own_limits.retries:
            attempts = "attempt" if own_limits.retries == 1 else "attempts"
            found["retry"] = f"up to {own_limits.retries} further {attempts}, where doing it again does no harm"
        if self.breakers:
            rules = [one.breaker.rule for one in self.breakers]
            words = [
                f"after {rule.failures} failures in a row no calls for {rule.rest_ms / 1000:g} s" for rule in rules
            ]
            found["breaker"] = ", ".join(words)
        callers = self.table.of_callers()
        rates = [f"{rate.written} ({rate.place})" for rate in self.rates]
        rates += [f"{limits.rate} ({place})" for place, limits in callers if limits.rate is not None]
        if rates:
            found["rate"] = ", ".join(rates)
        places = [(place.slots.size, place.slots.queue, place.place) for place in self.places]
        places += [
            (one.concurrency, QUEUE if one.queue is None else one.queue, place)
            for place, one in callers
            if one.concurrency is not None
        ]
        if places:
            words = [f"{size} at a time, {queue} may wait ({place})" for size, queue, place in places]
            found["concurrency"] = ", ".join(words)
        times = [f"an attempt after {own_limits.attempt_ms / 1000:g} s"] if own_limits.attempt_ms else []
        times += [f"what says nothing for {own_limits.idle_ms / 1000:g} s"] if own_limits.idle_ms else []
        if times:
            found["deadlines"] = f"ends {' and '.join(times)}"
        return found


def _merged(tool: ToolSpec, rules: LimitRules) -> tuple[ToolLimits, dict[str, str]]:
    """A tool's own limits, and the rule from which each comes."""
    merged = ToolLimits()
    origin: dict[str, str] = {}
    for rule in rules.of_tool(tool):
        for name in rule.limits.to_json():
            origin.setdefault(name, f"{rule.place} {tool.id}" if rule.place == OWN else rule.place)
        merged = merged.over(rule.limits)
    return merged, origin


class LimitTable:
    """All limits of a host.

    Args:
        records: counts the rates.
        callers: the section `limits.callers`.
        retries: default number of further attempts.
        cache_bytes: maximum bytes of all cached answers.
    """

    def __init__(
        self,
        records: RecordStore,
        callers: Mapping[str, ToolLimits],
        retries: int,
        cache_bytes: int,
        recorder: Recorder,
        diagnostics: Diagnostics,
    ) -> None:
        self.records = records
        self.cache = ResultCache(cache_bytes)
        self.clock: Callable[[], float] = time.monotonic
        """The clock of breakers, which tests replace."""
        self._callers = dict(callers)
        self._of_all = ToolLimits(retries=retries)
        self._recorder = recorder
        self._diagnostics = diagnostics
        self._lock = threading.Lock()
        self._slots: dict[str, Slots] = {}
        self._breakers: dict[str, CircuitBreaker] = {}
        self._blocks: dict[str, tuple[int, float]] = {}
        """Rate → (remaining uses of a block, end of its validity)."""
        self._personal: dict[tuple[Any, ...], tuple[tuple[Rate, ...], tuple[ConcurrencyLimit, ...]]] = {}

    def _completed(self, tool: ToolSpec, own_limits: ToolLimits, shared: Iterable[LimitRule]) -> ToolLimits:
        """A tool's own limits, completed by shared ones and by those of all tools."""
        for rule in shared:
            own_limits = own_limits.over(rule.limits)
        if own_limits.cache_ms and not tool.read_only:
            self._diagnostics.add(
                "CACHE_IGNORED", f"{tool.id}: only answers of read-only tools are cached; this one may do more",
                hint="mark it read_only, or take cacheMs out of its limits",
            )  # fmt: skip
            own_limits = replace(own_limits, cache_ms=0)
        return own_limits.over(self._of_all)

    def limiter(self, tool: ToolSpec, rules: LimitRules) -> ToolLimiter | None:
        """The limits of a tool; None: it has none."""
        merged, origin = _merged(tool, rules)
        shared = [rule for rule in (rules.of_upstream(tool), rules.of_plugin(tool)) if rule is not None]
        everything = [
            *((rule.place, rule.limits, rule.place) for rule in shared),
            (f"tool {tool.id}", merged, ""),
        ]
        rates = tuple(
            Rate(where or origin["rate"], limits.rate, key, *parse_rate(limits.rate))
            for key, limits, where in everything
            if limits.rate is not None
        )
        places = tuple(
            ConcurrencyLimit(where or origin["concurrency"], self._slots_of(key, limits))
            for key, limits, where in everything
            if limits.concurrency is not None
        )
        breakers = tuple(
            GuardingBreaker(where or origin["breaker"], self._breaker_of(where or tool.id, limits.breaker), bool(where))
            for _, limits, where in everything
            if limits.breaker is not None
        )
        limits = self._completed(tool, merged, reversed(shared))
        limiter = ToolLimiter(self, rates, places, breakers, limits, bool(self._callers))
        return limiter if limiter.has_any else None

    def _slots_of(self, key: str, limits: ToolLimits) -> Slots:
        size, queue = limits.concurrency or 1, QUEUE if limits.queue is None else limits.queue
        with self._lock:
            known = self._slots.get(key)
            if known is None:
                known = self._slots[key] = Slots(size, queue, displaces=True)
        if (known.size, known.queue) != (size, queue):
            known.resize(size, queue)
        return known

    def _breaker_of(self, key: str, rule: Breaker) -> CircuitBreaker:
        """The breaker of a tool, or of the place of a rule that several tools share."""
        with self._lock:
            known = self._breakers.get(key)
            if known is None or known.rule != rule:
                known = self._breakers[key] = self._new_breaker(key, rule)
        return known

    def _new_breaker(self, key: str, rule: Breaker) -> CircuitBreaker:
        def changed(state: BreakerState) -> None:
            self._recorder.note(CIRCUIT_CHANGED, {"breaker": key, "state": state})
            if state == "open":
                self._diagnostics.add(
                    "CIRCUIT_OPEN", f"{key} failed {rule.failures} times in a row and is not called for {rule.rest_ms / 1000:g} s",
                    hint="`tavern logs show --type TOOL_RESULT` shows how",
                )  # fmt: skip

        return CircuitBreaker(rule, changed, lambda: self.clock())

    def has_block(self, rate: Rate) -> bool:
        """Count one use in the block that this process has, if it has one."""
        with self._lock:
            remaining, until = self._blocks.get(rate.key, (0, 0.0))
            if not remaining or time.time() >= until:
                return False
            self._blocks[rate.key] = remaining - 1, until
            return True

    async def take(self, rate: Rate, mode: ExecutionMode, left: float | None = None) -> float:
        """Count one use for which there is no block (`has_block`).

        Args:
            left: seconds until the deadline of the call; None: there is none.

        Returns:
            0 if it was counted; else the seconds until the rate allows it.

        Raises:
            InternalError: the store cannot be used (INTERNAL).
            TimeLimit: a slow store did not answer before the deadline.
        """
        now, block = time.time(), rate.block
        most = rate.most // block
        wait: float = await ask(mode, self.records, self.records.take, rate.key, most, rate.seconds, now, seconds=left)
        if not wait and block > 1:
            with self._lock:
                if len(self._blocks) >= _MOST_CALLERS:
                    self._blocks.clear()
                self._blocks[rate.key] = block - 1, now + rate.seconds / BLOCKS
        return wait

    # Those of each caller ------------------------------------------------------------------------------------------------

    def of_caller(self, context: CallContext) -> tuple[tuple[Rate, ...], tuple[ConcurrencyLimit, ...]]:
        """The caller's own rates and slots."""
        who = context.principal, context.user_id, context.roles, context.profile, context.is_host
        found = self._personal.get(who)
        if found is None:
            found = self._worked_out(context)
            with self._lock:
                if len(self._personal) >= _MOST_CALLERS:
                    self._personal.clear()
                    self._slots = {
                        key: one for key, one in self._slots.items() if _PARTS not in key or one.taken or one.waiting
                    }
                self._personal[who] = found
        return found

    def _worked_out(self, context: CallContext) -> tuple[tuple[Rate, ...], tuple[ConcurrencyLimit, ...]]:
        keys = [key for key in caller_keys(context, None) if key in self._callers]
        is_named = any(key in self._callers for key in own_keys(context))
        if _EVERYBODY in self._callers and not context.is_host and not is_named:
            keys.append(_EVERYBODY)
        rates, places = [], []
        for key in keys:
            limits, place = self._callers[key], f"limits.callers.{key}"
            one = f"{place}{_PARTS}{owner_of(context)}"
            if limits.rate is not None:
                rates.append(Rate(place, limits.rate, one, *parse_rate(limits.rate)))
            if limits.concurrency is not None:
                places.append(ConcurrencyLimit(place, self._slots_of(one, limits)))
        return tuple(rates), tuple(places)

    # For people ----------------------------------------------------------------------------------------------------------

    def of_callers(self) -> list[tuple[str, ToolLimits]]:
        """(place, limits) of each entry of `limits.callers`."""
        return [(f"limits.callers.{key}", limits) for key, limits in self._callers.items()]

    def breakers(self) -> dict[str, CircuitBreaker]:
        """The breakers, by the thing that each guards."""
        with self._lock:
            return dict(self._breakers)

    def slots(self) -> dict[str, tuple[int, int]]:
        """Purpose of slots → (calls that have one, calls that wait); those of single callers together."""
        found: dict[str, tuple[int, int]] = {}
        with self._lock:
            for key, one in self._slots.items():
                name = key.partition(_PARTS)[0]
                occupied, waiting = found.get(name, (0, 0))
                found[name] = occupied + one.taken, waiting + one.waiting
        return found
