"""A host of real plugins behind a real HTTP server, in a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from tavern_core import Tavern
from tavern_core.server.mcp import asgi_app


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
    ready, found = threading.Event(), {}
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    async def run() -> None:
        async with open_host() as tavern:
            config = uvicorn.Config(prepare(tavern), log_level="error", timeout_graceful_shutdown=1)
            server = uvicorn.Server(config)
            found.update(tavern=tavern, server=server)
            serving = asyncio.ensure_future(server.serve(sockets=[listener]))
            while not server.started and not serving.done():
                await asyncio.sleep(0.01)
            ready.set()
            await serving

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield f"http://127.0.0.1:{port}/mcp", found["tavern"]
    finally:
        found["server"].should_exit = True
        thread.join(20)
        listener.close()
