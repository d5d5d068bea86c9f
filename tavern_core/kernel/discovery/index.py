"""The index, a cache of the last discovery, so that the next start need not read every plugin again.

    index-<key>.json    line 1    {"format", "key", "crc", "light"}
                        line 2    {"paths": [...], "rows": [...]}     what every start needs, decoded at once
                        line 3..  manifest, tools and specs of each plugin, decoded on demand

One file per interpreter, path and set of roots, because one TAVERN_HOME serves several environments. It is a cache: if it is corrupt,
foreign, unreadable or unwritable, everything is read again, without an error. It is replaced as a whole, so several
processes may write it at once and the last one wins.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Final, NamedTuple

from tavern_core.errors import Finding, Location, StateDamaged
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.discovery.distributions import Distribution, PathEntry
from tavern_core.kernel.files.file_stamp import CompactStamp, have_stamps
from tavern_core.kernel.files.regular_file import open_regular
from tavern_core.kernel.manifest.declared_tools import DeclaredTools
from tavern_core.model.plugin_status import Source
from tavern_core.model.tool import ToolSpec

FORMAT: Final = 11
_LARGEST: Final = 200_000_000
_MOST_FILES: Final = 16
"""The number of stored indexes of other environments."""


class PluginLocation(NamedTuple):
    """A place where a plugin may be."""

    source: Source
    key: str
    """The key of the plugin in the index."""
    name: str
    """Its name as far as known from outside."""
    folder: str = ""
    """For folders: the folder as listed."""
    root: int = 0
    distribution: Distribution | None = None
    value: str = ""
    """For entry points: the text after the ``=``."""
    is_trusted: bool = True
    """False for a skill of a project, which its operator must trust first."""

    @property
    def module(self) -> str:
        """The package that the entry point names, without an attribute or extras."""
        return self.value.partition("[")[0].partition(":")[0].strip()


class IndexedDetails:
    """The heavy half of a row: JSON texts, left in the index's bytes until needed.

    0 the manifest · 1 the declared tools · 2 what the code gave when it was last active
    """

    __slots__ = ("_blob", "_length", "_start", "_values")

    def __init__(self, blob: bytes = b"", start: int = 0, length: int = 0) -> None:
        self._blob, self._start, self._length = blob, start, length
        self._values: list[Any] | None = None if length else [None] * 3

    def _read(self) -> list[Any]:
        if self._values is None:
            lines = self._blob[self._start : self._start + self._length].split(b"\n")
            self._values = [_Text(line) for line in lines]
        return self._values

    def get(self, number: int) -> Any:
        """The value with this number; None: there is none."""
        values = self._read()
        if isinstance(value := values[number], _Text):
            value = values[number] = json.loads(value.decode("ascii"))  # of bytes, json would guess the encoding
        return value

    def put(self, number: int, value: Any) -> None:
        """Replace one of the values by another JSON value."""
        self._read()[number] = value

    def encoded(self) -> bytes:
        """All of them as lines of ASCII, as they are in the index."""
        if self._values is None:
            return self._blob[self._start : self._start + self._length]
        return b"\n".join(
            value if isinstance(value, _Text) else json.dumps(value, separators=(",", ":")).encode("ascii")
            for value in self._values
        )


class _Text(bytes):
    """JSON that is not decoded yet."""


@dataclass(slots=True)
class IndexedPlugin:
    """The stored facts about a plugin, all JSON. Each start builds hundreds, so the heavy half is decoded on demand."""

    key: str
    """Its origin: the folder, or distribution, version, entry point and value."""
    folder: str
    """The real folder that holds plugin.yaml, or the archive; empty where no package was found."""
    name: str
    prefix: str = ""
    """For a package in a zip: its folder in there."""
    source_folder: str = ""
    """The folder to which the links of an editable-strict install lead."""
    watched: dict[str, CompactStamp | None] = field(default_factory=dict)
    """The paths that are checked at each start, with their stamps: the folder itself, plugin.yaml, the tool folder and
    its files, relative to the folder."""
    is_settled: bool = True
    is_failed: bool = False
    ids: list[str] = field(default_factory=list)
    """Every declared tool id."""
    has_python: bool = False
    digest: str = ""
    """SHA-256 of plugin.yaml."""
    tools_digest: str = ""
    """A digest of its tool files and inline tools, and of the findings about them."""
    facts: list[Any] = field(default_factory=list)
    """The light half of the manifest (`ManifestFacts.to_json`)."""
    findings: list[list[Any]] = field(default_factory=list)
    tool_findings: list[list[Any]] = field(default_factory=list)
    details: IndexedDetails = field(default_factory=IndexedDetails)

    def light(self) -> list[Any]:
        """The fields that every start needs, in their order: ``IndexedPlugin(*row.light(), row.details)`` is the same row."""
        return [
            self.key, self.folder, self.name, self.prefix, self.source_folder, self.watched, self.is_settled,
            self.is_failed, self.ids, self.has_python, self.digest, self.tools_digest, self.facts, self.findings,
            self.tool_findings,
        ]  # fmt: skip

    def is_current(self) -> bool:
        """True if the watched paths still have the stamps with which they were read."""
        return self.is_settled and have_stamps(self.folder, self.watched.items())


MANIFEST, TOOLS, CODE = range(3)
"""The numbers of the texts in `IndexedDetails`."""


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
    """Declared tools as JSON, without their findings, which every start needs."""
    return {
        "specs": [_packed(spec) for spec in tools.specs],
        "sketches": [_packed(spec) for spec in tools.drafts],
        "stamps": tools.stamps,
    }


def _packed(spec: ToolSpec) -> dict[str, Any]:
    """A specification without the defaults of `ToolSpec.from_json`: they would be half of the index."""
    data = spec.marked_json()
    if not any(data["costHints"].values()):
        del data["costHints"]
    return {key: value for key, value in data.items() if not (value is None or value is False or value in ("", []))}


def unpack_tools(data: Any, findings: tuple[Finding, ...] = ()) -> DeclaredTools:
    """The inverse of `pack_tools`; anything empty is a plugin without tools."""
    if not data:
        return DeclaredTools(findings=findings)
    return DeclaredTools(
        tuple(ToolSpec.from_json(spec) for spec in data["specs"]),
        tuple(ToolSpec.from_json(spec) for spec in data["sketches"]),
        findings,
        tuple((relative, stamp) for relative, stamp in data["stamps"]),
    )


class DiscoveryIndex:
    """The stored results for one interpreter, path and set of roots."""

    def __init__(self, file: Path | None, paths: Sequence[str], roots: Iterable[str]) -> None:
        self.paths: dict[str, PathEntry] = {}
        self.rows: dict[str, IndexedPlugin] = {}
        self.is_changed = False
        self._key = _key(paths, roots)
        self._file = None if file is None else file.with_name(f"{file.stem}-{self._key}{file.suffix or '.json'}")
        self._load()

    def _load(self) -> None:
        if self._file is None:
            return
        try:
            with open_regular(self._file) as source:
                # With the exact size: for a limit alone, Python would first allocate that much memory.
                content = source.read(min(os.fstat(source.fileno()).st_size, _LARGEST))
            start = content.index(b"\n") + 1
            header = json.loads(content[:start])
            crc = zlib.crc32(memoryview(content)[start:])
            if (header["format"], header["key"], header["crc"]) != (FORMAT, self._key, crc):
                return
            # Behind the check sum the content is what this very version wrote.
            heavy = start + header["light"] + 1
            data = json.loads(str(memoryview(content)[start : heavy - 1], "ascii"))
            self.paths = {row[0]: _entry(row) for row in data["paths"]}
            for length, at, *light in data["rows"]:
                self.rows[light[0]] = IndexedPlugin(*(*light, IndexedDetails(content, heavy + at, length)))
        except (OSError, ValueError, TypeError, KeyError, IndexError, RecursionError):
            self.paths, self.rows = {}, {}

    def save(self) -> bool:
        """Write the changes; True when no change is left to write. An unwritable folder is not an error."""
        if not self.is_changed or self._file is None:
            return True
        from tavern_core.kernel.files.atomic_file import write_atomic

        try:
            write_atomic(self._file, self._text(), durable=False)
        except StateDamaged:
            return False
        self.is_changed = False
        self._prune()
        return True

    def _text(self) -> str:
        heavy = [row.details.encoded() for row in self.rows.values()]
        # Offsets count from line 3: the length of line 2 depends on them.
        rows: list[list[Any]] = []
        at = 0
        for row, details in zip(self.rows.values(), heavy, strict=True):
            rows.append([len(details), at, *row.light()])
            at += len(details) + 1
        paths = [_pack(entry) for entry in self.paths.values()]
        light = json.dumps({"paths": paths, "rows": rows}, separators=(",", ":"))
        body = b"\n".join([light.encode("ascii"), *heavy])
        head = {"format": FORMAT, "key": self._key, "crc": zlib.crc32(body), "light": len(light)}
        return json.dumps(head) + "\n" + body.decode("ascii")

    def _prune(self) -> None:
        """Delete the oldest indexes of environments that are removed or unused."""
        assert self._file is not None
        stem = self._file.stem.rpartition("-")[0]
        try:
            others = sorted(self._file.parent.glob(f"{stem}-*{self._file.suffix}"), key=lambda f: f.stat().st_mtime)
            for old in others[:-_MOST_FILES]:
                old.unlink(missing_ok=True)
        except OSError:
            return  # another process deletes too


def _key(paths: Sequence[str], roots: Iterable[str]) -> str:
    # Not an import: the package's `__init__` imports the host, which is a layer above this file.
    version = str(vars(sys.modules["tavern_core"]).get("__version__", ""))
    parts = [version, str(FORMAT), sys.version, sys.executable, "", *paths, "", *roots]
    return f"{zlib.crc32(chr(0).join(parts).encode('utf-8', 'surrogatepass')):08x}{len(paths):02x}"


def _pack(entry: PathEntry) -> list[Any]:
    # What is empty at the end is left out. Most distributions have no entries: they are only names that hide others.
    rows = [list(d if d.problems else d[:-1] if d.entries else d[:3]) for d in entry.distributions]
    return [entry.path, entry.stamp, rows, entry.is_settled]


def _entry(row: list[Any]) -> PathEntry:
    path, stamp, distributions, is_settled = row
    return PathEntry(path, stamp, [Distribution(*d) for d in distributions], is_settled)
