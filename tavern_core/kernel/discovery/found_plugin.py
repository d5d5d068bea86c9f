"""A discovered plugin: the facts that are known without importing its code.

Its name and tool ids are available at once; facts, findings, the Manifest and the tools are built on demand from what the
index stores of it (`rows`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tavern_core.errors import Finding
from tavern_core.kernel.discovery.index import (
    CODE,
    MANIFEST,
    TOOLS,
    IndexedPlugin,
    PluginLocation,
    finding_of,
    unpack_tools,
)
from tavern_core.kernel.discovery.manifest_facts import ManifestFacts
from tavern_core.kernel.files.plugin_file_reader import FolderFiles, PluginFiles, ZipFiles
from tavern_core.kernel.manifest.declared_tools import DeclaredTools, read_declared_tools
from tavern_core.model.plugin_status import Source
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.model.manifest import Manifest

MANIFEST_FILE: Final = "plugin.yaml"


@dataclass(frozen=True, eq=False)
class FoundPlugin:
    """A plugin that was found and not imported.

    `findings` with an error mean that it is failed; then `manifest` is None and the facts hold what could be read.
    """

    candidate: PluginLocation
    row: IndexedPlugin = field(repr=False)

    @property
    def name(self) -> str:
        """Its unique name; for a failed plugin the best known one."""
        return self.row.name

    @property
    def source(self) -> Source:
        """The kind of its source: folder, entry_point, vcp, skill."""
        return self.candidate.source

    @cached_property
    def facts(self) -> ManifestFacts:
        """The light half of the manifest."""
        return ManifestFacts.from_json(self.row.facts)

    @property
    def version(self) -> str:
        return self.facts.version

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Findings about plugin.yaml and the location; tools have their own (`tool_findings`)."""
        return tuple(finding_of(row) for row in self.row.findings)

    @cached_property
    def tool_findings(self) -> tuple[Finding, ...]:
        """Findings about its tool files and inline tools, from the last read."""
        return tuple(finding_of(row) for row in self.row.tool_findings)

    @property
    def is_failed(self) -> bool:
        """True when it cannot be used."""
        return self.row.is_failed

    @property
    def declared_tools(self) -> tuple[str, ...]:
        """Ids of every tool that can be listed without importing code."""
        return tuple(self.row.ids)

    @property
    def manifest_hash(self) -> str:
        """SHA-256 of plugin.yaml's bytes; empty if there is none."""
        return self.row.digest

    @property
    def has_python(self) -> bool:
        """True when there is a package to import: always for installed ones, with ``__init__.py`` for folders."""
        return self.row.has_python

    @property
    def module(self) -> str | None:
        """The importable package of an installed plugin; None for a plugin in a folder."""
        return self.candidate.module or None

    @property
    def distribution(self) -> str:
        """The pip package's name; empty for a plugin in a folder."""
        found = self.candidate.distribution
        return "" if found is None else found.name or found.key

    @property
    def distribution_version(self) -> str:
        found = self.candidate.distribution
        return "" if found is None else found.version

    @property
    def entry_point(self) -> str:
        """As written: ``text = "tavern_plugin_text"`` gives ``tavern_plugin_text``."""
        return self.candidate.value

    @cached_property
    def files(self) -> PluginFiles | None:
        """The source of its files; None if no package was found."""
        row = self.row
        if not row.folder:
            return None
        if row.prefix:
            return ZipFiles(Path(row.folder), row.prefix)
        return FolderFiles(self.folder or Path(), Path(row.source_folder) if row.source_folder else None)

    @cached_property
    def folder(self) -> Path | None:
        """The real folder that holds plugin.yaml; None for a package in a zip (see `materialise`)."""
        return Path(self.row.folder) if self.row.folder and not self.row.prefix else None

    @property
    def location(self) -> str:
        """Its location, for the operator."""
        if not self.row.prefix:
            return self.row.folder
        return self.files.place if self.files is not None else ""

    @property
    def origin(self) -> str:
        """Folder or distribution in a few words, for messages: ``tavern-plugin-text 1.0`` or ``/srv/plugins/text``."""
        if self.candidate.distribution is not None:
            return f"{self.distribution} {self.distribution_version} (entry point {self.entry_point})"
        return self.location

    @cached_property
    def manifest(self) -> Manifest | None:
        """The whole manifest as it was when the plugin was found; None when the plugin failed."""
        data = self.row.details.get(MANIFEST)
        if not data:
            return None
        from tavern_core.model.manifest import Manifest

        return Manifest.model_validate(data)

    # Tools -------------------------------------------------------------------------------------------------------------

    @cached_property
    def tools(self) -> DeclaredTools:
        """The declarations from the last read: enough for a catalogue."""
        return unpack_tools(self.row.details.get(TOOLS), self.tool_findings)

    def current_tools(self) -> DeclaredTools:
        """The same after checking the tool files: read again if one was added, edited or removed.

        Called when the plugin is used (DESIGN §5); `tools` itself does not change.
        """
        stamps, files = self.tools.stamps, self.files
        if files is None or not stamps or all(files.stamp(relative) == stamp for relative, stamp in stamps):
            return self.tools
        from tavern_core.kernel.text.yaml_reader import read_yaml

        if self.manifest is None:
            return self.tools
        document = read_yaml(files.read(MANIFEST_FILE) or b"", MANIFEST_FILE)
        return read_declared_tools(self.manifest, document, files)

    def specs(self) -> tuple[ToolSpec, ...]:
        """Every specification known without importing: the declared ones and those the code gave when last active.

        The latter only as long as no file of the plugin has changed since.
        """
        declared = self.tools
        remembered = self._remembered() or {"specs": ()}
        cached = {spec.name: spec for spec in map(ToolSpec.from_json, remembered["specs"])}
        known = tuple(cached[name] for name in declared.unknown if name in cached)
        return (*declared.specs, *known)

    def coded_settings(self) -> tuple[Mapping[str, Any], ...] | None:
        """The settings of the last activation; None when they are not known, or a file has changed since."""
        remembered = self._remembered()
        return None if remembered is None else tuple(remembered["settings"])

    def coded_nodes(self) -> tuple[Mapping[str, Any], ...] | None:
        """The node types of the last activation, as JSON; None when they are not known, or a file has changed since."""
        remembered = self._remembered()
        return None if remembered is None or remembered["nodes"] is None else tuple(remembered["nodes"])

    def _remembered(self) -> Mapping[str, Any] | None:
        """The data that the code returned when last active, if no file has changed since."""
        remembered: Mapping[str, Any] | None = self.row.details.get(CODE)
        if not remembered or self.files is None or remembered["files"] != _fingerprint(self.files):
            return None
        return remembered

    # The artifact ------------------------------------------------------------------------------------------------------

    def artifact_hash(self) -> str:
        """One SHA-256 over the names and contents of all files; the content is read only when a file's times changed."""
        if self.files is None:
            return ""
        remembered = self.row.details.get(CODE)
        fingerprint = _fingerprint(self.files)  # first: what is edited during the hashing is then seen as edited
        if remembered and remembered["files"] == fingerprint:
            return str(remembered["artifact"])
        if fingerprint not in self._hashes:
            self._hashes[fingerprint] = self.files.hash()
        return self._hashes[fingerprint]

    def fingerprint(self) -> str:
        """One short text for the names, times and sizes of all files; another one where something changed."""
        return "" if self.files is None else _fingerprint(self.files)

    @cached_property
    def _hashes(self) -> dict[str, str]:
        """Fingerprint → hash, as computed in this process."""
        return {}

    def remember_code(
        self, specs: list[ToolSpec], settings: list[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]] | None
    ) -> bool:
        """Store what an activation provided, for exactly these files; True if it differs from what was stored."""
        if self.files is None:
            return False
        described = {
            "files": _fingerprint(self.files),  # first: what is edited during the hashing is then seen as edited
            "artifact": self.files.hash(),
            "specs": [spec.marked_json() for spec in specs],
            "settings": [dict(item) for item in settings],
            "nodes": None if nodes is None else [dict(node) for node in nodes],
        }
        try:
            described = json.loads(json.dumps(described))
        except (TypeError, ValueError):
            return False  # a schema or example that is not JSON is not worth failing an activation for
        if described == self.row.details.get(CODE):
            return False
        self.row.details.put(CODE, described)
        return True

    def materialise(self, cache: Path) -> Path | None:
        """A folder with the plugin's files: its own, or for a package in a zip one beneath `cache`.

        Raises:
            OSError: the cache cannot be written.
        """
        return self.files.unpack(cache) if isinstance(self.files, ZipFiles) else self.folder


def _fingerprint(files: PluginFiles) -> str:
    """One short text for the names, times and sizes of all files."""
    import hashlib

    total = hashlib.sha256()
    for relative, stamp in files.files():
        total.update(f"{relative}\0{stamp}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()
