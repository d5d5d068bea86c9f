"""Finds plugins. Imports none of them: not to list, check or remove them.

    roots/<name>/plugin.yaml ----+                       +--> index (unchanged since last time)
    VCP plugins, skills ---------+--> candidates --each--+
    entry points tavern.plugins -+                       +--> read plugin.yaml and tool files --> index
                                                                      |
                              one per name <-- ranked by source <-----+--> findings: a broken one is a row, not a crash

At start the times of each folder, plugin.yaml and tool file are compared; those of tool files again when the plugin is used
(`current_tools`), as a host may stay open for weeks. Nothing here loads pydantic, unless a file is read.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tavern_core.errors import Finding
from tavern_core.gc_pause import collector_paused
from tavern_core.kernel.discovery.distributions import (
    Distribution,
    PathEntry,
    current_entry,
    first_of_each,
    from_foreign_finders,
    is_current,
)
from tavern_core.kernel.discovery.found_plugin import MANIFEST_FILE, FoundPlugin
from tavern_core.kernel.discovery.index import CODE, DiscoveryIndex, IndexedPlugin, PluginLocation, finding_row
from tavern_core.kernel.discovery.manifest_facts import ManifestFacts
from tavern_core.kernel.discovery.other_formats import MARKS, PluginRoot, marker_file
from tavern_core.kernel.discovery.package_locator import PackageLocation
from tavern_core.kernel.files.regular_file import open_regular
from tavern_core.model.naming_rules import is_plugin_name
from tavern_core.model.nearest import fold
from tavern_core.model.plugin_status import Diagnostic, Source
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.kernel.discovery.package_locator import PackageFinder


_RANKS: Final[dict[Source, int]] = {"builtin": 0, "object": 1, "folder": 2, "entry_point": 3, "vcp": 4, "skill": 5}
_SETTING: Final[dict[Source, str]] = {"folder": "plugins.roots", "vcp": "plugins.vcp", "skill": "skills.roots"}
_NOT_PLUGINS: Final = frozenset({"__pycache__", "node_modules"})


@dataclass(frozen=True)
class Discovery:
    """The result of a discovery.

    `plugins` are sorted by name, one per name; `diagnostics` report everything else.
    """

    plugins: tuple[FoundPlugin, ...]
    diagnostics: tuple[Diagnostic, ...]
    _index: DiscoveryIndex = field(repr=False, compare=False)

    def store_code(
        self,
        plugin: FoundPlugin,
        specs: Iterable[ToolSpec],
        settings: Iterable[Mapping[str, Any]] = (),
        nodes: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Cache what a plugin's code provided when it was activated, for as long as its files do not change.

        Args:
            specs: its tools; only those that the manifest declares by id alone are stored.
            settings: those that only its code declares, as JSON.
            nodes: its node types, as JSON; None if they are not known.
        """
        wanted = set(plugin.tools.unknown)
        stored_specs, settings = [spec for spec in specs if spec.name in wanted], list(settings)
        is_known = self._index.rows.get(plugin.row.key) is plugin.row
        if (
            is_known
            and (stored_specs or settings or nodes is not None)
            and plugin.remember_code(stored_specs, settings, nodes)
        ):
            self._index.is_changed = True

    def save(self) -> bool:
        """Write the index if it changed; True when no change is left to write."""
        return self._index.save()


@collector_paused()
def discover(
    *,
    roots: Sequence[Path | PluginRoot] = (),
    entry_points: bool = True,
    index_file: Path | None = None,
    sys_path: Sequence[str] | None = None,
) -> Discovery:
    """Find every plugin in `roots` and among the installed distributions.

    Args:
        roots: folders that hold ``<name>/plugin.yaml`` (a `PluginRoot` may say: in another format); the project's own first. A missing
            one is fine, and so is one that is named twice.
        entry_points: look for the entry-point group `tavern.plugins`.
        index_file: where the index is stored (the name gets a suffix per environment); None: no index.
        sys_path: where to look for distributions; None: this interpreter's own path and finders.

    Returns:
        The discovered plugins. Never raises because of the content of a plugin.
    """
    folders = list(dict.fromkeys(root if isinstance(root, PluginRoot) else PluginRoot(root) for root in roots))
    paths = _paths(sys.path if sys_path is None else sys_path, expand=sys_path is not None) if entry_points else []
    index = DiscoveryIndex(index_file, paths, [f"{root.source} {root.is_trusted:d} {root.path}" for root in folders])
    looking = _DiscoveryRun(index, paths, is_own_path=sys_path is None)
    looking.folders(folders)
    if entry_points:
        looking.installed()
    plugins, conflicts = choose(looking.found)
    looking.forget_the_rest()
    index.save()
    return Discovery(plugins, (*looking.diagnostics, *conflicts), index)


