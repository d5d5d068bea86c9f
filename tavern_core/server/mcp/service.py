"""A host as an MCP server: the methods that it answers, for both eras and every transport."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp_types import EmptyResult, NotificationParams, PaginatedRequestParams, SetLevelRequestParams

from tavern_core import __version__
from tavern_core.server.mcp.calls import McpCalls
from tavern_core.server.mcp.changes import ChangeNotifier
from tavern_core.server.mcp.content import complete
from tavern_core.server.mcp.listing import ToolListings, cursor_of, page_number
from tavern_core.server.mcp.request_state import RequestStates, holder_of, session_of
from tavern_core.server.mcp.resources_and_prompts import Offers
from tavern_core.server.mcp.tasks import Tasks

if TYPE_CHECKING:
    from tavern_core.host import Tavern

_LIST_TTL_MS: Final = 60_000
_MOST_PAGES: Final = 256
_CHANGES: Final = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)


class _McpServer(Server[Any]):
    """The library's server. Clients of the older protocol learn over every transport that lists change."""

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *rest: Any, **named: Any
    ) -> InitializationOptions:
        return super().create_initialization_options(notification_options or _CHANGES, *rest, **named)


class ListPages:
    """Pages of lists that are already written as JSON.

    A result only names its page, and the transport inserts the bytes. Otherwise the library would check and write thousands of
    tools for every answer.
    """

    def __init__(self) -> None:
        self._mark = secrets.token_hex(16)
        self._kept: dict[str, bytes] = {}
        self.sign = f'"{self._mark}:'.encode()
        """The bytes that a message has in place of a page."""

    def name(self, page: bytes) -> str:
        """The text that stands for a page in a result."""
        key = f"{self._mark}:{id(page):x}"
        if self._kept.get(key) is not page:
            if len(self._kept) >= _MOST_PAGES:
                self._kept.pop(next(iter(self._kept)))
            self._kept[key] = page
        return key

    def page(self, name: str) -> bytes | None:
        """The page behind a name; None: it is forgotten."""
        return self._kept.get(name)

    def put_in(self, message: bytes) -> bytes:
        """A message with the page that it names."""
        at = message.find(self.sign)
        if at < 0:
            return message
        end = message.index(b'"', at + 1)
        page = self._kept.get(message[at + 1 : end].decode(), b"[]")
        return b"".join((message[:at], page, message[end + 1 :]))


class McpService:
    """The MCP side of one open host."""

    def __init__(self, tavern: Tavern) -> None:
        self.config = config = tavern.config.mcp
        self.pages = ListPages()
        self.listings = ToolListings(tavern, config.page)
        self._states = RequestStates(tavern.records, config.state_ms / 1000)
        self.tasks = Tasks(tavern, config.wait_ms / 1000)
        self.calls = McpCalls(tavern, self.listings, self._states, self.tasks)
        self.changes = ChangeNotifier(tavern, config.sessions)
        self._offers = Offers(tavern, config.page, self.listings, self.calls, self.changes)

    def server(
        self, lifespan: Callable[[Server[Any]], Any], schema_of: Callable[[str], Any] | None = None
    ) -> Server[Any]:
        """A server of the library that answers for this host.

        Args:
            lifespan: the context that the library enters before it serves.
            schema_of: name of a tool → its parameters, for the caller of the request that is being served.
        """
        server = _McpServer(
            "tavern",
            version=__version__,
            title="tavern",
            lifespan=lifespan,
            get_tool_input_schema=schema_of,
            on_list_tools=_never,
            on_call_tool=self.calls.call_tool,  # type: ignore[arg-type]  # a mapping is what it becomes anyway
        )
        self._offers.offer(server)
        server.add_notification_handler("notifications/initialized", NotificationParams, self.changes.initialized)
        server.add_request_handler("logging/setLevel", SetLevelRequestParams, self._set_level)
        server.middleware.append(self._states.boundary(self.config.audience))
        server.middleware.append(self._list_tools)
        self.tasks.offer(server)
        return server

    async def _list_tools(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """`tools/list`, without what the library does to every tool of an answer."""
        if ctx.method != "tools/list" or ctx.request_id is None:
            return await call_next(ctx)
        # The library's own checks of the request: its version, its envelope, whether the session has begun.
        checked = await call_next(ctx)
        cursor = (ctx.params or {}).get("cursor")
        listing = await self.listings.of(holder_of(ctx))
        number = page_number(cursor, len(listing.pages))
        assert isinstance(checked, dict)
        answer = {**checked, "tools": self.pages.name(listing.pages[number])}
        if number + 1 < len(listing.pages):
            answer["nextCursor"] = cursor_of(number + 1)
        return answer

    async def _set_level(self, ctx: ServerRequestContext[Any, Any], params: SetLevelRequestParams) -> EmptyResult:
        levels = self.calls.levels
        if len(levels) > self.config.sessions:
            levels.pop(next(iter(levels)))
        levels[session_of(ctx)] = params.level
        return EmptyResult()


async def _never(ctx: ServerRequestContext[Any, Any], params: PaginatedRequestParams | None) -> Any:
    """An empty list, which passes the library's checks; the middleware puts the tools in."""
    return complete(tools=[], ttlMs=_LIST_TTL_MS, cacheScope="private")
