"""``tavern plugins grant | revoke``: the decision of the operator about the requests of a plugin.

A person gives consent at a terminal or by naming each permission; no option grants everything unread.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from tavern_core.cli import completion
from tavern_core.cli.errors import DENIED, ReportedExit, print_note, print_problem
from tavern_core.cli.plugin_status_lookup import status_of
from tavern_core.cli.review import HEADINGS, nothing_asked, request_rows, sentence_of
from tavern_core.cli.session import CliSession, command

if TYPE_CHECKING:
    from tavern_core.host import Tavern


@command()
@click.argument("name", shell_complete=completion.plugins)
@click.argument("permissions", nargs=-1, shell_complete=completion.permissions)
def grant(session: CliSession, name: str, permissions: tuple[str, ...]) -> None:
    """Grant what a plugin requests.

    Shows the requests by risk. Without PERMISSIONS, it asks about each on a terminal, and refuses (exit code 3) elsewhere.
    Patterns such as 'hook:*' are expanded now; danger:* must be named in full.
    """
    host = session.host("none", deciding=True)
    status = status_of(host, name)
    session.out.table(HEADINGS, request_rows(host.review(name)), empty=nothing_asked(status))
    if permissions:
        host.grant(name, *permissions)
    elif status.requested or host.review(name).waits:
        _ask(host, name)
    status = host.plugins[name]
    session.show(status.to_json(), f"{name} may use: {', '.join(sorted(status.granted)) or 'nothing'}")
    if status.reason:
        session.out.text(f"{name} is {status.state}: {status.reason}")


@command()
@click.argument("name", shell_complete=completion.plugins)
@click.argument("permissions", nargs=-1, shell_complete=completion.permissions)
def revoke(session: CliSession, name: str, permissions: tuple[str, ...]) -> None:
    """Revoke the named grants, or all of them. They are refused from now on."""
    host = session.host("none", deciding=True)
    status_of(host, name)
    host.revoke(name, *permissions)
    status = host.plugins[name]
    session.show(status.to_json(), f"{name} may use: {', '.join(sorted(status.granted)) or 'nothing'}")


def _ask(host: Tavern, name: str) -> None:
    """Ask about each undecided request."""
    review = host.review(name)
    open_ = [request for request in review.requests() if request.state == "pending"]
    if not open_:
        print_note("all its requests are decided; name permissions to change that")
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        message = f"there is no grant for {name}: run the command on a terminal, or name the permissions"
        print_problem("error", "POLICY_DENIED", message, review.command)
        raise ReportedExit(DENIED)
    granted: list[str] = []
    refused: list[str] = []
    for request in open_:
        permission = request.permission
        text = f"{permission.id} ({permission.risk}): {sentence_of(request)}. Grant it? [y]es, [n]o, [l]ater"
        answer = click.prompt(text, type=click.Choice(["y", "n", "l"]), default="l", show_choices=False, err=True)
        {"y": granted, "n": refused}.get(answer, []).append(permission.id)
    if granted:
        host.grant(name, *granted)
    if refused:
        host.refuse(name, *refused)