def choose(found: Iterable[FoundPlugin]) -> tuple[tuple[FoundPlugin, ...], tuple[Diagnostic, ...]]:
    """One plugin per name, and a diagnostic for each that lost.

    Built-in wins over object, project folder, further roots, entry point; then the distribution's name decides (DESIGN §5).
    Names that differ only in case or hyphens are one name.
    """
    ranked = sorted(found, key=_rank)
    winners: dict[str, FoundPlugin] = {}
    conflicts: list[Diagnostic] = []
    for plugin in ranked:
        name = plugin.row.name
        # Most names are plain kebab-case already, for which dropping the hyphens is all that `fold` does.
        folded = name.replace("-", "") if is_plugin_name(name) else fold(name)
        winner = winners.setdefault(folded, plugin)
        if winner is not plugin:
            details = {"winner": winner.origin, "loser": plugin.origin}
            message = f"the plugin name {plugin.name!r} is taken twice: {winner.origin} is used, {plugin.origin} is not"
            if plugin.name != winner.name:
                message = (
                    f"{plugin.name!r} ({plugin.origin}) reads like {winner.name!r} ({winner.origin}), which is used"
                )
            manifest = "plugin-manifest.json" if plugin.source == "vcp" else "plugin.yaml"
            hint = f"remove one of them, or rename it in its {manifest}"
            kind, shown = "plugin", plugin.name
            if plugin.source == winner.source == "skill":
                kind, shown = "skill", plugin.facts.display_name or plugin.name
                message = f"two skills have one name: {winner.origin} is used, {plugin.origin} is not"
                if shown != (other := winner.facts.display_name or winner.name):
                    message = (
                        f"the skill {shown!r} ({plugin.origin}) reads like {other!r} ({winner.origin}), which is used"
                    )
                hint = "a project's skill goes before a user's; remove one of them, or rename it"
                details["skill"] = shown
                details["origin"] = "user" if plugin.candidate.is_trusted else "project"
            if plugin.row.folder and (plugin.row.folder, plugin.row.prefix) == (winner.row.folder, winner.row.prefix):
                message = f"the {kind} {shown!r} is found twice, as {_listed(winner)} and as {_listed(plugin)}"
                hint = "remove one of them"
            conflicts.append(Diagnostic("NAME_CONFLICT", message, winner.name, hint, details=details))
    return tuple(sorted(winners.values(), key=_name)), tuple(conflicts)


def _listed(plugin: FoundPlugin) -> str:
    """The place where a plugin is listed, as written there: a link is not followed."""
    candidate = plugin.candidate
    if candidate.distribution is None:
        return candidate.folder
    return f"{plugin.distribution} {plugin.distribution_version} (entry point {candidate.name} = {candidate.value})"


def _rank(plugin: FoundPlugin) -> tuple[Any, ...]:
    source, _, name, folder, root, found, value, _ = plugin.candidate
    # A skill that cannot be used, or a folder that VCP switches off, does not keep another from being used.
    return (
        _RANKS[source],
        (source == "skill" and plugin.is_failed) or (source == "vcp" and folder.endswith(".block")),
        root,
        "" if found is None else found.key,
        value,
        source == "skill" and folder.rpartition("/")[2] != plugin.facts.display_name,
        source == "skill" and f"skill-{folder.rpartition('/')[2]}" != plugin.name,  # `-a` and `A` read like `a`
        folder,
        name,
    )


def _name(plugin: FoundPlugin) -> str:
    return plugin.row.name


