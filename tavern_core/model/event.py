"""Events, as the event log and subscribers see them (seed 004 §10.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, Final

from tavern_core.errors import UsageError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.result import iso_utc

TOOL_CALLED: Final = "TOOL_CALLED"
TOOL_RESULT: Final = "TOOL_RESULT"
POLICY_DENIED: Final = "POLICY_DENIED"
APPROVAL_REQUESTED: Final = "APPROVAL_REQUESTED"
APPROVAL_DECIDED: Final = "APPROVAL_DECIDED"
RETRY: Final = "RETRY"
TOOL_PROGRESS: Final = "TOOL_PROGRESS"
"""The progress of a call (`done`, `total`, `message`); for subscribers, not in the log."""
CIRCUIT_CHANGED: Final = "CIRCUIT_CHANGED"
"""A breaker opened, tries a call, or closed again (`breaker`, `state`)."""
RESOURCE_CHANGED: Final = "RESOURCE_CHANGED"
"""A resource has changed (`uri`); for subscribers, not in the log."""
JOB_CHANGED: Final = "JOB_CHANGED"
"""A job has a new status or progress (`job`, `tool`, `status`, `progress`, `principal`)."""
HOOK_QUARANTINED: Final = "HOOK_QUARANTINED"
HOOK_RELEASED: Final = "HOOK_RELEASED"
PLUGIN_STATE: Final = "PLUGIN_STATE"
PLUGIN_CHANGED: Final = "PLUGIN_CHANGED"
"""A plugin is activated that has changed since its grants were decided."""
TOOLS_CHANGED: Final = "TOOLS_CHANGED"
ISOLATION_WEAK: Final = "ISOLATION_WEAK"
SETTINGS_CHANGED: Final = "SETTINGS_CHANGED"
THREADS_STUCK: Final = "THREADS_STUCK"
"""Sync code continues although its caller has stopped waiting, in so many threads (`threads`; 0: it has ended)."""
USER_LOGGED_IN: Final = "USER_LOGGED_IN"
MODEL_CALLED: Final = "MODEL_CALLED"
"""A request to a language model has ended (`name`, `model`, `purpose`, `principal`, `ok`, `ms`, `tokens`, `cost`); not what was said."""
UPSTREAM_READ: Final = "UPSTREAM_READ"
"""A resource or prompt of an upstream was read, or refused (`upstream`, `what`, `name`, `principal`, `ok`, `bytes`, `digest`, `error`); not its content."""
WORKFLOW_STARTED: Final = "WORKFLOW_STARTED"
WORKFLOW_CHANGED: Final = "WORKFLOW_CHANGED"
WORKFLOW_FINISHED: Final = "WORKFLOW_FINISHED"
UPDATE_WORKFLOW_STATE_FROM_AGENT: Final = "UPDATE_WORKFLOW_STATE_FROM_AGENT"
"""A patch, `undo` or `redo` changed a workflow: the complete one (`content`), its `rev`, the change in words (`summary`), the `session`."""
AGENT_STARTED: Final = "AGENT_STARTED"
"""A run of an agent begins or is resumed (`run`, `profile`, `model`, `principal`, `resumed`)."""
AGENT_STEP: Final = "AGENT_STEP"
"""The model of a run has answered (`run`, `step`, `finishReason`, `input`, `output`, `dropped`)."""
AGENT_COMPACTED: Final = "AGENT_COMPACTED"
"""Old messages of a run were shortened or left out (`run`, `step`, `tokensBefore`, `tokensAfter`)."""
AGENT_FINISHED: Final = "AGENT_FINISHED"
"""A run of an agent has ended, or waits for a person (`run`, `state`, `reason`, `code`, `steps`, `calls`, `usage`, `cost`, `currency`, `seconds`)."""
LOG_REPAIRED: Final = "LOG_REPAIRED"
"""A half-written line was cut off and saved, or a file without any record was saved."""
LOG_DAMAGED: Final = "LOG_DAMAGED"
"""Records before this one are corrupt or missing; they are left as they are."""
EVENT_TYPES: Final = (
    TOOL_CALLED, TOOL_RESULT, POLICY_DENIED, APPROVAL_REQUESTED, APPROVAL_DECIDED, RETRY, TOOL_PROGRESS, CIRCUIT_CHANGED, RESOURCE_CHANGED, JOB_CHANGED, HOOK_QUARANTINED, HOOK_RELEASED, PLUGIN_STATE,
    PLUGIN_CHANGED, TOOLS_CHANGED, ISOLATION_WEAK, SETTINGS_CHANGED, THREADS_STUCK, USER_LOGGED_IN, WORKFLOW_STARTED, WORKFLOW_CHANGED, WORKFLOW_FINISHED, UPDATE_WORKFLOW_STATE_FROM_AGENT, MODEL_CALLED, UPSTREAM_READ, AGENT_STARTED, AGENT_STEP, AGENT_COMPACTED, AGENT_FINISHED,
    LOG_REPAIRED, LOG_DAMAGED,
)  # fmt: skip


def event_types(written: Iterable[object]) -> frozenset[str]:
    """`written` as types of events. Raises UsageError: one is not a type of event; names the closest (USAGE)."""
    types = set()
    for type_ in written:
        if not isinstance(type_, str) or type_ not in EVENT_TYPES:
            near = did_you_mean(type_.upper(), EVENT_TYPES) if isinstance(type_, str) else ""
            raise UsageError(
                f"{type_!r:.80} is not a type of event", hint=near or f"there are: {', '.join(EVENT_TYPES)}"
            )
        types.add(type_)
    return frozenset(types)


@dataclass(frozen=True, slots=True)
class Event:
    """An event. `data` is redacted already and plain JSON."""

    type: str
    time: float
    """Seconds since the epoch, UTC."""
    data: Mapping[str, Any] = field(default_factory=dict)
    call_id: str = ""
    plugin: str = ""
    seq: int = 0
    """Its number among the events of this host, from 1, the same for every subscriber and observer; 0: not emitted yet.

    For a subscriber to all types, a gap means missed events. Events of several threads may arrive in
    another order; the number is the order in which they were emitted.
    """

    def to_json(self) -> dict[str, Any]:
        return {
            "seq": self.seq or None,
            "type": self.type,
            "time": iso_utc(self.time),
            "callId": self.call_id or None,
            "plugin": self.plugin or None,
            **self.data,
        }


class _Open:
    """An event while it is built."""

    __slots__ = ("call_id", "data", "plugin", "seq", "time", "type")


_new = object.__new__


def event_of(kind: str, time: float, data: Mapping[str, Any], call_id: str, plugin: str) -> Event:
    """``Event(...)`` for the hot path: a frozen dataclass takes three times as long to create (two in each recorded call)."""
    event: Any = _new(_Open)
    event.type = kind
    event.time = time
    event.data = data
    event.call_id = call_id
    event.plugin = plugin
    event.seq = 0
    event.__class__ = Event
    return event  # type: ignore[no-any-return]
