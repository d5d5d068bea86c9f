"""``tavern serve``: the host over HTTP, with its events over SSE and WebSocket, and MCP."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any, Final

import click

from tavern_core.cli.address import Address, address, address_of
from tavern_core.cli.session import Command, Session, pass_session

SERVER: Final = "tavern_core.server"
"""The entry point beside this one; it is loaded by name, because entry points do not know each other."""


@click.command(cls=Command)
@click.option(
    "--http", "given", metavar="HOST:PORT", callback=address, help="Where to listen, instead of server.address."
)
@click.option("--insecure", is_flag=True, help="Let other machines connect, although nothing is encrypted.")
@pass_session
def serve(session: Session, given: Address | None, insecure: bool) -> None:
    """Serve the host over HTTP: nodes, tools, calls, jobs, events, MCP.

    Every client needs a token of `tavern tokens create`. Ctrl-C ends the server.
    """
    server: Any = importlib.import_module(SERVER)
    tavern = session.host(asking=False)
    place = given or address_of(tavern.config.server.address)
    try:
        asyncio.run(server.serve(tavern, place.host, place.port, insecure=insecure))
    except OSError as error:
        raise click.UsageError(f"{place.host}:{place.port} cannot be had: {error.strerror or error}") from error
