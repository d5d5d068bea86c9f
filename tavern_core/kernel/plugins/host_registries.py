"""The tables in which contributions of plugins are registered, and what the plugins' code needs to run."""

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
    """Protects the host from imports that would end or hang the process."""

    def check(self, candidate: PluginCandidate) -> None:
        """Try the import in another process first, if necessary.

        Raises:
            ActivationFailed: it would end the host (ACTIVATION_FAILED).
        """
        ...

    def load(self, candidate: PluginCandidate, ctx: PluginContext) -> Any:
        """Import the code of a discovered plugin; its errors pass through."""
        ...

    def look_after(self) -> None:
        """Let the running loop clean up after `check` when that is finished."""
        ...

    def refusal(self, candidate: PluginCandidate) -> Finding | None:
        """Why a plugin would not be imported now, if known."""
        ...

    def forget(self, name: str) -> None:
        """Forget earlier failures of a plugin: the operator wants another attempt."""
        ...


class UpstreamLists(Protocol):
    """Requests the tool lists of upstreams."""

    async def find(self, plugin: str, /) -> bool:
        """Request the tools of an upstream for the first time; True: there may be more tools now."""
        ...

    async def refresh_used(self) -> Any:
        """Request the tools of all upstreams in use again."""
        ...


class Engines:
    """Closes the one cycle of a host: calls run workflows and become jobs; nodes and jobs make calls.

    Set once the last part is built; read when a tool is bound, or when a job begins.
    """

    def __init__(self) -> None:
        self.flow: FlowEngine | None = None
        self.runs: RunJobs | None = None
        self.calls: Calls | None = None

    def enter(self, flow: FlowEngine, runs: RunJobs, calls: Calls) -> None:
        """Set the parts, so that tools can be bound to them."""
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
        """Runs code for callers in an event loop."""
        return self.base.mode

    @property
    def diagnostics(self) -> Diagnostics:
        """Findings that people should see."""
        return self.base.diagnostics
