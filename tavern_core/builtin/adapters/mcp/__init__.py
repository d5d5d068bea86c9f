"""Upstreams of kind `mcp`: servers of the Model Context Protocol, of both eras.

    upstreams:
      clock: {kind: mcp, command: [mcp-server-time]}
      docs: {kind: mcp, url: https://docs.example.org/mcp, headers: {Authorization: {$secret: docs}}}

The protocol is that of the library `mcp`, imported with the first connection. What is ours is everything around it: bytes are counted
before they are parsed (`message_parser.py`), the transports reach a server through the host alone (`stdio.py`, `http.py`), a session lives in a task
of its own (`connection.py`), and what a server sends is read part by part, so that one bad tool or part costs only itself.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from tavern_core.contract.adapters import Connection, Target, Upstream
from tavern_core.errors import SettingsInvalid, ToolFailed

SETTINGS: Final[Mapping[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "roots": {
            "type": "array",
            "items": {"type": "string", "pattern": "^[Ff][Ii][Ll][Ee]://"},
            "description": "Folders (file:///…) that are sent to the server when it asks for roots; none by default.",
        },
        "maxMessageBytes": {
            "type": "integer",
            "minimum": 1_000,
            "maximum": 64_000_000,
            "default": 16_000_000,
            "description": "Bytes of one message of the server.",
        },
        "connectTimeoutMs": {
            "type": "integer",
            "minimum": 1,
            "default": 60_000,
            "description": "How long the server may take to begin: some install themselves first.",
        },
        "scope": {"type": "string", "description": "OAuth: what to ask for; by default what the server names."},
        "clientMetadataUrl": {
            "type": "string",
            "pattern": "^[Hh][Tt][Tt][Pp][Ss]://[^/?#]+/[^?#]",
            "description": "OAuth: address (https://host/path) of a document that says who this client is, for servers that take one.",
        },
        "redirectPort": {
            "type": "integer",
            "minimum": 1,
            "maximum": 65_535,
            "description": "OAuth: the port of this machine that the browser comes back to; by default any that is free.",
        },
        "clientId": {"type": "string", "description": "OAuth: of a client that was registered beforehand."},
        "clientSecret": {"type": "string", "description": "OAuth: of that client.", "x-tavern": {"secret": True}},
    },
}


_OF_LOGINS: Final = ("scope", "clientMetadataUrl", "redirectPort", "clientId", "clientSecret")


class McpAdapter:
    """`contract.adapters.Adapter`."""

    settings: Mapping[str, Any] = SETTINGS
    targets: frozenset[Target] = frozenset({"command", "url"})

    async def connect(self, upstream: Upstream) -> Connection:
        """Start the server or reach it, and agree on a version of the protocol.

        Raises:
            ToolFailed: the library `mcp` is not installed (TOOL_ERROR).
            SettingsInvalid: a setting has no effect on a command (SETTINGS_INVALID).
            CallError: the server cannot be reached or does not speak MCP (outcome ``none``).
        """
        if upstream.command and (useless := [key for key in _OF_LOGINS if key in upstream.settings]):
            place = f"upstreams.{upstream.name}.settings.{useless[0]}"
            raise SettingsInvalid(
                f"{place}: it has no effect without a `url`: a command has no login",
                hint="delete it; a command reads secrets from `environment`",
            )
        return await (await _connection_module()).connected(upstream)  # type: ignore[no-any-return]

    async def log_in(self, upstream: Upstream, show: Callable[[str], None]) -> None:
        """See `contract.adapters.LogsIn`."""
        if not upstream.url:
            return
        connection = await (await _connection_module()).connected(upstream, show)
        try:
            await connection.list_tools()  # some servers answer `initialize` without a login, and nothing else
        finally:
            await connection.close()


async def _connection_module() -> Any:
    """Import the module in a thread, because it takes seconds."""
    try:
        return await asyncio.to_thread(importlib.import_module, f"{__name__}.connection")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise ToolFailed(
            "upstreams of kind mcp need the library mcp", hint="pip install 'tavern-core[mcp]'", fixFor="operator"
        ) from error


adapter = McpAdapter()
