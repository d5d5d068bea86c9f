"""The story of one call in the audit log: caller, tool, entry point, purpose, changes, refusals and result.

The records depend on how far the call came: one that was carried out has TOOL_CALLED, a refused one
POLICY_DENIED, one that could not even be tried (unknown tool, wrong arguments) TOOL_RESULT alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.log.reader import LogRecord

RecordMembers = Mapping[str, Any]
TELLING: Final = ("TOOL_CALLED", "POLICY_DENIED", "TOOL_RESULT")
"""Types of records that name the caller, the parent call among it."""
_WHO: Final = (
    "tool", "plugin", "principal", "userId", "profile", "door", "purpose", "requestId", "taskId", "traceId", "parent",
    "idempotencyKey", "arguments", "changedBy",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CallStory:
    """The facts about a call in the log; `facts` by their names in the log, absent if no record has them."""

    call_id: str
    facts: Mapping[str, Any]
    outcome: str
    """``ok``, ``refused``, ``failed``, another status of the result such as ``job``, or ``unknown``: no result is on record."""
    error: str = ""
    """The error code."""
    reason: str = ""
    """Why it was refused or failed."""
    by: str = ""
    """The plugin that refused it; empty: the host."""
    effect: str = ""
    """The possible changes by a failed call: ``none``, ``done`` or ``unknown``."""
    duration_ms: float | None = None
    diff: Sequence[Mapping[str, Any]] = ()
    """The changes that plugins made to the call and its answer, one row per place."""
    records: tuple[LogRecord, ...] = ()
    """Its records, oldest first."""
    calls: tuple[LogRecord, ...] = ()
    """The calls that it made, each by the first record that names its tool."""

    def to_json(self) -> dict[str, Any]:
        call = {
            **self.facts,
            "outcome": self.outcome,
            "error": self.error or None,
            "reason": self.reason or None,
            "refusedBy": (self.by or "host") if self.outcome == "refused" else None,
            "effect": self.effect or None,
            "durationMs": self.duration_ms,
            "diff": list(self.diff),
        }
        own_records, calls = ([record.to_json() for record in records] for records in (self.records, self.calls))
        return {"callId": self.call_id, "call": call, "records": own_records, "calls": calls}


def story(call_id: str, found: Sequence[LogRecord], others: Iterable[LogRecord]) -> CallStory:
    """The story of a call.

    Args:
        found: its records, oldest first; of corrupt or incomplete ones it uses what is readable.
        others: records that include those of the calls it made.
    """
    records = [record.to_json() for record in found]
    made: dict[str, LogRecord] = {}
    for record in others:
        if record.data.get("parent") == call_id:
            made.setdefault(record.call_id, record)
    facts = {name: value for name in _WHO if (value := _first(records, name)) not in (None, "", [], {})}
    denied = next((r for r in records if r.get("type") == "POLICY_DENIED"), None)
    result = next((r for r in reversed(records) if r.get("type") == "TOOL_RESULT"), {})
    error = result.get("error")
    error = error if isinstance(error, Mapping) else {}
    return CallStory(
        call_id,
        facts,
        _outcome(denied, result),
        str(error.get("kind") or ("POLICY_DENIED" if denied is not None else "")),
        str((denied or {}).get("reason") or error.get("message") or ""),
        str((denied or {}).get("by") or ""),
        str(error.get("outcome") or ""),
        result.get("durationMs"),
        [row for r in records if isinstance(r.get("diff"), list) for row in r["diff"] if isinstance(row, Mapping)],
        tuple(found),
        tuple(made.values()),
    )


def _first(records: Iterable[RecordMembers], name: str) -> Any:
    return next((r[name] for r in records if r.get(name) is not None), None)


def _outcome(denied: RecordMembers | None, result: RecordMembers) -> str:
    if denied is not None:
        return "refused"
    if not result:
        return "unknown"
    return str(result.get("status") or "ok") if result.get("ok") else "failed"
