"""Resources and prompts of a server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from tavern_core.builtin.adapters.mcp.listing import MOST_BYTES, MOST_ITEMS, pages
from tavern_core.builtin.adapters.mcp.message_parser import refuse_no_json
from tavern_core.builtin.adapters.mcp.requests import Requester
from tavern_core.errors import OutputTooLarge, UpstreamError


class McpDocuments:
    """`contract.adapters.Documents`; a server that has none of a kind has an empty list."""

    async def list_resources(self: Requester) -> Sequence[Mapping[str, Any]]:
        """Resources, then templates (with `uriTemplate`)."""
        found = await _listed(self, "resources/list", "resources", "uri")
        return [*found, *await _listed(self, "resources/templates/list", "resourceTemplates", "uriTemplate")]

    async def read_resource(self: Requester, uri: str) -> Mapping[str, Any]:
        """``{"contents": [{"uri", "mimeType", "text" | "blob"}]}``, as the server gives it."""
        return _complete(await self.request("resources/read", {"uri": uri}, uri), "contents")

    async def list_prompts(self: Requester) -> Sequence[Mapping[str, Any]]:
        """Prompts with their arguments."""
        return await _listed(self, "prompts/list", "prompts", "name")

    async def get_prompt(self: Requester, name: str, arguments: Mapping[str, str]) -> Mapping[str, Any]:
        """``{"description", "messages": […]}``, as the server gives it."""
        return _complete(
            await self.request("prompts/get", {"name": name, "arguments": dict(arguments)}, name), "messages"
        )


async def _listed(server: Requester, method: str, key: str, named: str) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    size = 0
    try:
        async for _, items in pages(server, method, key):
            for item in items:
                if isinstance(item, dict) and isinstance(item.get(named), str):
                    try:
                        size += len(to_json(item, fallback=refuse_no_json))
                    except ValueError:  # half a character, or a key that is there twice: it costs itself
                        continue
                    if len(found) >= MOST_ITEMS or size > MOST_BYTES:
                        return found
                    found.append(item)
    except UpstreamError as error:
        if error.details.get("rpcCode") != -32601:  # it has no such list
            raise
    return found


def _complete(result: dict[str, Any], key: str) -> dict[str, Any]:
    if result.get("resultType", "complete") != "complete":
        raise UpstreamError(
            "the server wants to know something first, which only a call can answer",
            resultType=str(result["resultType"])[:60],
        )
    parts = result.get(key)
    if not isinstance(parts, list):
        raise UpstreamError(f"the server's answer holds no {key}")
    if len(parts) > MOST_ITEMS:
        raise OutputTooLarge(f"the answer holds {len(parts):,} {key}", limit=MOST_ITEMS)
    found = {name: value for name, value in result.items() if name in (key, "description")}
    try:
        json.dumps(found, default=refuse_no_json)  # `to_json` would also refuse half a character
    except ValueError as error:
        raise UpstreamError(f"the server's answer is not JSON: {error}") from None
    return found
