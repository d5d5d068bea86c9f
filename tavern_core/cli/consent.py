"""``tavern plugins grant | revoke | lock``: what a plugin asks for, and the decision of the operator.

Consent is given by a person at a terminal, or by naming each permission; there is no option that grants everything unread.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from tavern_core.cli.errors import DENIED, NOTHING_FOUND, Told, tell, tell_plainly
from tavern_core.cli.output import one_line
from tavern_core.cli.session import Command, Session, json_option, pass_session
from tavern_core.cli.status import status_of

if TYPE_CHECKING:
    from tavern_core.host import Tavern
    from tavern_core.model.plugin import PluginStatus

_RISKS: Final = ("highest", "high", "medium", "low")
_HEADINGS: Final = ("permission", "risk", "state", "what it lets the plugin do")


@click.command(cls=Command)
@click.argument("name")
@click.argument("permissions", nargs=-1)
@json_option
@pass_session
def grant(session: Session, name: str, permissions: tuple[str, ...], as_json: bool) -> None:
    """Grant what a plugin asks for.

    Shows the requests by risk. Without PERMISSIONS it asks about each on a terminal, and refuses (exit code 3) elsewhere.
    Patterns such as 'hook:*' are expanded now; danger:* must be named in full.
    """
    host = session.host("none")
    status = status_of(host, name)
    if not as_json:
        session.out.table(_HEADINGS, diff_rows(host, status), empty=f"{name} asks for nothing")
    if permissions:
        host.grant(name, *permissions)
    elif status.requested:
        _ask(host, status)
    status = host.plugins[name]
    if as_json:
        session.out.json(status.to_json())
    else:
        session.out.text(f"{name} may use: {', '.join(sorted(status.granted)) or 'nothing'}")
        if status.reason:
            session.out.text(f"{name} is {status.state}: {status.reason}")


@click.command(cls=Command)
@click.argument("name")
@click.argument("permissions", nargs=-1)
@json_option
@pass_session
def revoke(session: Session, name: str, permissions: tuple[str, ...], as_json: bool) -> None:
    """Take grants back, all of them when none is named; they are refused from now on."""
    host = session.host("none")
    status_of(host, name)
    host.revoke(name, *permissions)
    status = host.plugins[name]
    if as_json:
        session.out.json(status.to_json())
    else:
        session.out.text(f"{name} may use: {', '.join(sorted(status.granted)) or 'nothing'}")


@click.command(cls=Command)
@json_option
@pass_session
def lock(session: Session, as_json: bool) -> None:
    """Print the lock file: what every plugin was granted, by whom and when; exit code 5 when there is none."""
    from tavern_core.kernel.grants.grant_store import GrantStore
    from tavern_core.kernel.grants.lock_file import render_lock
    from tavern_core.kernel.life.consent import lock_path

    path = lock_path(session.loaded())
    grants = GrantStore(path).read()
    if grants.is_damaged:
        from tavern_core.errors import StateDamaged

        raise StateDamaged(f"{path} is damaged", hint="correct it by hand", findings=grants.findings)
    tell_plainly(str(path))
    if as_json:
        session.out.json({"path": str(path), "plugins": {n: _record_json(r) for n, r in sorted(grants.records.items())}})
    elif grants.records:
        session.out.text(render_lock(grants.records))
    else:
        tell_plainly("nothing was granted or refused yet")
        raise Told(NOTHING_FOUND)


def diff_rows(host: Tavern, status: PluginStatus) -> list[tuple[str, str, str, str]]:
    """What a plugin asks for against what it was granted, the riskiest first."""
    from tavern_core.contract.permissions import describe_permission

    is_chinese = any(os.environ.get(v, "").startswith("zh") for v in ("LC_ALL", "LC_MESSAGES", "LANG"))
    facts, decision, reasons = host.review(status.name)
    rows = []
    for permission in facts.requested:
        row = describe_permission(permission)
        state = "refused" if permission in decision.refused else "granted"
        state = "pending" if permission in decision.undecided else state
        text = row.sentence_zh if is_chinese else row.sentence
        text += f" ({', '.join(scope)})" if (scope := facts.scopes.get(permission)) else ""
        text += f' - the plugin says: "{one_line(reasons[permission])}"' if permission in reasons else ""
        rows.append((permission, row.risk, state, text))
    return sorted(rows, key=lambda row: (_RISKS.index(row[1]), row[0]))


def _ask(host: Tavern, status: PluginStatus) -> None:
    """Ask about each request that nobody decided on."""
    open_ = [row for row in diff_rows(host, status) if row[2] == "pending"]
    if not open_:
        tell_plainly("everything it asks for is decided; name permissions to change that")
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        names = " ".join(row[0] for row in open_)
        message = f"nothing was granted to {status.name}: consent needs a terminal, or the permissions by name"
        tell("error", "POLICY_DENIED", message, f"tavern plugins grant {status.name} {names}")
        raise Told(DENIED)
    granted: list[str] = []
    refused: list[str] = []
    for permission, risk, _, sentence in open_:
        text = f"{permission} ({risk}): {sentence}. Grant it? [y]es, [n]o, [l]ater"
        answer = click.prompt(text, type=click.Choice(["y", "n", "l"]), default="l", show_choices=False, err=True)
        {"y": granted, "n": refused}.get(answer, []).append(permission)
    if granted:
        host.grant(status.name, *granted)
    if refused:
        host.refuse(status.name, *refused)


def _record_json(record: Any) -> dict[str, Any]:
    return {
        "version": record.version,
        "manifestHash": record.manifest_hash,
        "artifactHash": record.artifact_hash,
        "requested": sorted(record.requested),
        "granted": sorted(record.granted),
        "refused": sorted(record.refused),
        "scopes": {name: list(scope) for name, scope in sorted(record.scopes.items())},
        "grantedAt": record.granted_at,
        "grantedBy": record.granted_by,
    }
