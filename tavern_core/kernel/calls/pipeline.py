"""The one path of every tool call, from top to bottom.

    admit → resolve → before_execute hooks → defaults → validate input → check_call gates → approval
          → execute → normalise → validate output → result hooks → evidence → audit → after_execute

Hooks change a call before every gate, so gates see what will run. Everything fails as a value: `run` returns a
ToolResult for whatever happens, a KeyboardInterrupt and the cancellation of the caller's own task excepted.

Idempotency, result cache, breaker, rate and concurrency limits have their places between the approval and the
execution (docs/architecture.md) and are not there yet.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from tavern_core.errors import (
    BudgetExceeded,
    CallCancelled,
    CallError,
    CallMisused,
    CallTimeout,
    InputInvalid,
    InternalError,
    Outcome,
    OutputInvalid,
    PolicyDenied,
    UpstreamError,
)
from tavern_core.kernel.access.approval_rules import ApprovalRule
from tavern_core.kernel.calls.approvals import Approvals
from tavern_core.kernel.calls.error_origin import log_origin
from tavern_core.kernel.calls.messages import MESSAGES, together
from tavern_core.kernel.calls.normalise import SCALARS, to_result
from tavern_core.kernel.catalogue.plan import Plan
from tavern_core.kernel.execution.modes import Mode, TimeLimit, cancellations, has_begun
from tavern_core.kernel.hooks.dispatch import HookCalls, Wish
from tavern_core.kernel.hooks.table import Implementation
from tavern_core.kernel.log.changes import Change
from tavern_core.kernel.log.recorder import DENIALS, Recorder
from tavern_core.kernel.plugins.effective_scopes import narrowed
from tavern_core.kernel.registry import no_text
from tavern_core.kernel.settings.result_redaction import struck
from tavern_core.model.call import CallContext, ToolCall, call_of
from tavern_core.model.config import LimitsConfig
from tavern_core.model.event import Event
from tavern_core.model.language import say
from tavern_core.model.result import CallTrace, ToolResult, failure, success
from tavern_core.model.safe_text import notes_of, with_type
from tavern_core.schema.limits import json_copy, measure
from tavern_core.schema.redact import compile_redactor, named_secrets, redact_text
from tavern_core.schema.validate import Validator

Frame = tuple[int, float | None, CallContext | None, str]
"""(depth, deadline on the monotonic clock, context, call id) of the call that is running; the host itself has no context."""

E = TypeVar("E", bound=CallError)


_SMALL = 1 << 63
"""Integers below it are sure to have digits that can be written; larger ones are looked at."""

current: ContextVar[Frame | None] = ContextVar("tavern_call", default=None)


class Catalogue(Protocol):
    """Where the pipeline finds the plan of a tool, and who may use it."""

    def ready(self, written: str) -> Plan | None:
        """The plan, when the tool is active and does not depend on the caller."""
        ...

    async def find(self, written: str, context: CallContext | None) -> Plan:
        """The plan, activating the plugin if need be.

        Raises:
            CallError: there is no such tool, or it cannot be used (TOOL_NOT_FOUND, POLICY_DENIED, UPSTREAM_ERROR).
        """
        ...

    async def admits(self, plan: Plan, context: CallContext) -> Plan:
        """The plan, with the rights of the caller's profile, when lists and profile let the caller use the tool.

        Raises:
            PolicyDenied: they do not (POLICY_DENIED).
        """
        ...

    async def still_holds(self, plan: Plan, context: CallContext) -> None:
        """Return when the tool is still the one of `plan`, with the same rights, and this caller may still use it.

        Raises:
            CallError: it is not (POLICY_DENIED, TOOL_NOT_FOUND, UPSTREAM_ERROR).
        """
        ...


class Secrets(Protocol):
    """The secrets that were resolved so far; no result may hold one."""

    @property
    def values(self) -> Collection[str]: ...


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Runs calls. Holds no state of a call."""

    catalogue: Catalogue
    hooks: HookCalls
    recorder: Recorder
    limits: LimitsConfig
    approvals: Approvals
    secrets: Secrets
    series: str
    """Start of the call ids of this host."""
    numbers: itertools.count[int]

    @classmethod
    def create(
        cls,
        catalogue: Catalogue,
        hooks: HookCalls,
        recorder: Recorder,
        limits: LimitsConfig,
        approvals: Approvals,
        known_secrets: Secrets,
    ) -> Pipeline:
        return cls(
            catalogue, hooks, recorder, limits, approvals, known_secrets, secrets.token_hex(6), itertools.count(1)
        )

    async def run(
        self,
        mode: Mode,
        written: str,
        arguments: Mapping[str, Any] | None,
        context: CallContext | None = None,
        purpose: str = "",
        key: str | None = None,
        door: str = "api",
    ) -> ToolResult:
        """Run one call and return its result.

        Args:
            mode: how blocking and async work is run.
            written: the tool's id as the caller wrote it.
            arguments: JSON; never changed.
            context: who calls; None: the host itself, or the caller of the tool that makes this call.
            purpose: why, for the audit log.
            key: idempotency key, recorded with the call.
            door: how the call came in.
        """
        started = time.time()
        clock = time.perf_counter()
        number = next(self.numbers)
        plan: Plan | None = None
        call: ToolCall | None = None
        token = None
        value: Any = None
        values: Mapping[str, Any] | None = None
        stage, is_told = "resolve", False
        changes: list[Change] | None = None
        broken: BaseException | None = None
        before = cancellations()
        outer = current.get()
        deadline: float | None = None
        try:
            if context is not None and not isinstance(context, CallContext):
                wrong, context = context, None
                raise _no_context(written, wrong)
            plan = self.catalogue.ready(written) or await self.catalogue.find(written, context)
            usage = plan.usage.calls
            usage[number] = None

            stage = "admit"
            if outer is None and context is None:
                context, depth, seconds = plan.host, 0, plan.seconds
            else:
                context, depth, seconds = self._admit(plan, context, outer, clock)
            if plan.guarded or context.profile is not None:
                plan = await self.catalogue.admits(plan, context)
            deadline = None if seconds is None else clock + seconds

            # Functions that a plan holds are called by local names: `plan.intake(...)` would be looked up as a method first.
            intake = plan.intake
            values = intake(arguments)
            fits = plan.intake_judges and values is not None
            if values is None:
                values = _own_copy(arguments, plan.id, self.limits.argument_bytes)
            if plan.needs_call:
                call = self._call(plan, values, context, number, depth, purpose, key, door, outer)
                _check_guarded(plan)
            stage = "before_execute"
            if plan.before and call is not None:
                changes = []
                call = await self.hooks.change_call(plan.before, call, plan.shown, mode, changes)
                try:
                    values = _own_copy(call.arguments, plan.id, self.limits.argument_bytes)
                except InputInvalid as error:
                    raise _blamed(error, changes) from None
                fits = False

            stage = "validate_input"
            if plan.fill is not None:
                values = plan.fill(values)
            if not fits and not plan.accepts(values):
                raise _input_invalid(plan, values, changes or ())
            if call is not None:
                if call.arguments is not values:
                    call = replace(call, arguments=values)
                stage = "check_call"
                wish = await self.hooks.judge(plan.gates, call, plan.shown, mode) if plan.gates else None
                if wish is not None or plan.approval is not None:
                    stage = "approval"
                    deadline = await self._approved(mode, plan, call, wish, outer, clock)
                if self.recorder.is_on or plan.events:
                    is_told = True
                    event = self.recorder.called(
                        call, plan.redact, changes or (), plan.spec.plugin, wanted=bool(plan.events)
                    )
                    if event is not None and plan.events:
                        await self.hooks.tell(plan.events, {"event": event}, mode)
            given, handed = values, call
            if plan.marked is not None or (call is not None and (plan.wants_call or plan.transforms or plan.after)):
                given = _own_copy(
                    values, plan.id, self.limits.argument_bytes
                )  # what the tool does to them stays its own
                handed = call and replace(call, arguments=given)

            stage = "execute"
            if deadline is not None:
                seconds = deadline - time.perf_counter()
                if seconds <= 0:
                    raise TimeLimit(stopped=True, begun=False)
            token = current.set((depth, deadline, None if context is plan.host else context, call.id if call else ""))
            if plan.is_async:
                run = plan.run
                work = run(given, handed)
                value = await (work if seconds is None else mode.awaited(work, seconds))
            elif plan.blocking:
                value = await mode.blocking(plan.run, given, handed, seconds=seconds, owner=plan.owner)
            else:
                run = plan.run
                value = run(given, handed)
            kind = type(value)
            if kind not in SCALARS and inspect.isawaitable(value):
                value = await mode.awaited(value, seconds)
                kind = type(value)
            if deadline is not None and time.perf_counter() > deadline:
                raise _timed_out(
                    plan, clock, _limit_of(plan, context, outer, clock, deadline), stopped=False, outcome="done"
                )

            stage = "validate_output"
            trace = (plan.id, number, started, time.perf_counter() - clock, self.series)
            if (kind is int and -_SMALL < value < _SMALL) or kind is bool or value is None:
                result = success(value, trace)
            else:
                result = to_result(value, trace, self.limits.output_bytes, plan.id)
            if plan.returns is not None and result.ok and not plan.returns(result.value) and plan.is_judged(result):
                raise _output_invalid(plan, result.value)
            if self.limits.keep_raw:
                result = result.replace(raw=value)
        except BaseException as error:
            raw = value if self.limits.keep_raw else None
            if isinstance(error, TimeLimit):
                limit = _limit_of(plan, context, outer, clock, deadline)
                failed: CallError = _timed_out(
                    plan, clock, limit, stopped=error.stopped, outcome=_outcome(plan, error), begun=error.begun
                )
            else:
                failed = _as_call_error(error, plan, written, in_tool=token is not None)
            if not isinstance(written, str):
                written = f"<{type(written).__name__}>"
            failed.details.setdefault("stage", stage)
            broken = None if failed is error else error
            result = failure(failed, self._trace(plan, written, number, started, clock), raw)
            if isinstance(error, GeneratorExit):  # the coroutine may be on its way out: nothing can be awaited any more
                self._conclude(plan, call, result, is_told, changes)
                return result
            if isinstance(error, KeyboardInterrupt) or (
                isinstance(error, asyncio.CancelledError) and cancellations() > before
            ):
                self._conclude(plan, call, result, is_told, changes)
                if not has_begun(error):  # true of this call, and not of one that made it
                    raise asyncio.CancelledError from None
                raise  # Ctrl-C, or the caller's own task is being cancelled: on the record, and then let it end
        finally:
            if token is not None:
                current.reset(token)
            if plan is not None:
                plan.usage.calls.pop(number, None)

        if self.secrets.values or result.error is not None or (plan is not None and plan.marked is not None):
            result = self._without_secrets(plan, arguments, values, result)
        if broken is not None:
            log_origin(result, broken)
            broken = None  # its frames hold this one
        if call is None:
            if result.ok or not (self.recorder.is_on or (plan is not None and plan.needs_call)):
                return result
            call = self._refused_call(plan.id if plan else written, context, result, door, purpose, key)
        if plan is not None and (plan.transforms or plan.after or plan.events):
            return await self._after(mode, plan, call, result, is_told, changes)
        self._conclude(plan, call, result, is_told, changes)
        return result

    async def foresee(
        self,
        mode: Mode,
        written: str,
        arguments: Mapping[str, Any],
        context: CallContext | None,
        earlier: int,
        door: str = "tam",
    ) -> CallError | None:
        """Why a call to come is refused by lists, rights, approval or budget; None: as far as is known it is not.

        Only gates of the host are asked, as again after an approval: those of plugins may count what they are asked.

        Args:
            arguments: what is known of them; what a hook may change before the gates is not.
            context: as for `run`.
            earlier: how many calls are made before it.
        """
        outer = current.get()
        try:
            plan = await self.catalogue.find(written, context)
            context = context or (outer[2] if outer is not None else None) or plan.host
            depth = 0 if outer is None else outer[0] + 1
            self._check_depth(plan, depth)
            _check_budget(plan, context, context.ledger.drawn + earlier + 1)
            if plan.guarded or context.profile is not None:
                plan = await self.catalogue.admits(plan, context)
            _check_guarded(plan)
            known = {} if plan.before else arguments
            call = self._call(
                plan, known if plan.fill is None else plan.fill(known), context, 0, depth, "", None, door, outer
            )
            wish = await self.hooks.judge(_own_gates(plan), call, plan.shown, mode)
            if (rule := plan.approval) is not None:
                _check_rule(plan, rule)
            if wish is not None or rule is not None:
                self.approvals.check_possible(
                    plan, wish.reason if wish is not None else rule.reason if rule is not None else ""
                )
        except CallError as error:
            return error
        return None

    def _check_depth(self, plan: Plan, depth: int) -> None:
        if depth > self.limits.depth:
            raise BudgetExceeded(
                say(MESSAGES["too_deep"], tool=plan.id, depth=depth, most=self.limits.depth),
                hint="a tool probably calls itself; else raise limits.depth",
                limit=self.limits.depth,
            )

    def _admit(
        self, plan: Plan, context: CallContext | None, outer: Frame | None, clock: float
    ) -> tuple[CallContext, int, float | None]:
        """Whose call it is, how deep, and how much time it has since `clock`, when it began (seconds; None: no limit).

        Raises:
            BudgetExceeded: too deep, or too many calls (BUDGET_EXCEEDED).
        """
        depth, seconds = 0, plan.seconds
        if outer is not None:
            above, deadline, caller, _ = outer
            depth = above + 1
            # A tool that calls a tool does so for its own caller, never with more rights.
            context = context or caller
            self._check_depth(plan, depth)
            if deadline is not None:
                left = deadline - clock
                seconds = left if seconds is None else min(left, seconds)
        context = context or plan.host
        budget = context.budget
        if budget.timeout_ms is not None:
            own = budget.timeout_ms / 1000
            seconds = own if seconds is None else min(own, seconds)
        if budget.max_tool_calls is not None:
            _check_budget(plan, context, context.ledger.draw())
        return context, depth, seconds

    def _call(
        self, plan: Plan, arguments: Mapping[str, Any], context: CallContext, number: int, depth: int,
        purpose: str, key: str | None, door: str, outer: Frame | None,
    ) -> ToolCall:  # fmt: skip
        if type(purpose) is not str or (key is not None and type(key) is not str):
            raise CallMisused(
                f"{plan.id}: purpose and idempotency key of a call are text",
                hint='purpose="why", idempotency_key="a name"',
            )
        rights = plan.rights if context is plan.host else replace(plan.rights, caller=context.permissions)
        if context.scopes:
            rights = narrowed(rights, context)
        return call_of(
            plan.id, arguments, context, f"{self.series}-{number:x}", purpose, key, depth, door,
            outer[3] if outer else None, rights,
        )  # fmt: skip

    async def _approved(
        self, mode: Mode, plan: Plan, call: ToolCall, wish: Wish | None, outer: Frame | None, clock: float
    ) -> float | None:
        """Wait until somebody has approved the call as it stands; return the deadline of what is left of it.

        The tool's own time begins when it runs. What the caller allows, and an enclosing call, count from the start.

        Raises:
            CallError: it was not approved, or what was approved is not what would run any more.
        """
        rule = plan.approval
        if rule is not None:
            _check_rule(plan, rule)
        ends = [] if outer is None or outer[1] is None else [outer[1]]
        if (own := call.context.budget.timeout_ms) is not None:
            ends.append(clock + own / 1000)
        end = min(ends, default=None)
        left = None if end is None else end - time.perf_counter()
        if left is not None and left <= 0:
            raise TimeLimit(stopped=True, begun=False)

        async def tell(event: Event) -> None:
            if plan.events:
                await self.hooks.tell(plan.events, {"event": event}, mode)

        wanted = wish or Wish(rule.place if rule is not None else "", rule.reason if rule is not None else "")
        await self.approvals.settle(plan, call, wanted, mode, left, tell)
        # Files, grants and plugins may have changed meanwhile; what was approved was approved for how things stood.
        await self.catalogue.still_holds(plan, call.context)
        await self.hooks.judge(_own_gates(plan), call, plan.shown, mode)
        if plan.seconds is not None:
            ends.append(time.perf_counter() + plan.seconds)
        return min(ends, default=None)

    async def _after(
        self,
        mode: Mode,
        plan: Plan,
        call: ToolCall,
        result: ToolResult,
        is_told: bool,
        changes: Sequence[Change] | None,
    ) -> ToolResult:
        """Result hooks, the record, observers."""
        made: Sequence[Change] = ()
        if plan.transforms:
            fits = plan.returns if plan.is_judged(result) else None
            try:
                result, made = await self.hooks.change_result(plan.transforms, call, result, fits, mode)
            except BaseException:  # Ctrl-C, or the caller's own task is being cancelled
                self._conclude(plan, call, result, is_told, changes)
                raise
            result = struck(result, self.secrets.values)
        for event in self._conclude(plan, call, result, is_told, changes, made):
            await self.hooks.tell(plan.events, {"event": event}, mode)
        if plan.after:
            await self.hooks.tell(plan.after, {"call": call, "result": result}, mode)
        return result

    def _without_secrets(
        self, plan: Plan | None, arguments: object, values: Mapping[str, Any] | None, result: ToolResult
    ) -> ToolResult:
        """The result without what the host knows to be secret, nor what came in where the schema or a name says so."""
        marked = plan.marked(values) if plan is not None and plan.marked is not None else ()
        named = named_secrets([arguments, values]) if result.error is not None else ()
        return struck(result, [*self.secrets.values, *marked], named)

    def _conclude(
        self,
        plan: Plan | None,
        call: ToolCall | None,
        result: ToolResult,
        is_told: bool,
        changes: Sequence[Change] | None = None,
        made: Sequence[Change] = (),
    ) -> list[Event]:
        """Put the end of a call on the record.

        Args:
            changes: what plugins changed of the call; told here when the call was never told of.
            made: what they changed of the result.
        """
        if call is None or not (self.recorder.is_on or (plan is not None and plan.events)):
            return []
        redact, plugin = (plan.redact, plan.spec.plugin) if plan is not None else (compile_redactor(), "")
        events = []
        if result.error is not None and result.error.kind in DENIALS:
            events.append(self.recorder.denied(call, result, redact, plugin, () if is_told else changes or ()))
            is_told = True
        told = (*(() if is_told else changes or ()), *made)
        wanted = plan is not None and bool(plan.events)
        event = self.recorder.finished(call, result, redact, plugin, is_told=is_told, changes=told, wanted=wanted)
        return events if event is None else [*events, event]

    def refused(self, written: str, context: CallContext | None, result: ToolResult, door: str = "tam") -> ToolResult:
        """Put a call on the record that was refused before it reached the pipeline: a damaged block of text."""
        result = result.replace(trace=(written or "(no command)", next(self.numbers), time.time(), 0.0, self.series))
        self._conclude(None, self._refused_call(written, context, result, door, "", None), result, is_told=False)
        return result

    def _refused_call(
        self, written: str, context: CallContext | None, result: ToolResult, door: str, purpose: str, key: str | None
    ) -> ToolCall:
        """A call that was refused before it became one, for the record."""
        return ToolCall(
            str(written)[:200], {}, context or CallContext(principal="host"), result.call_id, purpose, key, door=door
        )

    def _trace(self, plan: Plan | None, written: str, number: int, started: float, clock: float) -> CallTrace:
        return (plan.id if plan else str(written)[:200], number, started, time.perf_counter() - clock, self.series)


