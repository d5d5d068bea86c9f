"""Makes the ToolHome that an executor gets from the plugin whose tool it runs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Protocol, cast

from tavern_core.contract.protocols import BoundTool, Sandbox, ToolHome
from tavern_core.errors import ToolFileInvalid
from tavern_core.kernel.plugins.host_registries import HostRegistries
from tavern_core.kernel.plugins.plugin_code import handler_in
from tavern_core.kernel.plugins.plugin_record import PluginRecord
from tavern_core.kernel.plugins.remote_plugin_interface import RemotePlugin
from tavern_core.kernel.views.facility_views import sealed_home
from tavern_core.model.tool import ToolSpec


class SandboxSource(Protocol):
    """The sandboxes of plugins' programs."""

    def of(self, record: PluginRecord, /) -> Sandbox: ...


class ToolHomes:
    """Makes a ToolHome for each tool."""

    def __init__(self, tables: HostRegistries, sandboxes: SandboxSource) -> None:
        self._tables, self._sandboxes = tables, sandboxes

    def of(self, record: PluginRecord, spec: ToolSpec, executor: str) -> ToolHome:
        """The facilities that an executor gets from the plugin whose tool it runs.

        Args:
            executor: the plugin of the executor. Built-in executors call services directly; others get views.
        """
        is_ours = self._tables.contributions.is_builtin(executor)
        # Behind functions without arguments, so that an executor cannot choose another tool.
        resolve = self._tables.settings.resolve

        def service(name: str) -> Any:
            if not is_ours:
                return self._tables.services.view(name, record)
            return self._tables.services.allowed(name, record, str(spec.implementation.get("method", "")))

        home = ToolHome(
            record.name,
            record.candidate.unpacked(self._tables.base.unpacked),
            self._tables.base.config.limits,
            service,
            lambda: resolve(record.name, spec.local_name),
            partial(load_handler, record),
            self._sandboxes.of(record),
            self._tables.engines.flow,
            frozenset(record.candidate.facts.depends_on),
            lambda: resolve(record.name),
            is_intact=record.is_intact,
        )

        def delegate(other: ToolSpec) -> BoundTool:
            executor = self._tables.contributions.get("executors", other.kind)
            if executor is None:
                raise ToolFileInvalid(f"tool {other.name}: there is no executor for tools of kind {other.kind!r}")
            return cast(BoundTool, executor.bind(other, home))

        return replace(home, delegate=delegate) if is_ours else sealed_home(home)


def load_handler(record: PluginRecord, target: str) -> Any:
    """The object that ``module:name`` names inside the plugin's own package.

    Raises:
        ToolFailed: it does not exist (TOOL_ERROR).
    """
    if isinstance(record.thing, RemotePlugin):
        return record.thing.handler(target)
    return handler_in(record.thing, target, record.name)