class _DiscoveryRun:
    """A single discovery. Used once."""

    def __init__(self, index: DiscoveryIndex, paths: Sequence[str], *, is_own_path: bool) -> None:
        self.found: list[FoundPlugin] = []
        self.diagnostics: list[Diagnostic] = []
        self._index = index
        self._paths = paths
        self._is_own_path = is_own_path
        self._now = time.time_ns()
        self._seen: set[str] = set()
        self._real_folders: dict[str, str] = {}

    # Folders -----------------------------------------------------------------------------------------------------------

    def folders(self, roots: Sequence[PluginRoot]) -> None:
        for number, root in enumerate(roots):
            for candidate in self._in_root(number, root):
                row, folder = self._index.rows.get(candidate.key), self._real(candidate.folder)
                if row is None or row.folder != folder or not row.is_current():  # a link may lead elsewhere now
                    row = self._read(candidate, folder, "")
                self._add(candidate, row)

    def _in_root(self, number: int, root: PluginRoot) -> Iterator[PluginLocation]:
        try:
            with os.scandir(root.path) as listing:
                items = sorted(listing, key=lambda item: item.name)
        except FileNotFoundError:
            return
        except OSError as error:
            if root.source == "skill":
                return  # where skills are looked for by default, a project may have something else
            message = f"the plugin folder {root.path} cannot be read: {error.strerror}"
            hint = "correct `plugins.roots`, or the permissions of the folder"
            self.diagnostics.append(Diagnostic("PLUGIN_FAILED", message, hint=hint, severity="error"))
            return
        mark = MANIFEST_FILE if root.source == "folder" else MARKS[root.source][0]
        if any(item.name == mark for item in items):
            message = f"{root.path} is a plugin itself, not a folder of plugins"
            hint = f"name the folder above it in `{_SETTING[root.source]}`"
            self.diagnostics.append(Diagnostic("PLUGIN_FAILED", message, hint=hint))
        for item in items:
            name = item.name
            if name.startswith(".") or name.endswith(".disabled") or name in _NOT_PLUGINS:
                continue
            try:
                if not item.is_dir() or (root.source != "folder" and not marker_file(os.listdir(item), root.source)):  # noqa: PTH208
                    continue
            except OSError:
                continue  # a loop of links, or a folder that others may not see
            key = item.path if root.source == "folder" else f"{root.source} {root.is_trusted:d} {item.path}"
            yield PluginLocation(root.source, key, name, item.path, number, is_trusted=root.is_trusted)

    # Installed ---------------------------------------------------------------------------------------------------------

    def installed(self) -> None:
        entries, is_unchanged = self._path_entries()
        chosen, problems = first_of_each(entries)
        self.diagnostics += problems
        candidates = [c for entry, found in chosen if found.entries for c in _candidates(found)]
        if self._is_own_path:
            known = {found.key for _, found in chosen}
            candidates += [c for found in from_foreign_finders() if found.key not in known for c in _candidates(found)]
        finder: PackageFinder | None = None
        for candidate in candidates:
            row = self._index.rows.get(candidate.key)
            if row is not None and is_unchanged and row.is_current():
                self._add(candidate, row)
                continue
            finder = finder or self._finder(entries)
            self._add(candidate, self._locate(candidate, finder, row))

    def _path_entries(self) -> tuple[list[PathEntry], bool]:
        """The entries of the path, and whether all of them are as the index remembers them."""
        entries: list[PathEntry] = []
        is_unchanged = True
        for path in self._paths:
            known = self._index.paths.get(path)
            if known is None or not is_current(known):
                entry = current_entry(path, self._now)
                is_unchanged = is_unchanged and known is not None and entry.says_the_same(known)
                self._index.paths[path] = known = entry
                self._index.is_changed = True
            entries.append(known)
        return entries, is_unchanged

    def _finder(self, entries: Sequence[PathEntry]) -> PackageFinder:
        from tavern_core.kernel.discovery.package_locator import PackageFinder

        listings = {entry.path: entry.names for entry in entries if entry.names is not None}
        return PackageFinder(self._paths, listings, ask_hooks=self._is_own_path)

    def _locate(self, candidate: PluginLocation, finder: PackageFinder, row: IndexedPlugin | None) -> IndexedPlugin:
        place = finder.find(candidate.module)
        if place is None or place.kind != "package" or ":" in candidate.value:
            refused = refuse_entry(candidate, place)
            if row is None or row.findings != refused.findings:
                self._store_row(refused)
            return refused
        folder = place.folder if place.prefix else self._real(place.folder)
        if row is not None and (row.folder, row.prefix) == (folder, place.prefix) and row.is_current():
            return row
        return self._read(candidate, folder, place.prefix)

    # Both --------------------------------------------------------------------------------------------------------------

    def _real(self, folder: str) -> str:
        """The result of `os.path.realpath`; common parent folders of hundreds of packages are resolved once."""
        above, name = os.path.split(folder)
        if above not in self._real_folders:
            self._real_folders[above] = os.path.realpath(above)
        path = os.path.join(self._real_folders[above], name)  # noqa: PTH118
        return os.path.realpath(path) if not name.strip(".") or os.path.islink(path) else path  # noqa: PTH114

    def _read(self, candidate: PluginLocation, folder: str, prefix: str) -> IndexedPlugin:
        from tavern_core.kernel.discovery.plugin_reader import read_plugin, unreadable

        old = self._index.rows.get(candidate.key)
        try:
            row = read_plugin(candidate, folder, prefix, self._now)
        except Exception as error:  # noqa: BLE001 - one plugin may raise anything, the others must be found
            row = unreadable(candidate, folder, prefix, error)
        if old is not None and (old.folder, old.prefix) == (folder, prefix):
            row.details.put(CODE, old.details.get(CODE))  # checked by the files' own times on use
        self._store_row(row)
        return row

    def _store_row(self, row: IndexedPlugin) -> None:
        self._index.rows[row.key] = row
        self._index.is_changed = True

    def _add(self, candidate: PluginLocation, row: IndexedPlugin) -> None:
        self._seen.add(row.key)
        self.found.append(FoundPlugin(candidate, row))

    def forget_the_rest(self) -> None:
        """Drop removed plugins from the index."""
        removed = self._index.rows.keys() - self._seen
        for key in removed:
            del self._index.rows[key]
        stale = self._index.paths.keys() - set(self._paths)
        for path in stale:
            del self._index.paths[path]
        if removed or stale:
            self._index.is_changed = True


