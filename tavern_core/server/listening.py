"""Listening: uvicorn with limits on time and memory that it does not have itself.

- A client that does not send a request in time loses its connection, also if it never sends anything.
- A client that does not read what it asked for is not read any more either.
- An application can drop a connection at once (`ABORT`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol

from tavern_core.frozen import dataclass

ABORT: Final = "tavern.abort"
"""In the state of a connection: a function that drops it at once, with what was not sent yet."""
_GRACE_S: Final = 5
"""How long running requests get when the server closes."""
_MOST_FROM_A_WEBSOCKET: Final = 65_536
"""Bytes of one message of a client."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What all clients together and each of them may use."""

    request_s: float = 30.0
    """How long the head of a request may take."""
    connections: int = 1_000


class _Http(H11Protocol):
    """A connection whose requests must arrive in time."""

    seconds: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.app_state = {**self.app_state, ABORT: transport.abort}
        super().connection_made(transport)
        self._late = self.loop.call_later(self.seconds, self._end_if_late)

    def data_received(self, data: bytes) -> None:
        was_waiting = self._is_waiting()
        super().data_received(data)
        if not was_waiting and self._is_waiting():
            self._watch()

    def on_response_complete(self) -> None:
        self._watch()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._late.cancel()
        super().connection_lost(exc)

    def _is_waiting(self) -> bool:
        """Whether the client is to send a request."""
        return self.cycle is None or self.cycle.response_complete

    def _watch(self) -> None:
        self._late.cancel()
        self._late = self.loop.call_later(self.seconds, self._end_if_late)

    def _end_if_late(self) -> None:
        if self._is_waiting() and self.transport.get_protocol() is self:
            self.transport.abort()


class _WebSocket(WSProtocol):
    """A connection that is not read while its client does not read: else its pings would fill the memory with pongs."""

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.read_paused:
            self.transport.resume_reading()


class _Server(uvicorn.Server):
    """A server whose application ends its endless answers first."""

    def __init__(self, config: uvicorn.Config, on_shutdown: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_shutdown = on_shutdown

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_shutdown()
        await super().shutdown(sockets)


def server(application: Any, limits: Limits, on_shutdown: Callable[[], None] = lambda: None) -> uvicorn.Server:
    """A server that is not running yet.

    Args:
        on_shutdown: called before the server waits for running requests.
    """
    http = type("_HttpInTime", (_Http,), {"seconds": limits.request_s})
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # what hostile clients send would fill a log
    config = uvicorn.Config(
        application,
        http=http,
        ws=_WebSocket,
        ws_max_size=_MOST_FROM_A_WEBSOCKET,
        ws_per_message_deflate=False,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=limits.connections,
        timeout_graceful_shutdown=_GRACE_S,
    )
    return _Server(config, on_shutdown)


async def listen(
    application: Any,
    host: str,
    port: int,
    path: str = "",
    limits: Limits | None = None,
    on_shutdown: Callable[[], None] = lambda: None,
) -> None:
    """Serve until the process is asked to end (SIGINT, SIGTERM). The address is written to stderr.

    Args:
        port: 0 for one that is free.
        path: of what is served, for the message.

    Raises:
        OSError: the address cannot be had.
    """
    with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        address = f"{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        sys.stderr.write(f"serving http://{address}{path}; every client shows a token of `tavern tokens`\n")
        sys.stderr.flush()
        await server(application, limits or Limits(), on_shutdown).serve(sockets=[listener])
