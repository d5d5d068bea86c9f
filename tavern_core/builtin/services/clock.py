"""``systemClock``: the machine's clock and time zone."""

from __future__ import annotations

import time
from collections.abc import Iterable

from tavern_core.contract.context import PluginContext
from tavern_core.contract.core_services import SYSTEM_CLOCK, SystemClock
from tavern_core.contract.hookspecs import hookimpl
from tavern_core.contract.protocols import Service


class MachineClock:
    """The clock of the machine the host runs on."""

    def now(self) -> float:
        return time.time()

    def timezone(self) -> str | None:
        return None


@hookimpl(fast=True)
def tavern_register_services(ctx: PluginContext) -> Iterable[Service]:
    return [Service(SYSTEM_CLOCK, MachineClock(), SystemClock, description="What time it is for tools and plugins.")]
