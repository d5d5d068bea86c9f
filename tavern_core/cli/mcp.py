"""``tavern mcp``: the tools of the host for an MCP client, over stdin and stdout or over HTTP."""

from __future__ import annotations

import asyncio
import importlib
import os
from typing import TYPE_CHECKING, Any, Final

import click

from tavern_core.cli.address import Address, address
from tavern_core.cli.call import caller
from tavern_core.cli.session import Command, Session, pass_session
from tavern_core.errors import PolicyDenied

if TYPE_CHECKING:
    from tavern_core.kernel.access.tokens import Token

SERVER: Final = "tavern_core.server.mcp"
"""The entry point beside this one; it is loaded by name, because entry points do not know each other."""
VARIABLE: Final = "TAVERN_MCP_TOKEN"


@click.command(cls=Command)
@click.option("--http", "given", metavar="HOST:PORT", callback=address, help="Serve over HTTP at /mcp.")
@click.option("--permissions", metavar="A,B", help="What the client's calls may use; default: nothing.")
@click.option("--profile", metavar="NAME", help="The agent profile that decides which tools the client has.")
@click.option("--principal", default="mcp:stdio", show_default=True, help="The caller in rules and in the log.")
@pass_session
def mcp(session: Session, given: Address | None, permissions: str | None, profile: str | None, principal: str) -> None:
    """Serve the host's tools to MCP clients.

    Without --http, it serves one client over stdin and stdout: the one that started it. --permissions and --profile say what
    this client may do, or a token of `tavern tokens create` in $TAVERN_MCP_TOKEN. Over HTTP, every request needs a token.
    """
    server: Any = importlib.import_module(SERVER)
    if given is not None:
        if permissions is not None or profile is not None:
            raise click.UsageError("over HTTP each client's token says what it may do: tavern tokens create --help")
        tavern = session.host(asking=False)
        try:
            asyncio.run(server.serve_http(tavern, given.host, given.port))
        except OSError as error:
            raise click.UsageError(f"{given.host}:{given.port} cannot be had: {error.strerror or error}") from error
        return
    tavern = session.host(asking=False)
    holder = _holder(tavern, permissions, profile, principal)
    asyncio.run(server.serve_stdio(tavern, holder, session.stdout.stream))


def _holder(tavern: Any, permissions: str | None, profile: str | None, principal: str) -> Token:
    """As whom the client at stdin calls.

    Raises:
        PolicyDenied: the token of the environment does not hold (POLICY_DENIED).
        ProfileInvalid: the profile cannot be used (PROFILE_INVALID).
        UsageError: the principal is a name of the host's own (USAGE).
    """
    from tavern_core.kernel.access.tokens import Token, check_principal

    if text := os.environ.pop(VARIABLE, ""):  # nothing that is started from here sees it
        if (token := tavern.tokens.verify(text, tavern.config.mcp.audience)) is None:
            raise PolicyDenied(
                f"the token in ${VARIABLE} does not hold here", hint="tavern tokens list, tavern tokens create"
            )
        found: Token = token
        return found
    check_principal(principal)
    if profile is not None:
        tavern.profile(profile)
    context = caller(permissions or "", profile)
    assert context is not None
    return Token("stdio", principal, context.permissions, profile)
