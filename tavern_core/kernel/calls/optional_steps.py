"""The steps around a tool that only some tools have: cache, retry, breaker, rate, concurrency, deadlines.

    idempotency → result_cache → ┌ breaker → rate → concurrency → deadlines → execute ┐ → commit
                                 └────────────────────── retry ───────────────────────┘

`steps_of` composes the steps of a tool when its plan is compiled. Two depend on the call: a key adds idempotency,
and the caller's budget may add retries. Every call that is not plain (`Pipeline.run`) comes here; most have none of them.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Final

from tavern_core.contract.tool_context import RUNNING
from tavern_core.errors import BudgetExceeded, CallError, CircuitOpen
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.calls.attempt import accept
from tavern_core.kernel.calls.call_errors import error_of
from tavern_core.kernel.calls.call_preparation import give_copy
from tavern_core.kernel.calls.conclusion import Conclusion
from tavern_core.kernel.calls.idempotency import Claim, Idempotency
from tavern_core.kernel.calls.large_results import ArtifactStore, LargeResults
from tavern_core.kernel.calls.plan_tokens import PlanTokens
from tavern_core.kernel.calls.result_normalisation import NOT_AWAITABLE
from tavern_core.kernel.calls.retry_rules import LONGEST_WAIT_S, is_harmless_again, may_pass, pause_before
from tavern_core.kernel.calls.running_call import CallLimits, FixedFrame, RunningCall, enter, leave
from tavern_core.kernel.calls.taint_tracking import mark_sources, taken_over
from tavern_core.kernel.calls.tool_context_control import CallControl
from tavern_core.kernel.catalogue.call_plan import CallPlan, PlanStep
from tavern_core.kernel.execution.sync_async_drivers import (
    CancelledBeforeStart,
    CancelledWhileRunning,
    ExecutionMode,
    TimeLimit,
    cancellations,
    has_begun,
)
from tavern_core.kernel.limits.breakers import CircuitBreaker
from tavern_core.kernel.limits.limiter_registry import ConcurrencyLimit, GuardingBreaker, Rate, ToolLimiter
from tavern_core.kernel.limits.result_cache import Key, PendingResult
from tavern_core.kernel.limits.slots import PAUSE_MS, QueueFull, Slots, Ticket, held, waiting_for
from tavern_core.model.call import owner_of
from tavern_core.model.event import RETRY
from tavern_core.model.result import ToolResult, failure

_BEHIND: Final = frozenset({"UPSTREAM_ERROR", "TIMEOUT", "CONNECTION_LOST"})
"""Failures of the system behind a tool: these open a breaker."""
NestedStep = Callable[["CallGovernance", CallPlan, RunningCall, ExecutionMode], Awaitable[ToolResult]]
"""A step, including all steps inside it."""
Planned = Callable[[CallPlan, RunningCall, ExecutionMode], Awaitable[ToolResult]]


@dataclass(frozen=True, slots=True)
class CallGovernance:
    """Runs the tool of a call with the optional steps of this call. Holds no state of a call."""

    idempotency: Idempotency
    plans: PlanTokens
    conclusion: Conclusion
    large: LargeResults
    artifacts: ArtifactStore
    limits: CallLimits

    def run(self, plan: CallPlan, call: RunningCall, mode: ExecutionMode) -> Awaitable[ToolResult]:
        """Run the tool of an admitted call, with the steps around it; return its result.

        Raises:
            BaseException: what the tool raised, or why it was not run; the same as without these steps.
        """
        context = call.context
        around: NestedStep = plan.bounds.around
        if not plan.has_steps and call.key is None and (context is None or not context.budget.max_retries):
            return self._executed(plan, call, mode)
        if call.key is not None:
            around = _with(CallGovernance._keyed, around, None)
        if plan.runner.bound.wants_control and call.call is not None:
            around = _with(CallGovernance._controlled, around, None)
        return around(self, plan, call, mode)

    async def _controlled(
        self, inner: NestedStep, _: None, plan: CallPlan, call: RunningCall, mode: ExecutionMode
    ) -> ToolResult:
        """Run a tool that reports its progress, or asks, by the id of its call."""
        assert call.call is not None
        conclusion, call_id = self.conclusion, call.call.id
        RUNNING[call_id] = CallControl(call, conclusion.recorder, self.artifacts, conclusion.secrets)
        try:
            return await inner(self, plan, call, mode)
        finally:
            RUNNING.pop(call_id, None)

    async def _keyed(
        self, inner: NestedStep, _: None, plan: CallPlan, call: RunningCall, mode: ExecutionMode
    ) -> ToolResult:
        """Run the tool once for the key of the call, however often equal calls come."""
        call.stage = "idempotency"
        claim = await self.idempotency.claim(plan, call, mode)
        if not isinstance(claim, Claim):
            return taken_over(call, claim.replace(trace=call.trace(self.conclusion.series)))
        mark = held.set(held.get() | {claim.record.key})
        try:
            if call.used_up:
                await self.plans.take_over(call, mode)
            result = await inner(self, plan, call, mode)
        except BaseException as error:
            failed = mark_sources(call, failure(error_of(error, call), call.trace(self.conclusion.series)))
            if call.used_up and did_nothing(call, failed):  # before an equal call takes the key over
                self.plans.give_back_at_once(call.used_up)
            await self.idempotency.finish(claim, plan, call, self.conclusion.redacted(call, failed), mode)
            raise
        finally:
            held.reset(mark)
        result = self.conclusion.redacted(call, result)
        short = self.large.shortened(call, result)
        if short.error is None:  # else the key has the whole answer, and its caller may call again
            result = short
        await self.idempotency.finish(claim, plan, call, result, mode)
        return result

    async def dry(self, plan: CallPlan, call: RunningCall, mode: ExecutionMode, planned: Planned) -> ToolResult:
        """Preview the call within its limits.

        As many dry runs as calls are allowed, counted separately; a preview takes a slot.

        Args:
            planned: the dry run.

        Raises:
            BudgetExceeded: a rate is used up, or too many calls wait (BUDGET_EXCEEDED).
            BaseException: why the call would be refused, or what the preview raised.
        """
        limiter, context = plan.bounds.limiter, call.context
        if limiter is None:
            return await planned(plan, call, mode)
        assert context is not None
        for rate in limiter.rates_of(context):
            call.stage = "rate"
            apart = replace(rate, key=f"dry {rate.key}")
            if not limiter.table.has_block(apart) and (wait := await limiter.table.take(apart, mode, call.seconds)) > 0:
                raise _used_up(plan, rate, wait)
        places = limiter.places_of(context) if plan.runner.preview is not None else ()
        return await (self._placed(planned, places, plan, call, mode) if places else planned(plan, call, mode))

    async def _cached(
        self, inner: NestedStep, limiter: ToolLimiter, plan: CallPlan, call: RunningCall, mode: ExecutionMode
    ) -> ToolResult:
        context, cache, series = call.context, limiter.table.cache, self.conclusion.series
        assert context is not None
        key = cache.key(plan.id, call.values or {}, context)
        if key is None:
            return await inner(self, plan, call, mode)
        joins = not held.get()  # a call that this one waits for could wait for a slot that this one holds
        while True:
            if (found := cache.get(key, plan.spec, call.trace(series))) is not None:
                return taken_over(call, found)
            pending, is_own = cache.begin(key, plan.spec, joins=joins)
            if is_own:
                return await self._made_for_all(inner, limiter, plan, call, mode, key, pending)
            call.stage = "result_cache"
            if not await mode.until(pending, call.time_left()):
                raise TimeLimit(stopped=True, begun=False)
            outcome = pending.result()
            if isinstance(outcome, ToolResult):
                return taken_over(call, outcome.replace(trace=call.trace(series)))
            joins = outcome

    async def _made_for_all(
        self,
        inner: NestedStep,
        limiter: ToolLimiter,
        plan: CallPlan,
        call: RunningCall,
        mode: ExecutionMode,
        key: Key,
        pending: PendingResult,
    ) -> ToolResult:
        """Make a call whose answer is cached. Equal calls that start meanwhile share its answer or failure."""
        cache, mark, outcome = limiter.table.cache, held.set(held.get() | {key}), None
        try:
            result = await inner(self, plan, call, mode)
            outcome = self.conclusion.redacted(call, result)
            return result
        except BaseException as error:
            failed = mark_sources(call, failure(error_of(error, call), call.trace(self.conclusion.series)))
            outcome = self.conclusion.redacted(call, failed)
            raise
        finally:
            cache.end(key, pending, plan.spec, outcome, (limiter.limits.cache_ms or 0) / 1000)
            held.reset(mark)  # raises if the garbage collector ends the call, in another context

    def _retried(
        self, inner: NestedStep, limiter: ToolLimiter | None, plan: CallPlan, call: RunningCall, mode: ExecutionMode
    ) -> Awaitable[ToolResult]:
        context = call.context
        assert context is not None
        further = context.budget.max_retries
        if further is None:
            further = 0 if limiter is None else limiter.limits.retries
        return self._tried(inner, plan, call, mode, further) if further else inner(self, plan, call, mode)

    async def _tried(
        self, inner: NestedStep, plan: CallPlan, call: RunningCall, mode: ExecutionMode, further: int
    ) -> ToolResult:
        """Repeat a failed attempt as often as retries are allowed and time is left."""
        attempt = 1
        while True:
            failed, returned = None, None
            # A later attempt must not see what an earlier one did to its arguments.
            give_copy(plan, call, self.limits.argument_bytes)
            try:
                result = await inner(self, plan, call, mode)
                if call.is_unsure and (reported := result.error) is not None and reported.outcome == "none":
                    result = result.replace(error=replace(reported, outcome="unknown"))
                if result.ok or attempt > further:
                    return result
                returned = result
                failed = _error_in(result)
            except (Exception, asyncio.CancelledError) as error:
                if attempt > further or (
                    isinstance(error, asyncio.CancelledError) and cancellations() > call.cancellations
                ):
                    raise
                failed, raised = error_of(error, call), error
            pause = _pause(plan, call, failed, attempt)
            if failed is None or pause is None:
                if returned is not None:
                    return returned
                raise raised
            attempt += 1
            call.is_unsure = call.is_unsure or failed.outcome != "none"
            await self._emit_retry(plan, call, mode, attempt, pause, failed)
            try:
                await mode.pause(pause)
            except asyncio.CancelledError:
                if failed.outcome == "none":  # nothing has happened so far
                    raise CancelledBeforeStart from None
                raise

    async def _emit_retry(
        self, plan: CallPlan, call: RunningCall, mode: ExecutionMode, attempt: int, pause: float, failed: CallError
    ) -> None:
        self.conclusion.recorder.retries[plan.id] += 1
        if not plan.is_recorded or call.call is None:
            return
        data = {
            "tool": plan.id, "attempt": attempt, "pauseMs": round(pause * 1000), "kind": failed.code, "outcome": failed.outcome,
            "message": plan.redact(failed.message),
        }  # fmt: skip
        event = self.conclusion.recorder.note(RETRY, data, plugin=plan.spec.plugin, call_id=call.call.id)
        if plan.hooks.events:
            await self.conclusion.hooks.notify(plan.hooks.events, {"event": event}, mode)

    async def _unless_broken(
        self, inner: NestedStep, limiter: ToolLimiter, plan: CallPlan, call: RunningCall, mode: ExecutionMode
    ) -> ToolResult:
        """Make an attempt, unless a breaker is open; the breakers count how attempts end."""
        call.stage = "breaker"
        entered: list[CircuitBreaker] = []
        failed: bool | None = None
        try:
            for one in limiter.breakers:
                if (wait_s := one.breaker.enter(call)) is not None:
                    raise _open(plan, one, wait_s)
                entered.append(one.breaker)
            try:
                result = await inner(self, plan, call, mode)
            except BaseException as error:
                failed = _is_failure(error)
                raise
            failed = False
            return result
        finally:
            for breaker in entered:
                breaker.leave(call, failed)

    async def _rated(
        self, inner: NestedStep, limiter: ToolLimiter, plan: CallPlan, call: RunningCall, mode: ExecutionMode
    ) -> ToolResult:
        """Make an attempt, if its rates still allow it."""
        table, context = limiter.table, call.context
        assert context is not None
        for rate in limiter.rates_of(context):
            call.stage = "rate"
            if not table.has_block(rate) and (wait := await table.take(rate, mode, call.seconds)) > 0:
                raise _used_up(plan, rate, wait)
        return await inner(self, plan, call, mode)

    def _concurrent(
        self, inner: NestedStep, limiter: ToolLimiter, plan: CallPlan, call: RunningCall, mode: ExecutionMode
    ) -> Awaitable[ToolResult]:
        context = call.context
        assert context is not None
        places = limiter.places_of(context)
        if not places:
            return inner(self, plan, call, mode)
        return self._placed(partial(inner, self), places, plan, call, mode)

    async def _placed(
        self,
        tool: Planned,
        places: tuple[ConcurrencyLimit, ...],
        plan: CallPlan,
        call: RunningCall,
        mode: ExecutionMode,
    ) -> ToolResult:
        """Run the tool in the slots that it takes."""
        call.stage = "concurrency"
        taken_slots: list[Slots] = []
        try:
            already = held.get()
            for place in places:
                slots = place.slots
                if slots not in already:  # a tool that calls itself already has its slot
                    if not slots.enter_at_once():
                        await self._take(plan, call, mode, place)
                    taken_slots.append(slots)
            mark = held.set(already.union(taken_slots, (Ticket(tuple(taken_slots)),)))
            try:
                return await tool(plan, call, mode)
            finally:
                held.reset(mark)
        except (TimeLimit, CancelledWhileRunning) as error:
            if error.goes_on is not None:  # its caller has gone, and it keeps its slots until it ends
                for slots in taken_slots:
                    error.goes_on.add_done_callback(lambda _, slots=slots: slots.leave())  # type: ignore[misc]
                taken_slots = []
            raise
        finally:
            for slots in taken_slots:
                slots.leave()

    async def _take(self, plan: CallPlan, call: RunningCall, mode: ExecutionMode, place: ConcurrencyLimit) -> None:
        """Wait for a slot. Raises BudgetExceeded (queue full, or none can become free), TimeLimit (none came free)."""
        context = call.context
        assert context is not None
        slots, caller = place.slots, owner_of(context)
        try:
            waits = slots.enter(caller)
        except QueueFull:
            raise _too_many(plan, place) from None
        if waits is None:
            return
        try:
            with waiting_for(slots, plan.id):
                is_given = await mode.until(waits, call.time_left())
            if is_given:
                if waits.exception() is not None:  # displaced by a caller with fewer waiting calls
                    raise _too_many(plan, place)
                return
        except BaseException:
            slots.give_up(caller, waits)
            raise
        slots.give_up(caller, waits)
        raise TimeLimit(stopped=True, begun=False)

    async def _executed(self, plan: CallPlan, call: RunningCall, mode: ExecutionMode) -> ToolResult:
        """Run the tool itself, as `Pipeline.run` does."""
        call.stage, call.has_begun = "execute", True
        # With limits, the deadline is that of one attempt: what an attempt leaves behind keeps it.
        is_limited = plan.bounds.limiter is not None
        token = enter(FixedFrame(call.depth, call.deadline, call.caller, call.call_id, call) if is_limited else call)
        try:
            value: Any = plan.runner.execute(call, mode)
            if plan.runner.is_awaited:
                value = await value
            if type(value) not in NOT_AWAITABLE and inspect.isawaitable(value):
                value = await mode.awaited(value, call.seconds)
            return accept(plan, call, value, self.limits, self.conclusion.series)
        except StopIteration as error:  # a coroutine cannot raise it
            raise error_of(error, call) from error
        finally:
            try:
                leave(token)
            except ValueError:  # it ends in another context than the one in which it began
                pass

    async def _timed(
        self, inner: NestedStep, limiter: ToolLimiter, plan: CallPlan, call: RunningCall, mode: ExecutionMode
    ) -> ToolResult:
        """Run the tool within the time of one attempt."""
        call_deadline, attempt_ms, idle_ms = call.deadline, limiter.limits.attempt_ms, limiter.limits.idle_ms
        call.limit = None
        if attempt_ms and (call_deadline is None or call_deadline > time.perf_counter() + attempt_ms / 1000):
            call.deadline = time.perf_counter() + attempt_ms / 1000
        try:
            with _moving(call, idle_ms / 1000) if idle_ms else nullcontext():
                return await inner(self, plan, call, mode)
        except TimeLimit:
            if call.limit is None and call.deadline != call_deadline:
                call.limit = "attemptMs of the tool", float(attempt_ms or 0)
            raise
        finally:
            call.deadline = call_deadline


_Step = Callable[[CallGovernance, NestedStep, Any, CallPlan, RunningCall, ExecutionMode], Awaitable[ToolResult]]
_STEPS: Final[dict[str, _Step]] = {
    "result_cache": CallGovernance._cached,
    "retry": CallGovernance._retried,
    "breaker": CallGovernance._unless_broken,
    "rate": CallGovernance._rated,
    "concurrency": CallGovernance._concurrent,
    "deadlines": CallGovernance._timed,
}
"""From outermost to innermost."""


def did_nothing(call: RunningCall, result: ToolResult) -> bool:
    """Whether a failed call had no effect: its tool did not begin, or is a workflow that awaits its first approval."""
    error, plan = result.error, call.plan
    if error is None or error.outcome != "none":
        return False
    return not call.has_begun or (
        error.kind == "APPROVAL_REQUIRED" and plan is not None and plan.spec.kind == "workflow"
    )


def steps_of(limiter: ToolLimiter | None) -> tuple[NestedStep, tuple[PlanStep, ...]]:
    """The composed steps around a tool with these limits; and their descriptions for people."""
    words = {} if limiter is None else limiter.words()
    around: NestedStep = CallGovernance._executed
    for name, step in reversed(_STEPS.items()):
        if name in words or name == "retry":  # the caller of any tool may allow retries
            around = _with(step, around, limiter)
    return around, tuple(PlanStep(name, words[name]) for name in _STEPS if name in words)


def _with(step: _Step, inner: NestedStep, limiter: ToolLimiter | None) -> NestedStep:
    def run(
        governance: CallGovernance, plan: CallPlan, call: RunningCall, mode: ExecutionMode
    ) -> Awaitable[ToolResult]:
        return step(governance, inner, limiter, plan, call, mode)

    return run


@contextmanager
def _moving(call: RunningCall, seconds: float) -> Iterator[None]:
    """Cancel a call that reports no progress for this many seconds, if it has a task.

    Raises:
        TimeLimit: it was idle for too long.
    """
    task = call.task
    if task is None:
        yield
        return
    loop, began, is_over = task.get_loop(), time.perf_counter(), False
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal timer, is_over
        quiet = time.perf_counter() - max(call.moved_at, began)
        if quiet < seconds:
            timer = loop.call_later(seconds - quiet, look)
        else:
            is_over = True
            task.cancel()

    timer = loop.call_later(seconds, look)
    ended: BaseException | None = None
    try:
        yield
    except (Exception, asyncio.CancelledError) as error:
        if not is_over:
            raise
        ended = error
    finally:
        timer.cancel()
    if not is_over:
        return
    task.uncancel()
    if task.cancelling() > call.cancellations:  # another request cancelled it as well
        raise ended or asyncio.CancelledError
    call.limit = "idleMs of the tool", seconds * 1000
    goes_on = getattr(ended, "goes_on", None)
    raise TimeLimit(stopped=goes_on is None, begun=ended is None or has_begun(ended), goes_on=goes_on) from ended


def _setting(plan: CallPlan, place: str) -> str:
    """The section of tavern.yaml that sets a limit, also for a limit from the tool's own definition."""
    return place if place.startswith("limits.") else f"limits.tools.{plan.id}"


