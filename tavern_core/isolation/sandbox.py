"""The box of a plugin's programs: from grants to rules of the operating system."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import field
from pathlib import Path
from typing import Final

from tavern_core import package
from tavern_core.box import paths
from tavern_core.box.layers import available_layers
from tavern_core.box.output import Serve
from tavern_core.box.policy import LAYERS, BoxLimits, BoxPolicy, Granted, Level
from tavern_core.box.protected_paths import is_in
from tavern_core.box.script_client import Child, Launch, Spawner
from tavern_core.frozen import dataclass
from tavern_core.isolation.closed_paths import closed, granted_paths, read_mounts
from tavern_core.isolation.sandbox_report import allows, what_would_allow
from tavern_core.isolation.work_folders import WorkFolders
from tavern_core.kernel.config.configuration import state_root
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.discovery.other_formats import MARKS
from tavern_core.kernel.execution.portal import Portal
from tavern_core.kernel.plugins.record import Record
from tavern_core.model.call import Rights, ToolCall
from tavern_core.model.config import IsolationConfig
from tavern_core.model.event import Event
from tavern_core.model.scope import Scope, folders

_RESERVES_MEMORY: Final = frozenset({"node", "bun", "deno"})
"""Programs that reserve far more address space than they use."""
_NOT_OPEN: Final = ("seccomp",)
"""Layers that are omitted for programs with the rights of the host, because they would forbid ordinary actions."""
NETWORK: Final = ("network", "read:web")
"""Each of them opens a gateway, which allows what its scope names (`isolation/gateway`)."""
HOST_NETWORK: Final = "network:host"


@dataclass(frozen=True, slots=True)
class Sandboxes:
    """Creates the boxes of one host.

    Args:
        home: the state folder: settings, secrets, logs. No box can access it, whatever the grants.
        kept: files that decide what is allowed (lock file, configuration); no box can write to them.
        work: the folders of running programs.
    """

    config: IsolationConfig
    home: Path
    kept: tuple[Path, ...]
    diagnostics: Diagnostics
    work: WorkFolders
    spawner: Spawner = field(default_factory=Spawner)
    """Starts programs that are neither scripts nor workers."""
    gateways: Portal = field(default_factory=lambda: Portal("tavern-gateway"))
    """Serves the network access of boxes."""
    tell: Callable[[Event], object] = lambda event: None
    """Records refusals of programs."""
    code: Callable[[], Iterable[Path]] = tuple
    """The folders of plugins and profiles; no box can write there either."""

    def release(self) -> None:
        """End the servers of boxes, and remove the work folders."""
        self.spawner.close()
        self.gateways.close()
        self.work.close()

    def unwritable(self) -> list[str]:
        """Paths that no box can write, whatever the grants: files that decide what is allowed, executed code, and its interpreters."""
        return closed([*self.kept, *paths.interpreter(), package.FOLDER, *self.code()])

    def of(self, record: Record) -> PluginSandbox:
        """The box of one plugin."""
        # Folders in the formats of other systems say nothing of what they need, so they are always held.
        is_foreign = record.candidate.source in MARKS
        is_isolated = is_foreign or bool(record.candidate.apart or record.standing.kept_apart)
        level = self.level(record) if is_isolated or self.config.level is not None else "best-effort"
        # Programs of other plugins: by default confined, too; else as trusted as their code, which runs in the host itself,
        # and only contained: their own process tree, limits, a work folder, no access to the host's own files.
        is_whole = is_isolated or self.config.scripts == "granted"
        if is_foreign and level == "none":
            level = "required"
        return PluginSandbox(
            self, record.name, level, self.home / "data" / record.name, is_whole, record.candidate.requested,
            record.candidate.source == "builtin",
        )  # fmt: skip

    def level(self, record: Record) -> Level:
        """The required isolation level of a plugin: from tavern.yaml, else by whether it was reviewed."""
        if self.config.level is not None:
            return self.config.level
        is_reviewed = record.candidate.source in ("builtin", "object") or bool(record.granted)
        return "best-effort" if is_reviewed else "required"

    def limits(self, program: str) -> BoxLimits:
        config = self.config
        reserves = Path(program).name in _RESERVES_MEMORY
        return BoxLimits(
            config.memory_bytes, not reserves, None, config.open_files, config.processes, config.file_bytes
        )

    def missing(self) -> str:
        """Why there is no complete box here; empty if there is one."""
        if self.config.level == "none":
            return "isolation.level is none in tavern.yaml"
        gone = {layer: why for layer, why in available_layers().items() if why}
        gone |= dict.fromkeys(self.config.without, "switched off by isolation.without")
        return "; ".join(f"{layer}: {gone[layer]}" for layer in LAYERS if layer in gone)


@dataclass(frozen=True, slots=True)
class PluginSandbox:
    """`contract.protocols.Sandbox` for one plugin."""

    _host: Sandboxes
    _plugin: str
    level: Level
    _data: Path
    _is_whole: bool
    """Only the grants; else everything except the host's own files."""
    _asked: frozenset[str] = frozenset()
    """The requests of plugin.yaml."""
    _is_builtin: bool = False

    @property
    def missing(self) -> str:
        return self._host.missing()

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
        is_open = not (self._is_whole or is_own)
        may_network = is_open or allows(rights, HOST_NETWORK)
        has_gateway = not may_network and bool(_scopes(rights))
        others, spawned = (True, ()) if is_open else self._others(rights)
        run = (*paths.executables(program), *spawned)
        read = [*paths.for_every_program(), *_beside(program), *readable, *writable]
        read += paths.NETWORK if may_network or has_gateway else ()
        read += paths.PROGRAMS if others else ()
        mounts, own = read_mounts(), os.path.realpath(self._data)
        may_write = self._granted(rights, "write:fs", workspace, is_open)
        if not is_open and any(is_in(own, path) or is_in(path, own) for path in may_write):
            with contextlib.suppress(OSError):  # a missing folder cannot be granted
                self._data.mkdir(parents=True, exist_ok=True)
        kept = self._host.unwritable() if may_write else []
        return BoxPolicy(
            tuple(dict.fromkeys(read)),
            tuple(writable),
            tuple(dict.fromkeys(run)),
            may_fork=True,
            may_execute=others,
            may_network=may_network,
            has_gateway=has_gateway,
            limits=self._host.limits(program),
            level="required" if is_own else self.level,
            without=self._host.config.without,
            left_out=_NOT_OPEN if is_open else (),
            granted=Granted(
                self._granted(rights, "read:fs", workspace, is_open),
                may_write,
                tuple(closed([state_root(self._host.home)], mounts)),
                tuple(kept),
                own,
            ),
        )

    def what_would_allow(self, rights: Rights, wanted: Sequence[str]) -> str:
        return what_would_allow(self._plugin, self._asked, rights, wanted) if self._is_whole else ""

    def work_folder(self) -> str:
        return self._host.work.make()

    def start(self, launch: Launch) -> Child:
        return self._host.spawner.start(launch)

    def gateway(
        self, rights: Rights, call: ToolCall | None, on_refusal: Callable[[str], object] | None = None
    ) -> AbstractAsyncContextManager[Serve | None]:
        if not (scopes := _scopes(rights)):
            return nullcontext()
        from tavern_core.isolation.gateway.destinations import Judge
        from tavern_core.isolation.gateway.proxy import Gateway, served

        judge = Judge(
            self._plugin, scopes, call, self._host.diagnostics, self._host.tell, on_refusal, is_builtin=self._is_builtin
        )
        gateway = Gateway(judge, self._host.config.connections, self._host.config.network_bytes)
        return served(gateway, self._host.gateways)

    def weak(self, layers: Mapping[str, str]) -> None:
        layers = {layer: why for layer, why in layers.items() if self._is_whole or layer not in _NOT_OPEN}
        if not layers:
            return
        missing = "; ".join(f"{layer}: {why}" for layer, why in layers.items())
        if "namespaces" in layers:
            missing += ". Those that may use the network reach all of it, whatever the scope says"
        self._host.diagnostics.add(
            "ISOLATION_WEAK",
            f"programs of {self._plugin} run without layers of the box: {missing}",
            plugin=self._plugin,
            hint="`isolation: {level: required}` in tavern.yaml refuses them instead",
        )

    def _others(self, rights: Rights) -> tuple[bool, tuple[str, ...]]:
        """Whether any other program may be started, or else which ones: from ``process:spawn`` and its scope."""
        if not allows(rights, "process:spawn"):
            return False, ()
        names = rights.scope("process:spawn")
        if names is None:
            return True, ()
        found = (shutil.which(name) for name in names)
        return False, tuple(path for program in found if program for path in paths.executables(program))

    def _granted(self, rights: Rights, capability: str, workspace: str, is_open: bool) -> tuple[str, ...]:
        if is_open:
            return ("/",)
        if not allows(rights, capability):
            return ()
        scope = rights.scope(capability)
        if workspace and scope is not None:
            scope = folders(scope, {"$workspace": workspace})
        return granted_paths(scope)


def _scopes(rights: Rights) -> dict[str, Scope]:
    """The network capabilities that all sides allow, each with its effective scope, without empty ones."""
    found = {name: rights.scope(name) for name in NETWORK if allows(rights, name)}
    return {name: scope for name, scope in found.items() if scope != ()}


def _beside(program: str) -> tuple[str, ...]:
    """The files of a program with its own prefix: the libraries of ``<place>/bin/program``."""
    real = Path(os.path.realpath(program))
    place = real.parent.parent
    return (str(place / "lib"),) if real.parent.name == "bin" and str(place) not in ("/", "/usr", "/usr/local") else ()