def _check_budget(plan: Plan, context: CallContext, number: int) -> None:
    most = context.budget.max_tool_calls
    if most is not None and number > most:
        raise BudgetExceeded(
            say(MESSAGES["over_budget"], tool=plan.id, number=number, most=most),
            hint="raise budget.maxToolCalls, or do with fewer calls",
            limit=most,
        )


def _check_guarded(plan: Plan) -> None:
    """A gate that cannot be asked refuses."""
    if plan.blocked:
        guilty = plan.blocked.partition(":")[0]
        raise PolicyDenied(plan.blocked, hint=f"correct it, or `tavern plugins disable {guilty}`", plugin=guilty)


def _own_gates(plan: Plan) -> tuple[Implementation, ...]:
    """The gates of the host, which judge alike however often they are asked."""
    return tuple(gate for gate in plan.gates if gate.is_builtin)


def _check_rule(plan: Plan, rule: ApprovalRule) -> None:
    if rule.decision == "deny":
        raise PolicyDenied(f"{plan.id} was refused: {rule.reason}", hint=f"change {rule.place}", rule=rule.place)


def _own_copy(arguments: Mapping[str, Any] | None, tool: str, limit: int) -> dict[str, Any]:
    """The arguments as plain JSON that shares nothing mutable with the caller's.

    Raises:
        InputInvalid: no mapping, no JSON, or too large (INPUT_SCHEMA_INVALID).
    """
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        raise InputInvalid(
            f"{tool} takes named arguments, got {type(arguments).__name__}", hint='pass a mapping: {"name": value}'
        )
    try:
        given = arguments if isinstance(arguments, dict) else dict(arguments)
    except Exception as error:  # a mapping of the caller's own
        raise InputInvalid(
            f"{tool}: the arguments cannot be read: {redact_text(with_type(error))}", hint="pass a dict"
        ) from error
    copy, problem = json_copy(given)
    problem = problem or measure(copy, max_chars=limit)
    if problem is not None:
        raise InputInvalid(f"{tool}: {problem}", hint=problem.hint, problems=[problem.to_json()])
    return copy  # type: ignore[no-any-return]


