"""Stops one plugin: no new calls, time for running ones, `tavern_stop`, services in reverse order, removal.

An error on the way becomes a diagnostic; the plugin still stops.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from tavern_core.kernel.plugins.host_registries import HostRegistries
from tavern_core.kernel.plugins.plugin_record import PluginRecord
from tavern_core.kernel.plugins.remote_plugin_interface import RemotePlugin
from tavern_core.kernel.plugins.service_replacement import report_rivals
from tavern_core.kernel.registry import RegistryEntry
from tavern_core.model.safe_printing import printed


async def stop(record: PluginRecord, tables: HostRegistries, drain_s: float) -> None:
    """Stop an active plugin.

    Args:
        drain_s: how long running calls may take to end, in seconds.
    """
    # Its tool ids stay while it stops: a caller gets the true reason, not "no such tool".
    listed = [RegistryEntry(e.id, e.plugin, optional=e.optional) for e in tables.registry.of_plugin(record.name)]
    tables.registry.put(record.name, record.rank, listed, {})
    stop_hooks = [impl for impl in record.implementations if impl.hook.name == "tavern_stop"]
    async with AsyncExitStack() as rest:  # runs all steps, the last one first, even if one of them is cancelled
        rest.callback(forget, record, tables)
        rest.push_async_callback(_close_executors, record, tables)
        rest.push_async_callback(stop_started, record, tables)
        rest.push_async_callback(tables.calls.notify, stop_hooks, {}, tables.mode)
        await _drain(record, tables, drain_s)


def forget(record: PluginRecord, tables: HostRegistries) -> None:
    """Remove everything that a plugin registered from the host's tables."""
    tables.registry.drop(record.name)
    tables.hooks.remove(record.name)
    tables.contributions.remove(record.name)
    report_rivals(record.candidate.overrides, tables)
    tables.settings.outdate(record.name)
    record.settings_complete = False
    if isinstance(record.thing, RemotePlugin):
        record.thing.close()
    if record.facilities is not None:
        record.facilities.close()
    record.thing = record.ctx = record.facilities = None
    record.implementations = ()
    record.provides = {}
    record.specs = None
    record.claimed = False
    tables.base.signals.answers.emit()


async def stop_started(record: PluginRecord, tables: HostRegistries) -> None:
    """Stop the services that were started, the last one first. If one stop is cancelled, the rest still stop."""
    while record.started:
        service = record.started.pop()
        try:
            if service.stop is not None and (error := await _failure(tables, service.stop)) is not None:
                text = f"service {service.name!r} failed to stop: {printed(error)}"
                tables.diagnostics.add("SERVICE_STOP_FAILED", text, plugin=record.name, severity="error")
        except asyncio.CancelledError:
            await stop_started(record, tables)
            raise


async def _close_executors(record: PluginRecord, tables: HostRegistries) -> None:
    """Call `close`, sync or async, of executors that keep processes or connections."""
    for kind, executor in tables.contributions.all("executors").items():
        close = getattr(executor, "close", None)
        if tables.contributions.owner("executors", kind) != record.name or not callable(close):
            continue
        if (error := await _failure(tables, close)) is not None:
            text = f"executor {kind!r} failed to close: {printed(error)}"
            tables.diagnostics.add("EXECUTOR_CLOSE_FAILED", text, plugin=record.name, severity="error")


async def _failure(tables: HostRegistries, end: Callable[[], Any]) -> Exception | None:
    """Call a function that ends something; return its error, which must not prevent the others from ending."""
    try:
        await tables.calls.work("stopping it", end, mode=tables.mode)
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything
        return error
    return None


async def _drain(record: PluginRecord, tables: HostRegistries, drain_s: float) -> None:
    """Wait until no call of the plugin is running."""
    end, pause = time.monotonic() + drain_s, 0.001
    while record.usage.calls and time.monotonic() < end:
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.05)
    if running_calls := len(record.usage.calls):
        tables.diagnostics.add(
            "CALLS_STILL_RUNNING",
            f"{running_calls} calls were still running after {drain_s:g} s",
            plugin=record.name,
            hint="raise limits.drainMs, or give its tools a timeout",
        )
