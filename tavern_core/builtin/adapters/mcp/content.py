"""The answer of a tool: the parts of a result as blocks of a ToolResult, bytes as artifacts of the caller."""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Mapping
from typing import Any, Final

from tavern_core.builtin.adapters.mcp.failures import text_of, tool_failure
from tavern_core.contract.adapters import UpstreamCall
from tavern_core.errors import OutputTooLarge, UpstreamError, UsageError
from tavern_core.model.result import ToolResult

MOST_PARTS: Final = 1_000
_LINK_KEYS: Final = ("name", "title", "description", "mimeType")
_BYTES: Final = "application/octet-stream"


async def result_of(result: Mapping[str, Any], tool: str, call: UpstreamCall) -> ToolResult:
    """The answer of a call.

    Raises:
        ToolFailed: the tool says that it failed (TOOL_ERROR).
        OutputTooLarge: too many parts (OUTPUT_TOO_LARGE).
        UpstreamError: it is not a result (UPSTREAM_ERROR).
    """
    parts = result.get("content", [])
    if not isinstance(parts, list):
        raise UpstreamError(f"{tool}: the content of its answer is not a list", outcome="unknown")
    if len(parts) > MOST_PARTS:
        raise OutputTooLarge(
            f"{tool} answered in {len(parts):,} parts, more than {MOST_PARTS:,}", outcome="done", limit=MOST_PARTS
        )
    blocks = [await block_of(part, tool, call) for part in parts]
    if result.get("isError") is True:
        raise tool_failure(result, blocks, tool)
    if "structuredContent" in result:
        return ToolResult(True, result["structuredContent"], content=tuple(blocks))
    words = [block["text"] for block in blocks if block["type"] == "text"]
    return ToolResult(True, "\n".join(words) if words else None, content=tuple(blocks))


async def block_of(part: object, tool: str, call: UpstreamCall) -> dict[str, Any]:
    """The block of one part.

    A part of an unknown kind becomes a text that says so: the others are useful without it.
    """
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, dict):
        if kind == "text" and isinstance(part.get("text"), str):
            return {"type": "text", "text": part["text"]}
        if kind in ("image", "audio") and isinstance(part.get("data"), str):
            return await _keep(part["data"], part.get("mimeType"), f"{tool}-{kind}", call)
        if kind == "resource_link" and isinstance(part.get("uri"), str):
            return _link(part)
        if kind == "resource" and isinstance(resource := part.get("resource"), dict):
            return await _resource(resource, tool, call)
    return {"type": "text", "text": f"[a part of kind {text_of(kind)[:40] or 'unknown'}, which cannot be shown]"}


def _link(part: Mapping[str, Any]) -> dict[str, Any]:
    """A link without fields that do not fit the protocol. If it has no name, its address is the name."""
    link: dict[str, Any] = {"type": "resource_link", "uri": part["uri"], "name": part["uri"]}
    link |= {key: text for key in _LINK_KEYS if (text := text_of(part.get(key)))}
    if isinstance(size := part.get("size"), int) and not isinstance(size, bool):
        link["size"] = size
    return link


async def _resource(resource: Mapping[str, Any], tool: str, call: UpstreamCall) -> dict[str, Any]:
    """An embedded resource: its text as it is, its bytes as an artifact."""
    uri, kind = text_of(resource.get("uri")), text_of(resource.get("mimeType"))
    if isinstance(text := resource.get("text"), str):
        return {"type": "resource", "resource": {"uri": uri, "mimeType": kind or "text/plain", "text": text}}
    if isinstance(blob := resource.get("blob"), str):
        return await _keep(blob, kind, uri.rpartition("/")[2] or f"{tool}-resource", call)
    return {"type": "text", "text": f"[the resource {uri[:200]} holds nothing that can be shown]"}


async def _keep(data: str, kind: object, name: str, call: UpstreamCall) -> dict[str, Any]:
    """Keep base64 as an artifact; in a thread, because it may be large and is written to the disk."""
    return await asyncio.to_thread(_keep_now, data, text_of(kind) or _BYTES, name[:200], call)


def _keep_now(data: str, media_type: str, name: str, call: UpstreamCall) -> dict[str, Any]:
    try:
        raw = binascii.a2b_base64(
            "".join(data.split()).encode("ascii"), strict_mode=True
        )  # else it skips other characters
    except ValueError:
        return {"type": "text", "text": f"[{name}: its data is not base64]"}
    try:
        return call.context.keep(raw, media_type, name)
    except UsageError:  # it is no media type: its bytes are useful all the same
        return call.context.keep(raw, _BYTES, name)
