"""Whether the server runs, and whether its host can take calls: for supervisors and load balancers."""

from __future__ import annotations

from typing import Final

from starlette.responses import PlainTextResponse, Response

from tavern_core.server.api.exchange import Exchange

_NO_ONES: Final = f"tvn_{'0' * 12}_{'0' * 43}"
"""A token that does not exist, so that looking for it reads the store."""


async def alive(exchange: Exchange) -> Response:
    """The server runs."""
    return PlainTextResponse("ok\n")


async def ready(exchange: Exchange) -> Response:
    """The host's store answers, without which no token can be checked. Raises StateDamaged: it does not (STATE_DAMAGED)."""
    await exchange.tavern.tokens.verified(_NO_ONES)
    return PlainTextResponse("ready\n")
