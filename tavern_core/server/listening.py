"""Listening: uvicorn with limits on time and memory that it does not have itself.

- A client that does not send a request in time loses its connection, also if it never sends anything.
- A client that does not read its answer in time loses its connection, too.
- An application can drop a connection at once (`ABORT`).
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol

from tavern_core.frozen_dataclass import dataclass

ABORT: Final = "tavern.abort"
"""In the state of a connection: a function that drops it at once, with what was not sent yet."""
_GRACE_S: Final = 5
"""Seconds that running requests get when the server closes."""
_MOST_FROM_A_WEBSOCKET: Final = 65_536
"""Maximum bytes of one message of a client."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits for each client, and for all clients together."""

    client_s: float = 30.0
    """Seconds that a client may take to send the head of a request, and to read a part of its answer."""
    connections: int = 1_000


class _TimedConnection(asyncio.Protocol):
    """A connection whose client must read in time what it is sent."""

    seconds: float
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _stalled: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._go_on()
        super().connection_lost(exc)

    def _go_on(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()


class _Http(_TimedConnection, H11Protocol):
    """A connection whose requests must arrive in time, too."""

    _late: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.app_state = {**self.app_state, ABORT: transport.abort}
        super().connection_made(transport)
        self._late = self.loop.call_later(self.seconds, self._end_if_late)

    def on_response_complete(self) -> None:
        self._late.cancel()
        self._late = self.loop.call_later(self.seconds, self._end_if_late)
        super().on_response_complete()

    def _end_if_late(self) -> None:
        is_waiting = self.cycle is None or self.cycle.response_complete
        if is_waiting and self.transport.get_protocol() is self:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._late.cancel()
        super().connection_lost(exc)


class _WebSocket(_TimedConnection, WSProtocol):
    """Stops reading from a client while the client does not read: else answers to its pings would fill the memory."""

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.read_paused:
            self.transport.resume_reading()


class _HttpServer(uvicorn.Server):
    """A server whose application ends its streams before the server waits for running requests."""

    def __init__(self, config: uvicorn.Config, on_shutdown: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_shutdown = on_shutdown

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_shutdown()
        await super().shutdown(sockets)


def server(application: Any, limits: ClientLimits, on_shutdown: Callable[[], None] = lambda: None) -> uvicorn.Server:
    """A server that is not running yet.

    Args:
        on_shutdown: called before the server waits for running requests.
    """

    class Http(_Http):
        seconds = limits.client_s

    class WebSocket(_WebSocket):
        seconds = limits.client_s

    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # what hostile clients send would fill a log
    config = uvicorn.Config(
        application,
        http=Http,
        ws=WebSocket,
        ws_max_size=_MOST_FROM_A_WEBSOCKET,
        ws_per_message_deflate=False,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=limits.connections,
        timeout_graceful_shutdown=_GRACE_S,
    )
    return _HttpServer(config, on_shutdown)


async def listen(
    application: Any,
    host: str,
    port: int,
    path: str = "",
    limits: ClientLimits | None = None,
    on_shutdown: Callable[[], None] = lambda: None,
) -> None:
    """Serve until the process is asked to end (SIGINT, SIGTERM). The address is written to stderr.

    Args:
        port: 0 for one that is free.
        path: the path of the application, for the message.

    Raises:
        OSError: the address is not available.
    """
    with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        address = f"{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        sys.stderr.write(f"serving http://{address}{path}; every client shows a token of `tavern tokens`\n")
        sys.stderr.flush()
        with _closing_on_sigterm():
            await server(application, limits or ClientLimits(), on_shutdown).serve(sockets=[listener])


@contextmanager
def _closing_on_sigterm() -> Iterator[None]:
    """While the context is open, SIGTERM raises SystemExit.

    uvicorn sends the signal again after it has ended, and the host must be closed then.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> NoReturn:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
