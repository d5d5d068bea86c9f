"""What is known of one upstream at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.result import iso_utc


@dataclass(frozen=True, slots=True)
class UpstreamStatus:
    """One row of `tavern.upstreams`."""

    name: str
    kind: str
    target: str
    """Its address, command line, distribution or folder; what looks like a secret is masked, review and lock file show it exactly."""
    plugin: str
    """The part of the ids of its tools before the colon."""
    state: str
    """That of the plugin (`pending_consent`, `disabled`, `failed`), else of the connection: idle, connecting, open, failed."""
    reason: str = ""
    tools: tuple[str, ...] = ()
    quarantined: tuple[str, ...] = ()
    """Tools that changed, are new or were renamed since the upstream was reviewed."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Name → why it is not a tool."""
    listed_at: float | None = None
    """Seconds since the epoch, UTC; None: never."""
    asked_at: float | None = None
    """When it was listed or checked last, in whichever process; None: never."""
    latency_ms: float | None = None
    """Of what was asked of it last."""
    last_error: str = ""
    description: str = ""
    version: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "target": self.target,
            "plugin": self.plugin,
            "state": self.state,
            "reason": self.reason,
            "tools": list(self.tools),
            "quarantined": list(self.quarantined),
            "leftOut": dict(self.left_out),
            "listedAt": None if self.listed_at is None else iso_utc(self.listed_at),
            "askedAt": None if self.asked_at is None else iso_utc(self.asked_at),
            "latencyMs": None if self.latency_ms is None else round(self.latency_ms, 3),
            "lastError": self.last_error,
            "description": self.description,
            "version": self.version,
        }
