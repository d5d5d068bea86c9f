"""Requests approval of one frozen call (SECURITY §1, FEATURES G12).

    no approver is reachable      APPROVAL_REQUIRED, and the request is stored for an answer later (`pending_approval_store.py`)
    refused, too late, an error   APPROVAL_REJECTED: only a plain yes approves
    the caller's deadline passed  TIMEOUT

Each request and each answer is recorded. The callback gets copies and cannot change the call.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, Final

from tavern_core.errors import ApprovalRejected, ApprovalRequired, CallError, PolicyDenied, StateDamaged
from tavern_core.kernel.calls.call_errors import MESSAGES
from tavern_core.kernel.calls.pending_approval_store import StoredApprovals
from tavern_core.kernel.calls.running_call import SingleUse
from tavern_core.kernel.calls.taint_tracking import AFTER_READING
from tavern_core.kernel.catalogue.call_plan import CallPlan
from tavern_core.kernel.execution.portal import Portal
from tavern_core.kernel.execution.sync_async_drivers import (
    ExecutionMode,
    InlineMode,
    LoopMode,
    TimeLimit,
    cancellations,
)
from tavern_core.kernel.execution.threads import ThreadPool
from tavern_core.kernel.hooks.argument_copies import copy_json
from tavern_core.kernel.hooks.hook_calls import RequestedApproval
from tavern_core.kernel.log.recorder import Recorder
from tavern_core.kernel.stores.store_offload import ask_raising
from tavern_core.model.approval import Approval, ApprovalRequest, Approver
from tavern_core.model.call import ToolCall
from tavern_core.model.capability import RISKS, Risk, describe
from tavern_core.model.event import APPROVAL_DECIDED, APPROVAL_REQUESTED, Event
from tavern_core.model.message_translation import say
from tavern_core.model.plain_data import json_digest
from tavern_core.model.safe_printing import printed
from tavern_core.model.tool import ToolSpec

_MOST_AT_ONCE: Final = 64
"""Synchronous callbacks that may wait at the same time. Each has a thread; one that never returns keeps its thread."""
_MOST_REMEMBERED: Final = 1_000
_UNCHANGED: Final = "do not repeat it unchanged"
waiting: Final[ContextVar[Callable[[], AbstractContextManager[object]] | None]] = ContextVar(
    "tavern_waiting", default=None
)
"""Entered while an approval is awaited, by callers that do not count that time (agents)."""


class Approvals:
    """Calls the host's callback.

    Args:
        approver: the callback; None: there is none.
        seconds: how long an answer may take.
        stored: holds requests that the callback cannot answer.
    """

    def __init__(
        self, approver: Approver | None, seconds: float, recorder: Recorder, portal: Portal, stored: StoredApprovals
    ) -> None:
        self.stored = stored
        self._approver = approver
        self._seconds = seconds
        self._recorder = recorder
        self._workers = ThreadPool(_MOST_AT_ONCE, "tavern-approval")
        self._loop_mode = LoopMode(self._workers, self._workers)
        self._inline_mode = InlineMode(self._workers, portal)
        self._remembered: dict[tuple[int, str], tuple[Any, Approval]] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Let idle threads end."""
        self._workers.close()

    async def _answered(
        self, call: ToolCall, request: ApprovalRequest, mode: ExecutionMode, seconds: float
    ) -> tuple[Approval, str, str]:
        """The approver's answer, how it was obtained, and the hint for a rejection."""
        began, waits = time.perf_counter(), waiting.get()
        try:
            with waits() if waits is not None else nullcontext():
                return _answer(await self._ask(request, mode, seconds), request.fingerprint), "answered", _UNCHANGED
        except TimeLimit:
            hint = "ask again, or raise approval.timeoutMs in tavern.yaml"
            return Approval(False, f"no answer within {seconds:g} s"), "timeout", hint
        except asyncio.CancelledError:
            given_up = Approval(False, "the call was cancelled")
            self._decided(call, request, given_up, time.perf_counter() - began, "cancelled")
            raise
        except _CallbackFailed as failed:
            hint = "correct the callback that Tavern.open(approve=...) was given"
            return Approval(False, failed.message), "error", hint

    async def obtain(
        self,
        plan: CallPlan,
        call: ToolCall,
        requested: RequestedApproval,
        mode: ExecutionMode,
        left: float | None,
        emit: Callable[[Event], Any],
    ) -> SingleUse | None:
        """Return when `call` is approved.

        Args:
            requested: which plugin requests the approval, and why.
            left: seconds left of the caller's time limit for the whole call; None: no limit.
            emit: awaited with each event, for observers.

        Returns:
            The stored approval that this call, or an earlier one with its key, used up; None: none was stored.

        Raises:
            ApprovalRequired: no approver is reachable now; the request is stored (APPROVAL_REQUIRED).
            ApprovalRejected: it was refused, no answer came in time, or the callback failed (APPROVAL_REJECTED).
            PolicyDenied: the request cannot be recorded and audit.required is set (POLICY_DENIED).
            TimeLimit: the caller's time limit passed first.
        """
        mark, entered = fingerprint(call, plan.spec), time.perf_counter()
        seconds = self._seconds if left is None else min(self._seconds, left)
        request = _request(plan, call, requested, mark, time.time() + seconds)
        facts = {**requested.details, "plugin": requested.by, "fingerprint": mark, "risk": request.risk}
        definition = _definition(plan, requested)
        known = self._recalled(plan, mark + definition)
        if known is None:
            known = await ask_raising(mode, self.stored.records, self._ruled, call, mark, definition, seconds=left)
        if known is not None:
            await emit(self._decided(call, request, known, 0.0, "remembered"))
            _judge(known, request, facts)
            return None
        if self._approver is None:
            end = None if left is None else entered + left
            return await self._settle_later(definition, call, request, facts, mode, emit, end)
        await emit(self._requested(call, request))
        began = time.perf_counter()
        answer, how, hint = await self._answered(call, request, mode, seconds)
        if how == "timeout":
            facts["timedOut"] = True
        if answer.remember:
            self._remember(plan, mark + definition, answer)
        await emit(self._decided(call, request, answer, time.perf_counter() - began, how))
        if how == "timeout" and left is not None and left < self._seconds:
            raise TimeLimit(stopped=True, begun=False)  # the tool has not started, whatever the callback does later
        _judge(answer, request, facts, hint)
        return None

    async def _settle_later(
        self,
        definition: str,
        call: ToolCall,
        request: ApprovalRequest,
        facts: dict[str, Any],
        mode: ExecutionMode,
        emit: Callable[[Event], Any],
        end: float | None,
    ) -> SingleUse | None:
        """Use the stored answer, or store a request to be answered later."""
        why = say(MESSAGES["needs_approval"], tool=request.tool, reason=request.reason)
        try:
            answer, used_up = await ask_raising(
                mode, self.stored.records, self.stored.use_or_request, call, request, definition, why, _details(facts, request.tool),
                seconds=None if end is None else max(end - time.perf_counter(), 0), undo=self.stored.give_back,
            )  # fmt: skip
        except ApprovalRequired:
            await emit(self._requested(call, request))
            raise
        except StateDamaged as error:
            raise ApprovalRequired(why, hint=error.hint, **_details(facts, request.tool)) from error
        await emit(self._decided(call, request, answer, 0.0, "stored"))
        _judge(answer, request, facts)
        return used_up

    def _ruled(self, call: ToolCall, mark: str, definition: str, *, is_run: bool = True) -> Approval | None:
        try:
            return self.stored.ruled(call, mark, definition, is_run=is_run)
        except StateDamaged:
            return None  # approval is requested, as without rules

    def check_possible(self, plan: CallPlan, call: ToolCall, requested: RequestedApproval) -> None:
        """Return if an approver can be asked, or has approved the call.

        Raises:
            ApprovalRequired: there is no answer yet; the request is stored (APPROVAL_REQUIRED).
            ApprovalRejected: it was refused (APPROVAL_REJECTED).
        """
        mark, definition = fingerprint(call, plan.spec), _definition(plan, requested)
        answer = self._recalled(plan, mark + definition) or self._ruled(call, mark, definition, is_run=False)
        if answer is None and self._approver is not None:
            return
        request = _request(plan, call, requested, mark, time.time() + self._seconds)
        if answer is None:
            why = say(MESSAGES["needs_approval"], tool=plan.id, reason=requested.reason)
            answer = self.stored.check(call, request, definition, why, {"tool": plan.id})
        _judge(answer, request, {})

    async def _ask(self, request: ApprovalRequest, mode: ExecutionMode, seconds: float) -> Any:
        """The callback's answer. A callback that raises or exits has failed."""
        own_mode: ExecutionMode = self._inline_mode if isinstance(mode, InlineMode) else self._loop_mode
        approver = self._approver
        assert approver is not None
        until, before = time.monotonic() + seconds, cancellations()
        try:
            if inspect.iscoroutinefunction(approver) or inspect.iscoroutinefunction(
                getattr(approver, "__call__", None)  # noqa: B004
            ):
                answer: Any = approver(request)
            else:
                answer = await own_mode.guarded(approver, request, seconds=seconds)
            return (
                await own_mode.awaited(answer, max(until - time.monotonic(), 0))
                if inspect.isawaitable(answer)
                else answer
            )
        except (TimeLimit, KeyboardInterrupt):
            raise
        except asyncio.CancelledError as error:
            if cancellations() > before:
                raise
            raise _CallbackFailed(error) from error
        except BaseException as error:
            raise _CallbackFailed(error) from error

    def _recalled(self, plan: CallPlan, mark: str) -> Approval | None:
        with self._lock:
            kept = self._remembered.get((id(plan.usage), mark))
        return kept[1] if kept is not None else None

    def _remember(self, plan: CallPlan, mark: str, answer: Approval) -> None:
        """Store an answer as long as the plugin is loaded, so that the plugin's identity is not reused."""
        with self._lock:
            if len(self._remembered) >= _MOST_REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[id(plan.usage), mark] = plan.usage, answer

    # The record -------------------------------------------------------------------------------------------------------

    def _requested(self, call: ToolCall, request: ApprovalRequest) -> Event:
        data = {
            "tool": request.tool, **call.context.whose(), "door": request.door, "reason": request.reason, "by": request.asked_by,
            "risk": request.risk, "fingerprint": request.fingerprint, "arguments": dict(request.arguments),
        }  # fmt: skip
        event, is_recorded = self._recorder.about_approval(APPROVAL_REQUESTED, call.id, data, request.plugin)
        if not is_recorded:
            raise PolicyDenied(
                f"{request.tool} was refused: its request for approval cannot be recorded and audit.required is set",
                hint="make room for the audit log, or set audit.required: false",
            )
        return event

    def _decided(self, call: ToolCall, request: ApprovalRequest, answer: Approval, seconds: float, how: str) -> Event:
        data: dict[str, Any] = {
            "tool": request.tool, "approved": answer.approved, "how": how, "fingerprint": request.fingerprint,
            "waitedMs": round(seconds * 1000, 1),
        }  # fmt: skip
        if answer.by:
            data["by"] = answer.by
        if answer.reason:
            data["reason"] = answer.reason
        if answer.remember:
            data["remember"] = True
        return self._recorder.about_approval(APPROVAL_DECIDED, call.id, data, request.plugin)[0]


