"""The plugins that the operator enabled or disabled, with the reason; stored in a small file of the state folder.

A plugin without an entry follows the configuration. If the file is corrupt when a host opens, all entries are lost, and
the finding says so: disabled plugins are enabled again, their grants are unchanged. A running host keeps what it read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from tavern_core.errors import Finding, Location, StateDamaged
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.files.json_state import JsonState, JsonStateFile
from tavern_core.model.result import iso_utc


@dataclass(frozen=True, slots=True)
class EnabledDecision:
    """A decision of the operator."""

    enabled: bool
    reason: str = ""
    at: str = ""
    """ISO 8601, UTC."""
    by: str = ""


@dataclass(frozen=True, slots=True)
class EnabledDecisions:
    """All decisions, and the findings about the file."""

    switches: Mapping[str, EnabledDecision] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    @property
    def disabled(self) -> dict[str, str]:
        """Plugin → reason."""
        return {name: s.reason for name, s in self.switches.items() if not s.enabled}


class PluginStates:
    """Reads and changes the decisions; used by several processes.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._file = JsonStateFile(path, "plugins")
        self._clock = clock
        self._last: dict[str, str] | None = None
        self.findings: tuple[Finding, ...] = ()
        """Findings about the file when `disabled` read it."""

    def read(self) -> EnabledDecisions:
        """The current decisions; never raises."""
        return _states(self._file.read(), self.path)

    def disabled(self) -> dict[str, str]:
        """Plugin → reason, for disabled plugins; if the file has become corrupt, as last read."""
        read = self.read()
        self.findings = read.findings
        if self._last is None or not any(finding.severity == "error" for finding in read.findings):
            self._last = read.disabled
        return self._last

    def enable(self, plugin: str) -> EnabledDecisions:
        """Enable a plugin. Raises StateDamaged (STATE_DAMAGED): the file cannot be written."""
        return self._set(plugin, True, "", "")

    def disable(self, plugin: str, *, reason: str = "", by: str = "") -> EnabledDecisions:
        """Disable a plugin. Raises StateDamaged (STATE_DAMAGED): the file cannot be written."""
        return self._set(plugin, False, reason, by)

    def _set(self, plugin: str, enabled: bool, reason: str, by: str) -> EnabledDecisions:
        row = {"enabled": enabled, "reason": reason, "at": iso_utc(self._clock()), "by": by}
        return _states(self._file.change(lambda old: {**old, plugin: row}), self.path)


def _states(state: JsonState, path: Path) -> EnabledDecisions:
    switches: dict[str, EnabledDecision] = {}
    findings = list(state.findings)
    if any(f.severity == "error" for f in findings):
        message = "the list of disabled plugins cannot be read: a host that starts now enables all plugins"
        hint = "`tavern plugins disable NAME` writes a new file and renames the corrupt one"
        findings.append(Finding(StateDamaged.code, message, hint, Location(str(path)), "warning"))
    for name, row in sorted(state.values.items()):
        if (switch := _switch(row)) is not None:
            switches[name] = switch
        else:
            # An unreadable decision counts as the cautious one.
            switches[name] = EnabledDecision(False, "its row in the state file cannot be read")
            where = Location(str(path), pointer=f"plugins.{name}")
            findings.append(
                Finding(StateDamaged.code, "is not a decision", "enable or disable it again", where, "warning")
            )
    return EnabledDecisions(switches, tuple(findings))


def _switch(row: Any) -> EnabledDecision | None:
    if not isinstance(row, dict) or not isinstance(row.get("enabled"), bool):
        return None
    texts = [row.get(key, "") for key in ("reason", "at", "by")]
    return EnabledDecision(row["enabled"], *texts) if all(isinstance(text, str) for text in texts) else None
