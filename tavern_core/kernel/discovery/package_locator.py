"""Locates a package without importing it or any of its parents.

`importlib.util.find_spec("a.b")` imports `a` (PEERS). So the top level is looked up on the path as the import system would,
and the rest is walked by hand:

    wheel, .pth editable, link tree    a folder on sys.path
    editable by finder hook            found through sys.meta_path, or in setuptools' mapping file
    zip                                a name in an archive on sys.path

Nothing is executed except `find_spec` of foreign finders for a top-level name that is nowhere on the path.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, BuiltinImporter, FrozenImporter, PathFinder
from typing import Any, Final, Literal

from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.files.regular_file import open_regular

_SUFFIXES: Final = (".py", ".pyc", *EXTENSION_SUFFIXES)
_INITS: Final = tuple(f"__init__{suffix}" for suffix in _SUFFIXES)
_OWN_FINDERS: Final[tuple[object, ...]] = (BuiltinImporter, FrozenImporter, PathFinder)


@dataclass(frozen=True, slots=True)
class PackageLocation:
    """The location of a name."""

    kind: Literal["package", "namespace", "module"]
    folder: str = ""
    """The package's folder; for a package in a zip the archive."""
    prefix: str = ""
    """For a package in a zip: its folder in there, with a slash at the end."""
    portions: tuple[str, ...] = ()
    """The folders of a namespace package, or further places in which submodules are searched."""


class PackageFinder:
    """Locates packages on one sys.path.

    Args:
        paths: the entries, in order.
        listings: entry → the names in that folder, if they are already known.
        ask_hooks: also ask the finders of this interpreter (when `paths` is its own sys.path).
    """

    def __init__(self, paths: Sequence[str], listings: Mapping[str, frozenset[str]], *, ask_hooks: bool) -> None:
        self._paths = paths
        self._names: dict[str, frozenset[str] | None] = dict(listings)
        self._zips: dict[str, tuple[str, str, frozenset[str]] | None] = {}
        self._ask_hooks = ask_hooks
        self._mapping: dict[str, str] | None = None

    def find(self, module: str) -> PackageLocation | None:
        """The place of a module, package or namespace package; None if it does not exist or the name is not a module name."""
        parts = module.split(".")
        if not all(part.isidentifier() for part in parts):
            return None
        where: Sequence[str] = self._paths
        found: PackageLocation | None = None
        for depth, part in enumerate(parts):
            found = self._search(part, where)
            if found is None and depth == 0:
                found = self._from_hooks(part) or self._from_mapping(part)
            if found is None:
                return None
            where = found.portions
            if not where and found.kind == "package":
                where = (os.path.join(found.folder, found.prefix) if found.prefix else found.folder,)  # noqa: PTH118
        return found

    def _search(self, name: str, where: Sequence[str]) -> PackageLocation | None:
        portions: list[str] = []
        files = [name + suffix for suffix in _SUFFIXES]
        for entry in where:
            names = self._listing(entry)
            if names is None:
                found = self._search_zip(name, entry)
                if found is not None and found.kind != "namespace":
                    return found
                portions += found.portions if found is not None else ()
                continue
            if name in names:
                folder = os.path.join(entry, name)  # noqa: PTH118
                inner = self._listing(folder)
                if inner is not None and not inner.isdisjoint(_INITS):
                    return PackageLocation("package", folder)
            if not names.isdisjoint(files):
                return PackageLocation("module", entry)
            if name in names and self._listing(folder) is not None:
                portions.append(folder)
        return PackageLocation("namespace", portions=tuple(portions)) if portions else None

    def _listing(self, folder: str) -> frozenset[str] | None:
        """The names in a folder; None if it is not a folder."""
        if folder not in self._names:
            try:
                self._names[folder] = frozenset(os.listdir(folder))  # noqa: PTH208
            except (OSError, ValueError):
                self._names[folder] = None
        return self._names[folder]

    # Archives ----------------------------------------------------------------------------------------------------------

    def _search_zip(self, name: str, entry: str) -> PackageLocation | None:
        archive = self._archive(entry)
        if archive is None:
            return None
        path, prefix, names = archive
        inner = f"{prefix}{name}/"
        if any(inner + init in names for init in _INITS[:2]):
            return PackageLocation("package", path, inner)
        if any(f"{prefix}{name}{suffix}" in names for suffix in (".py", ".pyc")):
            return PackageLocation("module", path)
        if any(member.startswith(inner) for member in names):
            return PackageLocation("namespace", portions=(os.path.join(path, inner),))  # noqa: PTH118
        return None

    def _archive(self, entry: str) -> tuple[str, str, frozenset[str]] | None:
        """The archive that `entry` is or that contains it, the folder in it, and all its names."""
        if entry not in self._zips:
            self._zips[entry] = _open_archive(entry)
        return self._zips[entry]

    # Editable installs -------------------------------------------------------------------------------------------------

    def _from_hooks(self, name: str) -> PackageLocation | None:
        if not self._ask_hooks:
            return None
        for finder in sys.meta_path:
            find_spec: Any = getattr(finder, "find_spec", None)
            if finder in _OWN_FINDERS or find_spec is None:
                continue
            try:
                spec = find_spec(name, None)
            except Exception:  # noqa: BLE001 - a foreign finder; the next one may know
                continue
            if spec is None:
                continue
            portions = tuple(str(p) for p in spec.submodule_search_locations or ())
            if not portions:
                return PackageLocation("module", str(spec.origin or ""))
            if spec.origin and spec.has_location:
                return PackageLocation("package", os.path.dirname(str(spec.origin)), portions=portions)  # noqa: PTH120
            return PackageLocation("namespace", portions=portions)
        return None

    def _from_mapping(self, name: str) -> PackageLocation | None:
        """Look up a name in ``MAPPING`` of ``__editable___x_finder.py``, a file of setuptools' editable installs."""
        if self._mapping is None:
            self._mapping = {}
            for entry in self._paths:
                for file in sorted(self._listing(entry) or ()):
                    if file.startswith("__editable__") and file.endswith("_finder.py"):
                        self._mapping |= _read_mapping(os.path.join(entry, file))  # noqa: PTH118
        target = self._mapping.get(name)
        if target is None:
            return None
        inner = self._listing(target)
        if inner is not None and any(init in inner for init in _INITS):
            return PackageLocation("package", target)
        return PackageLocation("module", target) if inner is None else PackageLocation("namespace", portions=(target,))


def _open_archive(entry: str) -> tuple[str, str, frozenset[str]] | None:
    import zipfile

    path, inner = entry, ""
    while path and not os.path.exists(path):  # noqa: PTH110
        path, tail = os.path.split(path)
        if not tail:
            return None
        inner = f"{tail}/{inner}"
    try:
        if not os.path.isfile(path):  # noqa: PTH113
            return None
        with zipfile.ZipFile(path) as archive:
            return path, inner, frozenset(archive.namelist())
    except (OSError, ValueError, zipfile.BadZipFile):
        return None


def _read_mapping(file: str) -> dict[str, str]:
    import ast

    try:
        with open_regular(file) as source:
            tree = ast.parse(source.read(1_000_000))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="MAPPING")], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id="MAPPING"), value=ast.expr() as value):
                pass
            case _:
                continue
        try:
            mapping = ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, RecursionError):
            return {}
        return {str(k): str(v) for k, v in mapping.items()} if isinstance(mapping, dict) else {}
    return {}