def _too_many(plan: CallPlan, place: ConcurrencyLimit) -> BudgetExceeded:
    slots = place.slots
    return BudgetExceeded(
        f"{plan.id}: {slots.size} calls at a time ({place.place}), and {slots.queue} wait already",
        hint=f"call it again later, or raise {_setting(plan, place.place)}.concurrency or .queue in tavern.yaml",
        retryable=True,
        retry_after_ms=PAUSE_MS,
        limit=f"{place.place}.queue",
        running=slots.taken,
        waiting=slots.waiting,
    )


def _used_up(plan: CallPlan, rate: Rate, wait: float) -> BudgetExceeded:
    return BudgetExceeded(
        f"{plan.id}: the rate {rate.written} of {rate.place} is used up",
        hint=f"wait {wait:.1f} s, or raise {_setting(plan, rate.place)}.rate in tavern.yaml",
        retryable=True,
        retry_after_ms=max(1, round(wait * 1000)),
        limit=f"{rate.place}.rate",
        rate=rate.written,
    )


def _open(plan: CallPlan, one: GuardingBreaker, wait_s: float) -> CircuitOpen:
    failures = one.breaker.rule.failures
    return CircuitOpen(
        f"{plan.id} is left alone: {failures} calls in a row failed ({one.place})"
        if one.is_shared
        else f"{plan.id} failed {failures} times in a row and is left alone ({one.place})",
        hint=f"try again in {wait_s:.1f} s",
        retryable=True,
        retry_after_ms=max(1, round(wait_s * 1000)),
        limit=f"{one.place}.breaker",
        state=one.breaker.state,
    )


