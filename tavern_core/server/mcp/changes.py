"""Notifies clients of what has changed: lists of tools, prompts and resources, and resources that they watch.

2025 era    a notification to every session
2026 era    an event for those who listen (`subscriptions/listen`)
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
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
from mcp_types import EmptyResult, NotificationParams, SubscribeRequestParams, UnsubscribeRequestParams

from tavern_core.errors import TavernError
from tavern_core.model.event import RESOURCE_CHANGED, Event

if TYPE_CHECKING:
    from tavern_core.host import Tavern

_SETTLES_S: Final = 0.05
"""One change seldom comes alone: those within so many seconds are sent together."""
MOST_WATCHED: Final = 1_000
"""Resources that one session, or one stream, watches."""


class Changes:
    """Notifies the clients of one host of changes.

    Args:
        sessions: how many sessions of the older protocol are remembered.
    """

    def __init__(self, tavern: Tavern, sessions: int) -> None:
        self.bus = InMemorySubscriptionBus()
        self._tavern = tavern
        self._most = sessions
        self._sessions: OrderedDict[str, ServerSession] = OrderedDict()
        self._watched: OrderedDict[str, set[str]] = OrderedDict()
        """Session → the resources that it watches."""
        self._pending: asyncio.Task[None] | None = None
        self._has_changed = False
        """Something has changed since the last look."""
        self._seen: tuple[Any, Any, Any] = ((), (), ())

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look for changes and notify clients of them while the context is open."""
        loop = asyncio.get_running_loop()

        def soon() -> None:
            self._has_changed = True
            if self._pending is None or self._pending.done():
                self._pending = asyncio.ensure_future(self._send_changes())

        def on_change() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(soon)

        def on_resource(event: Event) -> None:
            uri = str(event.data.get("uri", ""))
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self._send_resource(uri)))

        self._seen = await asyncio.to_thread(self._look)
        ends = (self._tavern.tools.watch(on_change), self._tavern.events.subscribe(on_resource, RESOURCE_CHANGED))
        try:
            yield
        finally:
            for end in ends:
                end()
            if self._pending is not None:
                self._pending.cancel()

    async def initialized(self, ctx: ServerRequestContext[Any, Any], params: NotificationParams) -> None:
        """A session of the older protocol has begun."""
        self._sessions[_name(ctx)] = ctx.session
        if len(self._sessions) > self._most:
            self._sessions.popitem(last=False)

    async def subscribe(self, ctx: ServerRequestContext[Any, Any], params: SubscribeRequestParams) -> EmptyResult:
        """`resources/subscribe`."""
        watched = self._watched.setdefault(_name(ctx), set())
        if len(watched) < MOST_WATCHED:
            watched.add(str(params.uri))
        if len(self._watched) > self._most:
            self._watched.popitem(last=False)
        return EmptyResult()

    async def unsubscribe(self, ctx: ServerRequestContext[Any, Any], params: UnsubscribeRequestParams) -> EmptyResult:
        """`resources/unsubscribe`."""
        self._watched.get(_name(ctx), set()).discard(str(params.uri))
        return EmptyResult()

    def _look(self) -> tuple[Any, Any, Any]:
        tavern = self._tavern
        with suppress(TavernError):  # a plugin that cannot be activated brings nothing
            tools = tavern.tools.snapshot()
            skills = [spec for spec in tools if spec.kind == "skill"]  # each is a prompt and a resource as well
            return tools, (tavern.contributions("prompts"), skills), (tavern.contributions("resources"), skills)
        return self._seen

    async def _send_changes(self) -> None:
        while self._has_changed:  # also what changes while the clients are notified
            await asyncio.sleep(_SETTLES_S)
            self._has_changed = False
            before, self._seen = self._seen, await asyncio.to_thread(self._look)
            await self._send(*(old != new for old, new in zip(before, self._seen, strict=True)))

    async def _send(self, tools: bool, prompts: bool, resources: bool) -> None:
        for session in list(self._sessions.values()):
            if tools:
                await session.send_tool_list_changed()
            if prompts:
                await session.send_prompt_list_changed()
            if resources:
                await session.send_resource_list_changed()
        if tools:
            await self.bus.publish(ToolsListChanged())
        if prompts:
            await self.bus.publish(PromptsListChanged())
        if resources:
            await self.bus.publish(ResourcesListChanged())

    async def _send_resource(self, uri: str) -> None:
        for name, watched in list(self._watched.items()):
            if uri in watched and name in self._sessions:
                await self._sessions[name].send_resource_updated(uri)
        await self.bus.publish(ResourceUpdated(uri=uri))


def _name(ctx: ServerRequestContext[Any, Any]) -> str:
    return "" if ctx.request is None else str(ctx.request.headers.get("mcp-session-id", ""))