def _no_context(written: str, given: object) -> CallMisused:
    return CallMisused(
        f"{written}: the context of a call is a CallContext, got {type(given).__name__}",
        hint="pass CallContext(permissions={...}), or CallContext.from_json(...)",
    )


def _input_invalid(plan: Plan, values: Mapping[str, Any], changes: Sequence[Change]) -> InputInvalid:
    return _blamed(_explained(InputInvalid, plan.id, plan.inputs, values, "arguments"), changes)


def _blamed(error: InputInvalid, changes: Sequence[Change]) -> InputInvalid:
    """The error, saying which plugins made the arguments what they are: the caller may have passed good ones."""
    if changes:
        error.details["changedBy"] = [change.plugin for change in changes]
        names = ", ".join(dict.fromkeys(error.details["changedBy"]))
        error.message += f" (the arguments were changed by {names})"
    return error


def _output_invalid(plan: Plan, value: Any) -> OutputInvalid:
    assert plan.outputs is not None
    error = _explained(OutputInvalid, plan.id, plan.outputs, value, "answer")
    error.hint = (
        "report it to the plugin's author"  # the hints of the schema are for who made the value: not the caller
    )
    for problem in error.details["problems"]:
        problem.pop("hint", None)
    error.outcome = "none" if plan.spec.read_only else "done"
    return error


