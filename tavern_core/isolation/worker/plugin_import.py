"""The plugin's package, imported in its worker from any kind of installation."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tavern_core.isolation.worker_setup import Setup
from tavern_core.kernel.plugins.plugin_code import FolderCode


def imported(setup: Setup) -> ModuleType:
    """The plugin's package. Errors of its code are raised.

    An installed one that is not on the path (an editable install with its own import hook) is found at its
    plugin.yaml.
    """
    if setup.module:
        folder = Path(setup.folder) if setup.folder else None
        if folder is not None and _origin(setup.module) is None:
            sys.meta_path.append(_Beside(setup.module, folder))
        return importlib.import_module(setup.module)
    return FolderCode(setup.plugin, Path(setup.folder)).load()


def _origin(module: str) -> Any:
    try:
        return importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return None


class _Beside:
    """Finds one package in a folder outside of the path."""

    def __init__(self, module: str, folder: Path) -> None:
        parts = module.split(".")
        self._roots = {".".join(parts[: n + 1]): folder.parents[len(parts) - n - 2] if n + 1 < len(parts) else folder
                       for n in range(len(parts))}  # fmt: skip

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if (folder := self._roots.get(name)) is None:
            return None
        init = folder / "__init__.py"
        places = [str(folder)]
        if init.is_file():
            return importlib.util.spec_from_file_location(name, init, submodule_search_locations=places)
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = places
        return spec
