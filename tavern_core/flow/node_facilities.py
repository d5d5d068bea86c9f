"""The facilities of nodes besides inputs: tools, services and a logger, each within the grants of the plugin."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from tavern_core.contract.llm import LLM
from tavern_core.errors import PolicyDenied
from tavern_core.flow.llm_calls import Models
from tavern_core.kernel.calls.large_results import ArtifactStore
from tavern_core.kernel.catalogue.tool_spec_cache import ToolSpecs
from tavern_core.kernel.views.facility_views import sealed_llm
from tavern_core.model.call import CallContext
from tavern_core.model.result import ToolResult


class NodeFacilities:
    """The host's side of every NodeContext. All actions are on behalf of the caller of the workflow.

    Args:
        host: the caller that represents the host itself.
    """

    def __init__(self, specs: ToolSpecs, models: Models, artifacts: ArtifactStore, host: CallContext) -> None:
        self._specs = specs
        self._models = models
        self._artifacts = artifacts
        self._host = host
        self._lifecycle = specs.lifecycle
        self._services = specs.lifecycle.tables.services

    def logger(self, plugin: str) -> logging.Logger:
        return logging.getLogger(f"tavern.plugin.{plugin}")

    def llm(self, plugin: str, name: str, context: CallContext, purpose: str) -> LLM:
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
        asker = "" if record.candidate.fixed_id else plugin
        asked = self._models.asked_by(name, self._caller(context), purpose, asker)
        return sealed_llm(asked) if asker else asked

    def service(self, plugin: str, name: str) -> Any:
        record = self._lifecycle.records[plugin]
        if record.ctx is not None:
            return record.ctx.service(name)
        return self._services.view(name, record)

    def keep(self, data: Any, media_type: str, name: str, context: CallContext) -> dict[str, Any]:
        return self._artifacts.put(data, media_type, name=name, context=self._caller(context)).link()

    async def invoke(
        self, tool: str, arguments: Mapping[str, Any] | None, context: CallContext, purpose: str, key: str | None
    ) -> ToolResult:
        return await self._models.invoke(tool, arguments, self._caller(context), purpose, key)

    def may_be_repeated(self, tool: str) -> bool:
        """Whether a second call of a tool does no harm, whatever the result of the first."""
        entry = self._lifecycle.tables.registry.find(tool)
        return entry is not None and entry.spec is not None and entry.spec.may_be_repeated(has_key=False)

    def _caller(self, context: CallContext) -> CallContext | None:
        is_host = context is self._host or self._specs.is_host(context)
        return None if is_host else context
