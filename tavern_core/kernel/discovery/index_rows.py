"""What the index stores of one plugin: plain JSON, its heavy half decoded only on demand.

Each start builds hundreds of these, so everything that costs a microsecond is lazy.
"""

from __future__ import annotations

import json
from dataclasses import field
from typing import Any, NamedTuple

from tavern_core.errors import Finding, Location
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.discovery.distributions import Distribution
from tavern_core.kernel.files.plugin_files import Stamp, bear_stamps
from tavern_core.kernel.manifest.declared_tools import DeclaredTools
from tavern_core.model.plugin_status import Source
from tavern_core.model.tool import ToolSpec


class Candidate(NamedTuple):
    """Somewhere a plugin may be."""

    source: Source
    key: str
    """What the index knows it by."""
    name: str
    """Its name as far as known from outside."""
    folder: str = ""
    """For folders: the folder as listed."""
    root: int = 0
    distribution: Distribution | None = None
    value: str = ""
    """For entry points: what is behind the ``=``."""
    is_trusted: bool = True
    """False for a skill of a project, which its operator must trust first."""

    @property
    def module(self) -> str:
        """The package that the entry point names, without an attribute or extras."""
        return self.value.partition("[")[0].partition(":")[0].strip()


class Details:
    """The heavy half of a row: JSON texts, left in the index's bytes until needed.

    0 the facts · 1 the findings · 2 the manifest · 3 the declared tools · 4 what the code gave when it was last active ·
    5 the findings about tools
    """

    __slots__ = ("_blob", "_length", "_start", "_values")

    def __init__(self, blob: bytes = b"", start: int = 0, length: int = 0) -> None:
        self._blob, self._start, self._length = blob, start, length
        self._values: list[Any] | None = None if length else [None] * 6

    def _read(self) -> list[Any]:
        if self._values is None:
            lines = self._blob[self._start : self._start + self._length].split(b"\n")
            self._values = [_Text(line) for line in lines]
        return self._values

    def get(self, number: int) -> Any:
        """One of the values; None if there is none."""
        values = self._read()
        if isinstance(value := values[number], _Text):
            value = values[number] = json.loads(value.decode("ascii"))  # of bytes, json would guess the encoding
        return value

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
    """JSON that is not decoded yet."""


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
    watched: dict[str, Stamp | None] = field(default_factory=dict)
    """What is checked at each start, with its stamp: the folder itself, plugin.yaml, the tool folder, each by its path below
    the folder."""
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
        return self.is_settled and bear_stamps(self.folder, self.watched.items())


FACTS, FINDINGS, MANIFEST, TOOLS, CODE, TOOL_FINDINGS = range(6)
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
    """Declared tools as JSON, without their findings, which every start needs."""
    return {
        "specs": [_packed(spec) for spec in tools.specs],
        "sketches": [_packed(spec) for spec in tools.drafts],
        "stamps": tools.stamps,
    }


def _packed(spec: ToolSpec) -> dict[str, Any]:
    """A specification without the defaults of `ToolSpec.from_json`: they would be half of the index."""
    data = spec.to_json()
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
