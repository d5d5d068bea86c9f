"""Replaces a service of the host: `systemClock`, which `system:get_current_time` and other plugins ask.

The replaced service goes on running, and this plugin alone still reaches it: `ctx.service("systemClock")` is the host's own
clock here, and this one everywhere else. When the plugin is disabled or fails, everybody has the host's clock again.
"""

from __future__ import annotations

from collections.abc import Iterable

from tavern_core import PluginContext, Service, hookimpl

SERVICE = "systemClock"
DAY = 24 * 60 * 60


class OfficeClock:
    """The host's clock in the office's zone. Has every method of the service that it replaces, with its parameters."""

    def __init__(self, ctx: PluginContext) -> None:
        self._ctx = ctx

    def now(self) -> float:
        """Seconds since the epoch, moved by the days of the rehearsal."""
        beneath: float = self._ctx.service(SERVICE).now()
        return beneath + DAY * float(self._ctx.get_config("shiftDays"))

    def timezone(self) -> str | None:
        """The office's zone; None for the machine's own."""
        return str(self._ctx.get_config("timezone")) or None


@hookimpl
def tavern_register_services(ctx: PluginContext) -> Iterable[Service]:
    """One service, under the name of the one it replaces."""
    return [Service(SERVICE, OfficeClock(ctx), description="The office's clock.")]