def _candidates(found: Distribution) -> Iterator[PluginLocation]:
    for name, value in found.entries:
        key = f"{found.key} {found.version} {name} = {value}"
        yield PluginLocation("entry_point", key, name, "", 0, found, value)


def _paths(paths: Sequence[str], *, expand: bool) -> list[str]:
    """The entries of a path once each, absolute; with `expand` also the folders that .pth files in them add."""
    found: dict[str, None] = {}
    for written in paths:
        path = os.path.abspath(written or ".")  # noqa: PTH100 - as the import system does, links stay
        found.setdefault(path)
        if expand:
            found.update(dict.fromkeys(_added_by_pth(path)))
    return list(found)


def _added_by_pth(folder: str) -> Iterator[str]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".pth"))  # noqa: PTH208
    except OSError:
        return
    for name in names:
        try:
            with open_regular(os.path.join(folder, name)) as file:  # noqa: PTH118
                lines = file.read(1_000_000).decode("utf-8-sig", "replace").splitlines()
        except OSError:
            continue
        for line in lines:
            if line.strip() and not line.startswith(("#", "import ", "import\t")):
                path = os.path.abspath(os.path.join(folder, line.rstrip()))  # noqa: PTH100, PTH118
                if os.path.isdir(path):  # noqa: PTH112
                    yield path


def refuse_entry(candidate: PluginLocation, place: PackageLocation | None) -> IndexedPlugin:
    """The row of an entry point that cannot be a plugin.

    It is looked up again at the next start: the repair may be in a folder that is not watched.
    """
    module, found = candidate.module, candidate.distribution
    entry = f"the entry point {candidate.name} = {candidate.value!r}"
    fix = f'write {candidate.name} = "{module.partition(".")[0] or "tavern_plugin_x"}" under [project.entry-points."tavern.plugins"]'
    if ":" in candidate.value:
        message, hint = f"{entry} names an object; a plugin is a package", f'write {candidate.name} = "{module}"'
    elif not all(part.isidentifier() for part in module.split(".")):
        message, hint = f"{entry} is not the name of a package", fix
    elif place is None:
        name = found.name if found is not None else candidate.name
        message, hint = f"{entry} names a package that is not installed", f"pip install --force-reinstall {name}"
    elif place.kind == "module":
        last = module.rpartition(".")[2]
        message = f"{entry} names a bare module; plugin.yaml needs a package to be in"
        hint = f"move {last}.py to {last}/__init__.py and put plugin.yaml next to it"
    else:
        message = f"{entry} names a namespace package; a plugin is a regular package"
        hint = f"add an __init__.py to {module.replace('.', '/')}/"
    facts, findings = ManifestFacts(candidate.name).to_json(), [finding_row(Finding("MANIFEST_INVALID", message, hint))]
    return IndexedPlugin(
        candidate.key, "", candidate.name, is_settled=False, is_failed=True, facts=facts, findings=findings
    )
