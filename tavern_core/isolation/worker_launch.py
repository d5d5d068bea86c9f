"""Starting the worker of one plugin: its fork, its box, and its first message."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tavern_core import package_location
from tavern_core.box import runtime_paths
from tavern_core.box.policy import LAYERS, PROCESSES, BoxLimits, BoxPolicy, GrantedPaths
from tavern_core.box.protected_path_splitting import unprotected_entries
from tavern_core.contract.context import PluginContext
from tavern_core.errors import ActivationFailed
from tavern_core.frozen_dataclass import dataclass
from tavern_core.isolation.closed_paths import granted_paths, with_mount_aliases
from tavern_core.isolation.codec import WorkerSetup
from tavern_core.isolation.plugin_sandboxes import Sandboxes
from tavern_core.isolation.transport import longest
from tavern_core.isolation.worker.facilities import facts_of_context
from tavern_core.isolation.worker_fork_server import environment
from tavern_core.kernel.config.configuration import state_root
from tavern_core.kernel.foundation import Foundation
from tavern_core.kernel.plugins.candidate import PluginCandidate
from tavern_core.kernel.plugins.contribution_registry import Contributions
from tavern_core.kernel.plugins.effective_scopes import EffectiveScopes
from tavern_core.kernel.plugins.plugin_record import PluginRecord, PluginRecords
from tavern_core.model.capability import ENV_PREFIX
from tavern_core.model.capability_scope import Scope
from tavern_core.model.config import IsolationConfig
from tavern_core.model.event import ISOLATION_WEAK
from tavern_core.package_location import module_path
from tavern_core.schema.bounded_json_copying import json_or


@dataclass(frozen=True, slots=True)
class WorkerLaunch:
    """Starts the workers of a plugin; used for each start."""

    candidate: PluginCandidate
    ctx: PluginContext
    base: Foundation
    records: PluginRecords
    reach: EffectiveScopes
    sandboxes: Sandboxes
    contributions: Contributions

    def _executor(self) -> tuple[str, str]:
        executor = self.contributions.get("executors", "python")
        if executor is None:
            text = f"{self.candidate.name} is not started: this host has no executor for Python tools any more"
            raise ActivationFailed(text, hint="it is being closed; open another host")
        cls = type(executor)
        return cls.__module__, cls.__qualname__

    def setup(self) -> Mapping[str, Any]:
        """The first message to the worker. Raises ActivationFailed: the host is being closed (ACTIVATION_FAILED)."""
        candidate = self.candidate
        setup = WorkerSetup(
            plugin=candidate.name,
            version=candidate.version,
            module=candidate.module,
            folder=str(candidate.folder or ""),
            data_dir=str(self._data_dir()),
            executor=self._executor(),
            aliases=dict(candidate.facts.aliases),
            manifest=json_or(
                candidate.origin.manifest().model_dump(mode="json", by_alias=True, exclude_defaults=True), {}
            ),
            limits=self.base.config.limits.model_dump(mode="json", by_alias=True),
            context=facts_of_context(self.ctx),
        )
        return setup.to_json()

    def request(self) -> Mapping[str, Any]:
        """The request to the fork server: what it imports in advance, path, environment, policy, with the current grants."""
        record, data_dir = self.records[self.candidate.name], self._data_dir()
        data_dir.mkdir(parents=True, exist_ok=True)
        path = module_path()
        names = [name for name in ("read:fs", "write:fs", "process:spawn") if record.may(name)]
        scopes = {name: self.reach.scope(record, name) for name in names}
        policy = worker_policy(self.sandboxes, record, data_dir, path, scopes)
        variables = {"HOME": str(data_dir), "TMPDIR": str(data_dir)}
        granted = [
            name.removeprefix(ENV_PREFIX)
            for name in record.candidate.requested
            if name.startswith(ENV_PREFIX) and record.may(name)
        ]
        return {
            "modules": (self._executor()[0],),
            "longest": longest(self.base.config.limits.output_bytes),
            "path": path,
            "environment": {**environment(granted), **variables},
            "folder": str(data_dir),
            "policy": policy.to_json(),
        }

    def _data_dir(self) -> Path:
        return self.base.home / "data" / self.candidate.name

    def confined(self, layers: tuple[str, ...]) -> None:
        """Report the layers of the box that a started worker lacks; `layers` are those that it has."""
        plugin = self.candidate.name
        missing = [layer for layer in LAYERS if layer not in layers and layer != PROCESSES]
        if missing:
            self.base.recorder.note(ISOLATION_WEAK, {"missing": missing}, plugin=plugin)
            self.base.diagnostics.add(
                "ISOLATION_WEAK",
                f"{plugin} runs in its own process without these layers of the box: {', '.join(missing)}",
                plugin=plugin,
                hint="`isolation: {level: required}` in tavern.yaml refuses it instead; `tavern doctor` says why they are missing",
            )


SPAWN: Final = "process:spawn"
THREADS: Final = 256
"""Minimum threads of one worker: one per connection."""
_NEVER: Final = ("/", "/tmp", "/var", "/etc", "/home")
"""Folders that contain more than modules, whatever lists them."""


def _limits(config: IsolationConfig) -> BoxLimits:
    files, processes = max(config.open_files, THREADS), max(config.processes, THREADS)
    return BoxLimits(config.memory_bytes, True, None, files, processes, config.file_bytes)


def worker_policy(
    host: Sandboxes, record: PluginRecord, data_dir: Path, path: Iterable[str], scopes: Mapping[str, Scope]
) -> BoxPolicy:
    """The policy of a worker. It never has network access itself; a service of the host does that.

    Args:
        path: the folders from which modules are imported.
        scopes: granted capability → its scope; None: without limit.
    """
    # Files with decisions cannot be read on the way to modules; the state folder is never visible.
    hidden, keep = with_mount_aliases([state_root(host.home)]), with_mount_aliases(host.protected_files)
    data_folder, folder = os.path.realpath(data_dir), record.candidate.folder
    interpreter = (*runtime_paths.machine(), *runtime_paths.interpreter(), str(package_location.FOLDER))
    read = [*interpreter, *([] if folder is None else [str(folder)]), str(data_dir)]
    for entry in _modules(path):
        read += unprotected_entries(entry, [*hidden, *keep, str(Path.home())], data_folder)
    may_read, may_write = (granted_paths(scopes[name]) if name in scopes else () for name in ("read:fs", "write:fs"))
    may_spawn = SPAWN in scopes
    return BoxPolicy(
        read=tuple(dict.fromkeys(read)),
        write=(str(data_dir),),
        execute=runtime_paths.PROGRAMS if may_spawn and scopes[SPAWN] is None else (),
        granted=GrantedPaths(
            may_read, may_write, tuple(hidden), tuple(host.unwritable()) if may_write else (), data_folder
        ),
        may_fork=may_spawn,
        may_execute=may_spawn and scopes[SPAWN] is None,
        limits=_limits(host.config),
        level=host.level(record),
        without=host.config.without,
    )


def _modules(path: Iterable[str]) -> Iterator[str]:
    """The folders of installed packages in `path`; not the folder of the program that runs the host, or other folders.

    These are package folders, folders named in their ``.pth`` files, and archives.
    """
    found = [os.path.realpath(entry) for entry in path]
    installed = [entry for entry in found if _holds_packages(Path(entry))]
    linked = {name for entry in installed for name in _linked(Path(entry))}
    for entry in found:
        if entry in installed or (entry in linked and entry not in _NEVER) or Path(entry).is_file():
            yield entry


def _holds_packages(folder: Path) -> bool:
    return folder.name in ("site-packages", "dist-packages") or next(folder.glob("*.dist-info"), None) is not None


def _linked(folder: Path) -> Iterator[str]:
    """The folders of editable installs, which ``.pth`` files add to the path."""
    for file in folder.glob("*.pth"):
        with suppress(OSError, ValueError):
            for line in file.read_text("utf-8").splitlines():
                if line.strip() and not line.startswith(("#", "import ", "import\t")):
                    yield os.path.realpath(folder / line.rstrip())
