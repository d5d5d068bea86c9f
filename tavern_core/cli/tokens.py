"""``tavern tokens``: tokens of callers from other processes, and the permissions of each."""

from __future__ import annotations

from typing import Any, Final

import click

from tavern_core.cli import completion
from tavern_core.cli.inputs import NOT_EMPTY, POSITIVE, separated
from tavern_core.cli.lazy_groups import Group
from tavern_core.cli.session import CliSession

_COLUMNS: Final = ("id", "name", "principal", "permissions", "profile", "roles", "approver", "audience", "expires")


@click.group(cls=Group, default="list")
def tokens() -> None:
    """Create, list and revoke tokens for callers from other processes.

    `tavern tokens` alone lists them.
    """


@tokens.command()
@click.argument("principal")
@click.option("--permissions", default="", metavar="A,B", help="What its calls may use; default: nothing.")
@click.option("--profile", type=NOT_EMPTY, metavar="NAME", help="The agent profile that decides which tools it has.")
@click.option(
    "--role", "roles", type=NOT_EMPTY, multiple=True, metavar="NAME", help="A role of the caller; several are allowed."
)
@click.option("--user", "user_id", type=NOT_EMPTY, metavar="ID", help="The user on whose behalf it calls.")
@click.option(
    "--approver", type=NOT_EMPTY, metavar="PRINCIPAL", help="The person at the client, who may approve its calls."
)
@click.option(
    "--audience",
    type=NOT_EMPTY,
    metavar="NAME",
    help="Servers that accept it; default: `mcp.audience` of the configuration.",
)
@click.option("--name", type=NOT_EMPTY, help="What the token is for; a note for people.")
@click.option("--days", type=POSITIVE, metavar="N", help="How long it is valid; default: until it is revoked.")
def create(
    session: CliSession, /, principal: str, permissions: str, profile: str | None, audience: str | None, **more: Any
) -> None:
    """Create a token for PRINCIPAL, for example agent:claude.

    Its text is shown only once.
    """
    tavern = session.host("none")
    if profile is not None:
        tavern.profile(profile)
    token, text = tavern.tokens.create(
        principal,
        permissions=separated(permissions),
        profile=profile,
        audience=audience or tavern.config.mcp.audience,
        **{name: value for name, value in more.items() if value is not None},
    )
    session.show({**token.to_json(), "token": text}, text)


@tokens.command("list")
def list_(session: CliSession) -> None:
    """List the valid tokens, newest first."""

    def row(token: dict[str, Any]) -> tuple[Any, ...]:
        return *(token[column] for column in _COLUMNS[:-1]), token["expiresAt"] or "never"

    found = [token.to_json() for token in session.host("none").tokens.list()]
    session.show_list(found, _COLUMNS, row, empty="there are no tokens")


@tokens.command()
@click.argument("token", metavar="ID", shell_complete=completion.tokens)
def revoke(session: CliSession, token: str) -> None:
    """Revoke a token, at once and in every process."""
    session.host("none").tokens.revoke(token)
    session.show({"revoked": token}, f"{token} is no longer valid")
