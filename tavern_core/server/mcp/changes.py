"""Notifies clients of changes: of the lists of tools, prompts and resources, and of resources that they watch.

2025 era    a notification to every session
2026 era    an event for those who listen (`subscriptions/listen`)
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_REQUEST, EmptyResult, NotificationParams, SubscribeRequestParams, UnsubscribeRequestParams

from tavern_core.errors import TavernError
from tavern_core.model.event import RESOURCE_CHANGED, Event
from tavern_core.server.mcp.content import in_ascii
from tavern_core.server.mcp.request_state import session_of

if TYPE_CHECKING:
    from tavern_core.host import Tavern

_LISTS: Final[Mapping[str, type[ToolsListChanged | PromptsListChanged | ResourcesListChanged]]] = {
    "tools": ToolsListChanged,
    "prompts": PromptsListChanged,
    "resources": ResourcesListChanged,
}
"""List → the event for its change."""
_SETTLES_S: Final = 0.05
"""Changes within so many seconds are sent together, because one seldom comes alone."""
MOST_WATCHED: Final = 1_000
"""Maximum resources that one session, or one stream, watches."""


class _Client:
    """A session of the older protocol.

    Each has a sending task, so a client that reads nothing does not hold up others.
    """

    def __init__(self, session: ServerSession) -> None:
        self.watched: set[str] = set()
        """The resources that it watches."""
        self._session = session
        self._waiting: dict[str, None] = {}
        """Its pending notifications, each once: ``tools``, ``prompts``, ``resources``, or the address of a resource."""
        self._sender: asyncio.Task[None] | None = None

    def notify(self, topic: str) -> None:
        self._waiting[topic] = None
        if self._sender is None or self._sender.done():
            self._sender = asyncio.ensure_future(self._send())

    def close(self) -> None:
        """Send nothing more."""
        if self._sender is not None:
            self._sender.cancel()

    async def _send(self) -> None:
        session = self._session
        lists = {
            "tools": session.send_tool_list_changed,
            "prompts": session.send_prompt_list_changed,
            "resources": session.send_resource_list_changed,
        }
        while self._waiting:
            del self._waiting[topic := next(iter(self._waiting))]
            with suppress(MCPError, OSError):  # a client that went away reads nothing any more
                await (lists[topic]() if topic in lists else session.send_resource_updated(topic))


class ChangeNotifier:
    """Notifies the clients of one host of changes.

    Args:
        sessions: maximum number of remembered sessions of the older protocol.
    """

    def __init__(self, tavern: Tavern, sessions: int) -> None:
        self.bus = InMemorySubscriptionBus()
        self._tavern = tavern
        self._most = sessions
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        """Session → its client."""
        self._pending: asyncio.Task[None] | None = None
        self._has_changed = False
        """Whether something has changed since the last snapshot."""
        self._updated: dict[str, None] = {}
        """Resources that have changed since then."""
        self._last_snapshot: tuple[Any, Any, Any] = ((), (), ())

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look for changes and notify clients of them while the context is open."""
        loop = asyncio.get_running_loop()

        def schedule(uri: str | None) -> None:
            if uri is None:
                self._has_changed = True
            else:
                self._updated[uri] = None
            if self._pending is None or self._pending.done():
                self._pending = asyncio.ensure_future(self._send_changes())

        def on_change(uri: str | None = None) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(schedule, uri)

        def on_resource(event: Event) -> None:
            on_change(str(event.data.get("uri", "")))

        self._last_snapshot = await asyncio.to_thread(self._snapshot)
        ends = (self._tavern.tools.watch(on_change), self._tavern.events.subscribe(on_resource, RESOURCE_CHANGED))
        try:
            yield
        finally:
            for end in ends:
                end()
            if self._pending is not None:
                self._pending.cancel()
            for client in self._clients.values():
                client.close()

    async def initialized(self, ctx: ServerRequestContext[Any, Any], params: NotificationParams) -> None:
        """Remember a session of the older protocol that has begun."""
        self._client(ctx)

    async def subscribe(self, ctx: ServerRequestContext[Any, Any], params: SubscribeRequestParams) -> EmptyResult:
        """`resources/subscribe`."""
        watched, uri = self._client(ctx).watched, str(params.uri)
        if len(watched) >= MOST_WATCHED and uri not in watched:
            raise MCPError(
                INVALID_REQUEST, f"a session watches at most {MOST_WATCHED:,} resources: unsubscribe from some"
            )
        watched.add(uri)
        return EmptyResult()

    async def unsubscribe(self, ctx: ServerRequestContext[Any, Any], params: UnsubscribeRequestParams) -> EmptyResult:
        """`resources/unsubscribe`."""
        self._client(ctx).watched.discard(str(params.uri))
        return EmptyResult()

    def forget(self, session: str) -> None:
        """Remove a session that has ended."""
        if (client := self._clients.pop(session, None)) is not None:
            client.close()

    def _client(self, ctx: ServerRequestContext[Any, Any]) -> _Client:
        name = session_of(ctx)
        if (client := self._clients.get(name)) is None:
            client = self._clients[name] = _Client(ctx.session)
            if len(self._clients) > self._most:
                self._clients.popitem(last=False)[1].close()
        return client

    def _snapshot(self) -> tuple[Any, Any, Any]:
        tavern = self._tavern
        with suppress(TavernError):  # a plugin that cannot be activated contributes nothing
            tools = tavern.tools.snapshot()
            skills = [spec for spec in tools if spec.kind == "skill"]  # each is a prompt and a resource as well
            return tools, (tavern.contributions("prompts"), skills), (tavern.contributions("resources"), skills)
        return self._last_snapshot

    async def _send_changes(self) -> None:
        while self._has_changed or self._updated:  # also what changes while the clients are notified
            await asyncio.sleep(_SETTLES_S)
            updated, self._updated = self._updated, {}
            if self._has_changed:
                self._has_changed = False
                before, self._last_snapshot = self._last_snapshot, await asyncio.to_thread(self._snapshot)
                for topic, old, new in zip(_LISTS, before, self._last_snapshot, strict=True):
                    if old != new:
                        await self._send(topic)
            for uri in dict.fromkeys((*updated, *map(in_ascii, updated))):  # as a client may write it
                for client in self._clients.values():
                    if uri in client.watched:
                        client.notify(uri)
                await self.bus.publish(ResourceUpdated(uri=uri))

    async def _send(self, topic: str) -> None:
        for client in self._clients.values():
            client.notify(topic)
        await self.bus.publish(_LISTS[topic]())
