"""What nodes can use besides their inputs: tools, services and a logger, each within the grants of their plugin."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from tavern_core.contract.llm import LLM
from tavern_core.errors import PolicyDenied
from tavern_core.flow.engine.protocols import RunPart
from tavern_core.flow.llm_calls import Invoke, Models
from tavern_core.kernel.calls.large_results import ArtifactStore
from tavern_core.kernel.plugins.lifecycle import Lifecycle
from tavern_core.kernel.views.llm_view import sealed_llm
from tavern_core.model.call import CallContext
from tavern_core.model.result import ToolResult


class ModelDoor:
    """A language model before its caller is known."""

    def __init__(self, models: Models, name: str, is_host: Callable[[CallContext], bool], plugin: str) -> None:
        self._models, self._name, self._is_host, self._plugin = models, name, is_host, plugin
        """The plugin of the node; empty: one of the host's own."""

    def within(self, run: RunPart, path: str) -> LLM:
        """The model for a node of a run: on behalf of the caller of the workflow."""
        context = None if self._is_host(run.context) else run.context
        asked = self._models.asked_by(self._name, context, f"node {path} of {run.id}", self._plugin)
        return sealed_llm(asked) if self._plugin else asked


class HostNodeFacilities:
    """The host's side of every NodeContext."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        models: Models,
        invoke: Invoke,
        artifacts: ArtifactStore,
        is_host: Callable[[CallContext], bool],
    ) -> None:
        self._lifecycle = lifecycle
        self._models = models
        self._services = lifecycle.tables.services
        self._invoke = invoke
        self._artifacts = artifacts
        self._is_host = is_host

    def logger(self, plugin: str) -> logging.Logger:
        return logging.getLogger(f"tavern.plugin.{plugin}")

    def llm(self, plugin: str, name: str) -> ModelDoor:
        """A language model; other plugins than the host's own need ``service:use:llm``."""
        record = self._lifecycle.records[plugin]
        if not record.candidate.fixed_id and not record.candidate.implicit and not record.may("service:use:llm"):
            raise PolicyDenied(
                f"{plugin} may not use language models: service:use:llm is not declared and granted",
                hint=f"plugin.yaml: permissions: {{services: {{use: [llm]}}}}, then tavern plugins grant {plugin} service:use:llm",
                plugin=plugin, missing=["service:use:llm"],
            )  # fmt: skip
        if self._models.replacement is None:
            self._models.find(name)  # report a missing one before any request
        return ModelDoor(self._models, name, self._is_host, "" if record.candidate.fixed_id else plugin)

    def service(self, plugin: str, name: str) -> Any:
        record = self._lifecycle.records[plugin]
        if record.ctx is not None:
            return record.ctx.service(name)
        return self._services.view(name, plugin, record.may)

    def keep(self, data: Any, media_type: str, name: str, run: RunPart) -> dict[str, Any]:
        """Keep an artifact for the workflow's caller."""
        context = None if self._is_host(run.context) else run.context
        return self._artifacts.put(data, media_type, name=name, context=context).link()

    async def invoke(
        self,
        plugin: str,
        tool: str,
        arguments: Mapping[str, Any] | None,
        run: RunPart,
        path: str,
        options: Mapping[str, Any],
    ) -> ToolResult:
        """Call a tool for the caller of the workflow."""
        context = None if self._is_host(run.context) else run.context
        outcome = "unknown"
        try:
            purpose = str(options.get("purpose") or f"node {path} of {run.id}")
            result = await self._invoke(tool, arguments, context, purpose)
            outcome = "done" if result.error is None else result.error.outcome
        finally:
            run.may_have_changed = run.may_have_changed or outcome != "none"
        return result

    def may_be_repeated(self, tool: str) -> bool:
        """See `NodeFacilities`."""
        entry = self._lifecycle.tables.registry.find(tool)
        return entry is not None and entry.spec is not None and entry.spec.may_be_repeated(has_key=False)
