"""The status of a plugin in a host, and the diagnostics that the host reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final, Literal

from tavern_core.errors import Finding, Problem, Severity
from tavern_core.frozen_dataclass import dataclass

PluginState = Literal["found", "reviewed", "granted", "active", "stopped", "disabled", "pending_consent", "failed"]
"""The lifecycle of a plugin (DESIGN §5):

    found --manifest--> reviewed --grants--> granted --first use--> active --close--> stopped
      |                    |                    |                      |
      +--- failed (with its reason) ------------+----------------------+      disabled: by the operator
                           |
                           +--> pending_consent: requests an undecided permission; the rest of it works
"""

NOT_PART: Final = frozenset({"__pycache__", ".git", ".hg", ".svn", ".mypy_cache", ".pytest_cache", ".ruff_cache"})
"""Cache folders of tools in a plugin's folder: no hash covers them, so no file of the plugin may be there."""

Source = Literal["builtin", "object", "folder", "entry_point", "upstream", "vcp", "skill"]
"""``vcp`` and ``skill``: folders in the formats of other systems, read as plugins (`kernel/discovery/other_formats.py`)."""


@dataclass(frozen=True, slots=True)
class RestingHook:
    """A hook implementation that failed several times in a row and, above the limit, is quarantined."""

    plugin: str = ""
    hook: str = ""
    where: str = ""
    """file:line."""
    reason: str = ""
    """The last failure; empty if it is not quarantined."""
    failures: int = 0
    """In a row, in all processes that share the state folder."""
    since: str = ""
    """ISO 8601, UTC: when it failed last."""
    until: str = ""
    """ISO 8601, UTC; when it is tried once. Empty: it is not quarantined; its failures are only counted."""

    @property
    def summary(self) -> str:
        """A full sentence, for a person."""
        return f"{self.hook} of {self.plugin} is quarantined until {self.until}: it {self.reason}, {self.failures} times in a row"

    def to_json(self) -> dict[str, Any]:
        return {
            "plugin": self.plugin,
            "hook": self.hook,
            "where": self.where,
            "reason": self.reason,
            "failures": self.failures,
            "since": self.since,
            "until": self.until,
        }

    @classmethod
    def from_json(cls, data: Any) -> RestingHook | None:
        """The reverse of `to_json`; None for anything else."""
        if not isinstance(data, dict):
            return None
        texts = {key: data.get(key) for key in ("plugin", "hook", "where", "reason", "since", "until")}
        failures = data.get("failures")
        if not all(isinstance(text, str) for text in texts.values()) or type(failures) is not int:
            return None
        return cls(failures=failures, **texts)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class PluginStatus:
    """A row of `tavern.plugins`."""

    name: str
    state: PluginState
    reason: str = ""
    """Why it is in this state, and what to do about it; empty if there is nothing to do."""
    version: str = ""
    display_name: str = ""
    description: str = ""
    requested: frozenset[str] = frozenset()
    """Permission ids that the manifest requests: hooks, capabilities, ``ui:…``, ``service:…``, ``data:…``."""
    granted: frozenset[str] = frozenset()
    provides: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Section → names: ``{"tools": ("text:count",), "hooks": ("tavern_check_call",)}``."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds: ``import``, ``activate``, ``hook:<name>`` (total) …"""
    source: Source = "entry_point"
    distribution: str = ""
    """Name of the pip package, if there is one."""
    location: str = ""
    """Its location, for the operator; never shown to callers or the browser."""
    findings: tuple[Finding, ...] = ()
    error_code: str = ""
    scopes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Granted capability → paths, hosts or names that it is limited to; absent: without limit."""
    note: str = ""
    """The changes since its grants were decided; empty if there are none."""
    refusal: Finding | None = None
    """How its import ended in the probe, if the host would not survive it; it is then not imported. Part of `reason`."""
    resting: tuple[RestingHook, ...] = ()
    """Hooks of it that are quarantined."""
    depends_on: tuple[str, ...] = ()
    """Plugins that it depends on."""
    isolated: str = ""
    """Why its code runs in its own process; empty if it runs in the host."""

    @property
    def tier(self) -> Literal["host", "process"]:
        """The process in which its code runs: that of the host, or a confined one of its own."""
        return "process" if self.isolated else "host"

    @property
    def missing(self) -> frozenset[str]:
        """The permissions that are requested and not granted."""
        return self.requested - self.granted

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "displayName": self.display_name or self.name,
            "version": self.version,
            "description": self.description,
            "state": self.state,
            "reason": self.reason,
            "errorCode": self.error_code or None,
            "source": self.source,
            "distribution": self.distribution or None,
            "requested": sorted(self.requested),
            "granted": sorted(self.granted),
            "missing": sorted(self.missing),
            "scopes": {name: list(scope) for name, scope in sorted(self.scopes.items())},
            "note": self.note or None,
            "provides": {k: list(v) for k, v in sorted(self.provides.items())},
            "timings": {k: round(v, 3) for k, v in sorted(self.timings.items())},
            "tier": self.tier,
            "isolated": self.isolated or None,
            "quarantined": [hook.to_json() for hook in self.resting],
            "findings": [f.to_json() for f in self.findings],
        }


@dataclass(frozen=True, slots=True)
class Diagnostic(Problem):
    """A fact that the host reports to a person; never raised."""

    code: str
    message: str
    plugin: str = ""
    hint: str = ""
    severity: Severity = "warning"
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "severity": self.severity,
            "plugin": self.plugin or None,
            "message": self.message,
            "hint": self.hint or None,
            "details": dict(self.details),
        }
