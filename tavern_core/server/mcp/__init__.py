"""The tools of a host for MCP clients, in both eras of the protocol, over stdio and HTTP.

from tavern_core.server.mcp import asgi_app

app = asgi_app(tavern)          # any ASGI server; takes the tokens of `tavern.tokens`

Needs the extra ``mcp``, which is imported when one of these is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from tavern_core.errors import UsageError

if TYPE_CHECKING:
    from tavern_core.host import Tavern
    from tavern_core.kernel.access.tokens import Token


def asgi_app(tavern: Tavern, *, path: str = "/mcp", hosts: Sequence[str] = (), origins: Sequence[str] = ()) -> Any:
    """An ASGI application that serves a host; each request shows a token of `tavern.tokens`.

    Args:
        tavern: an open host. It must stay open as long as the application runs.
        path: the path of the endpoint.
        hosts: values of ``Host`` to accept besides those of this machine and `mcp.hosts`; ``:*``: any port.
        origins: values of ``Origin`` to accept besides `mcp.origins`.

    Raises:
        UsageError: the extra ``mcp`` is not installed (USAGE).
    """
    _require_library()
    from tavern_core.server.mcp.http import McpApplication

    return McpApplication(tavern, path, tuple(hosts), tuple(origins))


async def serve_stdio(tavern: Tavern, holder: Token, output: TextIO | None = None) -> None:
    """Serve one client over stdin and stdout until it goes away. SIGTERM cancels its calls and raises SystemExit.

    Args:
        tavern: an open host.
        holder: the token with which all calls are made.
        output: where messages are written; None: stdout.

    Raises:
        UsageError: the extra ``mcp`` is not installed (USAGE).
    """
    _require_library()
    from tavern_core.server.mcp.stdio import serve

    await serve(tavern, holder, output)


async def serve_http(tavern: Tavern, host: str, port: int, *, path: str = "/mcp") -> None:
    """Serve over HTTP until the process is asked to end (SIGINT, SIGTERM). The address is written to stderr.

    Args:
        port: 0 for one that is free.

    Raises:
        OSError: the address is not available.
        UsageError: the extra ``server`` is not installed (USAGE).
    """
    _require_library()
    try:
        from tavern_core.server.listening import listen
    except ImportError as error:
        raise UsageError(
            f"serving over HTTP needs the extra server: {error}", hint="pip install 'tavern-core[server]'"
        ) from error
    await listen(asgi_app(tavern, path=path, hosts=(host, f"{host}:*")), host, port, path)


def _require_library() -> None:
    try:
        import mcp.server.lowlevel.server  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"the MCP server needs the extra mcp: {error}", hint="pip install 'tavern-core[mcp]'"
        ) from error
