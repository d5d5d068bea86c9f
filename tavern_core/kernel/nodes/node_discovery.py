"""The modules below `nodes.entry` of a plugin: imported when the plugin is activated, and searched for marked nodes."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tavern_core.contract.nodes import NODE_MARK, node_mark_of
from tavern_core.errors import ActivationFailed
from tavern_core.kernel.files.safe_paths import beneath


def nodes_in(package: Any, folder: Path | None, entry: str, plugin: str) -> list[Any]:
    """The marked nodes in the file or the folder `entry`, in the order of files and of lines.

    Args:
        package: the plugin's imported package; None for a folder without Python of its own.
        folder: the folder of plugin.yaml.
        entry: `nodes.entry` of the manifest, relative to it.

    Raises:
        ActivationFailed: there is no such file inside the plugin (ACTIVATION_FAILED).
    """
    if folder is None:
        return _in_archive(package, entry, plugin)
    place = beneath(folder, entry)
    if place is None or not place.exists():
        raise _not_inside(entry, plugin)
    if place.is_file() and place.suffix != ".py":
        raise ActivationFailed(
            f"{plugin}: nodes.entry {entry!r} is not a Python file", hint="name a .py file, or a folder of them"
        )
    found: list[Any] = []
    for file in (
        [place] if place.is_file() else sorted(p for p in place.rglob("*.py") if _is_public(p.relative_to(place)))
    ):
        if not file.resolve().is_relative_to(folder.resolve()):
            raise ActivationFailed(
                f"{plugin}: {file.relative_to(folder.resolve())} leads out of the plugin",
                hint="put the file itself there",
            )
        found += _marked(_import(package, folder.resolve(), file, plugin))
    return found


def _is_public(file: Path) -> bool:
    """Whether the module is read: not if its name begins with an underscore, or it is in a hidden folder."""
    return (file.name == "__init__.py" or not file.name.startswith("_")) and not any(
        part.startswith(".") for part in file.parts
    )


def _in_archive(package: Any, entry: str, plugin: str) -> list[Any]:
    """The marked nodes below `entry` of a package without a folder: one in a zip file."""
    parts = [part for part in entry.removesuffix(".py").strip("/").split("/") if part != "."]
    name = ".".join([getattr(package, "__name__", ""), *parts])
    if not all(part.isidentifier() for part in name.split(".")):
        raise ActivationFailed(
            f"{plugin}: nodes.entry {entry!r} is not a module of its package", hint="write it relative to plugin.yaml"
        )
    try:
        first = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise _not_inside(entry, plugin) from None
    modules = [first]
    for found in sorted(pkgutil.walk_packages(getattr(first, "__path__", []), f"{name}."), key=lambda info: info.name):
        if not found.name.rpartition(".")[2].startswith("_"):
            modules.append(importlib.import_module(found.name))
    return [node for module in modules for node in _marked(module)]


def _not_inside(entry: str, plugin: str) -> ActivationFailed:
    text = f"{plugin}: nodes.entry {entry!r} is not a file or folder inside the plugin"
    return ActivationFailed(text, hint="write it relative to plugin.yaml")


def _import(package: Any, folder: Path, file: Path, plugin: str) -> Any:
    """The module of a file; part of the plugin's package where it has one."""
    parts = list(file.relative_to(folder).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    name = getattr(package, "__name__", "")
    if name and all(part.isidentifier() for part in parts):
        try:
            return importlib.import_module(".".join([name, *parts]))
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith(name):
                raise
    alone = f"_tavern_nodes_{plugin.replace('-', '_')}_{'_'.join(parts)}"
    spec = importlib.util.spec_from_file_location(alone, file)
    if spec is None or spec.loader is None:
        raise ActivationFailed(f"{plugin}: {file.name} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[alone] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(alone, None)
        raise
    return module


def _marked(module: Any) -> Iterator[Any]:
    """Marked functions and classes that the module itself defines; unmarked classes without `run` are only bases."""
    for value in list(vars(module).values()):
        is_node = inspect.isfunction(value) or (
            inspect.isclass(value) and (hasattr(value, "run") or NODE_MARK in vars(value))
        )
        if is_node and value.__module__ == module.__name__ and node_mark_of(value):
            yield value
