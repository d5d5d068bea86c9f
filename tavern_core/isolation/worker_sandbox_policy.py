"""The box of a plugin's worker: what it may read and write, from the locations of files and the grants."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from tavern_core import package_location
from tavern_core.box import runtime_paths
from tavern_core.box.policy import BoxLimits, BoxPolicy, GrantedPaths
from tavern_core.box.protected_path_splitting import unprotected_entries
from tavern_core.isolation.closed_paths import granted_paths, with_mount_aliases
from tavern_core.isolation.plugin_sandboxes import Sandboxes
from tavern_core.kernel.config.configuration import state_root
from tavern_core.kernel.plugins.plugin_record import PluginRecord
from tavern_core.model.capability_scope import Scope
from tavern_core.model.config import IsolationConfig

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
    """What a worker may do. It never has network access itself; a service of the host does that.

    Args:
        path: the folders from which modules are imported.
        scopes: granted capability → its scope; None: without limit.
    """
    # Files with decisions cannot be read on the way to modules; the state folder is never visible.
    hidden, keep = with_mount_aliases([state_root(host.home)]), with_mount_aliases(host.protected_files)
    own, folder = os.path.realpath(data_dir), record.candidate.folder
    interpreter = (*runtime_paths.machine(), *runtime_paths.interpreter(), str(package_location.FOLDER))
    read = [*interpreter, *([] if folder is None else [str(folder)]), str(data_dir)]
    for entry in _modules(path):
        read += unprotected_entries(entry, [*hidden, *keep, str(Path.home())], own)
    may_read, may_write = (granted_paths(scopes[name]) if name in scopes else () for name in ("read:fs", "write:fs"))
    may_spawn = SPAWN in scopes
    return BoxPolicy(
        read=tuple(dict.fromkeys(read)),
        write=(str(data_dir),),
        execute=runtime_paths.PROGRAMS if may_spawn and scopes[SPAWN] is None else (),
        granted=GrantedPaths(may_read, may_write, tuple(hidden), tuple(host.unwritable()) if may_write else (), own),
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
