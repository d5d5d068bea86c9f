"""The one path of every tool call, from top to bottom.

    resolve → detach → admit → before_execute hooks → defaults → validate input → check_call gates → approval
            → steps around the tool (`optional_steps.py`) → execute
            → normalise → validate output → redact → result hooks → audit → after_execute

The plan of a tool says which of these steps its calls have (`CallPlan.steps`, `tavern tools show ID --plan`). Hooks change a call
before every gate, so gates see what will run. Every failure is a value: `run` always returns a ToolResult, except for a KeyboardInterrupt and the
cancellation of the caller's own task.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import sys
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from contextvars import Token
from dataclasses import replace
from time import perf_counter
from typing import Any, Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.calls.approvals import Approvals, definition_of
from tavern_core.kernel.calls.attempt import SMALL_BITS, accept
from tavern_core.kernel.calls.background_call_request import (
    BackgroundCallRequest,
    BackgroundCalls,
    in_run,
    job_id,
    resume_point,
)
from tavern_core.kernel.calls.call_errors import error_of, log_origin
from tavern_core.kernel.calls.call_preparation import (
    admit,
    check_rule,
    check_types,
    fill_and_validate,
    give_copy,
    take,
    take_changed,
    tool_call,
)
from tavern_core.kernel.calls.call_preview import CallPreview, own_gates
from tavern_core.kernel.calls.compiler import Compiler
from tavern_core.kernel.calls.conclusion import Conclusion
from tavern_core.kernel.calls.idempotency import Idempotency
from tavern_core.kernel.calls.large_results import ArtifactStore, LargeResults
from tavern_core.kernel.calls.optional_steps import CallGovernance, did_nothing
from tavern_core.kernel.calls.plan_tokens import PlanTokens
from tavern_core.kernel.calls.result_normalisation import NOT_AWAITABLE
from tavern_core.kernel.calls.running_call import (
    CallLimits,
    Frame,
    RunningCall,
    begin,
    enter,
    leave,
    of_request,
    traced,
)
from tavern_core.kernel.calls.taint_tracking import has_read, mark_result, required_approval
from tavern_core.kernel.calls.tool_context_control import on_left_behind
from tavern_core.kernel.catalogue.call_plan import CallPlan
from tavern_core.kernel.execution.sync_async_drivers import ExecutionMode, TimeLimit, cancellations, has_begun
from tavern_core.kernel.hooks.hook_calls import HookCalls, RequestedApproval
from tavern_core.model.call import CallContext, ToolCall
from tavern_core.model.event import Event
from tavern_core.model.job import handle
from tavern_core.model.result import ToolResult, failure, success


@dataclass(frozen=True, slots=True)
class CallMode:
    """The differences of a call from a direct one: a dry run, the commit of a plan, a job, or a traced call."""

    is_dry: bool = False
    token: str = ""
    is_job: bool = False
    """Whether the call is made in the background."""
    steps: list[tuple[str, float]] | None = None
    """Collects the name and the start time of each step, on the monotonic clock."""

    def is_detached(self, plan: CallPlan) -> bool:
        """Whether the call is made in the background, because its caller asks for that, or its tool does."""
        return self.is_job or (plan.bounds.inline_s is not None and not self.is_dry and not self.token)


DRY_RUN: Final = CallMode(is_dry=True)
AS_JOB: Final = CallMode(is_job=True)
NO_PURPOSE: Final = ""
API: Final = "api"
_MODULES: Final = sys.modules
_LOOK_S: Final = 0.25
"""Time that the caller of an unfinished job waits for a slow store to report its progress."""


class Pipeline:
    """Runs calls. Holds no state of a call."""

    __slots__ = (
        "approvals",
        "artifacts",
        "background",
        "call_preview",
        "compiler",
        "conclusion",
        "governance",
        "hooks",
        "limits",
        "numbers",
        "observed_from",
        "plans",
        "ready",
        "series",
    )  # fmt: skip

    def __init__(
        self,
        compiler: Compiler,
        hooks: HookCalls,
        approvals: Approvals,
        idempotency: Idempotency,
        plans: PlanTokens,
        background: BackgroundCalls,
        artifacts: ArtifactStore,
    ) -> None:
        base = compiler.base
        self.compiler, self.ready = compiler, compiler.ready
        self.hooks, self.approvals, self.plans = hooks, approvals, plans
        self.background, self.artifacts = background, artifacts
        self.series, self.numbers = compiler.cancellation.series, itertools.count(1)
        self.limits = CallLimits.of(base.config.limits, base.config.artifacts)
        self.conclusion = Conclusion(hooks, base.recorder, base.known_secrets, self.series, self.numbers)
        large = LargeResults(self.limits, artifacts, self.series)
        self.governance = CallGovernance(idempotency, plans, self.conclusion, large, artifacts, self.limits)
        self.call_preview = CallPreview(compiler, hooks, approvals, plans, self.limits, self.series)
        self.observed_from = ""
        """Calls are observed once this module is imported: OpenTelemetry's SDK, or one always loaded; empty: never."""

    async def run(
        self,
        mode: ExecutionMode,
        written: str,
        arguments: Mapping[str, Any] | None,
        context: CallContext | None = None,
        purpose: str = NO_PURPOSE,
        key: str | None = None,
        door: str = API,
        phase: CallMode | None = None,
    ) -> ToolResult:
        """Run one call and return its result; the arguments are those of `Tavern.invoke`, and:

        Args:
            mode: how blocking and async work runs.
            written: the tool's id as the caller wrote it.
            door: the entry point of the call.
            phase: preview the call, or run what was previewed; None: run it directly.
        """
        if self.observed_from in _MODULES:  # a wrapper around every call would cost more than this look-up
            return await self.observed(mode, written, arguments, context, purpose, key, door, phase)
        call = begin(next(self.numbers))
        token: Token[Frame | None] | None = None
        try:
            is_bare = context is None and key is None and phase is None and purpose is NO_PURPOSE and door is API
            if not is_bare:
                call = call if phase is None or phase.steps is None else traced(call, phase.steps)
                check_types(of_request(call, written, arguments, context, purpose, key, door))
            ready = self.ready  # a local name: calling `self.ready(...)` would look for a method first
            plan = call.plan = ready(written)
            tool = None if plan is None else plan.plain_tool
            values = None
            if tool is not None and plan is not None and is_bare and call.outer is None:
                intake = plan.arguments.intake  # a local name, as above
                values = call.values = intake(arguments)
            if plan is None or tool is None or values is None:
                call.written, call.arguments = written, arguments
                if (answer := await self._prepare(plan, call, mode, phase)) is not None:
                    return answer
                plan = call.plan
                assert plan is not None
                result = await self.governance.run(plan, call, mode)
            else:  # a plain call: the other steps would do nothing
                plan.usage.calls.add(call)
                call.stage, token = "execute", enter(call)
                value = tool(**values)
                if plan.runner.is_awaited:
                    value = await value
                kind = type(value)
                if kind in plan.answers.accepted_types and (kind is not int or value.bit_length() < SMALL_BITS):
                    trace = (plan.id, call.number, call.started, perf_counter() - call.clock, self.series)
                    result = success(value, trace)
                else:
                    if kind not in NOT_AWAITABLE and inspect.isawaitable(value):
                        value = await mode.awaited(value, None)
                    result = accept(plan, call, value, self.limits, self.series)
            if plan.ends_quietly and result.error is None and call.reads is None and not self.conclusion.secrets.values:
                return result
        except BaseException as error:  # noqa: BLE001 - `_conclude_error` raises what must not become a result
            call.written, call.arguments = written, arguments
            call.has_begun = call.has_begun or token is not None
            result = await self._conclude_error(call, error, mode)
            if isinstance(error, GeneratorExit):
                return result
        finally:
            if token is not None:
                try:
                    leave(token)
                except ValueError:  # it ends in another context than the one in which it began
                    pass
            if (plan := call.plan) is not None:
                plan.usage.calls.discard(call)
        return await self._concluded(call, result, mode)

    def observed(self, mode: ExecutionMode, written: str, *rest: Any) -> Coroutine[Any, Any, ToolResult]:
        """`run` with metrics and spans. `ObservedPipeline` overrides it; without it, `observed_from` is empty."""
        raise AssertionError(f"a call of {written!r:.80} is to be observed, and this pipeline cannot do it")

    async def _conclude_error(self, call: RunningCall, error: BaseException, mode: ExecutionMode) -> ToolResult:
        """The result of a call that ended with an error.

        Raises:
            BaseException: Ctrl-C, or the cancellation of the caller's own task; the call has been recorded by then.
        """
        result = self._failed(call, error)
        is_to_give_back = bool(call.used_up) and did_nothing(call, result)
        if not _must_not_wait(error, call):
            if is_to_give_back:
                await self.plans.give_back(call.used_up, mode)
            return result
        self.conclusion.record(call, result)
        if isinstance(error, GeneratorExit):
            return result
        if isinstance(error, KeyboardInterrupt) or result.error is None:
            raise error
        if is_to_give_back:
            self.plans.give_back_at_once(call.used_up)
        if not has_begun(error):  # for this call, and not for the enclosing one
            error = asyncio.CancelledError()
        error.tavern_outcome = result.error.outcome  # type: ignore[attr-defined]  # for a job
        raise error from None

    def _failed(self, call: RunningCall, error: BaseException) -> ToolResult:
        """The result of a call that ended with an error."""
        failed = error_of(error, call)
        if failed is not error:
            call.unexpected_error = error
        if (goes_on := getattr(error, "goes_on", None)) is not None and (on_left := on_left_behind.get()) is not None:
            on_left(goes_on)
        if call.is_cancelled and isinstance(error, asyncio.CancelledError) and call.task is not None:
            call.task.uncancel()  # the cancellation was meant for this call, and ends here
        if isinstance(error, asyncio.CancelledError | TimeLimit):
            call.is_cancelled = True  # code that continues in a thread can see the cancellation
        return failure(failed, call.trace(self.series), call.value)

    async def _concluded(self, call: RunningCall, result: ToolResult, mode: ExecutionMode) -> ToolResult:
        """Convert the tool's result to the call's: redact, mark and record it, and call hooks."""
        result = self.conclusion.redacted(call, result)
        if call.reads is not None:
            result = mark_result(call, result)
        if self.limits.inline_bytes is not None:
            result = self.governance.large.shortened(call, result)
        if (broken := call.unexpected_error) is not None:
            call.unexpected_error = None  # its frames reference the call
            log_origin(result, broken)
        if call.plan is not None and call.plan.ends_in_hooks:
            return await self.conclusion.finish(call.plan, call, result, mode)
        self.conclusion.record(call, result)
        return result

    async def _prepare(
        self, plan: CallPlan | None, call: RunningCall, mode: ExecutionMode, phase: CallMode | None
    ) -> ToolResult | None:
        """Admit a call, prepare its arguments, and judge it.

        Args:
            plan: of its tool; None: it is to be found.

        Returns:
            The answer for the caller if the tool does not run now: a job or a preview; else None.
        """
        plan = call.plan = plan or await self.compiler.find(call.written, call.context)
        plan.usage.calls.add(call)
        is_detached = plan.bounds.inline_s is not None if phase is None else phase.is_detached(plan)
        if is_detached and not job_id.get() and not in_run.get():
            return await self._detached(plan, call, mode)
        call.stage = "admit"
        context = admit(plan, call, self.limits.depth)
        if plan.admission.guarded or context.profile is not None:
            plan = call.plan = await self.compiler.admits(plan, context)
        take(plan, call, self.limits.argument_bytes)
        call.call = tool_call(plan, call, context, self.series) if plan.needs_call else None
        if plan.hooks.before:
            await self._change(plan, call, mode)
        call.stage = "validate_input"
        if plan.arguments.fill is not None or not call.is_validated:
            fill_and_validate(plan, call)
        if phase is not None and phase.is_dry:
            planned = await self.governance.dry(plan, call, mode, self.call_preview.planned)
            return self.conclusion.redacted(call, planned)
        token = "" if phase is None else phase.token
        if plan.is_judged or token:
            await self._judge(plan, call, mode, token)
        if plan.is_recorded and (event := self.conclusion.record_beginning(plan, call)) is not None:
            await self.hooks.notify(plan.hooks.events, {"event": event}, mode)
        call.tool_arguments, call.call_for_tool = call.values or {}, call.call
        if plan.gives_copy:
            give_copy(plan, call, self.limits.argument_bytes)
        if source := plan.content.source:  # before the tool runs: its caller may get the content before the call ends
            has_read(call, (source,))
        return None

    async def _judge(self, plan: CallPlan, call: RunningCall, mode: ExecutionMode, token: str) -> None:
        """Ask the gates, and a person if approval is required; use up the plan token."""
        context = call.context
        assert context is not None
        if plan.is_judged:
            if token:  # no approval is requested for a call that its token does not allow
                await self.plans.check(token, plan, self._planned(plan, call, context), mode, call.seconds)
            await self._check_gates(plan, call, mode)
        if token:
            planned = self._planned(plan, call, context)
            call.used_up += (await self.plans.use(token, plan, planned, mode, call.seconds),)

    async def _detached(self, plan: CallPlan, call: RunningCall, mode: ExecutionMode) -> ToolResult:
        """Make the call in the background. Its caller gets the answer if it is there in time, else a job."""
        call.stage = "detach"
        copy = plan.arguments.intake(call.arguments)
        done: Future[ToolResult] | None = Future() if plan.bounds.inline_s else None
        request = BackgroundCallRequest(
            plan.id, call.arguments if copy is None else copy, call.context, call.purpose, call.key, call.door,
            has_copy=copy is not None, done=done,
        ).of(plan)  # fmt: skip
        deadlines = _ends_of_caller(call)
        remaining = max(min(deadlines) - perf_counter(), 0) if deadlines else None
        job = await self.background.begin(request, mode, remaining)
        if done is not None:
            if await mode.until(done, plan.bounds.inline_s):
                return done.result()
            job = await self.background.current(job, mode, _LOOK_S)
        return ToolResult(True, handle(job), status="job", job=job.id, trace=call.trace(self.series))

    async def _change(self, plan: CallPlan, call: RunningCall, mode: ExecutionMode) -> None:
        """Let hooks change the arguments, before anything is decided about them.

        Raises:
            CallError: a hook refused the call or failed (POLICY_DENIED), or returned what is not JSON
                (INPUT_SCHEMA_INVALID).
        """
        assert call.call is not None
        call.stage, call.changes = "before_execute", []
        call.caller_values = call.values
        call.call = await self.hooks.change_call(
            plan.hooks.before, call.call, plan.hooks.tool_snapshot, mode, call.changes
        )
        take_changed(plan, call, call.call.arguments, self.limits.argument_bytes)

    async def _check_gates(self, plan: CallPlan, call: RunningCall, mode: ExecutionMode) -> None:
        """Ask the gates about the call as it will run, then a person if a gate or a rule requires approval.

        Raises:
            CallError: it may not run (POLICY_DENIED, APPROVAL_REQUIRED, TIMEOUT and others).
        """
        assert call.call is not None
        call.stage = "check_call"
        requested = (
            await self.hooks.call_gates(plan.hooks.gates, call.call, plan.hooks.tool_snapshot, mode)
            if plan.hooks.gates
            else None
        )
        if plan.is_judged_after_reading:
            call.stage = "after_untrusted"
            requested = required_approval(plan, call, requested)
        if requested is None and plan.admission.approval is None:
            return
        call.stage = "approval"
        if plan.admission.approval is not None:
            check_rule(plan, plan.admission.approval)
        if not _only_follows(plan, call):
            call.deadline = None  # a person may take longer than the tool may
            call.deadline = await self._approved(mode, plan, call, call.call, requested)

    def _planned(self, plan: CallPlan, call: RunningCall, context: CallContext) -> ToolCall:
        """The call as a plan token identifies it."""
        return replace(call.call or tool_call(plan, call, context, self.series), arguments=call.values or {})

    async def _approved(
        self,
        mode: ExecutionMode,
        plan: CallPlan,
        call: RunningCall,
        asked: ToolCall,
        requested: RequestedApproval | None,
    ) -> float | None:
        """Wait for the approval of the call as it is now; return the deadline for the rest of it.

        The tool's own time begins when it runs. The time of the caller and of an enclosing call counts from the start.

        Raises:
            CallError: it was not approved, or what would run is no longer the approved call.
        """
        rule = plan.admission.approval
        deadlines = _ends_of_caller(call)
        end = min(deadlines, default=None)
        remaining = None if end is None else end - perf_counter()
        if remaining is not None and remaining <= 0:
            raise TimeLimit(stopped=True, begun=False)

        async def emit(event: Event) -> None:
            if plan.hooks.events:
                await self.hooks.notify(plan.hooks.events, {"event": event}, mode)

        wanted = requested or RequestedApproval(
            rule.place if rule is not None else "", rule.reason if rule is not None else ""
        )
        used_up = await self.approvals.obtain(plan, asked, wanted, mode, remaining, emit)
        if used_up is not None:
            call.used_up = (used_up,)
        # Files, grants and plugins may have changed in the meantime; the approval was for the earlier state.
        await self.compiler.still_holds(plan, asked.context)
        await self.hooks.call_gates(own_gates(plan), asked, plan.hooks.tool_snapshot, mode)
        if plan.bounds.seconds is not None:
            deadlines.append(perf_counter() + plan.bounds.seconds)
        return min(deadlines, default=None)


def _ends_of_caller(call: RunningCall) -> list[float]:
    """The deadlines set by the caller and by the enclosing call, on the monotonic clock."""
    ends = [] if call.outer is None or call.outer.deadline is None else [call.outer.deadline]
    if call.context is not None and (own := call.context.budget.timeout_ms) is not None:
        ends.append(call.clock + own / 1000)
    return ends


def _only_follows(plan: CallPlan, call: RunningCall) -> bool:
    """Whether this is a resumed job's own call, whose work was begun before: its adapter only waits for the end."""
    point = resume_point.get()
    return point is not None and point.is_of(call.arguments) and point.followed == definition_of(plan.spec)


def _must_not_wait(error: BaseException, call: RunningCall) -> bool:
    """Whether nothing may be awaited any more: Ctrl-C, the caller's own task is cancelled, the coroutine ends."""
    if isinstance(error, KeyboardInterrupt | GeneratorExit):
        return True
    return isinstance(error, asyncio.CancelledError) and cancellations() > call.cancellations