def _explained(kind: type[E], tool: str, validator: Validator, value: Any, what: str) -> E:
    problems = validator.problems(value)
    whole = say(MESSAGES[what])
    told = together(say(MESSAGES["at"], place=p.path or whole, what=p.message) for p in problems[:3])
    told = told or say(MESSAGES["at"], place=whole, what=say(MESSAGES["no_fit"]))
    hints = list(dict.fromkeys(p.hint for p in problems if p.hint))
    error = kind(
        say(MESSAGES["unfit"], tool=tool, what=told), hint=together(hints[:3]), problems=[p.to_json() for p in problems]
    )
    if missing := [p.path[1:] for p in problems if p.keyword == "required"]:
        error.details["missing"] = missing
    return error


def _limit_of(
    plan: Plan | None, context: CallContext | None, outer: Frame | None, clock: float, deadline: float | None
) -> tuple[str, float]:
    """Which limit ended a call, and how many milliseconds it allowed.

    Args:
        deadline: of the call; None: it had none yet, as it waited for an approval.
    """
    ends = []
    if context is not None and context.budget.timeout_ms is not None:
        ends.append((clock + context.budget.timeout_ms / 1000, "budget.timeoutMs"))
    if outer is not None and outer[1] is not None:
        ends.append((outer[1], "what was left to the call that made it"))
    if ends and (deadline is None or plan is None or plan.seconds is None or min(ends)[0] <= deadline + 1e-6):
        end, name = min(ends)
        return name, max(end - clock, 0) * 1000
    own = plan.spec.timeout_ms if plan is not None else None
    return "the tool's timeout" if own else "limits.timeoutMs", (plan.seconds or 0) * 1000 if plan is not None else 0