def _is_failure(error: BaseException) -> bool | None:
    """Whether an error is a failure of the system behind a tool; None: it shows nothing about that system."""
    if isinstance(error, TimeLimit):
        return True if error.begun else None
    if isinstance(error, CallError):
        return True if error.code in _BEHIND else None
    if isinstance(error, Exception):
        return True
    return True if isinstance(error, asyncio.CancelledError) and has_begun(error) and not cancellations() else None


def _error_in(result: ToolResult) -> CallError | None:
    """The error that a tool's result reports."""
    reported = result.error
    if reported is None:
        return None
    error = CallError(
        reported.message, retryable=reported.retryable, outcome=reported.outcome, retry_after_ms=reported.retry_after_ms
    )
    error.code = reported.kind  # type: ignore[misc]
    return error


def _pause(plan: CallPlan, call: RunningCall, failed: CallError | None, attempt: int) -> float | None:
    """Delay after a failed attempt; None: no further attempt, as it may do harm or be too late."""
    if failed is None or not may_pass(failed):
        return None
    if not is_harmless_again(failed, plan.spec, has_key=call.key is not None):
        return None
    pause, remaining = pause_before(attempt + 1, failed), call.seconds
    return pause if pause < (LONGEST_WAIT_S if remaining is None else remaining) else None
