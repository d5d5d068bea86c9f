"""Things that happened, as the event log and subscribers see them (seed 004 §10.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tavern_core.model.result import iso_utc

TOOL_CALLED: Final = "TOOL_CALLED"
TOOL_RESULT: Final = "TOOL_RESULT"
POLICY_DENIED: Final = "POLICY_DENIED"
APPROVAL_REQUESTED: Final = "APPROVAL_REQUESTED"
APPROVAL_DECIDED: Final = "APPROVAL_DECIDED"
RETRY: Final = "RETRY"
HOOK_QUARANTINED: Final = "HOOK_QUARANTINED"
HOOK_RELEASED: Final = "HOOK_RELEASED"
PLUGIN_STATE: Final = "PLUGIN_STATE"
PLUGIN_CHANGED: Final = "PLUGIN_CHANGED"
"""A plugin is activated that is not as it was when its grants were decided."""
TOOLS_CHANGED: Final = "TOOLS_CHANGED"
ISOLATION_WEAK: Final = "ISOLATION_WEAK"
SETTINGS_CHANGED: Final = "SETTINGS_CHANGED"
USER_LOGGED_IN: Final = "USER_LOGGED_IN"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `data` is redacted already and plain JSON."""

    type: str
    time: float
    """Seconds since the epoch, UTC."""
    data: Mapping[str, Any] = field(default_factory=dict)
    call_id: str = ""
    plugin: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "time": iso_utc(self.time),
            "callId": self.call_id or None,
            "plugin": self.plugin or None,
            **self.data,
        }


class _Open:
    """An event while it is being made."""

    __slots__ = ("call_id", "data", "plugin", "time", "type")

    type: str
    time: float
    data: Mapping[str, Any]
    call_id: str
    plugin: str


_new = object.__new__


def event_of(kind: str, time: float, data: Mapping[str, Any], call_id: str, plugin: str) -> Event:
    """``Event(...)`` for the hot path: a frozen dataclass takes three times as long to make (two in each recorded call)."""
    event = _new(_Open)
    event.type = kind
    event.time = time
    event.data = data
    event.call_id = call_id
    event.plugin = plugin
    event.__class__ = Event  # type: ignore[assignment]
    return event  # type: ignore[return-value]
