"""Installed plugins and folder plugins as candidates; and the cache of what their code offered when last active."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tavern_core.errors import ActivationFailed, PluginError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.config.configuration import DEFAULT, LoadedConfig
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.discovery.discovery import Discovery, discover
from tavern_core.kernel.discovery.found_plugin import FoundPlugin
from tavern_core.kernel.discovery.other_formats import roots_of
from tavern_core.kernel.manifest.declared_tools import DeclaredTools
from tavern_core.kernel.plugins.candidate import PluginCandidate, PluginOrigin, Tiers, has_nodes, isolation_reason
from tavern_core.kernel.plugins.plugin_code import FolderCode, PackageCode
from tavern_core.model.config import IsolationConfig
from tavern_core.model.plugin_status import Diagnostic, Source
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.kernel.plugins.plugin_record import PluginRecord
    from tavern_core.model.manifest import Manifest
    from tavern_core.model.node import NodeSpec
    from tavern_core.model.setting_declaration import SettingItem

REGISTERS_TOOLS = b"tavern_register_tools"
_ORDER: Mapping[Source, int] = {"skill": 0, "folder": 1, "entry_point": 2, "vcp": 3}
"""The precedence of plugins with the same id: skills of the project and the user before those of plugins."""
MOST_SOURCES = 500
"""Maximum number of files that are searched for the hook; a larger package is expected to declare its tools."""


class IndexedSpecs:
    """Caches tools, settings and node types of plugins in the index of discovery, so that they can be listed
    without import."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bursts = 0
        self._discovery: Discovery | None = None
        self._discovered: dict[str, FoundPlugin] = {}

    def use(self, discovery: Discovery) -> None:
        """Use `discovery` from now on."""
        with self._lock:
            self._discovery = discovery
            self._discovered = {plugin.name: plugin for plugin in discovery.plugins}

    def store(
        self,
        candidate: PluginCandidate,
        specs: tuple[ToolSpec, ...],
        settings: tuple[SettingItem, ...],
        nodes: tuple[NodeSpec, ...],
    ) -> None:
        """Store what the code of a discovered plugin offered; other plugins are not stored."""
        if (plugin := self._plugin(candidate)) is None:
            return
        from tavern_core.kernel.nodes.node_serialization import NotData, pack_node

        written = [item.model_dump(mode="json", by_alias=True, exclude_defaults=True) for item in settings]
        try:
            types = [pack_node(spec) for spec in nodes] if has_nodes(candidate) else None
        except NotData:
            types = None  # then listing them activates the plugin
        with self._lock:
            if self._discovered.get(candidate.name) is plugin and self._discovery is not None:
                self._discovery.store_code(plugin, specs, written, types)

    @contextmanager
    def burst(self) -> Iterator[None]:
        """Groups activations, nested or concurrent: their entries are written once, when the last of them ends."""
        with self._lock:
            self._bursts += 1
        try:
            yield
        finally:
            with self._lock:
                self._bursts -= 1
                if self._bursts == 0 and self._discovery is not None:
                    self._discovery.save()

    def _plugin(self, candidate: PluginCandidate) -> FoundPlugin | None:
        plugin = self._discovered.get(candidate.name)
        return None if plugin is None or candidate.source != plugin.source else plugin

    def specs(self, record: PluginRecord) -> dict[str, ToolSpec]:
        """Tools of a plugin that are known without import: those of tool files, and those of the last activation if the
        files are unchanged."""
        if (known := record.specs) is None:
            declared, plugin = record.read_tools(), self._plugin(record.candidate)
            remembered = () if plugin is None else plugin.specs()
            found = {spec.name: spec for spec in (*remembered, *declared.specs)}
            allowed = set(record.candidate.tool_ids)
            known = record.specs = {name: spec for name, spec in found.items() if name in allowed}
        return known

    def settings(self, candidate: PluginCandidate) -> tuple[Mapping[str, Any], ...] | None:
        """The settings that its code declared when last active; None: not known, or a file has changed since."""
        return None if (plugin := self._plugin(candidate)) is None else plugin.coded_settings()

    def nodes(self, candidate: PluginCandidate) -> tuple[NodeSpec, ...] | None:
        """Its node types when last active, without code, if its files are unchanged."""
        from tavern_core.kernel.nodes.node_serialization import unpack_node

        if (plugin := self._plugin(candidate)) is None or (packed := plugin.coded_nodes()) is None:
            return None
        try:
            return tuple(unpack_node(one) for one in packed)
        except (ValueError, KeyError, TypeError):
            return None  # corrupt, or from another version


