"""A host of real plugins behind a real HTTP server, in a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from subprocess import PIPE
from typing import Any

import anyio
import uvicorn
from mcp.server.stdio import stdio_server

from tavern_core import Tavern
from tavern_core.server.mcp import asgi_app
from tests.forked_programs import NETWORK, ForkedProgram


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config, ready: threading.Event) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self._ready.set()


def with_token(app: Any, text: str) -> Any:
    """An application that shows a token with every request: for clients that know none."""

    async def shown(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope = {**scope, "headers": [*scope["headers"], (b"authorization", f"Bearer {text}".encode())]}
        await app(scope, receive, send)

    return shown


@contextmanager
def served(
    open_host: Callable[[], Tavern], prepare: Callable[[Tavern], Any] = lambda tavern: asgi_app(tavern)
) -> Iterator[tuple[str, Tavern]]:
    """Serve a host; its address and the host.

    Args:
        prepare: makes the application.
    """
    ready = threading.Event()
    found: dict[str, Any] = {}
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    async def run() -> None:
        async with open_host() as tavern:
            # A client that pauses on a busy machine keeps its connection.
            config = uvicorn.Config(
                prepare(tavern), log_level="error", timeout_graceful_shutdown=1, timeout_keep_alive=120
            )
            server = _Server(config, ready)
            found.update(tavern=tavern, server=server)
            await server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield f"http://127.0.0.1:{port}/mcp", found["tavern"]
    finally:
        found["server"].should_exit = True
        thread.join(20)
        listener.close()


@asynccontextmanager
async def over_stdio(words: Sequence[object], **options: Any) -> AsyncIterator[Any]:
    """The streams of a client of `python WORDS`, a server over stdio that is forked: the client of the library would start a new process.

    Args:
        options: further ones of `ForkedProgram`.
    """
    with ForkedProgram(words, stdin=PIPE, stdout=PIPE, imports=NETWORK, **options) as server:
        # The lines of a client are those of a server, in the other direction.
        try:
            async with stdio_server(anyio.wrap_file(server.stdout), anyio.wrap_file(server.stdin)) as streams:
                try:
                    yield streams
                finally:
                    await streams[1].aclose()
                    server.stdin.close()
        except* anyio.BrokenResourceError:
            pass  # the server said something when its client had gone
