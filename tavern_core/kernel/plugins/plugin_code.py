"""Imports the code of a discovered plugin, and unloads it so that it can be read again.

An abandoned attempt (its caller was cancelled) continues in its thread; the next attempt waits for it and uses its
result, so code is never executed twice at once.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import itertools
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from tavern_core.errors import ActivationFailed, ToolFailed
from tavern_core.kernel.files.regular_file import open_regular

_numbers: Final = itertools.count(1)


class PackageCode:
    """The importable package of an installed plugin."""

    def __init__(self, module: str) -> None:
        self._module = module

    def load(self) -> ModuleType:
        """Import it; Python itself ensures that this happens once. Errors of the code pass through."""
        return importlib.import_module(self._module)

    def unload(self) -> None:
        """Unload it, so that the next `load` reads the files again."""
        _forget(self._module)


class FolderCode:
    """The package of a folder plugin.

    Each is imported under a unique name: two hosts, or two folders with plugins of the same name, never share modules.
    """

    def __init__(self, name: str, folder: Path | None) -> None:
        self._name = name
        self._folder = folder
        self._lock = threading.Lock()
        self._module: ModuleType | None = None

    def load(self) -> ModuleType:
        """Import it once.

        Raises:
            ActivationFailed: there is no package (ACTIVATION_FAILED). Errors of the code itself pass through.
        """
        with self._lock:
            if self._module is None:
                self._module = self._import()
            return self._module

    def unload(self) -> None:
        """Unload it, so that the next `load` reads the files again."""
        with self._lock:
            if self._module is not None:
                _forget(self._module.__name__)
            self._module = None
        importlib.invalidate_caches()

    def _import(self) -> ModuleType:
        folder = self._folder
        if folder is None:
            raise ActivationFailed(f"{self._name}: its folder cannot be imported")
        init = folder / "__init__.py"
        name = f"tavern_folder_plugin_{self._name.replace('-', '_')}_{next(_numbers)}"
        try:
            open_regular(init).close()  # the import system would wait for a pipe, and read a device for ever
            spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(folder)])
        except FileNotFoundError:  # nodes only: they are modules of a package without an __init__.py
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(folder)]
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ActivationFailed(f"{self._name}: {init} cannot be imported: {reason}") from error
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            if spec.loader is not None:
                spec.loader.exec_module(module)
        except BaseException:
            _forget(name)
            raise
        return module


def handler_in(package: Any, target: str, plugin: str) -> Any:
    """The object that ``module:name`` names inside a plugin's own package; imports its module.

    Args:
        package: the imported package; None for a plugin without one.
        plugin: its name, for messages.

    Raises:
        ToolFailed: it does not exist (TOOL_ERROR).
    """
    module_name, _, path = target.partition(":")
    name = getattr(package, "__name__", "")
    if not name:
        raise ToolFailed(f"{plugin} has no package in which {target!r} could be", hint="add an __init__.py")
    inside = module_name if module_name in ("", name) or module_name.startswith(name + ".") else f"{name}.{module_name}"
    try:
        found: Any = importlib.import_module(inside or name)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ToolFailed(f"{plugin}: the handler {target!r} cannot be found: {error}") from error
    return found


def _forget(package: str) -> None:
    """Remove a package and its submodules from the import cache, with their bytecode.

    Python considers bytecode current if size and modification time in seconds are the same: of two edits within a
    second, it would run the first until the next edit.
    """
    for key in [k for k in list(sys.modules) if k == package or k.startswith(package + ".")]:
        origin = getattr(getattr(sys.modules.pop(key, None), "__spec__", None), "origin", None)
        if isinstance(origin, str):
            with suppress(OSError, NotImplementedError):
                os.unlink(importlib.util.cache_from_source(origin))  # noqa: PTH108
    importlib.invalidate_caches()
