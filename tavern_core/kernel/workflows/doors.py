"""What nodes reach besides their inputs: tools, services and a logger, each judged by what their plugin was granted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from tavern_core.contract.llms import LLM
from tavern_core.errors import PolicyDenied, ToolFailed
from tavern_core.kernel.engine.parts import RunPart
from tavern_core.kernel.life.contributions import Contributions
from tavern_core.kernel.life.lifecycle import Lifecycle
from tavern_core.kernel.life.services import Services
from tavern_core.kernel.views.sealed_llm import sealed_llm
from tavern_core.model.call import CallContext
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.result import ToolResult

Invoke = Callable[[str, Mapping[str, Any] | None, CallContext | None, str], Coroutine[Any, Any, ToolResult]]
"""(tool, arguments, context, purpose): a call through the one pipeline."""


class Doors:
    """The host's side of every NodeContext."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        services: Services,
        contributions: Contributions,
        invoke: Invoke,
        is_host: Callable[[CallContext], bool],
    ) -> None:
        self._lifecycle = lifecycle
        self._contributions = contributions
        self._services = services
        self._invoke = invoke
        self._is_host = is_host

    def logger(self, plugin: str) -> logging.Logger:
        return logging.getLogger(f"tavern.plugin.{plugin}")

    def llm(self, plugin: str, name: str) -> LLM:
        """A language model; other plugins than the host's own need ``service:use:llm``."""
        record = self._lifecycle.records[plugin]
        if not record.candidate.fixed_id and not record.candidate.implicit and not record.may("service:use:llm"):
            raise PolicyDenied(
                f"{plugin} may not use language models: service:use:llm is not declared and granted",
                hint=f"plugin.yaml: permissions: {{services: {{use: [llm]}}}}, then tavern plugins grant {plugin} service:use:llm",
                plugin=plugin, missing=["service:use:llm"],
            )  # fmt: skip
        known = self._contributions.all("llms")
        found = next(iter(known.values())) if not name and len(known) == 1 else known.get(name)
        if found is None:
            what = f"no language model {name!r}" if name else "no language model" if not known else "more than one language model"
            hint = did_you_mean(name, known) or (f"name one of {', '.join(sorted(known))}" if known else "a plugin brings one with tavern_register_llms")
            raise ToolFailed(f"there is {what}", hint=hint)
        return found if record.candidate.fixed_id else sealed_llm(found)

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
