"""Composes all parts for nodes and workflows of one host."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tavern_core.contract.llm import LLM
from tavern_core.flow.llm_calls import Governance, Models
from tavern_core.flow.llm_use import PluginBudgets
from tavern_core.flow.node_catalogue import Nodes, Retrieval
from tavern_core.flow.plugin_workflows import PluginWorkflows
from tavern_core.flow.prompt_hooks import PromptHooks
from tavern_core.flow.run_job_adapter import RunsAsJobs
from tavern_core.flow.workflow_files import WorkflowFiles
from tavern_core.flow.workflow_tools import Engine, WorkflowTools
from tavern_core.flow.workflows import Workflows
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.calls.pipeline import DRY_RUN
from tavern_core.kernel.settings.result_redaction import judging, masking
from tavern_core.model.artifact import media_type_of
from tavern_core.model.call import CallContext, host_context

if TYPE_CHECKING:
    from tavern_core.flow.run_pipeline import Running
    from tavern_core.kernel.calls.large_results import ArtifactStore
    from tavern_core.kernel.calls.pipeline import Phase, Pipeline
    from tavern_core.kernel.catalogue.tool_catalogue import ToolCatalogue
    from tavern_core.kernel.catalogue.tool_spec_cache import ToolSpecs
    from tavern_core.model.result import ToolResult


@dataclass(frozen=True, slots=True)
class Flow:
    """Nodes, workflows, their engine and their tools."""

    nodes: Nodes
    workflows: Workflows
    tools: WorkflowTools
    models: Models
    dry_run: Callable[[LLM], Workflows]
    """The same workflows for a trial: this model answers for every model, and tools are checked instead of run."""

    @classmethod
    def build(
        cls,
        catalogue: ToolCatalogue,
        pipeline: Pipeline,
        retrieval: Callable[[ToolSpecs, WorkflowFiles, Nodes], Retrieval],
    ) -> Flow:
        """Compose the parts and register the engine for the executors; nothing is read and no plugin code runs."""
        specs = catalogue.specs
        base, tables, mode = specs.base, specs.lifecycle.tables, specs.base.mode

        def invoke(
            tool: str,
            arguments: Mapping[str, Any] | None,
            context: CallContext | None,
            purpose: str,
            phase: Phase | None = None,
        ) -> Coroutine[Any, Any, ToolResult]:
            return pipeline.run(mode, tool, arguments, context, purpose, None, "workflow", phase)

        plugin_workflows = PluginWorkflows(specs.lifecycle, tables.contributions, base.home / "cache" / "unpacked")
        models = Models(tables.contributions, invoke, _governance(specs, plugin_workflows))
        workflow_files = WorkflowFiles([Path(root) for root in base.config.workflows.roots], plugin_workflows.all)
        nodes = Nodes(specs.lifecycle, partial(retrieval, specs, workflow_files))

        async def prepare() -> None:
            base.portal.check()
            await plugin_workflows.activate()

        def workflows_of(models: Models) -> Workflows:
            running = partial(_running, catalogue, models, nodes, workflow_files, prepare, pipeline.artifacts)
            return Workflows(workflow_files, running, wait=base.portal.run, prepare=prepare)

        async def output_schema(tool: str, context: CallContext | None) -> Mapping[str, Any] | None:
            return (await pipeline.compiler.find(tool, context)).spec.output_schema

        def dry_run(llm: LLM) -> Workflows:
            from tavern_core.flow.dry_run_stubs import DryRunModels, dry_run_invoke

            return workflows_of(
                DryRunModels(models, llm, dry_run_invoke(partial(invoke, phase=DRY_RUN), output_schema))
            )

        workflows = workflows_of(models)
        engine = Engine(workflows, nodes, specs.is_host, partial(_link_of_large, pipeline), base.config.jobs)
        jobs = RunsAsJobs(workflows, engine, base.config.jobs)
        tables.engines.enter(engine, jobs, partial(pipeline.run, mode))
        return cls(nodes, workflows, WorkflowTools(workflow_files, plugin_workflows.folders, tables), models, dry_run)


def _governance(specs: ToolSpecs, plugin_workflows: PluginWorkflows) -> Governance:
    """What holds for requests to language models."""
    base = specs.base
    return Governance(
        PromptHooks(specs.lifecycle),
        PluginBudgets(base.config.limits.llms),
        specs.lifecycle.events,
        base.recorder,
        plugin_workflows.activate,
        masking(base.known_secrets),
        base.config.limits.output_bytes,
    )


def _link_of_large(pipeline: Pipeline, context: CallContext | None, data: bytes) -> dict[str, Any] | None:
    """The link to an artifact that holds `data`, where that is too large for an answer."""
    most = pipeline.limits.inline_bytes
    if most is None or len(data) <= most:
        return None
    return pipeline.artifacts.put(data, media_type_of(data), context=context).link()


def _running(
    catalogue: ToolCatalogue,
    models: Models,
    nodes: Nodes,
    workflow_files: WorkflowFiles,
    prepare: Callable[[], Coroutine[Any, Any, None]],
    artifacts: ArtifactStore,
) -> Running:
    """The parts that run workflows; imported with the first one."""
    from tavern_core.flow.compiled_workflow_cache import Compiling
    from tavern_core.flow.engine.cache import DiskCache, SessionCache
    from tavern_core.flow.engine.sqlite_run_store import RunStore
    from tavern_core.flow.node_facilities import NodeFacilities
    from tavern_core.flow.node_permissions import NodeRights
    from tavern_core.flow.run_pipeline import Caches, Running

    specs = catalogue.specs
    base, lifecycle = specs.base, specs.lifecycle
    host = host_context(base.config.config)

    def is_host(context: CallContext) -> bool:
        return context is host or specs.is_host(context)

    holds_secret = judging(base.known_secrets)
    caches = Caches(
        SessionCache(),
        DiskCache(base.home / "cache" / "answers.db", holds_secret),
        RunStore(
            base.home / "runs.db",
            base.known_secrets,
            base.diagnostics.of_damage("earlier runs of workflows are lost"),
        ),
    )
    rights = NodeRights(lifecycle, base.config.capabilities, host, catalogue.profiles.resolved)
    facilities = NodeFacilities(lifecycle, models, models.invoke, artifacts, is_host)
    compiling = Compiling(nodes, workflow_files, lifecycle)
    return Running(workflow_files, compiling, rights, facilities, caches, lifecycle.tables, prepare)
