"""The caller of a run: its stored form, and the caller for resuming the run.

A run belongs to its caller. It is resumed with the permissions that this caller had at its start, limited to those
that it has today: the lists of the host, of its profile and of the plugins are checked again, as for every run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tavern_core.errors import PolicyDenied, StateDamaged, TavernError, UsageError
from tavern_core.model.call import Budget, CallContext, restored_context, stored_context
from tavern_core.model.capability import covers
from tavern_core.model.capability_scope import common
from tavern_core.model.untrusted_content_rules import stricter

_HOST: Final[Mapping[str, Any]] = {"host": True}
_WHO: Final = (
    "principal",
    "user_id",
    "agent_id",
    "agent_account_id",
    "profile",
    "roles",
    "workspace_dir",
    "agent_dir",
    "sandboxed",
)
"""The fields that identify one caller, including the folder of `$workspace` in a scope."""


def caller_to_json(caller: CallContext, host: CallContext, limit: frozenset[str] | None) -> dict[str, Any]:
    """A caller as stored with its run; without `config` and `session_key`, which may hold secrets.

    Args:
        host: the caller that represents the host itself.
        limit: what the caller's profile currently allows; None: everything.
    """
    if caller is host:
        return dict(_HOST)
    effective = caller.permissions if limit is None else _both(caller.permissions, limit)
    return {**stored_context(replace(caller, permissions=effective)), "calls": caller.ledger.drawn}


def caller_from_json(run_id: str, data: Mapping[str, Any] | None, drawn: int, host: CallContext) -> CallContext:
    """The caller that a run was stored with.

    Args:
        drawn: calls of its budget that its journal counts.

    Raises:
        UsageError: the run was stored without its caller, or with one that held a secret (USAGE).
        StateDamaged: the stored data is not a caller (STATE_DAMAGED).
    """
    if data is None:
        raise UsageError(
            f"{run_id} was stored without its caller, so its rights are unknown",
            hint=f"run the workflow again, with your own rights: run(workflow, inputs, again={run_id!r})",
        )
    if data == _HOST:
        return host
    try:
        reported = dict(data)
        calls = reported.pop("calls")
        if type(calls) is not int or not {"principal", "permissions", "budget"} <= reported.keys():
            raise UsageError("a caller has a principal, permissions, a budget and a number of calls")
        if not isinstance(reported["budget"], Mapping):
            raise UsageError("its budget is none")
        return restored_context(reported, max(calls, drawn))
    except (TavernError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateDamaged(
            f"the caller that {run_id} was stored with is corrupt: {error}", hint="start the workflow again"
        ) from error


def taken_up_as(run_id: str, caller: CallContext, resumer: CallContext | None, host: CallContext) -> CallContext:
    """The caller with which a run is resumed.

    Args:
        caller: the one it was stored with.
        resumer: the caller that resumes it; None: the host, which adds no permissions.

    Raises:
        PolicyDenied: it belongs to another caller (POLICY_DENIED).
    """
    if resumer is None:
        return caller
    judge_owner(run_id, caller, resumer, host)
    scopes = dict(caller.scopes)
    for name, scope in resumer.scopes.items():
        scopes[name] = (common(name, scopes.get(name), scope) or ()) if name in scopes else scope
    resumer_budget, caller_budget = resumer.budget, caller.budget
    remaining = (
        None
        if caller_budget.max_tool_calls is None
        else resumer.ledger.drawn + max(0, caller_budget.max_tool_calls - caller.ledger.drawn)
    )
    budget = Budget(
        _least(resumer_budget.timeout_ms, caller_budget.timeout_ms),
        _least(resumer_budget.max_retries, caller_budget.max_retries),
        _least(resumer_budget.max_tool_calls, remaining),
    )
    resumer.ledger.content_read.take_over(caller.ledger.content_read)
    return replace(
        resumer, permissions=_both(caller.permissions, resumer.permissions), scopes=scopes, budget=budget,
        after_untrusted=stricter(caller.after_untrusted, resumer.after_untrusted),
    )  # fmt: skip


def judge_owner(run_id: str, caller: CallContext, other: CallContext, host: CallContext) -> None:
    """Refuse a run of another caller. Raises PolicyDenied (POLICY_DENIED)."""
    differs = (
        "principal"
        if caller is host or caller.is_host is not other.is_host
        else next((name for name in _WHO if getattr(caller, name) != getattr(other, name)), "")
    )
    if differs:
        raise PolicyDenied(
            f"{run_id} belongs to another caller: its {differs} is not yours",
            hint="its own caller resumes it, or the host: leave `context` out", missing=[], side="caller",
        )  # fmt: skip


def _both(one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
    """The intersection of two sets of permissions."""
    return frozenset({name for name in one if covers(other, name)} | {name for name in other if covers(one, name)})


def _least(one: int | None, other: int | None) -> int | None:
    return min((number for number in (one, other) if number is not None), default=None)
