"""What the life of a plugin takes place in: the host's tables, and what the host gives to every plugin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from tavern_core.frozen import dataclass
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.execution.modes import Mode
from tavern_core.kernel.grants.grants import Decision
from tavern_core.kernel.hooks.dispatch import HookCalls
from tavern_core.kernel.hooks.table import HookTable
from tavern_core.kernel.plugins.candidate import Candidate
from tavern_core.kernel.plugins.contributions import Contributions
from tavern_core.kernel.plugins.record import Record
from tavern_core.kernel.plugins.services import Services
from tavern_core.kernel.registry import Registry
from tavern_core.kernel.settings.store import SettingsStore
from tavern_core.model.node import NodeSpec
from tavern_core.model.settings import SettingItem
from tavern_core.model.tool import ToolSpec


class SpecCache(Protocol):
    """Remembers tools, settings and node types of plugins between runs, so that they can be listed without import."""

    def store(
        self,
        candidate: Candidate,
        specs: tuple[ToolSpec, ...],
        settings: tuple[SettingItem, ...],
        nodes: tuple[NodeSpec, ...],
    ) -> None: ...

    def load(self, candidate: Candidate) -> tuple[ToolSpec, ...] | None: ...

    def settings(self, candidate: Candidate) -> tuple[Mapping[str, Any], ...]: ...

    def nodes(self, candidate: Candidate) -> tuple[NodeSpec, ...] | None: ...

    def burst(self) -> AbstractContextManager[None]: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the host gives to every plugin."""

    version: str
    config: Mapping[str, Any]
    own_config: Mapping[str, Mapping[str, Any]]
    """Sections of tavern.yaml that plugins in the box see as their `ctx.config`, by their names."""
    data_root: Path
    secret: Callable[[str], str]
    safe_mode: bool
    drain_s: float
    tell: Callable[[str, Mapping[str, Any], str], Awaitable[None]]
    """Announce an event: (type, data, plugin)."""
    judge: Callable[[Candidate], None]
    """Tries the import elsewhere first, where that is called for; raises ActivationFailed (ACTIVATION_FAILED)."""
    load: Callable[[Candidate], Any]
    """Imports the code of a plugin that was found."""
    look_after: Callable[[], None]
    """Has the running loop clear away what `judge` started, when that is over."""
    import_s: float
    """How long that may take."""
    look: Callable[[Record], Decision | None]
    """What holds of a plugin whose code is about to run, its files read; raises LockMismatch (LOCK_MISMATCH)."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Where what plugins bring is registered, and how their code is run."""

    mode: Mode
    hooks: HookTable
    calls: HookCalls
    registry: Registry
    contributions: Contributions
    services: Services
    settings: SettingsStore
    cache: SpecCache
    diagnostics: Diagnostics
