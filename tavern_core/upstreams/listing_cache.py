"""The last listing of each upstream on disk, so that tools exist when a host opens, without a request to an upstream.

    cache/upstreams/<name>.index.json   fingerprint of the entry, time, names of tools, whether patterns are unchecked
    cache/upstreams/<name>.json         the definitions, and the last reviewed ones
    cache/upstreams/.health.json        name → time of the last request, its duration, its error

The index is read when a host opens, definitions on demand. If another process has listed the upstream in between, the
index is read again. A file that is corrupt, or of another listing than the other file, counts as empty: the upstream is
listed again. Corrupt files of one upstream do not affect others.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from pydantic_core import from_json

from tavern_core.contract.adapters import UpstreamTool, tool_json, tool_of
from tavern_core.errors import StateDamaged
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.files.atomic_file import make_private_folder, read_text, write_atomic
from tavern_core.kernel.files.json_state import JsonStateFile
from tavern_core.model.plain_data import json_digest

LARGEST_FILE: Final = 64_000_000
MOST_LOCKED: Final = 20_000
"""Bytes of one upstream's hashes in the lock file."""
ALL_TOOLS: Final = "*"
_OVER_ALL: Final = "all-"
_LINE: Final = 80


@dataclass(frozen=True, slots=True)
class ListingIndexEntry:
    """A line of the index."""

    fingerprint: str
    """The fingerprint of the entry in tavern.yaml; the listing is only valid for this entry."""
    at: float
    """Seconds since the epoch, UTC."""
    ttl_ms: int | None
    etag: str
    tools: tuple[str, ...]
    """Names as the upstream spells them."""
    has_unchecked: bool = True
    """Whether there may be patterns that are not validated; if not, the definitions need not be read to report them."""

    @classmethod
    def from_json(cls, data: Any) -> ListingIndexEntry | None:
        """The inverse of `to_json`; None: invalid data."""
        try:
            fingerprint, at, ttl, etag, tools, *unchecked = data
            if not math.isfinite(at):
                return None
            return cls(
                str(fingerprint),
                float(at),
                None if ttl is None else int(ttl),
                str(etag),
                tuple(map(str, tools)),
                unchecked != [False],
            )
        except (TypeError, ValueError):
            return None

    def to_json(self) -> list[Any]:
        return [self.fingerprint, self.at, self.ttl_ms, self.etag, list(self.tools), self.has_unchecked]


