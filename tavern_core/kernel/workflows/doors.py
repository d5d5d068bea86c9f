"""What nodes reach besides their inputs: tools, services and a logger, each judged by what their plugin was granted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from tavern_core.kernel.engine.parts import RunPart
from tavern_core.kernel.life.lifecycle import Lifecycle
from tavern_core.kernel.life.services import Services
from tavern_core.model.call import CallContext
from tavern_core.model.result import ToolResult

Invoke = Callable[[str, Mapping[str, Any] | None, CallContext | None, str], Coroutine[Any, Any, ToolResult]]
"""(tool, arguments, context, purpose): a call through the one pipeline."""


class Doors:
    """The host's side of every NodeContext."""

    def __init__(self, lifecycle: Lifecycle, services: Services, invoke: Invoke, is_host: Callable[[CallContext], bool]) -> None:
        self._lifecycle = lifecycle
        self._services = services
        self._invoke = invoke
        self._is_host = is_host

    def logger(self, plugin: str) -> logging.Logger:
        return logging.getLogger(f"tavern.plugin.{plugin}")

    def service(self, plugin: str, name: str) -> Any:
        record = self._lifecycle.records[plugin]
        if record.ctx is not None:
            return record.ctx.service(name)
        return self._services.view(name, plugin, record.may)

    async def invoke(
        self, plugin: str, tool: str, arguments: Mapping[str, Any] | None, run: RunPart, path: str, options: Mapping[str, Any]
    ) -> ToolResult:
        """Call a tool for whoever called the workflow."""
        context = None if self._is_host(run.context) else run.context
        return await self._invoke(tool, arguments, context, str(options.get("purpose") or f"node {path} of {run.id}"))
