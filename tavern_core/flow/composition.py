"""Composes all parts for nodes and workflows of one host."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tavern_core.contract.llm import LLM
from tavern_core.flow.llm_calls import DOOR, LlmGovernance, Models
from tavern_core.flow.llm_use import PluginBudgets
from tavern_core.flow.node_catalogue import Nodes, Retrieval
from tavern_core.flow.plugin_workflows import PluginWorkflows
from tavern_core.flow.prompt_hooks import PromptHooks
from tavern_core.flow.run_job_adapter import RunJobAdapter
from tavern_core.flow.run_machinery import RunMachinery
from tavern_core.flow.workflow_files import WorkflowFiles
from tavern_core.flow.workflow_tools import WorkflowEngine, WorkflowTools
from tavern_core.flow.workflows import Workflows
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.settings.result_redaction import masking
from tavern_core.model.call import CallContext

if TYPE_CHECKING:
    from tavern_core.kernel.calls.pipeline import Pipeline
    from tavern_core.kernel.catalogue.tool_catalogue import ToolCatalogue
    from tavern_core.kernel.catalogue.tool_spec_cache import ToolSpecs
    from tavern_core.model.result import ToolResult


@dataclass(frozen=True, slots=True)
class WorkflowServices:
    """Nodes, workflows, their engine and their tools."""

    nodes: Nodes
    workflows: Workflows
    tools: WorkflowTools
    models: Models
    machinery: RunMachinery
    pipeline: Pipeline

    @classmethod
    def build(
        cls,
        catalogue: ToolCatalogue,
        pipeline: Pipeline,
        retrieval: Callable[[ToolSpecs, WorkflowFiles], Retrieval],
    ) -> WorkflowServices:
        """Compose the parts and register the engine for the executors; nothing is read and no plugin code runs."""
        specs = catalogue.specs
        base, tables = specs.base, specs.lifecycle.tables
        plugin_workflows = PluginWorkflows(specs.lifecycle)
        models = Models(tables.contributions, partial(_invoke, pipeline), _governance(specs, plugin_workflows))
        workflow_files = WorkflowFiles([Path(root) for root in base.config.workflows.roots], plugin_workflows.all)
        nodes = Nodes(specs.lifecycle, partial(retrieval, specs, workflow_files))
        machinery = RunMachinery(catalogue, models, nodes, workflow_files, plugin_workflows, pipeline.artifacts)
        workflows = Workflows(machinery)
        engine = WorkflowEngine(workflows, nodes, specs, pipeline.artifacts, pipeline.limits.inline_bytes)
        jobs = RunJobAdapter(workflows, engine, base.config.jobs)
        tables.engines.enter(engine, jobs, partial(pipeline.run, base.mode))
        tools = WorkflowTools(workflow_files, plugin_workflows, tables)
        return cls(nodes, workflows, tools, models, machinery, pipeline)

    def dry_run(self, llm: LLM) -> Workflows:
        """The same workflows for a trial: this model answers for every model, and tools are checked instead of run."""
        from tavern_core.flow.dry_run_stubs import DryRunModels

        return Workflows(replace(self.machinery, models=DryRunModels(self.models, llm, self.pipeline)))


def _invoke(
    pipeline: Pipeline,
    tool: str,
    arguments: Mapping[str, Any] | None,
    context: CallContext | None,
    purpose: str,
    key: str | None,
) -> Coroutine[Any, Any, ToolResult]:
    """Make a call for a node or a model."""
    return pipeline.run(pipeline.compiler.base.mode, tool, arguments, context, purpose, key, DOOR)


def _governance(specs: ToolSpecs, plugin_workflows: PluginWorkflows) -> LlmGovernance:
    """The rules for requests to language models."""
    base = specs.base
    return LlmGovernance(
        PromptHooks(specs.lifecycle),
        PluginBudgets(base.config.limits.llms),
        specs.lifecycle.events,
        base.recorder,
        plugin_workflows,
        masking(base.known_secrets),
        base.config.limits.output_bytes,
    )
