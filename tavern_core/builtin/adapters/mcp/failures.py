"""Errors of a server as errors of a call: what the caller can do about them, and what may have happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
)

from tavern_core.errors import CallError, CallTimeout, InputInvalid, Outcome, ToolFailed, ToolNotFound, UpstreamError

_MOST: Final = 2_000
_REFUSED: Final = frozenset({INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, MISSING_REQUIRED_CLIENT_CAPABILITY})
"""Codes with which a server says that it has not begun."""
_SERVER_ERROR: Final = CONNECTION_CLOSED
"""Servers use it for any error. The library also uses it for a lost answer, with the texts of `_LOST`."""
_LOST: Final = ("SSE stream ", "Connection closed")


class AnswerLost(MCPError):
    """The answer to one request was lost. The loss of a whole connection is reported by its transport."""

    def __init__(self, why: str) -> None:
        super().__init__(CONNECTION_CLOSED, why)


def text_of(value: object, most: int = _MOST) -> str:
    """A text of a server, cut to `most` characters; empty for anything else."""
    return value[:most] if isinstance(value, str) else ""


def failure_of(error: MCPError, what: str, tool: str = "") -> CallError:
    """The error of a call for a JSON-RPC error.

    Args:
        what: the request to the server, for the message.
        tool: the tool that was called; empty: none.
    """
    reason, code = text_of(error.message) or "it gives no reason", error.code
    if isinstance(error, AnswerLost) or (code == CONNECTION_CLOSED and reason.startswith(_LOST)):
        return UpstreamError(f"{what}: the answer broke off: {reason}", outcome="unknown", retryable=True)
    if code == REQUEST_TIMEOUT:
        return CallTimeout(f"{what}: no answer in time: {reason}", outcome="unknown", retryable=True)
    if tool and (code == METHOD_NOT_FOUND or (code == INVALID_PARAMS and is_unknown_tool(reason, tool))):
        return ToolNotFound(
            f"the server has no tool {tool!r:.200} any more: {reason}", hint="`tavern upstreams refresh` lists again"
        )
    if tool and code == INVALID_PARAMS:
        hint = "change the arguments as it says"
        return InputInvalid(f"{what}: the server refuses the arguments: {reason}", hint=hint, **_data(error))
    outcome: Outcome = "none" if code in _REFUSED else "unknown"
    if code == PARSE_ERROR:
        return UpstreamError(f"{what}: the server answers with what is not MCP: {reason}", outcome="unknown")
    retryable = code in (INTERNAL_ERROR, _SERVER_ERROR)
    return UpstreamError(f"{what}: {reason}", outcome=outcome, retryable=retryable, **_data(error))


def tool_failure(result: Mapping[str, Any], blocks: list[dict[str, Any]], tool: str) -> CallError:
    """The error of a call for a result with ``isError``."""
    words = [text for block in blocks if block["type"] == "text" and (text := block.get("text"))]
    message = text_of("\n".join(words)) or f"{tool} says that it failed"
    if is_unknown_tool(message, tool) and len(message) < len(tool) + 40:
        return ToolNotFound(
            f"the server has no tool {tool!r:.200} any more", hint="`tavern upstreams refresh` lists again"
        )
    details: dict[str, Any] = {"content": blocks}
    if isinstance(value := result.get("structuredContent"), dict):
        details["value"] = value
    return ToolFailed(message, outcome="unknown", **details)


def is_unknown_tool(message: str, tool: str) -> bool:
    """Whether a server says that it has no such tool: the old era has no code for that."""
    words = message.lower()
    return tool.lower() in words and ("unknown tool" in words or "not found" in words or "no such tool" in words)


def _data(error: MCPError) -> dict[str, Any]:
    """The code, and the data that the server added, if they are small."""
    data = error.data
    is_small = isinstance(data, str | int | float | bool) or (
        isinstance(data, dict | list) and len(repr(data)) <= _MOST
    )
    return {"rpcCode": error.code, **({"data": data} if is_small else {})}
