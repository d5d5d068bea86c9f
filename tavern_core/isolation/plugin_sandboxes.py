"""Creates the boxes of plugins' programs. Modules for programs are imported with the first one (`box_rules`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from tavern_core.frozen_dataclass import dataclass
from tavern_core.isolation.work_folders import WorkFolders
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.discovery.other_formats import MARKS
from tavern_core.kernel.execution.portal import Portal
from tavern_core.kernel.plugins.plugin_record import PluginRecord
from tavern_core.model.call import Rights, ToolCall
from tavern_core.model.config import IsolationConfig
from tavern_core.model.event import Event

if TYPE_CHECKING:
    from tavern_core.box.output import Serve
    from tavern_core.box.policy import BoxPolicy, Level
    from tavern_core.box.script_spawner import ScriptLaunch, ScriptProcess, ScriptSpawner


class Sandboxes:
    """Creates the boxes of one host.

    Args:
        home: the state folder: settings, secrets, logs. No box can access it, whatever the grants.
        kept: files that decide what is allowed (lock file, configuration); no box can write to them.
        work: the folders of running programs.
        emit: records refusals of programs.
        code: the folders of plugins and profiles; no box can write there either.
    """

    def __init__(
        self,
        config: IsolationConfig,
        home: Path,
        kept: tuple[Path, ...],
        diagnostics: Diagnostics,
        work: WorkFolders,
        emit: Callable[[Event], object] = lambda event: None,
        code: Callable[[], Iterable[Path]] = tuple,
    ) -> None:
        self.config = config
        self.home = home
        self.protected_files = kept
        self.diagnostics = diagnostics
        self.work = work
        self.emit = emit
        self.gateways = Portal("tavern-gateway")
        """Serves the network access of boxes."""
        self._code = code
        self._lock = threading.Lock()
        self._spawner: ScriptSpawner | None = None

    def start(self, launch: ScriptLaunch) -> ScriptProcess:
        """Start a program that is neither a script nor a worker; its fork server is started with the first one."""
        from tavern_core.box.script_spawner import ScriptSpawner

        with self._lock:
            if self._spawner is None:
                self._spawner = ScriptSpawner()
        return self._spawner.start(launch)

    def release(self) -> None:
        """End the servers of boxes, and remove the work folders."""
        if self._spawner is not None:
            self._spawner.close()
        self.gateways.close()
        self.work.close()

    def unwritable(self) -> list[str]:
        """Paths that no box can write, whatever the grants: files with decisions, executed code, interpreters."""
        from tavern_core.isolation.box_rules import unwritable

        return unwritable(self.protected_files, self._code())

    def of(self, record: PluginRecord) -> PluginSandbox:
        """The box of one plugin."""
        # Folders in the formats of other systems do not declare their needs, so they are always confined.
        is_foreign = record.candidate.source in MARKS
        is_isolated = is_foreign or bool(record.candidate.isolation_need or record.condition.kept_apart)
        level = self.level(record) if is_isolated or self.config.level is not None else "best-effort"
        # Programs of other plugins are confined by default, too. If not, they are as trusted as their plugin's code
        # in the host, and only contained: own process tree, limits, a work folder, no access to the host's own files.
        is_whole = is_isolated or self.config.scripts == "granted"
        if is_foreign and level == "none":
            level = "required"
        return PluginSandbox(
            self, record.name, level, self.home / "data" / record.name, is_whole, record.candidate.requested,
            record.candidate.source == "builtin",
        )  # fmt: skip

    def level(self, record: PluginRecord) -> Level:
        """The required isolation level of a plugin: from tavern.yaml, else by whether it was reviewed."""
        if self.config.level is not None:
            return self.config.level
        is_reviewed = record.candidate.source in ("builtin", "object") or bool(record.granted)
        return "best-effort" if is_reviewed else "required"

    def missing(self) -> str:
        """Why there is no complete box here; empty if there is one."""
        from tavern_core.isolation.box_rules import missing_layers

        return missing_layers(self.config)


@dataclass(frozen=True, slots=True)
class PluginSandbox:
    """`contract.protocols.Sandbox` for one plugin."""

    host: Sandboxes
    _plugin: str
    level: Level
    data: Path
    is_whole: bool
    """Whether only the grants are allowed; else everything except the host's own files."""
    _requested: frozenset[str] = frozenset()
    """The capabilities that plugin.yaml requests."""
    _is_builtin: bool = False

    @property
    def missing(self) -> str:
        return self.host.missing()

    def policy(
        self,
        program: str,
        rights: Rights,
        *,
        readable: Sequence[str] = (),
        writable: Sequence[str] = (),
        workspace: str = "",
        is_own: bool = False,
    ) -> BoxPolicy:
        from tavern_core.isolation.box_rules import BoxRules

        host = self.host
        rules = BoxRules(host.config, host.home, host.unwritable, self.level, self.data, self.is_whole)
        return rules.policy(program, rights, readable, writable, workspace, is_own)

    def what_would_allow(self, rights: Rights, wanted: Sequence[str]) -> str:
        from tavern_core.isolation.box_rules import what_would_allow

        return what_would_allow(self._plugin, self._requested, rights, wanted) if self.is_whole else ""

    def work_folder(self) -> str:
        return self.host.work.make()

    def start(self, launch: ScriptLaunch) -> ScriptProcess:
        return self.host.start(launch)

    def gateway(
        self, rights: Rights, call: ToolCall | None, on_refusal: Callable[[str], object] | None = None
    ) -> AbstractAsyncContextManager[Serve | None]:
        from tavern_core.isolation.box_rules import scopes_of

        if not (scopes := scopes_of(rights)):
            return nullcontext()
        from tavern_core.isolation.gateway.destinations import DestinationChecker
        from tavern_core.isolation.gateway.proxy import Gateway, running_gateway

        checker = DestinationChecker(
            self._plugin, scopes, call, self.host.diagnostics, self.host.emit, on_refusal, is_builtin=self._is_builtin
        )
        gateway = Gateway(checker, self.host.config.connections, self.host.config.network_bytes)
        return running_gateway(gateway, self.host.gateways)

    def weak(self, layers: Mapping[str, str]) -> None:
        from tavern_core.isolation.box_rules import NOT_OPEN

        layers = {layer: why for layer, why in layers.items() if self.is_whole or layer not in NOT_OPEN}
        if not layers:
            return
        missing = "; ".join(f"{layer}: {why}" for layer, why in layers.items())
        if "namespaces" in layers:
            missing += ". Those that may use the network reach all of it, whatever the scope says"
        self.host.diagnostics.add(
            "ISOLATION_WEAK",
            f"programs of {self._plugin} run without layers of the box: {missing}",
            plugin=self._plugin,
            hint="`isolation: {level: required}` in tavern.yaml refuses them instead",
        )
