"""What upstreams listed last, on disk, so that their tools are there when a host opens and no upstream is asked.

    cache/upstreams/.index.json     name → fingerprint of the entry, when it was listed, the names of its tools
    cache/upstreams/<name>.json     the definitions, and those that were reviewed last

The index is read when a host opens; definitions when somebody looks at tools. A file that is damaged is an empty one: the next listing
writes it anew.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from pydantic_core import from_json

from tavern_core.contract.adapters import Listing, UpstreamTool
from tavern_core.errors import StateDamaged
from tavern_core.frozen import dataclass
from tavern_core.kernel.files.atomic_file import make_private_folder, read_text, write_atomic
from tavern_core.kernel.files.json_state import JsonStateFile
from tavern_core.model.tool import Example

LARGEST_FILE: Final = 64_000_000


@dataclass(frozen=True, slots=True)
class Listed:
    """One line of the index."""

    fingerprint: str
    """Of the entry in tavern.yaml for which it was listed; for another one it does not hold."""
    at: float
    """Seconds since the epoch, UTC."""
    ttl_ms: int | None
    etag: str
    tools: tuple[str, ...]
    """Names as the upstream spells them."""

    @classmethod
    def from_json(cls, data: Any) -> Listed | None:
        """The inverse of `to_json`; None for anything else."""
        try:
            fingerprint, at, ttl, etag, tools = data
            return cls(
                str(fingerprint), float(at), None if ttl is None else int(ttl), str(etag), tuple(map(str, tools))
            )
        except (TypeError, ValueError):
            return None

    def to_json(self) -> list[Any]:
        return [self.fingerprint, self.at, self.ttl_ms, self.etag, list(self.tools)]


@dataclass(frozen=True, slots=True)
class Definitions:
    """What is known of the tools of one upstream."""

    tools: Mapping[str, UpstreamTool] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Name → why it is no tool."""
    description: str = ""
    version: str = ""
    reviewed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Name → its definition when it was reviewed last, for a diff."""


class Catalogue:
    """The listings of a state folder. Safe for threads and processes; the last writer wins."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._index = JsonStateFile(folder / ".index.json", "upstreams")
        self._lock = threading.Lock()
        self._listed: dict[str, Listed] | None = None
        self._known: dict[str, Definitions] = {}

    def listed(self, name: str) -> Listed | None:
        """When and how an upstream was listed last; None: never."""
        with self._lock:
            if self._listed is None:
                rows = self._index.read().values.items()
                read = {name: Listed.from_json(row) for name, row in rows}
                self._listed = {name: row for name, row in read.items() if row is not None}
            return self._listed.get(name)

    def definitions(self, name: str) -> Definitions:
        """The tools of an upstream as they were listed last."""
        with self._lock:
            if name not in self._known:
                self._known[name] = self._read(name)
            return self._known[name]

    def store(self, name: str, listed: Listed, definitions: Definitions) -> None:
        """Keep a listing.

        Raises:
            StateDamaged: it cannot be written (STATE_DAMAGED).
        """
        data = {
            "tools": [tool_json(tool) for tool in definitions.tools.values()],
            "leftOut": dict(definitions.left_out),
            "description": definitions.description,
            "version": definitions.version,
            "reviewed": {key: dict(value) for key, value in definitions.reviewed.items()},
        }
        make_private_folder(self._folder)
        write_atomic(self._folder / f"{name}.json", json.dumps(data, ensure_ascii=False))
        self._index.change(lambda rows: {**rows, name: listed.to_json()})
        with self._lock:
            self._listed = {**(self._listed or {}), name: listed}
            self._known[name] = definitions

    def _read(self, name: str) -> Definitions:
        try:
            text = read_text(self._folder / f"{name}.json", LARGEST_FILE)
            data = from_json(text or "{}")
            return Definitions(
                {tool.name: tool for tool in map(_tool, data.get("tools", ()))},
                data.get("leftOut", {}),
                data.get("description", ""),
                data.get("version", ""),
                data.get("reviewed", {}),
            )
        except (StateDamaged, ValueError, TypeError, AttributeError, KeyError):
            return Definitions()


def digest(data: Any) -> str:
    """``sha256:…`` of plain data, whatever the order of its keys."""
    text = json.dumps(data, sort_keys=True, ensure_ascii=True, default=str)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def definition(tool: UpstreamTool) -> dict[str, Any]:
    """All of a tool that a reviewer goes by."""
    return {key: value for key, value in tool_json(tool).items() if key not in ("version", "data")}


def listing_of(definitions: Definitions, listed: Listed) -> Listing:
    """The listing that was kept."""
    return Listing(tuple(definitions.tools.values()), listed.ttl_ms, listed.etag, definitions.left_out)


def tool_json(tool: UpstreamTool) -> dict[str, Any]:
    """All of a tool, as it is kept."""
    data: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": tool.output_schema,
        "displayName": tool.display_name,
        "tags": list(tool.tags),
        "version": tool.version,
        "examples": [
            {"arguments": e.arguments, "description": e.description, "result": e.result} for e in tool.examples
        ],
        "readOnly": tool.read_only,
        "destructive": tool.destructive,
        "idempotent": tool.idempotent,
        "capabilities": sorted(tool.capabilities),
        "job": tool.is_job,
        "timeoutMs": tool.timeout_ms,
        "data": tool.data,
    }
    return {key: value for key, value in data.items() if value or key in ("name", "inputSchema")}


def _tool(data: Mapping[str, Any]) -> UpstreamTool:
    return UpstreamTool(
        data["name"],
        data.get("description", ""),
        data["inputSchema"],
        data.get("outputSchema"),
        data.get("displayName", ""),
        tuple(data.get("tags", ())),
        data.get("version", ""),
        tuple(Example(e["arguments"], e["description"], e["result"]) for e in data.get("examples", ())),
        data.get("readOnly"),
        data.get("destructive"),
        data.get("idempotent"),
        frozenset(data.get("capabilities", ())),
        bool(data.get("job")),
        data.get("timeoutMs"),
        data.get("data", {}),
    )
