"""Admits a call: determines its caller, depth, deadline and budget, and makes the ToolCall that hooks and the log see.

Its arguments are copied, filled with defaults, and validated against the tool's schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tavern_core.errors import BudgetExceeded, InputInvalid, PolicyDenied
from tavern_core.kernel.access.approval_rules import ApprovalRule
from tavern_core.kernel.calls.background_call_request import is_made_again
from tavern_core.kernel.calls.call_errors import MESSAGES, explained, no_context, no_texts
from tavern_core.kernel.calls.running_call import RunningCall
from tavern_core.kernel.calls.taint_tracking import is_watched
from tavern_core.kernel.catalogue.call_plan import CallPlan
from tavern_core.kernel.log.call_changes import CallChange
from tavern_core.kernel.plugins.effective_scopes import narrow_rights
from tavern_core.model.call import CallContext, ToolCall, call_of, with_arguments
from tavern_core.model.message_translation import say
from tavern_core.model.safe_printing import with_type
from tavern_core.schema.bounded_json_copying import json_copy, measure
from tavern_core.schema.redact import redact_text


def check_types(call: RunningCall) -> None:
    """Check the types of the context and of texts.

    Raises:
        CallMisused: what should be a context, or a text, is something else (USAGE).
    """
    context, purpose, key = call.context, call.purpose, call.key
    if context is not None and not isinstance(context, CallContext):
        call.context = None
        raise no_context(call.written, context)
    if type(purpose) is not str or (key is not None and type(key) is not str):
        call.purpose, call.key = "", None
        raise no_texts(call.written)


def admit(plan: CallPlan, call: RunningCall, deepest: int, ahead: int | None = None) -> CallContext:
    """Determine the caller, the depth and the deadline of a call.

    Args:
        deepest: how deep calls may be nested (`limits.depth`).
        ahead: how many calls come before this one, which is only previewed; None: it is made now, and counts.

    Raises:
        BudgetExceeded: too deep, or too many calls (BUDGET_EXCEEDED).
    """
    seconds, outer, context = plan.bounds.seconds, call.outer, call.context
    call.depth = 0 if outer is None else outer.depth + 1
    if outer is not None:
        check_depth(plan, call.depth, deepest)
        # A nested call runs for the caller of the enclosing call, and never with more rights.
        context = context or outer.caller
        if (deadline := outer.deadline) is not None:
            remaining = deadline - call.clock
            seconds = remaining if seconds is None else min(remaining, seconds)
    if context is None:
        context = plan.admission.host
    budget = context.budget
    if budget.timeout_ms is not None:
        budget_s = budget.timeout_ms / 1000
        seconds = budget_s if seconds is None else min(budget_s, seconds)
    call.context = context
    if is_watched(context, outer):
        call.reads = {}
    if budget.max_tool_calls is not None:
        if is_made_again.get():
            is_made_again.set(False)
        else:
            check_budget(plan, context, context.ledger.draw() if ahead is None else context.ledger.drawn + ahead + 1)
    call.deadline = None if seconds is None else call.clock + seconds
    return context


def check_depth(plan: CallPlan, depth: int, deepest: int) -> None:
    """Check the depth of a call.

    Raises:
        BudgetExceeded: calls are nested too deeply (BUDGET_EXCEEDED).
    """
    if depth > deepest:
        raise BudgetExceeded(
            say(MESSAGES["too_deep"], tool=plan.id, depth=depth, most=deepest),
            hint="a tool probably calls itself; else raise limits.depth",
            limit="limits.depth",
            most=deepest,
        )


def check_budget(plan: CallPlan, context: CallContext, number: int) -> None:
    """Check that the caller's budget allows a further call.

    Raises:
        BudgetExceeded: the caller has made all the calls that its budget allows (BUDGET_EXCEEDED).
    """
    most = context.budget.max_tool_calls
    if most is not None and number > most:
        raise BudgetExceeded(
            say(MESSAGES["over_budget"], tool=plan.id, number=number, most=most),
            hint="raise budget.maxToolCalls, or do with fewer calls",
            limit="budget.maxToolCalls",
            most=most,
        )


def check_rule(plan: CallPlan, rule: ApprovalRule) -> None:
    """Check that the operator's rule does not deny a call.

    Raises:
        PolicyDenied: the operator's rule denies the tool (POLICY_DENIED).
    """
    if rule.decision == "deny":
        raise PolicyDenied(f"{plan.id} was refused: {rule.reason}", hint=f"change {rule.place}", rule=rule.place)


def tool_call(plan: CallPlan, call: RunningCall, context: CallContext, series: str) -> ToolCall:
    """The call as hooks, executors and the log see it.

    Args:
        series: start of the call ids of this host.

    Raises:
        PolicyDenied: a plugin with a granted gate could not be activated, so the gate refuses
            (POLICY_DENIED).
    """
    admission = plan.admission
    if admission.blocked:
        guilty = admission.blocked.partition(":")[0]
        raise PolicyDenied(admission.blocked, hint=f"correct it, or `tavern plugins disable {guilty}`", plugin=guilty)
    rights = admission.rights
    if context is not admission.host:
        rights = replace(rights, caller=context.permissions)
    if context.scopes:
        rights = narrow_rights(rights, context)
    parent = call.outer.call_id if call.outer else None
    number = f"{series}-{call.number:x}"
    return call_of(
        plan.id, call.values or {}, context, number, call.purpose, call.key, call.depth, call.door, parent, rights
    )


def take(plan: CallPlan, call: RunningCall, limit: int) -> None:
    """Copy the caller's arguments as plain JSON: with the plan's quick `intake`, if it can.

    Args:
        limit: characters of text allowed.

    Raises:
        InputInvalid: not a mapping, not JSON, or too large (INPUT_SCHEMA_INVALID).
    """
    values = plan.arguments.intake(call.arguments)
    call.is_validated = plan.arguments.intake_judges and values is not None
    call.values = own_copy(call.arguments, plan.id, limit) if values is None else values


def take_changed(plan: CallPlan, call: RunningCall, changed: Mapping[str, Any], limit: int) -> None:
    """Copy the arguments as hooks changed them.

    Raises:
        InputInvalid: as for `take`; names the plugins that changed them.
    """
    try:
        call.values = own_copy(changed, plan.id, limit)
    except InputInvalid as error:
        raise _blamed(error, call.changes or ()) from None
    call.is_validated = False


def fill_and_validate(plan: CallPlan, call: RunningCall) -> None:
    """Add the defaults of the schema, then validate; whole numbers become integers: 2.0 is 2.

    Raises:
        InputInvalid: the arguments do not fit (INPUT_SCHEMA_INVALID), with the location and repair of every problem.
    """
    values, rules = call.values or {}, plan.arguments
    if rules.fill is not None:
        values = call.values = rules.fill(values)
    if not call.is_validated:
        if not rules.validator.accepts(values):
            raise _blamed(explained(InputInvalid, plan.id, rules.validator, values, "arguments"), call.changes or ())
        if rules.whole is not None:
            values = call.values = rules.whole(values)
    if call.call is not None and call.call.arguments is not values:
        call.call = with_arguments(call.call, values)


def give_copy(plan: CallPlan, call: RunningCall, limit: int) -> None:
    """Give the tool its own copy if the host reads the arguments again afterwards."""
    given = None if call.values is None else plan.arguments.intake(call.values)
    call.tool_arguments = own_copy(call.values, plan.id, limit) if given is None else given
    call.call_for_tool = call.call and with_arguments(call.call, call.tool_arguments)


def own_copy(arguments: Mapping[str, Any] | None, tool: str, limit: int) -> dict[str, Any]:
    """The arguments as plain JSON that shares nothing mutable with the caller's.

    Raises:
        InputInvalid: not a mapping, not JSON, or too large (INPUT_SCHEMA_INVALID).
    """
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        raise InputInvalid(
            f"{tool} takes named arguments, got {type(arguments).__name__}", hint='pass a mapping: {"name": value}'
        )
    try:
        mapping = arguments if isinstance(arguments, dict) else dict(arguments)
    except Exception as error:  # a mapping class of the caller may raise anything
        raise InputInvalid(
            f"{tool}: the arguments cannot be read: {redact_text(with_type(error))}", hint="pass a dict"
        ) from error
    copy, problem = json_copy(mapping)
    problem = problem or measure(copy, max_chars=limit)
    if problem is not None:
        raise InputInvalid(f"{tool}: {problem}", hint=problem.hint, problems=[problem.to_json()])
    return copy  # type: ignore[no-any-return]


def _blamed(error: InputInvalid, changes: Sequence[CallChange]) -> InputInvalid:
    """The error with the names of the plugins that changed the arguments: the caller's own may have been valid."""
    if changes:
        error.details["changedBy"] = [change.plugin for change in changes]
        names = ", ".join(dict.fromkeys(error.details["changedBy"]))
        error.message += f" (the arguments were changed by {names})"
    return error
