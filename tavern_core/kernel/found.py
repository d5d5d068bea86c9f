"""A plugin that was found: what is known about it while none of its code is imported.

`Row` is what the index keeps of it: plain JSON, its heavy half (`Details`) decoded only when somebody asks. `FoundPlugin` is
what the host is handed: facts at once, the Manifest and the tools on demand. Hundreds are made at each start, so everything
that costs a microsecond waits until it is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tavern_core.errors import Finding, Location
from tavern_core.kernel.declared_tools import DeclaredTools
from tavern_core.kernel.distributions import Distribution
from tavern_core.kernel.facts import Facts
from tavern_core.kernel.plugin_files import FolderFiles, PluginFiles, ZipFiles, stamp_of
from tavern_core.model.plugin import Source
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.kernel.manifests import ManifestReading
    from tavern_core.model.manifest import Manifest

MANIFEST_FILE: Final = "plugin.yaml"


class Candidate(NamedTuple):
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


class Details:
    """The heavy half of a row: JSON texts, left in the index's bytes until one of them is asked for.

    0 the facts · 1 the findings · 2 the manifest · 3 the declared tools · 4 what the code gave when it was last active
    """

    __slots__ = ("_blob", "_length", "_start", "_values")

    def __init__(self, blob: bytes = b"", start: int = 0, length: int = 0) -> None:
        self._blob, self._start, self._length = blob, start, length
        self._values: list[Any] | None = None if length else [None] * 5

    def _read(self) -> list[Any]:
        if self._values is None:
            lines = self._blob[self._start : self._start + self._length].split(b"\n")
            self._values = [_Text(line) for line in lines]
        return self._values

    def get(self, number: int) -> Any:
        """One of the values; None where there is none."""
        values = self._read()
        if isinstance(values[number], _Text):
            values[number] = json.loads(values[number])
        return values[number]

    def put(self, number: int, value: Any) -> None:
        """Replace one of the values by another JSON value."""
        self._read()[number] = value

    def encoded(self) -> bytes:
        """All of them as lines of ASCII, as they stand in the index."""
        if self._values is None:
            return self._blob[self._start : self._start + self._length]
        return b"\n".join(
            value if isinstance(value, _Text) else json.dumps(value, separators=(",", ":")).encode("ascii")
            for value in self._values
        )


class _Text(bytes):
    """JSON that nobody decoded yet."""


@dataclass(slots=True)
class Row:
    """What the index keeps of one plugin; every field is JSON."""

    key: str
    """Where it came from: the folder, or distribution, version, entry point and value."""
    folder: str
    """The real folder that holds plugin.yaml, or the archive; empty where no package was found."""
    name: str
    prefix: str = ""
    """For a package in a zip: its folder in there."""
    source_folder: str = ""
    """Where the links of an editable-strict install lead."""
    watched: list[list[Any]] = field(default_factory=list)
    """What is looked at each start, as path behind the folder's own and stamp: itself, plugin.yaml, the tool folder."""
    is_settled: bool = True
    is_failed: bool = False
    ids: list[str] = field(default_factory=list)
    """Every declared tool id."""
    has_python: bool = False
    digest: str = ""
    """SHA-256 of plugin.yaml."""
    details: Details = field(default_factory=Details)

    def light(self) -> list[Any]:
        """The fields that every start needs."""
        return [
            self.key, self.folder, self.name, self.prefix, self.source_folder, self.watched, self.is_settled,
            self.is_failed, self.ids, self.has_python, self.digest,
        ]  # fmt: skip

    @classmethod
    def of(cls, light: list[Any], details: Details) -> Row:
        """The inverse of `light`."""
        key, folder, name, prefix, source_folder, watched, is_settled, is_failed, ids, has_python, digest = light
        return cls(
            key, folder, name, prefix, source_folder, watched, is_settled, is_failed, ids, has_python, digest, details
        )

    def is_current(self) -> bool:
        """True when the folder, plugin.yaml and the tool folder bear the times they had when they were read."""
        if not self.is_settled:
            return False
        folder = self.folder
        for tail, stamp in self.watched:  # noqa: SIM110 - a generator would double the time
            if stamp_of(folder + tail) != stamp:
                return False
        return True


FACTS, FINDINGS, MANIFEST, TOOLS, CODE = range(5)
"""The numbers of the texts in `Details`."""


def finding_row(finding: Finding) -> list[Any]:
    """A finding as a JSON array."""
    where = finding.where
    place = [where.file, where.line, where.column, where.pointer] if where is not None else None
    return [finding.code, finding.message, finding.hint, place, finding.severity, dict(finding.details)]


