"""The lists of a server, with all pages: its tools, with notifications of changes; its resources and prompts.

Each tool is judged alone: an invalid one does not affect the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from mcp.client.session import ClientSession
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import X_MCP_HEADER_KEY, find_invalid_x_mcp_header
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic_core import to_json

from tavern_core.builtin.adapters.mcp.failures import text_of
from tavern_core.builtin.adapters.mcp.message_parser import refuse_no_json
from tavern_core.builtin.adapters.mcp.requests import Requester
from tavern_core.contract.adapters import Listing, UpstreamTool
from tavern_core.contract.exchange import object_at
from tavern_core.errors import OutputTooLarge, UpstreamError, sayable
from tavern_core.schema.schema_lint_rules import house_flaws

MOST_ITEMS: Final = 10_000
"""Maximum number of tools, resources or prompts of one server."""
MOST_PAGES: Final = 1_000
MOST_TOOL_BYTES: Final = 200_000
MOST_BYTES: Final = 64_000_000
"""Limit for all tools together."""
MOST_LEFT_OUT: Final = 1_000
_LONGEST_NAME: Final = 256
_LONGEST_DESCRIPTION: Final = 20_000
_LONGEST_CURSOR: Final = 10_000
_TURN: Final = 20


async def pages(server: Requester, method: str, key: str) -> AsyncIterator[tuple[dict[str, Any], list[Any]]]:
    """Iterate over the pages of a list: (the result, its items). A list without an end is cut.

    Raises:
        UpstreamError: a page is not a list (UPSTREAM_ERROR).
    """
    params: dict[str, Any] = {}
    cursors: set[str] = set()
    for _ in range(MOST_PAGES):
        result = await server.request(method, params)
        items = result.get(key)
        if not isinstance(items, list):
            raise UpstreamError(f"the server's list of {key} is not a list")
        yield result, items
        cursor = result.get("nextCursor")
        if not isinstance(cursor, str) or not cursor or len(cursor) > _LONGEST_CURSOR or cursor in cursors:
            return
        cursors.add(cursor)
        params = {"cursor": cursor}


async def read_tools(server: Requester) -> Listing:
    """List the tools; what cannot be used is left out, with the reason."""
    reader = _ListReader()
    async for page, items in pages(server, "tools/list", "tools"):
        reader.add_ttl(page.get("ttlMs"))
        for number, item in enumerate(items):
            if number % _TURN == 0:
                await asyncio.sleep(0)  # a page may be long
            if not reader.read(item):
                return reader.done()
    return reader.done()


class _ListReader:
    def __init__(self) -> None:
        self._tools: dict[str, UpstreamTool] = {}
        self._left_out: dict[str, str] = {}
        self._duplicates: set[str] = set()
        self._ttls: list[int] = []
        self._bytes = 0
        self._count = 0

    def add_ttl(self, ttl: object) -> None:
        if isinstance(ttl, int) and not isinstance(ttl, bool) and ttl > 0:
            self._ttls.append(ttl)

    def done(self) -> Listing:
        return Listing(tuple(self._tools.values()), min(self._ttls, default=None), left_out=self._left_out)

    def read(self, item: object) -> bool:
        """Read one tool; False: no more are accepted."""
        self._count += 1
        if self._count > MOST_ITEMS or self._bytes > MOST_BYTES:
            self._leave_out(
                "…", f"more than {MOST_ITEMS:,} tools, or {MOST_BYTES:,} bytes of them: the rest is left out"
            )
            return False
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(item, dict) or not isinstance(name, str) or not name:
            self._leave_out(f"tool number {self._count}", "it has no name")
        elif name in self._duplicates:
            pass
        elif name in self._tools:
            if self._unusable(item, name) is None and tool_of(item, name) == self._tools[name]:
                return True  # a server that ignores cursors lists each tool again
            del self._tools[name]
            self._duplicates.add(name)
            self._leave_out(name, "the server lists several tools of this name, and none of them can be meant")
        elif (why := self._unusable(item, name)) is not None:
            self._leave_out(name, why)
        else:
            self._tools[name] = tool_of(item, name)
        return True

    def _unusable(self, item: dict[str, Any], name: str) -> str | None:
        if len(name) > _LONGEST_NAME or not name.isprintable():
            return f"a name is 1 to {_LONGEST_NAME} printable characters"
        try:
            size = len(to_json(item, fallback=refuse_no_json))
        except ValueError as error:
            return f"its definition is not JSON: {error}"
        if size > MOST_TOOL_BYTES:
            return f"its definition takes {size:,} bytes, more than {MOST_TOOL_BYTES:,}"
        self._bytes += size
        schema, output = item.get("inputSchema"), item.get("outputSchema")
        if not isinstance(schema, dict) or not isinstance(output, dict | None):
            return "its schemas are not objects"
        for one in (schema, output or {}):
            if flaws := [flaw for flaw in house_flaws(one, is_foreign=True) if flaw.severity == "error"]:
                return f"its schema cannot be used: {flaws[0].path or '/'}: {flaws[0].message}"
        return find_invalid_x_mcp_header(schema) if X_MCP_HEADER_KEY in repr(schema) else None

    def _leave_out(self, name: str, why: str) -> None:
        if len(self._left_out) < MOST_LEFT_OUT:
            self._left_out[name[:_LONGEST_NAME]] = sayable(why)


def tool_of(item: Mapping[str, Any], name: str) -> UpstreamTool:
    """A tool whose definition can be used."""
    notes, execution = object_at(item, "annotations"), object_at(item, "execution")
    needs_task = execution.get("taskSupport") == "required"
    return UpstreamTool(
        name=name,
        description=text_of(item.get("description"), _LONGEST_DESCRIPTION),
        input_schema=item["inputSchema"],
        output_schema=item.get("outputSchema"),
        display_name=text_of(item.get("title")) or text_of(notes.get("title")),
        read_only=_claim(notes, "readOnlyHint"),
        destructive=_claim(notes, "destructiveHint"),
        idempotent=_claim(notes, "idempotentHint"),
        is_job=needs_task,
        data={"task": True} if needs_task else {},
    )


def _claim(notes: Mapping[str, Any], name: str) -> bool | None:
    value = notes.get(name)
    return value if isinstance(value, bool) else None


_AGAIN_S: Final = (1.0, 300.0)


@asynccontextmanager
async def watch_list(session: ClientSession, changed: Callable[[], None]) -> AsyncIterator[None]:
    """Call `changed` whenever the server reports that its list of tools changed.

    In the protocol of 2026, the reports are the open answer of one request. Older servers report without a subscription.
    """
    capabilities = session.server_capabilities
    tools = capabilities.tools if capabilities is not None else None
    if session.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
        yield
        return
    task = asyncio.create_task(_watch(session, changed))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _watch(session: ClientSession, changed: Callable[[], None]) -> None:
    delay = _AGAIN_S[0]
    while True:
        with contextlib.suppress(MCPError, SubscriptionLost, TimeoutError):
            async with listen(session, tools_list_changed=True) as subscription:
                if not subscription.honored.tools_list_changed:
                    return
                delay = _AGAIN_S[0]
                async for _ in subscription:
                    changed()
        await asyncio.sleep(delay)
        delay = min(delay * 2, _AGAIN_S[1])
        changed()  # changes may have been missed meanwhile


class McpDocuments:
    """`contract.adapters.Documents`; a server that has none of a kind has an empty list."""

    async def list_resources(self: Requester) -> Sequence[Mapping[str, Any]]:
        """Resources, then templates (with `uriTemplate`)."""
        found = await _list_all(self, "resources/list", "resources", "uri")
        return [*found, *await _list_all(self, "resources/templates/list", "resourceTemplates", "uriTemplate")]

    async def read_resource(self: Requester, uri: str) -> Mapping[str, Any]:
        """``{"contents": [{"uri", "mimeType", "text" | "blob"}]}``, as the server gives it."""
        return _complete(await self.request("resources/read", {"uri": uri}, uri), "contents")

    async def list_prompts(self: Requester) -> Sequence[Mapping[str, Any]]:
        """Prompts with their arguments."""
        return await _list_all(self, "prompts/list", "prompts", "name")

    async def get_prompt(self: Requester, name: str, arguments: Mapping[str, str]) -> Mapping[str, Any]:
        """``{"description", "messages": […]}``, as the server gives it."""
        return _complete(
            await self.request("prompts/get", {"name": name, "arguments": dict(arguments)}, name), "messages"
        )


async def _list_all(server: Requester, method: str, key: str, identifier: str) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    size = 0
    try:
        async for _, items in pages(server, method, key):
            for item in items:
                if isinstance(item, dict) and isinstance(item.get(identifier), str):
                    try:
                        size += len(to_json(item, fallback=refuse_no_json))
                    except ValueError:  # a lone surrogate or a duplicate key: only this item is left out
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
    answer = {name: value for name, value in result.items() if name in (key, "description")}
    try:
        json.dumps(answer, default=refuse_no_json)  # `to_json` would also refuse a lone surrogate
    except ValueError as error:
        raise UpstreamError(f"the server's answer is not JSON: {error}") from None
    return answer
