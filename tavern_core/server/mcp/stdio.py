"""One client over stdin and stdout: what `tavern mcp` serves."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

import anyio
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_REQUEST

from tavern_core.server.mcp.service import Pages, Service

if TYPE_CHECKING:
    from tavern_core.host import Tavern
    from tavern_core.kernel.access.tokens import Token


class _Lines:
    """Where the library writes messages, one a line: pages of lists are put in here."""

    def __init__(self, stream: TextIO, pages: Pages) -> None:
        self._stream = stream.buffer
        self._pages = pages

    async def write(self, text: str) -> None:
        line = text.encode("utf-8", "surrogatepass")
        await anyio.to_thread.run_sync(self._write, self._pages.put_in(line))

    async def flush(self) -> None:
        pass  # each line is flushed where it is written

    def _write(self, line: bytes) -> None:
        self._stream.write(line)
        self._stream.flush()


async def serve(tavern: Tavern, holder: Token, output: TextIO | None) -> None:
    """See `tavern_core.server.mcp.serve_stdio`."""
    service = Service(tavern, tavern.config.mcp)

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncIterator[Token]:
        async with service.watching():
            yield holder

    async def while_valid(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """A token of the host may be revoked, or end, while its client is there."""
        if ctx.request_id is not None and holder.created and not await tavern.tokens.still_holds(holder):
            raise MCPError(INVALID_REQUEST, "the token of this client is not valid any more")
        return await call_next(ctx)

    server = service.server(lifespan)
    server.middleware.append(while_valid)
    lines = cast("anyio.AsyncFile[str]", _Lines(output or sys.stdout, service.pages))
    async with stdio_server(None, lines) as (reading, writing):  # what tools start finds an empty stdin
        await server.run(reading, writing, server.create_initialization_options())