def finding_of(row: list[Any]) -> Finding:
    """The inverse of `finding_row`."""
    code, message, hint, place, severity, details = row
    return Finding(code, message, hint, Location(*place) if place else None, severity, details)


def pack_tools(tools: DeclaredTools) -> dict[str, Any]:
    """Declared tools as JSON."""
    return {
        "specs": [spec.to_json() for spec in tools.specs],
        "unknown": tools.unknown,
        "findings": [finding_row(finding) for finding in tools.findings],
        "stamps": tools.stamps,
    }


def unpack_tools(data: Any) -> DeclaredTools:
    """The inverse of `pack_tools`; anything empty is a plugin without tools."""
    if not data:
        return DeclaredTools()
    return DeclaredTools(
        tuple(ToolSpec.from_json(spec) for spec in data["specs"]),
        tuple(data["unknown"]),
        tuple(finding_of(row) for row in data["findings"]),
        tuple((relative, stamp) for relative, stamp in data["stamps"]),
    )


@dataclass(frozen=True, eq=False)
class FoundPlugin:
    """One plugin, found and not imported.

    `findings` with an error mean that it is failed; then `manifest` is None and the facts hold what could be read.
    """

    candidate: Candidate
    row: Row = field(repr=False)

    @property
    def name(self) -> str:
        """Its unique name; for a failed one the best there is."""
        return self.row.name

    @property
    def source(self) -> Source:
        """ "folder" or "entry_point"."""
        return self.candidate.source

    @cached_property
    def facts(self) -> Facts:
        """The light half of the manifest."""
        return Facts.from_json(self.row.details.get(FACTS))

    @property
    def version(self) -> str:
        return self.facts.version

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong with plugin.yaml or with the way it was found; tools have their own (`tools.findings`)."""
        return tuple(finding_of(row) for row in self.row.details.get(FINDINGS) or ())

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
        """SHA-256 of plugin.yaml's bytes; empty where there is none."""
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
        """Where its files are read from; None where no package was found."""
        row = self.row
        if not row.folder:
            return None
        if row.prefix:
            return ZipFiles(Path(row.folder), row.prefix)
        return FolderFiles(Path(row.folder), Path(row.source_folder) if row.source_folder else None)

    @property
    def folder(self) -> Path | None:
        """The real folder that holds plugin.yaml; None for a package in a zip (see `materialise`)."""
        return Path(self.row.folder) if self.row.folder and not self.row.prefix else None

    @property
    def location(self) -> str:
        """Where it is, for the operator."""
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

    def reading(self, *, strict: bool = False) -> ManifestReading | None:
        """Read plugin.yaml again, with its places in the text; None when it cannot be read."""
        from tavern_core.kernel.manifests import read_manifest

        content = self.files.read(MANIFEST_FILE) if self.files is not None else None
        return None if content is None else read_manifest(content, MANIFEST_FILE, strict=strict)

    # Tools -------------------------------------------------------------------------------------------------------------

    @cached_property
    def tools(self) -> DeclaredTools:
        """What the declarations say, as of the last reading: enough for a catalogue."""
        return unpack_tools(self.row.details.get(TOOLS))

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
        remembered = self.row.details.get(CODE)
        if not remembered or self.files is None or remembered["files"] != _fingerprint(self.files):
            return ()
        return tuple(ToolSpec.from_json(spec) for spec in remembered["specs"])

    # The artifact ------------------------------------------------------------------------------------------------------

    def artifact_hash(self) -> str:
        """One SHA-256 over the names and contents of all files; the content is read only when a file's times changed."""
        if self.files is None:
            return ""
        remembered = self.row.details.get(CODE)
        if remembered and remembered["files"] == _fingerprint(self.files):
            return str(remembered["artifact"])
        return self.files.hash()

    def remember_code(self, specs: Iterable[ToolSpec]) -> bool:
        """Keep the specs of an activation, for exactly these files; True when that is news."""
        if self.files is None:
            return False
        # The times first: what is edited while the files are hashed is then seen as edited.
        files = _fingerprint(self.files)
        told = {"files": files, "artifact": self.files.hash(), "specs": [spec.to_json() for spec in specs]}
        try:
            told = json.loads(json.dumps(told))
        except (TypeError, ValueError):
            return False  # a schema or example that is no JSON is not worth failing an activation for
        if told == self.row.details.get(CODE):
            return False
        self.row.details.put(CODE, told)
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
