"""Turns a plugin's grants into the rules of its box: paths, programs, network. Imported with the first program."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from tavern_core import package_location
from tavern_core.box import runtime_paths
from tavern_core.box.layer_probe import available_layers
from tavern_core.box.policy import LAYERS, BoxLimits, BoxPolicy, GrantedPaths, Level
from tavern_core.box.protected_path_splitting import is_in
from tavern_core.frozen_dataclass import dataclass
from tavern_core.isolation.closed_paths import granted_paths, read_mounts, with_mount_aliases
from tavern_core.kernel.config.configuration import state_root
from tavern_core.model.call import Rights
from tavern_core.model.capability import CAPABILITIES, covers
from tavern_core.model.capability_scope import NETWORK, Scope, folders
from tavern_core.model.config import IsolationConfig

NOT_OPEN: Final = ("seccomp",)
"""Layers that are omitted for programs with the rights of the host, because they would forbid ordinary actions."""
_RESERVES_MEMORY: Final = frozenset({"node", "bun", "deno"})
"""Programs that reserve far more address space than they use."""
_HOST_NETWORK: Final = "network:host"


@dataclass(frozen=True, slots=True)
class BoxRules:
    """The rules of one plugin's programs.

    Args:
        home: the state folder of the host; no box can access it.
        unwritable: paths that no box can write, whatever the grants.
        data: the plugin's own folder.
        is_whole: whether only the grants are allowed; else everything except the host's own files.
    """

    config: IsolationConfig
    home: Path
    unwritable: Callable[[], list[str]]
    level: Level
    data: Path
    is_whole: bool

    def policy(
        self,
        program: str,
        rights: Rights,
        readable: Sequence[str],
        writable: Sequence[str],
        workspace: str,
        is_own: bool,
    ) -> BoxPolicy:
        """See `contract.protocols.Sandbox.policy`."""
        is_open = not (self.is_whole or is_own)
        may_network = is_open or rights.holds(_HOST_NETWORK)
        has_gateway = not may_network and bool(scopes_of(rights))
        others, spawned = (True, ()) if is_open else _others(rights)
        run = (*runtime_paths.executables(program), *spawned)
        read = [*runtime_paths.for_every_program(), *_beside(program), *readable, *writable]
        read += runtime_paths.NETWORK if may_network or has_gateway else ()
        read += runtime_paths.PROGRAMS if others else ()
        return BoxPolicy(
            tuple(dict.fromkeys(read)),
            tuple(writable),
            tuple(dict.fromkeys(run)),
            may_fork=True,
            may_execute=others,
            may_network=may_network,
            has_gateway=has_gateway,
            limits=self._limits(program),
            level="required" if is_own else self.level,
            without=self.config.without,
            left_out=NOT_OPEN if is_open else (),
            granted=self._places(rights, workspace, is_open),
        )

    def _places(self, rights: Rights, workspace: str, is_open: bool) -> GrantedPaths:
        """The granted part of the file system, and the paths that stay closed whatever was granted."""
        data_folder, may_write = os.path.realpath(self.data), _granted(rights, "write:fs", workspace, is_open)
        if not is_open and any(is_in(data_folder, path) or is_in(path, data_folder) for path in may_write):
            with contextlib.suppress(OSError):  # a missing folder cannot be granted
                self.data.mkdir(parents=True, exist_ok=True)
        return GrantedPaths(
            _granted(rights, "read:fs", workspace, is_open),
            may_write,
            tuple(with_mount_aliases([state_root(self.home)], read_mounts())),
            tuple(self.unwritable() if may_write else ()),
            data_folder,
        )

    def _limits(self, program: str) -> BoxLimits:
        config = self.config
        reserves = Path(program).name in _RESERVES_MEMORY
        return BoxLimits(
            config.memory_bytes, not reserves, None, config.open_files, config.processes, config.file_bytes
        )


def unwritable(kept: Iterable[Path], code: Iterable[Path]) -> list[str]:
    """See `Sandboxes.unwritable`."""
    return with_mount_aliases([*kept, *runtime_paths.interpreter(), package_location.FOLDER, *code])


def missing_layers(config: IsolationConfig) -> str:
    """See `Sandboxes.missing`."""
    if config.level == "none":
        return "isolation.level is none in tavern.yaml"
    gone = {layer: why for layer, why in available_layers().items() if why}
    gone |= dict.fromkeys(config.without, "switched off by isolation.without")
    return "; ".join(f"{layer}: {gone[layer]}" for layer in LAYERS if layer in gone)


def scopes_of(rights: Rights) -> dict[str, Scope]:
    """The network capabilities that all sides allow, each with its effective scope, without empty ones."""
    found = {name: rights.scope(name) for name in NETWORK if rights.holds(name)}
    return {name: scope for name, scope in found.items() if scope != ()}


def _others(rights: Rights) -> tuple[bool, tuple[str, ...]]:
    """Whether any other program may be started, and else which ones: from ``process:spawn`` and its scope."""
    if not rights.holds("process:spawn"):
        return False, ()
    names = rights.scope("process:spawn")
    if names is None:
        return True, ()
    found = (shutil.which(name) for name in names)
    return False, tuple(path for program in found if program for path in runtime_paths.executables(program))


def _granted(rights: Rights, capability: str, workspace: str, is_open: bool) -> tuple[str, ...]:
    if is_open:
        return ("/",)
    if not rights.holds(capability):
        return ()
    scope = rights.scope(capability)
    if workspace and scope is not None:
        scope = folders(scope, {"$workspace": workspace})
    return granted_paths(scope)


def _beside(program: str) -> tuple[str, ...]:
    """The files of a program with its own prefix: the libraries of ``<place>/bin/program``."""
    real = Path(os.path.realpath(program))
    place = real.parent.parent
    return (str(place / "lib"),) if real.parent.name == "bin" and str(place) not in ("/", "/usr", "/usr/local") else ()


# Hints ------------------------------------------------------------------------------------------------------------------
# For a program that its box may have refused: what the box allowed, and what would allow more.

OPENING = ("read:fs", "write:fs", "read:web", "network", "network:host", "process:spawn")
"""Capabilities that allow something in a box."""
_SAME = (("read:web", "network", "network:host"),)
"""Capabilities with the same effect there."""


def what_would_allow(plugin: str, asked: Collection[str], rights: Rights, wanted: Sequence[str]) -> str:
    """A sentence about what would allow more; empty: nothing in `wanted` can have been refused.

    Args:
        asked: the capabilities that plugin.yaml requests.
        rights: the rights of the call.
        wanted: capabilities, one of which may be missing.
    """
    ways = []
    if narrow := [name for name in wanted if rights.holds(name) and rights.scope(name) is not None]:
        ways.append(
            f"a wider scope of {', '.join(narrow)} in plugin.yaml, then `tavern plugins grant {plugin} {' '.join(narrow)}`"
        )
    lacking = [name for name in wanted if not _is_open(rights, name)]
    if granted := [name for name in lacking if covers(rights.plugin, name)]:
        ways.append(f"let this call have {', '.join(granted)}: caller, profile and host must all allow it")
    lacking = [name for name in lacking if name not in granted]
    if undecided := [name for name in lacking if name in asked]:
        ways.append(f"`tavern plugins grant {plugin} {' '.join(undecided)}`")
    if unasked := [name for name in lacking if name not in asked]:
        name = unasked[0] if len(unasked) == 1 else "NAME"
        which = "" if len(unasked) == 1 else f", where NAME is {_choice(unasked)}"
        line = f"plugin.yaml: permissions: {{capabilities: [{name}]}}, best with a scope"
        ways.append(f"{line}, then `tavern plugins grant {plugin} {name}`{which}")
    if not ways:
        return ""
    had = [
        f"{name} ({', '.join(scope)})" if (scope := rights.scope(name)) else name
        for name in OPENING
        if rights.holds(name)
    ]
    return f"it ran in its box, with {', '.join(had) or 'nothing'} granted; if that refused it: {'; or '.join(ways)}"


def _choice(names: Sequence[str]) -> str:
    reported = [f"{name} to {CAPABILITIES[name].sentence}" for name in names]
    return " or ".join([", ".join(reported[:-1]), reported[-1]]) if len(reported) > 1 else reported[0]


def _is_open(rights: Rights, name: str) -> bool:
    return any(rights.holds(one) for one in next((same for same in _SAME if name in same), (name,)))
