"""``tavern approvals``: the calls that wait for approval, and decisions about them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from tavern_core.cli import completion
from tavern_core.cli.errors import NOTHING_FOUND, ReportedExit, print_note
from tavern_core.cli.lazy_groups import Group
from tavern_core.cli.output import json_text
from tavern_core.cli.session import CliSession
from tavern_core.errors import StateDamaged

if TYPE_CHECKING:
    from tavern_core.host.facade import Tavern
    from tavern_core.kernel.calls.pending_approval_store import StoredApproval, StoredApprovalRule
    from tavern_core.model.call import CallContext

_COLUMNS: Final = ("id", "state", "tool", "caller", "risk", "ends in", "why")
_reason = click.option("--reason", default="", metavar="TEXT", help="The reason, for the caller and the log.")
_remember = click.option(
    "--remember",
    type=click.Choice(["call", "tool"]),
    help="Apply the answer from now on: to equal calls, or to every call of this tool by this caller.",
)


@click.group(cls=Group, default="list")
def approvals() -> None:
    """Show the calls that wait for approval, and decide them.

    `tavern approvals` alone lists them.
    """


@approvals.command("list")
@click.option("--all", "everything", is_flag=True, help="Include decided, used and expired ones.")
def list_(session: CliSession, everything: bool) -> None:
    """List the calls that wait, newest first."""
    found = session.host().approvals.list(None if everything else "pending")
    session.show_list(found, _COLUMNS, _row, empty="no call waits for approval")


@approvals.command()
@click.argument("approval", metavar="ID", shell_complete=completion.approvals)
def show(session: CliSession, approval: str) -> None:
    """Show one request: the call with its arguments, its caller, and why it needs approval."""
    found = session.host().approvals.get(approval)
    asked = found.request
    session.show_facts(
        found.to_json(),
        [
            ("id", found.id),
            ("state", found.state),
            ("tool", found.tool),
            ("caller", found.principal),
            ("profile", asked.get("profile") or ""),
            ("risk", asked.get("risk", "")),
            ("capabilities", ", ".join(asked.get("capabilities", ()))),
            ("why", asked.get("reason", "")),
            ("purpose", asked.get("purpose", "")),
            ("arguments", json_text(asked.get("arguments", {}), indent=2)),
            ("ends", found.to_json()["expiresAt"]),
            ("decided by", found.decided_by),
            ("reason", found.reason),
        ],
    )


@approvals.command()
@click.argument("approval", metavar="ID", shell_complete=completion.approvals)
@_reason
@_remember
def approve(session: CliSession, approval: str, reason: str, remember: str | None) -> None:
    """Let a call run once: when its caller repeats it, or in the job that waits for it."""
    _decide(session, approval, True, reason, remember)


@approvals.command()
@click.argument("approval", metavar="ID", shell_complete=completion.approvals)
@_reason
@_remember
def reject(session: CliSession, approval: str, reason: str, remember: str | None) -> None:
    """Refuse a call."""
    _decide(session, approval, False, reason, remember)


@approvals.command()
def rules(session: CliSession) -> None:
    """List the rules that answer later requests."""

    def row(rule: StoredApprovalRule) -> tuple[str, ...]:
        return rule.id, "approve" if rule.approved else "reject", rule.scope, rule.tool, rule.principal, rule.by

    columns = ("id", "answer", "for each", "tool", "caller", "made by")
    session.show_list(session.host().approvals.rules(), columns, row, empty="no rules")


@approvals.command()
@click.argument("rule", metavar="RULE")
def forget(session: CliSession, rule: str) -> None:
    """Remove a rule; its calls need approval again."""
    session.host().approvals.forget(rule)
    session.show({"forgotten": rule}, f"{rule} is forgotten")


def _decide(session: CliSession, approval: str, approved: bool, reason: str, remember: Any) -> None:
    host = session.host()
    store, waiting = host.approvals, host.jobs.list(status="input_required", most=1_000)
    jobs = [job.id for job in waiting if any(question["id"] == approval for question in job.questions)]
    decide = store.approve if approved else store.reject
    found = decide(approval, by=person(), reason=reason, remember=remember or "")
    if session.as_json:
        session.out.json(found.to_json())
    elif approved and jobs:
        for job in jobs:
            session.out.text(f"approved: {found.tool} runs in {job}")
            print_note(f"if no process runs it any more: tavern jobs resume {job}")
    elif approved:
        session.out.text(f"approved: {found.tool} runs when {found.principal} makes the same call again")
        for run in _failed_runs(host, approval):
            print_note(f"to continue its workflow: tavern workflows resume {run}")
    else:
        session.out.text(f"rejected: {found.tool} of {found.principal}")
    if found.state == "expired":
        raise ReportedExit(NOTHING_FOUND)


def _failed_runs(host: Tavern, approval: str) -> list[str]:
    """The runs of workflows that failed because this approval was missing; none where they cannot be read."""
    try:
        failed = [run for run in host.workflows.kept(most=1_000) if run.state == "error"]
    except StateDamaged:
        return []  # the approval stands
    return [run.run_id for run in failed if any(e.get("details", {}).get("approval") == approval for e in run.errors)]


def person() -> CallContext:
    """The user of this home's command line may approve, as the user of the operating system."""
    from tavern_core.kernel.plugins.consent import user_name
    from tavern_core.model.call import CallContext

    user = user_name()
    return CallContext(principal=f"user:{user}", user_id=user, roles=frozenset({"approver"}))


def _row(one: StoredApproval) -> tuple[str, ...]:
    remaining = max(one.until - time.time(), 0)
    expiry = (
        ""
        if one.state not in ("pending", "approved")
        else f"{remaining / 3600:.0f} h"
        if remaining > 5400
        else f"{remaining / 60:.0f} min"
    )
    asked = one.request
    return (
        one.id,
        one.state,
        one.tool,
        one.principal,
        str(asked.get("risk", "")),
        expiry,
        str(asked.get("reason", "")),
    )