def find_candidates(
    loaded: LoadedConfig, diagnostics: Diagnostics, specs: IndexedSpecs, tiers: Tiers
) -> list[PluginCandidate]:
    """All plugins in the configured folders and among the installed packages, in order of precedence."""
    plugins, skills = loaded.config.plugins, loaded.config.skills
    discovery = discover(
        roots=roots_of(plugins.roots, plugins.vcp, skills.roots, skills.user),
        entry_points=plugins.entry_points,
        index_file=loaded.home / "cache" / "plugins.json",
    )
    specs.use(discovery)
    for diagnostic in discovery.diagnostics:
        diagnostics.put(diagnostic, found=True)
    _report_missing_roots(loaded, diagnostics)
    ordered = sorted(discovery.plugins, key=lambda p: (_ORDER[p.source], p.candidate.root, p.distribution, p.name))
    return [_as_candidate(plugin, loaded.config.isolation, tiers) for plugin in ordered]


def _report_missing_roots(loaded: LoadedConfig, diagnostics: Diagnostics) -> None:
    """Report folders that the configuration names and that do not exist; the default one need not exist."""
    plugins = loaded.config.plugins
    for key, roots in (("plugins.roots", plugins.roots), ("plugins.vcp", plugins.vcp)):
        origin = loaded.origins.get(key, DEFAULT)
        for root in roots if origin != DEFAULT else ():
            if not os.path.lexists(root):
                hint = f"create it, or correct {key} ({origin})"
                text = f"the plugin folder {root} does not exist"
                diagnostics.put(Diagnostic(PluginError.code, text, hint=hint), found=True)


@dataclass(frozen=True, slots=True)
class _FileOrigin(PluginOrigin):
    """The files of a discovered plugin."""

    plugin: FoundPlugin
    code: PackageCode | FolderCode
    can_reload = True

    def load(self) -> Any:
        return self.code.load()

    def unload(self) -> None:
        self.code.unload()

    def manifest(self) -> Manifest:
        from tavern_core.model.manifest import Manifest

        plugin = self.plugin
        return plugin.manifest or Manifest.model_construct(name=plugin.name, version=plugin.version or "0")

    def tools(self) -> DeclaredTools:
        return self.plugin.current_tools()

    def artifact(self) -> str:
        return self.plugin.artifact_hash()

    def fingerprint(self) -> str:
        return self.plugin.fingerprint()

    def unpack(self, cache: Path) -> Path | None:
        """Raises ActivationFailed (ACTIVATION_FAILED): the disk is full, or a file is too large."""
        try:
            return self.plugin.materialise(cache) if self.plugin.row.prefix else None
        except OSError as error:
            why = error.strerror or error
            raise ActivationFailed(f"the files of {self.plugin.name} cannot be unpacked: {why}") from error


def _as_candidate(plugin: FoundPlugin, isolation: IsolationConfig, tiers: Tiers) -> PluginCandidate:
    """A discovered plugin as a candidate."""
    module, facts, tool_ids = plugin.candidate.module, plugin.facts, plugin.declared_tools
    code = PackageCode(module) if module else FolderCode(plugin.name, plugin.folder)
    return PluginCandidate(
        plugin.name,
        plugin.source,
        _FileOrigin(plugin, code),
        facts,
        plugin.distribution,
        plugin.location,
        "" if plugin.row.prefix else plugin.row.folder,
        plugin.findings,
        tool_ids,
        plugin.tool_findings,
        has_code=plugin.has_python,
        module=module,
        may_hide_tools=not tool_ids and plugin.has_python and _registers_tools(plugin),
        isolation_need=isolation_reason(facts, isolation),
        tiers=tiers,
        manifest_hash=plugin.manifest_hash,
        stamp=(
            plugin.manifest_hash,
            plugin.row.tools_digest,
            plugin.row.has_python,
            plugin.location,
            plugin.distribution_version,
        ),
    )


def _registers_tools(plugin: FoundPlugin) -> bool:
    """Whether the package's code mentions the hook: then its tools are only known when it is active."""
    files = plugin.files
    if files is None:
        return False
    sources = (relative for relative, _ in files.files() if relative.endswith(".py"))
    return any(REGISTERS_TOOLS in (files.read(relative) or b"") for relative in islice(sources, MOST_SOURCES))
