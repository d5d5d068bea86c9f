"""``tavern serve``: the host over HTTP, with its events and MCP. ``tavern mcp``: only its tools, for MCP clients.

The servers are entry points beside this one. They are loaded by name, because entry points do not know each other.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

import click

from tavern_core.cli.call import caller
from tavern_core.cli.session import CliCommand, CliSession, pass_session
from tavern_core.errors import PolicyDenied
from tavern_core.frozen_dataclass import dataclass

if TYPE_CHECKING:
    from tavern_core.kernel.access.tokens import Token


_SERVER: Final = "tavern_core.server"
_MCP_SERVER: Final = "tavern_core.server.mcp"
VARIABLE: Final = "TAVERN_MCP_TOKEN"


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """An address to listen at."""

    host: str
    port: int


def address(ctx: click.Context, param: click.Parameter, value: str | None) -> ListenAddress | None:
    """Callback of an option: its value as an address. Raises BadParameter: it is none."""
    return None if value is None else address_of(value)


def address_of(text: str) -> ListenAddress:
    """The address in a text. Raises BadParameter: it is not an address."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal()) or len(port) > 5 or int(port) > 65_535:
        raise click.BadParameter(f"{text!r} is not a HOST:PORT, for example 127.0.0.1:8765")
    return ListenAddress(host.strip("[]") or "127.0.0.1", int(port))


@click.command(cls=CliCommand)
@click.option(
    "--http", "given", metavar="HOST:PORT", callback=address, help="Where to listen, instead of server.address."
)
@click.option("--insecure", is_flag=True, help="Let other machines connect, although nothing is encrypted.")
@pass_session
def serve(session: CliSession, given: ListenAddress | None, insecure: bool) -> None:
    """Serve the host over HTTP: nodes, tools, calls, jobs, events, MCP.

    Every client needs a token of `tavern tokens create`. Ctrl-C ends the server.
    """
    server: Any = importlib.import_module(_SERVER)
    tavern = session.host(asking=False)
    place = given or address_of(tavern.config.server.address)
    _run(server.serve(tavern, place.host, place.port, insecure=insecure), place)


@click.command(cls=CliCommand)
@click.option("--http", "given", metavar="HOST:PORT", callback=address, help="Serve over HTTP at /mcp.")
@click.option("--permissions", metavar="A,B", help="What the client's calls may use; default: nothing.")
@click.option("--profile", metavar="NAME", help="The agent profile that decides which tools the client has.")
@click.option("--principal", default="mcp:stdio", show_default=True, help="The caller in rules and in the log.")
@pass_session
def mcp(
    session: CliSession, given: ListenAddress | None, permissions: str | None, profile: str | None, principal: str
) -> None:
    """Serve the host's tools to MCP clients.

    Without --http, it serves the client that started it, over stdin and stdout. --permissions and --profile say what
    this client may do, or a token of `tavern tokens create` in $TAVERN_MCP_TOKEN. Over HTTP, every request needs a token.
    """
    server: Any = importlib.import_module(_MCP_SERVER)
    if given is not None:
        if permissions is not None or profile is not None:
            raise click.UsageError("over HTTP each client's token says what it may do: tavern tokens create --help")
        _run(server.serve_http(session.host(asking=False), given.host, given.port), given)
        return
    tavern = session.host(asking=False)
    holder = _holder(tavern, permissions, profile, principal)
    asyncio.run(server.serve_stdio(tavern, holder, session.stdout.stream))


def _holder(tavern: Any, permissions: str | None, profile: str | None, principal: str) -> Token:
    """The token with which the client at stdin calls.

    Raises:
        PolicyDenied: the token of the environment is not valid (POLICY_DENIED).
        ProfileInvalid: the profile cannot be used (PROFILE_INVALID).
        UsageError: the principal is a reserved name of the host, or a permission allows nothing (USAGE).
    """
    from tavern_core.kernel.access.tokens import Token, check_principal, refuse_useless

    if text := os.environ.pop(VARIABLE, ""):  # nothing that is started from here sees it
        if (token := tavern.tokens.verify(text, tavern.config.mcp.audience)) is None:
            raise PolicyDenied(
                f"the token in ${VARIABLE} is not valid here", hint="tavern tokens list, tavern tokens create"
            )
        found: Token = token
        return found
    check_principal(principal)
    if profile is not None:
        tavern.profile(profile)
    context = caller(permissions or "", profile)
    assert context is not None
    refuse_useless(context.permissions)
    return Token("stdio", principal, context.permissions, profile)


def _run(serving: Coroutine[Any, Any, None], place: ListenAddress) -> None:
    """Serve until Ctrl-C. Raises UsageError: the address is not available."""
    try:
        asyncio.run(serving)
    except OSError as error:
        raise click.UsageError(f"cannot listen on {place.host}:{place.port}: {error.strerror or error}") from error