_WHO_ELSE: Final = ("user_id", "agent_id", "workspace_dir", "agent_dir")
"""The facts that distinguish callers besides principal and profile; relative paths begin at these folders."""


class _CallbackFailed(Exception):
    """The callback ended without an answer."""

    def __init__(self, error: BaseException | str) -> None:
        said = error if isinstance(error, str) else f"failed with {printed(error)}"
        self.message = f"the approval callback {said}"[:500]
        super().__init__(self.message)


def fingerprint(call: ToolCall, spec: ToolSpec) -> str:
    """An identifier of exactly this call: tool and version, caller, base of its paths, all arguments."""
    who = call.context
    whole: list[Any] = [spec.id, spec.version, who.principal, who.profile, call.arguments]
    if more := {name: value for name in _WHO_ELSE if (value := getattr(who, name))}:
        whole.append(more)
    return f"sha256:{json_digest(whole, is_compact=True)}"


def definition_of(spec: ToolSpec) -> str:
    """An identifier of the tool's definition: everything but its location."""
    data = spec.to_json()
    del data["source"]
    return json_digest(data)[:32]


def _definition(plan: CallPlan, requested: RequestedApproval) -> str:
    """The definition that an approval covers: that of the tool, and whether its caller has read untrusted content.

    An answer from before the caller read that content must not approve what the content asks for.
    """
    return definition_of(plan.spec) + (f"+{requested.by}" if requested.by == AFTER_READING else "")


