"""Turns whatever ends a call into an error of the tree in `errors.py`, with its message in English or Chinese.

`MESSAGES` also has the messages of the other modules that refuse calls.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from tavern_core.errors import (
    CallCancelled,
    CallError,
    CallMisused,
    CallTimeout,
    ConnectionLost,
    InternalError,
    Outcome,
    UpstreamError,
)
from tavern_core.kernel.calls.running_call import RunningCall
from tavern_core.kernel.catalogue.call_plan import CallPlan
from tavern_core.kernel.execution.sync_async_drivers import (
    CancelledWhileRunning,
    StoreTimeout,
    TimeLimit,
    cancellations,
    has_begun,
)
from tavern_core.kernel.registry import no_text
from tavern_core.model.message_translation import Row, joined, say
from tavern_core.model.result import ToolResult
from tavern_core.model.safe_printing import notes_of, with_type
from tavern_core.schema.redact import redact_text
from tavern_core.schema.validate import Validator

E = TypeVar("E", bound=CallError)
_LOG: Final = logging.getLogger("tavern.calls")
_EARLY_S: Final = 0.001
"""Maximum time by which a timer may fire before its deadline."""
_MOST_FRAMES: Final = 30
"""The innermost frames; an endless recursion has a thousand."""


def error_of(error: BaseException, call: RunningCall) -> CallError:
    """Turns any error on the path of a call into a CallError with the step in `details.stage`."""
    if isinstance(error, TimeLimit):
        outcome = _outcome(call.plan, error)
        failed: CallError = timed_out(call, stopped=error.stopped, outcome=outcome, begun=error.begun)
        if isinstance(error, StoreTimeout):
            failed.hint = "the store of this host did not answer: look after the server of state.store"
    else:
        in_tool = call.has_begun
        is_lost = (
            isinstance(error, asyncio.CancelledError)
            and in_tool
            and not call.is_cancelled
            and cancellations() <= call.cancellations
        )
        if is_lost and call.deadline is not None and time.perf_counter() > call.deadline - _EARLY_S:
            # The enclosing call's deadline, which is also this call's, passed just before its own timer fired.
            stopped = not isinstance(error, CancelledWhileRunning)
            failed = timed_out(call, stopped=stopped, outcome=_outcome(call.plan, error), begun=has_begun(error))
        elif is_lost:
            failed = _lost(error, call)
        elif in_tool and isinstance(error, CallTimeout) and not error.details and call.seconds == 0:
            # The tool saw it first (`ToolContext.check`).
            outcome = _outcome(call.plan, error) if error.outcome == "unknown" else error.outcome
            failed = timed_out(call, stopped=True, outcome=outcome)
        else:
            failed = _as_call_error(error, call.plan, call.written, in_tool=in_tool)
        if isinstance(error, CancelledWhileRunning):
            failed.details["stopped"] = False
    if call.is_unsure and failed.outcome == "none":
        failed.outcome = "unknown"
    failed.details.setdefault("stage", call.stage)
    return failed


def _lost(error: BaseException, call: RunningCall) -> ConnectionLost:
    """The tool's awaited work was cancelled, but neither the caller nor the operator requested that."""
    assert call.plan is not None
    outcome = _outcome(call.plan, error)
    return ConnectionLost(
        f"{call.plan.id}: what it awaited was cancelled without a request: the code that ran it has ended",
        hint="look at `outcome` before you repeat the call",
        retryable=outcome == "none" or call.plan.spec.idempotent,
        outcome=outcome,
    )


def no_context(written: str, given: object) -> CallMisused:
    return CallMisused(
        f"{written}: the context of a call is a CallContext, got {type(given).__name__}",
        hint="pass CallContext(permissions={...}), or CallContext.from_json(...)",
    )


def no_texts(written: str) -> CallMisused:
    return CallMisused(
        f"{written}: purpose and idempotency key of a call are text", hint='purpose="why", idempotency_key="a name"'
    )


def explained(kind: type[E], tool: str, validator: Validator, value: Any, what: str) -> E:
    problems = validator.problems(value)
    default_place = say(MESSAGES[what])
    reported = joined(
        MESSAGES["also"], (say(MESSAGES["at"], place=p.path or default_place, what=p.message) for p in problems[:3])
    )
    reported = reported or say(MESSAGES["at"], place=default_place, what=say(MESSAGES["no_fit"]))
    hints = list(dict.fromkeys(p.hint for p in problems if p.hint))
    error = kind(
        say(MESSAGES["unfit"], tool=tool, what=reported),
        hint=joined(MESSAGES["also"], hints[:3]),
        problems=[p.to_json() for p in problems],
    )
    if missing := [p.path[1:] for p in problems if p.keyword == "required"]:
        error.details["missing"] = missing
    return error


