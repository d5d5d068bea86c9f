"""Entry points for other processes: an HTTP API with events, and an MCP server. Like the command line, they translate and decide nothing.

from tavern_core.server import app

application = app(tavern)       # any ASGI server; takes the tokens of `tavern.tokens`

Needs the extra ``server``, which is imported when one of these is called.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tavern_core.errors import UsageError

if TYPE_CHECKING:
    from tavern_core.host import Tavern


def app(tavern: Tavern, *, hosts: Sequence[str] = (), origins: Sequence[str] = ()) -> Any:
    """An ASGI application that serves a host: its API, its events and MCP. It may be mounted in another one.

    Args:
        tavern: an open host. It must stay open as long as the application runs.
        hosts: values of ``Host`` to accept besides those of this machine and `server.hosts`; ``:*``: any port.
        origins: values of ``Origin`` to accept besides `server.origins`.

    Raises:
        UsageError: the extra ``server`` is not installed (USAGE).
    """
    try:
        from tavern_core.server.api.application import ApiApplication
    except ImportError as error:
        raise UsageError(
            f"the server needs the extra server: {error}", hint="pip install 'tavern-core[server]'"
        ) from error
    return ApiApplication(tavern, tuple(hosts), tuple(origins))


async def serve(tavern: Tavern, host: str, port: int, *, insecure: bool = False) -> None:
    """Serve a host until the process is asked to end (SIGINT, SIGTERM). The address is written to stderr.

    Args:
        port: 0 for one that is free.
        insecure: let other machines connect although nothing is encrypted.

    Raises:
        OSError: the address is not available.
        UsageError: other machines could connect and `insecure` is not set, or the extra ``server`` is not installed (USAGE).
    """
    if not insecure and not _is_loopback(host):
        raise UsageError(
            f"{host} can be reached from other machines, and nothing that is sent is encrypted",
            hint="listen on 127.0.0.1 behind a proxy with TLS, or pass --insecure",
        )
    application = app(tavern, hosts=(host, f"{host}:*") if _is_loopback(host) else ())
    from tavern_core.server.listening import ClientLimits, listen

    config = tavern.config.server
    limits = ClientLimits(config.client_ms / 1000, config.connections)
    await listen(application, host, port, "", limits, application.feed.close)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
