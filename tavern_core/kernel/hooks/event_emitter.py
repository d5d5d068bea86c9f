"""Emits events that are not calls: to the log, to subscribers, and to the observers among the hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tavern_core.kernel.foundation import Foundation
from tavern_core.kernel.hooks.hook_calls import HookCalls
from tavern_core.kernel.hooks.table import HookTable
from tavern_core.model.call import CallContext
from tavern_core.model.event import USER_LOGGED_IN, Event


class EventEmitter:
    """Emits the events of one host."""

    def __init__(self, base: Foundation, hooks: HookTable, calls: HookCalls) -> None:
        self._base = base
        self._hooks = hooks
        self._calls = calls

    async def emit(self, type_: str, data: Mapping[str, Any], plugin: str) -> None:
        """Record an event, and pass it to observers."""
        await self.deliver(self._base.recorder.note(type_, data, plugin=plugin))

    async def deliver(self, event: Event) -> None:
        """Pass a recorded event to the observers."""
        if observers := self._hooks.of("tavern_on_event"):
            await self._calls.notify(observers, {"event": event}, self._base.mode)

    async def user_logged_in(self, user: CallContext) -> None:
        """Record a login, and pass it to its observers; see `Tavern.user_logged_in`."""
        who = CallContext(principal=user.principal, user_id=user.user_id, roles=user.roles, profile=user.profile)
        data = {"principal": who.principal, "userId": who.user_id, "roles": sorted(who.roles), "profile": who.profile}
        await self.emit(USER_LOGGED_IN, data, "")
        await self._calls.notify(self._hooks.of("tavern_on_login"), {"user": who}, self._base.mode)
