"""The parts that run the workflows of a host: composed, and imported, with the first run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.settings.result_redaction import judging
from tavern_core.model.call import host_context

if TYPE_CHECKING:
    from tavern_core.flow.llm_calls import Models
    from tavern_core.flow.node_catalogue import Nodes
    from tavern_core.flow.plugin_workflows import PluginWorkflows
    from tavern_core.flow.run_pipeline import WorkflowRunner
    from tavern_core.flow.workflow_files import WorkflowFiles
    from tavern_core.kernel.calls.large_results import ArtifactStore
    from tavern_core.kernel.catalogue.tool_catalogue import ToolCatalogue


@dataclass(frozen=True, slots=True)
class RunMachinery:
    """Creates the parts that run workflows with the first run: most hosts run none."""

    catalogue: ToolCatalogue
    models: Models
    nodes: Nodes
    workflow_files: WorkflowFiles
    plugin_workflows: PluginWorkflows
    artifacts: ArtifactStore

    def make(self) -> WorkflowRunner:
        """Compose the compiler, the runner and the run store."""
        from tavern_core.flow.compiled_workflow_cache import WorkflowCompiler
        from tavern_core.flow.engine.cache import DiskCache, SessionCache
        from tavern_core.flow.engine.sqlite_run_store import RunStore
        from tavern_core.flow.node_facilities import NodeFacilities
        from tavern_core.flow.node_permissions import NodeRights
        from tavern_core.flow.run_pipeline import NodeCaches, WorkflowRunner

        specs, files = self.catalogue.specs, self.workflow_files
        base, lifecycle = specs.base, specs.lifecycle
        on_damage = base.diagnostics.of_damage("earlier runs of workflows are lost")
        caches = NodeCaches(
            SessionCache(),
            DiskCache(base.home / "cache" / "answers.db", judging(base.known_secrets)),
            RunStore(base.home / "runs.db", base.known_secrets, on_damage),
        )
        host = host_context(base.config.config)
        rights = NodeRights(lifecycle, base.config.capabilities, host, self.catalogue.profiles)
        facilities = NodeFacilities(specs, self.models, self.artifacts, host)
        compiler = WorkflowCompiler(self.nodes, files, lifecycle, self.plugin_workflows)
        return WorkflowRunner(files, compiler, rights, facilities, caches, lifecycle.tables)
