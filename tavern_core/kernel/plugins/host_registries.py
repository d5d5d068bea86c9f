"""Where what plugins contribute is registered, and what their code needs to run."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from tavern_core.contract.context import PluginContext
from tavern_core.contract.protocols import Calls, FlowEngine, RunJobs
from tavern_core.errors import Finding
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.execution.sync_async_drivers import ExecutionMode
from tavern_core.kernel.foundation import Foundation
from tavern_core.kernel.hooks.hook_calls import HookCalls
from tavern_core.kernel.hooks.table import HookTable
from tavern_core.kernel.plugins.candidate import PluginCandidate
from tavern_core.kernel.plugins.contribution_registry import Contributions
from tavern_core.kernel.plugins.services import Services
from tavern_core.kernel.registry import Registry
from tavern_core.kernel.settings.store import SettingsStore

if TYPE_CHECKING:
    from tavern_core.kernel.plugins.candidate_discovery import IndexedSpecs


class ImportGuard(Protocol):
    """Keeps an import that would end or hang the process away from the host."""

    def judge(self, candidate: PluginCandidate) -> None:
        """Try the import in another process first, if necessary.

        Raises:
            ActivationFailed: the host would not survive it (ACTIVATION_FAILED).
        """
        ...

    def load(self, candidate: PluginCandidate, ctx: PluginContext) -> Any:
        """Import the code of a plugin that was found; its errors pass through."""
        ...

    def look_after(self) -> None:
        """Have the running loop clean up after `judge`, when it is finished."""
        ...

    def refusal(self, candidate: PluginCandidate) -> Finding | None:
        """Why a plugin would not be imported now, if known."""
        ...

    def forget(self, name: str) -> None:
        """Forget what is known of a plugin: the operator wants it tried again."""
        ...


class UpstreamLists(Protocol):
    """Requests the tools of upstreams."""

    async def find(self, plugin: str, /) -> bool:
        """Request the tools of an upstream for the first time; True: there may be more tools now."""
        ...

    async def refresh_used(self) -> Any:
        """Request the tools again of all upstreams that are in use."""
        ...


class Engines:
    """Closes the one cycle of a host: calls run workflows and become jobs, and nodes and jobs make calls.

    Set once the last part is built; looked up when a tool is bound, or when a job begins.
    """

    def __init__(self) -> None:
        self.flow: FlowEngine | None = None
        self.runs: RunJobs | None = None
        self.calls: Calls | None = None

    def enter(self, flow: FlowEngine, runs: RunJobs, calls: Calls) -> None:
        """From now on tools may be bound to them."""
        self.flow, self.runs, self.calls = flow, runs, calls


@dataclass(frozen=True, slots=True)
class HostRegistries:
    """The tables of one host."""

    base: Foundation
    hooks: HookTable
    calls: HookCalls
    registry: Registry
    contributions: Contributions
    services: Services
    settings: SettingsStore
    cache: IndexedSpecs
    engines: Engines = field(default_factory=Engines)

    @property
    def mode(self) -> ExecutionMode:
        """How code is run for callers in an event loop."""
        return self.base.mode

    @property
    def diagnostics(self) -> Diagnostics:
        """What a person should know."""
        return self.base.diagnostics
