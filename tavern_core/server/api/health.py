"""Whether the server lives, and whether its host can take calls: for whoever starts and watches it."""

from __future__ import annotations

import asyncio

from starlette.responses import PlainTextResponse, Response

from tavern_core.server.api.exchange import Exchange


async def alive(exchange: Exchange) -> Response:
    """The server runs."""
    return PlainTextResponse("ok\n")


async def ready(exchange: Exchange) -> Response:
    """The host's store answers, without which no token can be checked. Raises StateDamaged: it does not (STATE_DAMAGED)."""
    await asyncio.to_thread(exchange.tavern.tokens.list)
    return PlainTextResponse("ready\n")
