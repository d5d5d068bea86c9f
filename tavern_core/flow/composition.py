"""Everything about nodes and workflows of one host, put together once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tavern_core.flow.llm_calls import Invoke, Models
from tavern_core.flow.node_catalogue import Nodes
from tavern_core.flow.plugin_workflows import Brought
from tavern_core.flow.workflow_files import WorkflowShelf
from tavern_core.flow.workflow_tools import Engine, WorkflowTools
from tavern_core.flow.workflows import Workflows
from tavern_core.frozen import dataclass
from tavern_core.kernel.settings.result_redaction import judging, masking

if TYPE_CHECKING:
    from tavern_core.flow.node_permissions import NodeRights
    from tavern_core.flow.run_steps import Caches, Note, Running
    from tavern_core.kernel.diagnostics import Diagnostics
    from tavern_core.kernel.execution.threads import Workers
    from tavern_core.kernel.hooks.table import HookTable
    from tavern_core.kernel.plugins.lifecycle import Lifecycle
    from tavern_core.kernel.plugins.runtime import Tables
    from tavern_core.kernel.plugins.services import Services
    from tavern_core.kernel.registry import Registry
    from tavern_core.model.call import CallContext
    from tavern_core.model.config import WorkflowsConfig

Secrets = Callable[[], Collection[str]]
Wait = Callable[[Coroutine[Any, Any, Any]], Any]


@dataclass(frozen=True, slots=True)
class FlowRoom:
    """Nodes, workflows, their engine and their tools."""

    nodes: Nodes
    workflows: Workflows
    engine: Engine
    tools: WorkflowTools
    brought: Brought
    models: Models

    @classmethod
    def build(
        cls,
        config: WorkflowsConfig,
        home: Path,
        *,
        lifecycle: Lifecycle,
        rights: NodeRights,
        tables: Tables,
        hooks: HookTable,
        services: Services,
        registry: Registry,
        diagnostics: Diagnostics,
        threads: Workers,
        host: CallContext,
        is_host: Callable[[CallContext], bool],
        invoke: Invoke,
        note: Note,
        wait: Wait,
        ready: Callable[[], None],
        secrets: Secrets,
    ) -> FlowRoom:
        """Put it together; nothing is read and no plugin code runs.

        Args:
            rights: judges what nodes may do.
            is_host: whether a call is one of the host itself.
            invoke: a call through the one pipeline.
            note: puts an event on the record.
            wait: waits for a coroutine from sync code.
            ready: raises UsageError when the host is closed.
            secrets: the secret texts that this host knows now.
        """
        models = Models(tables.contributions, invoke)
        nodes = Nodes(lifecycle, tables.contributions, hooks, tables.calls, diagnostics, tables.mode, wait)
        brought = Brought(lifecycle, tables.contributions, home / "cache" / "unpacked")
        shelf = WorkflowShelf([Path(root) for root in config.roots], brought.all)

        async def prepare() -> None:
            ready()
            await brought.activate()

        def machinery() -> tuple[Running, Caches]:
            from tavern_core.flow.compiler import Compiling
            from tavern_core.flow.engine.cache import DiskCache, SessionCache
            from tavern_core.flow.engine.run_store import RunStore
            from tavern_core.flow.hook_chains import FlowCalls
            from tavern_core.flow.node_facilities import Doors
            from tavern_core.flow.run_steps import Caches, Running

            mask, holds_secret = masking(secrets), judging(secrets)
            caches = Caches(
                SessionCache(),
                DiskCache(home / "cache" / "answers.db", holds_secret),
                RunStore(home / "runs.db", mask, holds_secret, secrets),
            )

            running = Running(
                shelf,
                Compiling(nodes, shelf, lifecycle),
                rights=rights,
                hooks=hooks,
                calls=FlowCalls(tables.calls, tables.mode),
                threads=threads,
                doors=Doors(lifecycle, services, models, invoke, lambda context: context is host or is_host(context)),
                caches=caches,
                mask=mask,
                secrets=secrets,
                host=host,
                note=note,
                prepare=prepare,
                defaults={"concurrency": config.concurrency, "resources": config.resources},
            )
            return running, caches

        workflows = Workflows(shelf, machinery, wait=wait, prepare=prepare)
        tools = WorkflowTools(shelf, registry, diagnostics, lambda: tables.contributions.generation)
        return cls(nodes, workflows, Engine(workflows, is_host), tools, brought, models)
