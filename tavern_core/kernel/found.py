"""A plugin that was found: what is known about it while none of its code is imported.

`Row` is what the index keeps of it: plain JSON, heavy parts as JSON text inside, so that a warm start decodes only what is
asked for. `FoundPlugin` is what the host is handed: facts at once, the Manifest and the tools on demand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tavern_core.errors import Finding, Location
from tavern_core.kernel.declared_tools import DeclaredTools
from tavern_core.kernel.distributions import Distribution
from tavern_core.kernel.facts import Facts
from tavern_core.kernel.plugin_files import FolderFiles, PluginFiles, ZipFiles
from tavern_core.model.plugin import Source
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.kernel.manifests import ManifestReading
    from tavern_core.model.manifest import Manifest

MANIFEST_FILE: Final = "plugin.yaml"


@dataclass(slots=True)
class Row:
    """What the index keeps of one plugin; every field is JSON."""

    key: str
    """Where it came from: the folder, or distribution, version, entry point and value."""
    folder: str
    """The real folder that holds plugin.yaml, or the archive; empty where no package was found."""
    prefix: str = ""
    """For a package in a zip: its folder in there."""
    source_folder: str = ""
    """Where the links of an editable-strict install lead."""
    watched: list[list[Any]] = field(default_factory=list)
    """Path and stamp of what is looked at each start: folder, plugin.yaml and tool folder, or the archive."""
    read_at: int = 0
    """Nanoseconds since the epoch."""
    facts: list[Any] = field(default_factory=list)
    findings: list[list[Any]] = field(default_factory=list)
    digest: str = ""
    """SHA-256 of plugin.yaml."""
    data: str = ""
    """The manifest as JSON text; empty for a plugin that failed."""
    ids: list[str] = field(default_factory=list)
    """Every declared tool id."""
    tools: str = ""
    """DeclaredTools as JSON text."""
    code: str = ""
    """JSON text: the artifact hash, the files it stands for, and the specs that the code gave when it was last active."""
    has_python: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """Somewhere a plugin may be."""

    source: Source
    key: str
    """What the index knows it by."""
    name: str
    """Its name as far as one can tell from outside."""
    folder: str = ""
    """For folders: the folder as listed."""
    root: int = 0
    distribution: Distribution | None = None
    value: str = ""
    """For entry points: what is behind the ``=``."""

    @property
    def module(self) -> str:
        """The package that the entry point names, without an attribute or extras."""
        return self.value.partition("[")[0].partition(":")[0].strip()


def finding_row(finding: Finding) -> list[Any]:
    """A finding as a JSON array."""
    where = finding.where
    place = [where.file, where.line, where.column, where.pointer] if where is not None else None
    return [finding.code, finding.message, finding.hint, place, finding.severity]


def finding_of(row: list[Any]) -> Finding:
    """The inverse of `finding_row`."""
    code, message, hint, place, severity = row
    return Finding(code, message, hint, Location(*place) if place else None, severity)


def pack_tools(tools: DeclaredTools) -> str:
    """Declared tools as JSON text."""
    return json.dumps(
        {
            "specs": [spec.to_json() for spec in tools.specs],
            "unknown": tools.unknown,
            "findings": [finding_row(finding) for finding in tools.findings],
            "stamps": tools.stamps,
        },
        ensure_ascii=False,
    )


def unpack_tools(text: str) -> DeclaredTools:
    """The inverse of `pack_tools`."""
    if not text:
        return DeclaredTools()
    data = json.loads(text)
    return DeclaredTools(
        tuple(ToolSpec.from_json(spec) for spec in data["specs"]),
        tuple(data["unknown"]),
        tuple(finding_of(row) for row in data["findings"]),
        tuple((relative, tuple(stamp) if stamp else None) for relative, stamp in data["stamps"]),
    )


@dataclass(frozen=True)
class FoundPlugin:
    """One plugin, found and not imported.

    `findings` with an error mean that it is `failed`; then `manifest` is None and the facts hold what could be read.
    """

    name: str
    source: Source
    facts: Facts
    findings: tuple[Finding, ...] = ()
    declared_tools: tuple[str, ...] = ()
    """Ids of every tool that can be listed without importing code."""
    folder: Path | None = None
    """The real folder that holds plugin.yaml; None for a package in a zip (see `materialise`)."""
    module: str | None = None
    """The importable package of an installed plugin; None for a plugin in a folder."""
    has_python: bool = False
    """True when there is a package to import: always for installed ones, with ``__init__.py`` for folders."""
    distribution: str = ""
    distribution_version: str = ""
    entry_point: str = ""
    """As written: ``text = "tavern_plugin_text"`` gives ``tavern_plugin_text``."""
    manifest_hash: str = ""
    """SHA-256 of plugin.yaml's bytes."""
    root: int = 0
    """Which of the roots it was found in."""
    files: PluginFiles | None = field(default=None, repr=False, compare=False)
    _row: Row | None = field(default=None, repr=False, compare=False)

    @property
    def is_failed(self) -> bool:
        """True when it cannot be used."""
        return any(finding.severity == "error" for finding in self.findings)

    @property
    def version(self) -> str:
        return self.facts.version

    @property
    def location(self) -> str:
        """Where it is, for the operator."""
        return self.files.place if self.files is not None else ""

    @property
    def origin(self) -> str:
        """Folder or distribution in a few words, for messages: ``tavern-plugin-text 1.0`` or ``/srv/plugins/text``."""
        if self.distribution:
            return f"{self.distribution} {self.distribution_version} (entry point {self.entry_point})"
        return self.location or f"{self.source} {self.name}"

    @cached_property
    def manifest(self) -> Manifest | None:
        """The whole manifest as it was when the plugin was found; None when the plugin failed."""
        if self._row is None or not self._row.data:
            return None
        from tavern_core.model.manifest import Manifest

        return Manifest.model_validate(json.loads(self._row.data))

    def reading(self, *, strict: bool = False) -> ManifestReading | None:
        """Read plugin.yaml again, with its places in the text; None when it cannot be read."""
        from tavern_core.kernel.manifests import read_manifest

        content = self.files.read(MANIFEST_FILE) if self.files is not None else None
        return None if content is None else read_manifest(content, MANIFEST_FILE, strict=strict)

    # Tools -------------------------------------------------------------------------------------------------------------

    @cached_property
    def tools(self) -> DeclaredTools:
        """What the declarations say, as of the last reading: enough for a catalogue."""
        return unpack_tools(self._row.tools) if self._row is not None else DeclaredTools()

    def current_tools(self) -> DeclaredTools:
        """The same, after a look at the tool files: read again when one was added, edited or removed.

        For the moment the plugin is used (DESIGN §5); `tools` itself stays what it was.
        """
        stamps, files = self.tools.stamps, self.files
        if files is None or not stamps or all(files.stamp(relative) == stamp for relative, stamp in stamps):
            return self.tools
        from tavern_core.kernel.declared_tools import read_declared_tools
        from tavern_core.kernel.yaml_reader import read_yaml

        if self.manifest is None:
            return self.tools
        document = read_yaml(files.read(MANIFEST_FILE) or b"", MANIFEST_FILE)
        return read_declared_tools(self.manifest, document, files)

    def specs(self) -> tuple[ToolSpec, ...]:
        """Every specification known without importing: the declared ones and those the code gave when last active.

        The latter only as long as no file of the plugin has changed since.
        """
        declared = self.tools
        cached = {spec.name: spec for spec in self._specs_of_code()}
        known = tuple(cached[name] for name in declared.unknown if name in cached)
        return (*declared.specs, *known)

    def _specs_of_code(self) -> tuple[ToolSpec, ...]:
        if self._row is None or not self._row.code or self.files is None or not self.tools.unknown:
            return ()
        remembered = json.loads(self._row.code)
        if remembered["files"] != _fingerprint(self.files):
            return ()
        return tuple(ToolSpec.from_json(spec) for spec in remembered["specs"])

    # The artifact ------------------------------------------------------------------------------------------------------

    def artifact_hash(self) -> str:
        """One SHA-256 over the names and contents of all files; the content is read only when a file's times changed."""
        if self.files is None:
            return ""
        if self._row is not None and self._row.code:
            remembered = json.loads(self._row.code)
            if remembered["files"] == _fingerprint(self.files):
                return str(remembered["artifact"])
        return self.files.hash()

    def pack_code(self, specs: Iterable[ToolSpec]) -> str:
        """What to remember of an activation: the specs, for exactly these files."""
        if self.files is None:
            return ""
        # The files first: what is edited while they are hashed is then seen as edited.
        files = _fingerprint(self.files)
        remembered = {
            "files": files,
            "artifact": self.files.hash(),
            "specs": [spec.to_json() for spec in specs],
        }
        try:
            return json.dumps(remembered, ensure_ascii=False)
        except (TypeError, ValueError):
            return ""  # a schema or example that is no JSON is not worth failing an activation for

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


def files_of(row: Row) -> PluginFiles | None:
    """Where the files of a row's plugin are."""
    if not row.folder:
        return None
    if row.prefix:
        return ZipFiles(Path(row.folder), row.prefix)
    return FolderFiles(Path(row.folder), Path(row.source_folder) if row.source_folder else None)