def risk_of(spec: ToolSpec) -> Risk:
    """The highest risk among the tool's capabilities; medium for a tool that declares none."""
    found: list[Risk] = [describe(capability).risk for capability in spec.capabilities]
    return max(found, key=RISKS.index, default="low" if spec.read_only else "medium")


def _request(
    plan: CallPlan, call: ToolCall, requested: RequestedApproval, mark: str, expires_at: float
) -> ApprovalRequest:
    spec, redact = plan.spec, plan.redact
    reason = redact(requested.reason)
    if reason == requested.reason:  # a message that has two languages keeps both
        reason = requested.reason
    return ApprovalRequest(
        call.id, spec.id, spec.plugin, call.context.principal, redact(call.arguments), mark, reason, requested.by,
        risk_of(spec), expires_at, redact(call.purpose), call.door, call.context.profile, tuple(sorted(spec.capabilities)),
        redact(copy_json(dict(requested.details))),
    )  # fmt: skip


def _answer(answer: Any, mark: str) -> Approval:
    if answer is True or answer is False:
        return Approval(answer)
    if isinstance(answer, Approval) and isinstance(answer.approved, bool):
        if answer.fingerprint not in ("", mark):
            raise _CallbackFailed("answered about another call")
        return answer
    raise _CallbackFailed(f"answered {type(answer).__name__}, which is neither True, False nor an Approval")


def _judge(answer: Approval, request: ApprovalRequest, facts: dict[str, Any], hint: str = _UNCHANGED) -> None:
    if answer.approved is True:
        return
    by = f" by {answer.by}" if answer.by else ""
    why = f": {answer.reason}" if answer.reason else ""
    if answer.by:
        facts["decidedBy"] = answer.by
    raise ApprovalRejected(f"{request.tool} was not approved{by}{why}", hint=hint, **_details(facts, request.tool))


def _details(facts: dict[str, Any], tool: str) -> dict[str, Any]:
    """Facts for an error, without the names that its constructor sets itself."""
    taken = set(inspect.signature(CallError.__init__).parameters)
    return {**{name: value for name, value in facts.items() if name not in taken}, "tool": tool}