def _timed_out(
    plan: Plan | None, clock: float, limit: tuple[str, float], *, stopped: bool, outcome: Outcome, begun: bool = True
) -> CallTimeout:
    elapsed = (time.perf_counter() - clock) * 1000
    tool = plan.id if plan else say(MESSAGES["the_call"])
    name, ms = limit
    how = say(MESSAGES["finished_late" if outcome == "done" else "goes_on"])
    if stopped:
        how = say(MESSAGES["stopped" if begun else "not_begun"])
    return CallTimeout(
        say(MESSAGES["late"], tool=tool, limit=name, most=ms, passed=elapsed, how=how),
        hint=f"give it more time ({name}) or ask for less",
        retryable=_harmless(plan) or outcome == "none",
        outcome=outcome,
        stopped=stopped,
        limit=name,
        timeoutMs=round(ms),
        elapsedMs=round(elapsed, 1),
    )


def _harmless(plan: Plan | None) -> bool:
    return plan is not None and plan.spec.read_only


def _outcome(plan: Plan | None, error: BaseException) -> Outcome:
    """What a call may have changed that failed with `error` in its tool; nothing, where it still waited for its turn."""
    return "unknown" if has_begun(error) and not _harmless(plan) else "none"


def _as_call_error(error: BaseException, plan: Plan | None, written: str, *, in_tool: bool) -> CallError:
    """What went wrong, as an error of the tree. What the tool itself raised is UPSTREAM_ERROR; anything else is our fault."""
    if plan is None and not isinstance(written, str):
        return no_text(written)  # it may not even be hashable: what a look-up by it raises says nothing
    name = plan.id if plan else written
    outcome = _outcome(plan, error) if in_tool else "none"
    if isinstance(error, CallError):
        return error
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        how = "cancelled" if isinstance(error, asyncio.CancelledError) else "interrupted"
        return CallCancelled(
            f"{name} was {how}{'' if in_tool and has_begun(error) else ' before it began'}", outcome=outcome
        )
    if not in_tool:
        return InternalError(
            f"{name}: the host failed with {redact_text(with_type(error))}", exception=type(error).__name__
        )
    return UpstreamError(
        f"{name} failed: {with_type(error)}",
        hint="; ".join(notes_of(error))
        or "report it to the plugin's author; the log has the traceback at level DEBUG (`tavern --debug …`)",
        outcome=outcome,
        exception=type(error).__name__,
    )
