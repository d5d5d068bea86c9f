"""Admits a call: determines its caller, depth, deadline and budget, and makes the ToolCall that hooks and the log see."""

from __future__ import annotations

from dataclasses import replace

from tavern_core.errors import BudgetExceeded, CallMisused, PolicyDenied
from tavern_core.kernel.access.approval_rules import ApprovalRule
from tavern_core.kernel.calls.messages import MESSAGES
from tavern_core.kernel.calls.running_call import RunningCall
from tavern_core.kernel.calls.untrusted_content import is_watched
from tavern_core.kernel.catalogue.call_plan import Plan
from tavern_core.kernel.plugins.effective_scopes import narrowed
from tavern_core.model.call import CallContext, ToolCall, call_of
from tavern_core.model.language import say


def admit(plan: Plan, call: RunningCall, deepest: int) -> CallContext:
    """Find out who calls, how deep, and until when.

    Args:
        deepest: how many calls may be within each other (`limits.depth`).

    Raises:
        BudgetExceeded: too deep, or too many calls (BUDGET_EXCEEDED).
    """
    seconds, outer, context = plan.seconds, call.outer, call.context
    if outer is not None:
        depth, deadline, caller, _, _ = outer
        call.depth = depth + 1
        check_depth(plan, call.depth, deepest)
        # A tool that calls a tool does so for its own caller, never with more rights.
        context = context or caller
        if deadline is not None:
            left = deadline - call.clock
            seconds = left if seconds is None else min(left, seconds)
    if context is None:
        context = plan.host
    budget = context.budget
    if budget.timeout_ms is not None:
        own = budget.timeout_ms / 1000
        seconds = own if seconds is None else min(own, seconds)
    call.context = context
    if is_watched(context, outer):
        call.reads = {}
    if budget.max_tool_calls is not None:
        check_budget(plan, context, context.ledger.draw())
    if seconds is not None:
        call.deadline = call.clock + seconds
    return context


def check_depth(plan: Plan, depth: int, deepest: int) -> None:
    """
    Raises:
        BudgetExceeded: too many calls are within each other (BUDGET_EXCEEDED).
    """
    if depth > deepest:
        raise BudgetExceeded(
            say(MESSAGES["too_deep"], tool=plan.id, depth=depth, most=deepest),
            hint="a tool probably calls itself; else raise limits.depth",
            limit=deepest,
        )


def check_budget(plan: Plan, context: CallContext, number: int) -> None:
    """
    Raises:
        BudgetExceeded: it is one call too many for this caller (BUDGET_EXCEEDED).
    """
    most = context.budget.max_tool_calls
    if most is not None and number > most:
        raise BudgetExceeded(
            say(MESSAGES["over_budget"], tool=plan.id, number=number, most=most),
            hint="raise budget.maxToolCalls, or do with fewer calls",
            limit=most,
        )


def check_rule(plan: Plan, rule: ApprovalRule) -> None:
    """
    Raises:
        PolicyDenied: the operator's rule denies the tool (POLICY_DENIED).
    """
    if rule.decision == "deny":
        raise PolicyDenied(f"{plan.id} was refused: {rule.reason}", hint=f"change {rule.place}", rule=rule.place)


def tool_call(plan: Plan, call: RunningCall, context: CallContext, series: str) -> ToolCall:
    """The call as hooks, executors and the log see it.

    Args:
        series: start of the call ids of this host.

    Raises:
        CallMisused: purpose or idempotency key is not text (USAGE).
        PolicyDenied: a plugin with a granted gate could not be activated, so the gate refuses
            (POLICY_DENIED).
    """
    purpose, key = call.purpose, call.key
    if type(purpose) is not str or (key is not None and type(key) is not str):
        raise CallMisused(
            f"{plan.id}: purpose and idempotency key of a call are text",
            hint='purpose="why", idempotency_key="a name"',
        )
    if plan.blocked:
        guilty = plan.blocked.partition(":")[0]
        raise PolicyDenied(plan.blocked, hint=f"correct it, or `tavern plugins disable {guilty}`", plugin=guilty)
    rights = plan.rights if context is plan.host else replace(plan.rights, caller=context.permissions)
    if context.scopes:
        rights = narrowed(rights, context)
    parent = call.outer[3] if call.outer else None
    number = f"{series}-{call.number:x}"
    return call_of(plan.id, call.values or {}, context, number, purpose, key, call.depth, call.door, parent, rights)
