"""A run of a workflow: states, events, the error of a node, the outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final, Literal

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.result import iso_utc

NodeState = Literal["queued", "running", "complete", "error", "interrupted", "skipped", "cached", "waiting"]
"""`waiting`: a question is open. `interrupted`: cancelled while it ran or before it began."""
RunState = Literal["running", "complete", "error", "cancelled", "waiting"]
"""`waiting`: a question of it is open. A stored run whose process ended before it did is `interrupted`."""

FINAL_STATES: Final = frozenset({"complete", "error", "interrupted", "skipped", "cached"})
PLACE: Final = "where"
"""Among the details of a node's error: the line of its code that raised it."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run, as hooks see it."""

    run_id: str
    workflow: str
    principal: str = ""
    state: RunState = "running"


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node of a run, as hooks see it."""

    path: str
    type: str
    config: Mapping[str, Any] = field(default_factory=dict)
    plugin: str = ""


@dataclass(frozen=True, slots=True)
class NodeError:
    """Why a node failed: its path, its type, and the input that caused it, if any."""

    path: str
    type: str
    kind: str
    """An error code: TOOL_ERROR, UPSTREAM_ERROR, TIMEOUT, INPUT_SCHEMA_INVALID …"""
    message: str
    slot: str = ""
    hint: str = ""
    attempts: int = 1
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        data = {
            "path": self.path, "type": self.type, "kind": self.kind, "message": self.message, "slot": self.slot,
            "hint": self.hint, "attempts": self.attempts, "details": dict(self.details),
        }  # fmt: skip
        return {key: value for key, value in data.items() if value}

    def to_caller(self) -> dict[str, Any]:
        """`to_json` without the place in the node's code, which names a file of this machine."""
        data = self.to_json()
        if PLACE in self.details:
            data["details"] = {key: value for key, value in self.details.items() if key != PLACE}
        return {key: value for key, value in data.items() if value}


@dataclass(frozen=True, slots=True)
class RunEvent:
    """An event in a run."""

    seq: int
    """Counts from 1 without gaps; a subscriber that missed events continues from here."""
    time: float
    """Seconds since the epoch, UTC."""
    kind: str
    """A NodeState, a RunState after ``run:``, ``progress``, ``chunk``, ``ask``, ``answered``, ``changed``, ``retry``, ``again`` (it was
    complete, but its outputs are not stored: it runs again)."""
    path: str = ""
    """The node; empty for the run itself."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """For a node that ended: `durationMs` if it ran, `bytes` (roughly) of its outputs, and its `error`."""

    def to_json(self) -> dict[str, Any]:
        return {"seq": self.seq, "time": iso_utc(self.time), "kind": self.kind, "path": self.path, **self.data}


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """The state of one node of a run."""

    path: str
    state: NodeState
    started: float = 0.0
    """Seconds since the epoch, UTC; 0: it did not run."""
    duration_ms: float = 0.0
    bytes: int = 0
    """The approximate size of its outputs."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """For nodes of the workflow itself: values from their edges and from the file."""
    outputs: Mapping[str, Any] = field(default_factory=dict)
    """Its outputs, as far as they can be stored."""
    error: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "state": self.state,
            "started": iso_utc(self.started) if self.started else None,
            "durationMs": self.duration_ms,
            "bytes": self.bytes,
            "inputs": dict(self.inputs),
            "outputs": dict(self.outputs),
            "error": dict(self.error) if self.error else None,
        }


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A stored run, node by node."""

    run_id: str
    workflow: str
    state: str
    """A RunState; `interrupted`: its process ended before it did."""
    started: float
    latency_ms: float
    inputs: Mapping[str, Any]
    questions: tuple[Mapping[str, Any], ...]
    errors: tuple[Mapping[str, Any], ...]
    nodes: Mapping[str, NodeRecord]
    """By path, in the order in which they could start."""

    def to_json(self) -> dict[str, Any]:
        return {
            "runId": self.run_id,
            "workflow": self.workflow,
            "state": self.state,
            "started": iso_utc(self.started),
            "latencyMs": round(self.latency_ms, 3),
            "inputs": dict(self.inputs),
            "questions": [dict(question) for question in self.questions],
            "errors": [dict(error) for error in self.errors],
            "nodes": [node.to_json() for node in self.nodes.values()],
        }


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run."""

    run_id: str
    workflow: str
    state: RunState
    outputs: Mapping[str, Any] = field(default_factory=dict)
    """The workflow's outputs; without an interface, the outputs of its last nodes by path."""
    errors: tuple[NodeError, ...] = ()
    states: Mapping[str, NodeState] = field(default_factory=dict)
    """Path → state of every node that was touched."""
    started: float = 0.0
    latency_ms: float = 0.0
    questions: tuple[Mapping[str, Any], ...] = ()
    """The open questions of a waiting run, each with id, path, schema and prompt."""
    untrusted: tuple[str, ...] = ()
    """The sources of untrusted content that its nodes have read, so that the outputs may hold some of it."""
    may_have_changed: bool = True
    """False: only nodes of the host ran, and nothing that they called had an effect."""

    @property
    def ok(self) -> bool:
        return self.state == "complete"

    def to_json(self) -> dict[str, Any]:
        return {
            "runId": self.run_id,
            "workflow": self.workflow,
            "state": self.state,
            "outputs": dict(self.outputs),
            "errors": [error.to_json() for error in self.errors],
            "states": dict(self.states),
            "started": iso_utc(self.started),
            "latencyMs": round(self.latency_ms, 3),
            **({"questions": [dict(question) for question in self.questions]} if self.questions else {}),
            **({"untrusted": list(self.untrusted)} if self.untrusted else {}),
        }