@dataclass(frozen=True, slots=True)
class UpstreamHealth:
    """The outcome of the last request to an upstream, by any process."""

    fingerprint: str
    """The fingerprint of the entry in tavern.yaml."""
    at: float
    """Seconds since the epoch, UTC."""
    latency_ms: float | None
    error: str
    """Empty: it answered."""

    @classmethod
    def from_json(cls, data: Any) -> UpstreamHealth | None:
        """Read a row of the file; None: invalid data."""
        try:
            fingerprint, at, latency, error = data
            if not math.isfinite(at) or not math.isfinite(latency or 0.0):
                return None
            return cls(str(fingerprint), float(at), None if latency is None else float(latency), str(error))
        except (TypeError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class UncheckedPattern:
    """A pattern in a tool's schema that the host cannot validate, so that it relies on the upstream."""

    pointer: str
    """The pointer within the tool: ``/inputSchema/properties/name/pattern``."""
    pattern: str
    reason: str


@dataclass(frozen=True, slots=True)
class UpstreamDefinitions:
    """The known tools of one upstream."""

    tools: Mapping[str, UpstreamTool] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Name → why it is not a tool."""
    description: str = ""
    version: str = ""
    reviewed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Name → its definition at the last review, for a diff."""
    unchecked: Mapping[str, tuple[UncheckedPattern, ...]] | None = field(default_factory=dict)
    """Name → the patterns that are not validated. None: an older version listed it, which refused such tools."""


class ListingCache:
    """The listings of a state folder. Safe for threads and processes; the last writer wins."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._health = JsonStateFile(folder / ".health.json", "upstreams")
        self._lock = threading.Lock()
        self._listed: dict[str, ListingIndexEntry | None] = {}
        self._known: dict[str, UpstreamDefinitions] = {}

    def listed(self, name: str) -> ListingIndexEntry | None:
        """The last listing of an upstream; None: there is none."""
        with self._lock:
            if name not in self._listed:
                self._listed[name] = ListingIndexEntry.from_json(self._json(f"{name}.index.json"))
            return self._listed[name]

    def definitions(self, name: str) -> UpstreamDefinitions:
        """The tools of an upstream in its last listing."""
        with self._lock:
            if (found := self._known.get(name)) is None:
                found = self._known[name] = self._read(name)
                listed = self._listed.get(name)
                if listed is not None and set(listed.tools) != found.tools.keys():
                    # another process has listed it since the index was read, or one of the files is corrupt
                    now = ListingIndexEntry.from_json(self._json(f"{name}.index.json"))
                    self._listed[name] = now if now is not None and set(now.tools) == found.tools.keys() else None
            return found

    def store(self, name: str, listed: ListingIndexEntry, definitions: UpstreamDefinitions) -> None:
        """Store a listing.

        Raises:
            StateDamaged: it cannot be written (STATE_DAMAGED).
        """
        data = {
            "tools": [kept_json(tool) for tool in definitions.tools.values()],
            "leftOut": dict(definitions.left_out),
            "description": definitions.description,
            "version": definitions.version,
            "reviewed": {key: dict(value) for key, value in definitions.reviewed.items()},
            "unchecked": {
                name: [[one.pointer, one.pattern, one.reason] for one in found]
                for name, found in (definitions.unchecked or {}).items()
            },
        }
        make_private_folder(self._folder)
        write_atomic(self._folder / f"{name}.json", json.dumps(data, ensure_ascii=False))
        write_atomic(self._folder / f"{name}.index.json", json.dumps(listed.to_json(), ensure_ascii=False))
        with self._lock:
            self._listed[name] = listed
            self._known[name] = definitions

    def health(self, name: str) -> UpstreamHealth | None:
        """The result of the last request to an upstream; None: there was none."""
        return UpstreamHealth.from_json(self._health.read().values.get(name))

    def note_health(self, name: str, health: UpstreamHealth) -> None:
        """Store it for other processes; skipped if it cannot be written."""
        row = [health.fingerprint, health.at, health.latency_ms, health.error]
        with suppress(StateDamaged, OSError):
            make_private_folder(self._folder)
            self._health.change(lambda rows: {**rows, name: row})

    def _read(self, name: str) -> UpstreamDefinitions:
        try:
            data = self._json(f"{name}.json") or {}
            return UpstreamDefinitions(
                {tool.name: tool for tool in map(tool_of, data.get("tools", ()))},
                {str(tool): str(why) for tool, why in data.get("leftOut", {}).items()},
                str(data.get("description", "")),
                str(data.get("version", "")),
                dict(data.get("reviewed", {})),
                _unchecked(data["unchecked"]) if "unchecked" in data else None,
            )
        except (ValueError, TypeError, AttributeError, KeyError):
            return UpstreamDefinitions()

    def _json(self, file: str) -> Any:
        """The content of a file; None: it cannot be read."""
        try:
            text = read_text(self._folder / file, LARGEST_FILE)
            return None if text is None else from_json(text)
        except (StateDamaged, ValueError):
            return None


def digest(data: Any) -> str:
    """``sha256:…`` of plain data, whatever the order of its keys."""
    return f"sha256:{json_digest(data)}"


def definition(tool: UpstreamTool) -> dict[str, Any]:
    """The parts of a tool that a reviewer judges."""
    return {key: value for key, value in kept_json(tool).items() if key not in ("version", "data", "forwardsKey")}


def lock_form(hashes: Mapping[str, str]) -> dict[str, str]:
    """Tool → hash for the lock file.

    For an upstream with many tools it is one hash over all, because all processes read that file; also for one without
    tools, so that its first tool is a new one.
    """
    if hashes and sum(len(name.encode()) + _LINE for name in hashes) <= MOST_LOCKED:
        return dict(hashes)
    return {ALL_TOOLS: f"{_OVER_ALL}{digest(dict(hashes))}"}


def is_of_all(locked: Mapping[str, str]) -> bool:
    """Whether it is one hash over all tools."""
    return locked.get(ALL_TOOLS, "").startswith(_OVER_ALL)


def kept_json(tool: UpstreamTool) -> dict[str, Any]:
    """The parts of a tool that are not defaults, as stored."""
    return {key: value for key, value in tool_json(tool).items() if value or key in ("name", "inputSchema")}


def _unchecked(data: Mapping[str, Any]) -> dict[str, tuple[UncheckedPattern, ...]]:
    return {str(name): tuple(UncheckedPattern(*map(str, row)) for row in rows) for name, rows in data.items()}
