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
"""Servers give it for any error. The library gives it for a lost answer, too, in words of its own."""
_LOST: Final = ("SSE stream ", "Connection closed")


class AnswerLost(MCPError):
    """The answer to one request has been lost; where a whole connection is lost, its transport says so."""

    def __init__(self, why: str) -> None:
        super().__init__(CONNECTION_CLOSED, why)


def text_of(value: object, most: int = _MOST) -> str:
    """Words of a server, of a bounded length."""
    return value[:most] if isinstance(value, str) else ""


def failure_of(error: MCPError, what: str, tool: str = "") -> CallError:
    """The error of a call for a JSON-RPC error.

    Args:
        what: was asked of the server, for the message.
        tool: that was called; empty: none was.
    """
    said, code = text_of(error.message) or "it gives no reason", error.code
    if isinstance(error, AnswerLost) or (code == CONNECTION_CLOSED and said.startswith(_LOST)):
        return UpstreamError(f"{what}: the answer broke off: {said}", outcome="unknown", retryable=True)
    if code == REQUEST_TIMEOUT:
        return CallTimeout(f"{what}: no answer in time: {said}", outcome="unknown", retryable=True)
    if tool and (code == METHOD_NOT_FOUND or (code == INVALID_PARAMS and is_unknown_tool(said, tool))):
        return ToolNotFound(
            f"the server has no tool {tool!r:.200} any more: {said}", hint="`tavern upstreams refresh` lists again"
        )
    if tool and code == INVALID_PARAMS:
        hint = "change the arguments as it says"
        return InputInvalid(f"{what}: the server refuses the arguments: {said}", hint=hint, **_data(error))
    outcome: Outcome = "none" if code in _REFUSED else "unknown"
    if code == PARSE_ERROR:
        return UpstreamError(f"{what}: the server answers with what is not MCP: {said}", outcome="unknown")
    retryable = code in (INTERNAL_ERROR, _SERVER_ERROR)
    return UpstreamError(f"{what}: {said}", outcome=outcome, retryable=retryable, **_data(error))


def tool_failure(result: Mapping[str, Any], blocks: list[dict[str, Any]], tool: str) -> CallError:
    """The error of a call for a result with ``isError``."""
    words = [text for block in blocks if block["type"] == "text" and (text := block.get("text"))]
    said = text_of("\n".join(words)) or f"{tool} says that it failed"
    if is_unknown_tool(said, tool) and len(said) < len(tool) + 40:
        return ToolNotFound(
            f"the server has no tool {tool!r:.200} any more", hint="`tavern upstreams refresh` lists again"
        )
    details: dict[str, Any] = {"content": blocks}
    if isinstance(value := result.get("structuredContent"), dict):
        details["value"] = value
    return ToolFailed(said, outcome="unknown", **details)


def is_unknown_tool(said: str, tool: str) -> bool:
    """Whether a server says that it has no such tool: the old era has no code for that."""
    words = said.lower()
    return tool.lower() in words and ("unknown tool" in words or "not found" in words or "no such tool" in words)


def _data(error: MCPError) -> dict[str, Any]:
    """The code, and what the server added where that is small."""
    data = error.data
    is_small = isinstance(data, str | int | float | bool) or (
        isinstance(data, dict | list) and len(repr(data)) <= _MOST
    )
    return {"rpcCode": error.code, **({"data": data} if is_small else {})}