def _limit_of(call: RunningCall) -> tuple[str, float]:
    """The limit that ended a call, and how many milliseconds it allowed."""
    if call.limit is not None:
        return call.limit
    plan, context, outer, clock, deadline = call.plan, call.context, call.outer, call.clock, call.deadline
    limits = []
    if context is not None and context.budget.timeout_ms is not None:
        limits.append((clock + context.budget.timeout_ms / 1000, "budget.timeoutMs"))
    if outer is not None and outer.deadline is not None:
        limits.append((outer.deadline, "what was left to the call that made it"))
    if limits and (
        deadline is None or plan is None or plan.bounds.seconds is None or min(limits)[0] <= deadline + 1e-6
    ):
        end, name = min(limits)
        return name, max(end - clock, 0) * 1000
    tool_timeout = plan.spec.timeout_ms if plan is not None else None
    seconds = None if plan is None else plan.bounds.seconds
    return "the tool's timeout" if tool_timeout else "limits.timeoutMs", (seconds or 0) * 1000


def timed_out(call: RunningCall, *, stopped: bool, outcome: Outcome, begun: bool = True) -> CallTimeout:
    """The error of a call whose time is over.

    Args:
        stopped: whether its work has ended, or never began.
    """
    plan = call.plan
    elapsed = (time.perf_counter() - call.clock) * 1000
    tool = plan.id if plan else say(MESSAGES["the_call"])
    name, ms = _limit_of(call)
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


def _harmless(plan: CallPlan | None) -> bool:
    return plan is not None and plan.spec.read_only


def _outcome(plan: CallPlan | None, error: BaseException) -> Outcome:
    """The possible changes by a call that failed with `error`; none if it had not started."""
    return "unknown" if has_begun(error) and not _harmless(plan) else "none"


def _as_call_error(error: BaseException, plan: CallPlan | None, written: str, *, in_tool: bool) -> CallError:
    """An error of the tree: UPSTREAM_ERROR for the tool's own exception, else an internal error of the host."""
    if plan is None and not isinstance(written, str):
        return no_text(written)  # the name may not be hashable: an error of the look-up means the same
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


def log_origin(result: ToolResult, error: BaseException) -> None:
    """Log the place at which the error of a tool was raised, at level DEBUG, for its author.

    Frames and source lines only: the values may be secret, and the message in the result is redacted already.
    """
    if result.error is not None and _LOG.isEnabledFor(logging.DEBUG):
        frames = traceback.format_tb(error.__traceback__, limit=-_MOST_FRAMES)
        _LOG.debug("%s\nTraceback (most recent call last):\n%s", result.error.message, "".join(frames).rstrip())


# Quoted in the Chinese messages: reasons and names of limits, which are in English.
MESSAGES: Final[Mapping[str, Row]] = {
    "unfit": ("{tool}: {what}", "{tool}：{what}"),
    "at": ("{place}: {what}", "{place}：{what}"),
    "also": ("{one}; {other}", "{one}；{other}"),
    "arguments": ("the arguments", "参数"),
    "answer": ("the answer", "结果"),
    "no_fit": ("did not fit the schema", "不符合要求"),
    "too_deep": (
        "the call of {tool} is nested {depth} tools deep; the limit is {most}",
        "{tool} 的调用嵌套了 {depth} 层；上限是 {most}",
    ),
    "over_budget": (
        "{tool} would be call {number} of this request; the budget allows {most}",
        "{tool} 将是此请求的第 {number} 次调用；限额是 {most} 次",
    ),
    "needs_approval": ("{tool} needs approval: {reason}", "{tool} 需要批准（{reason!r}）"),
    "after_untrusted": (
        "{who} wants to call {tool} after it has read untrusted content ({sources}), and {what}",
        "{who} 读取了不可信内容（{sources}），现在要调用 {tool}，{what}",
    ),
    "it_writes": ("it writes", "它会写入"),
    "it_sends": ("it sends", "它会向外发送"),
    "it_destroys": ("it destroys", "它会删除或破坏"),
    "it_starts": ("it starts a program", "它会启动程序"),
    "it_unknown": ("its upstream may do anything", "上游可能做任何事"),
    "it_reads": ("it reads an address that is new: {address}", "它要访问一个此前没有出现过的地址：{address}"),
    "late": (
        "{tool} did not finish in time ({limit}: {most:.0f} ms; {passed:.0f} ms passed): {how}",
        "{tool} 没有按时完成（上限 {most:.0f} ms；已过 {passed:.0f} ms；{limit!r}）：{how}",
    ),
    "finished_late": ("it finished too late", "它完成了，但已超时"),
    "goes_on": ("it could not be stopped and may still be running", "无法停止它，它可能仍在运行"),
    "stopped": ("it was stopped", "它已被停止"),
    "not_begun": ("it had not started", "它还没有开始"),
    "the_call": ("the call", "此调用"),
}
