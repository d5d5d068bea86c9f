"""A run of an agent: its events, its outcome, and its row in a list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final, Literal

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.result import iso_utc

AgentState = Literal["running", "done", "stopped", "waiting", "failed", "cancelled", "interrupted"]
"""done: the agent has answered. stopped: a budget or a rule ended it. waiting: for a person. failed: the model or the host failed.
interrupted: its process ended before it did."""
RESUMABLE: Final = frozenset({"stopped", "waiting", "failed", "cancelled", "interrupted"})
EventKind = Literal[
    "message",
    "answer",
    "fault",
    "call",
    "foreseen",
    "result",
    "reply",
    "compacted",
    "waiting",
    "given",
    "resumed",
    "end",
    "text",
]
"""What `AgentEvent.data` holds:

message    a message of the beginning (`role`, `content`)
answer     of the model (`step`, `text`, `toolCalls`, `usage`, `cost`, `dropped`; `drawn`: used of the budget of calls)
fault      a request to the model failed (`step`, `code`, `message`, `usage` as estimated; `again`: it is made once more)
call       a tool is about to be called (`step`, `index`, `tool`, `arguments`, `key`)
foreseen   what is known of a step of a chain before the chain begins (`step`, `index`, `error`)
result     the outcome of a call (`step`, `index`, `tool`, `result`, `drawn`)
reply      the messages that answer the model (`step`, `messages`; `unread`: native calls that could not be read)
compacted  old messages were shortened or left out (`step`, `items`)
waiting    for a person (`waitingFor`)
given      the answer of a person to a question (`answers`)
resumed    another process, or a later call, goes on with the run (`budget`, `model`)
end        the outcome
text       a piece of an answer while the model streams (`step`, `text`); not stored
"""


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """An event in a run of an agent."""

    kind: EventKind
    time: float
    """Seconds since the epoch, UTC."""
    data: Mapping[str, Any] = field(default_factory=dict)
    seq: int = 0
    """Its number in the record of the run, from 1; 0: not stored."""

    def to_json(self) -> dict[str, Any]:
        return {"seq": self.seq or None, "kind": self.kind, "time": iso_utc(self.time), **self.data}


@dataclass(frozen=True, slots=True)
class AgentOutcome:
    """The outcome of a run of an agent."""

    run_id: str
    state: AgentState
    answer: str = ""
    """The last text of the model; the final answer if `state` is done."""
    reason: str = ""
    """Why it is not done."""
    fix: str = ""
    code: str = ""
    """The code of the reason: BUDGET_EXCEEDED, TIMEOUT, CANCELLED, APPROVAL_REQUIRED, INPUT_REQUIRED, AGENT_STUCK, or that of an error."""
    steps: int = 0
    """Answers of the model."""
    calls: int = 0
    """Calls of tools."""
    usage: Mapping[str, int] = field(default_factory=dict)
    """Tokens: input, output."""
    cost: float | None = None
    """In `currency`; None: the price of the model is not known."""
    currency: str = ""
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    waiting_for: Mapping[str, Any] | None = None
    """kind (approval, question, workflow), id, tool, how to answer."""

    @property
    def ok(self) -> bool:
        return self.state == "done"

    def to_json(self) -> dict[str, Any]:
        return {
            "runId": self.run_id, "state": self.state, "answer": self.answer, "reason": self.reason or None, "fix": self.fix or None,
            "code": self.code or None,
            "steps": self.steps, "calls": self.calls, "usage": dict(self.usage), "cost": self.cost, "currency": self.currency or None,
            "seconds": round(self.seconds, 3), "warnings": list(self.warnings),
            "waitingFor": None if self.waiting_for is None else dict(self.waiting_for),
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> AgentOutcome:
        return cls(
            data["runId"], data["state"], data["answer"], data["reason"] or "", data["fix"] or "", data["code"] or "", data["steps"], data["calls"],
            data["usage"], data["cost"], data["currency"] or "", data["seconds"], tuple(data["warnings"]), data["waitingFor"],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """A stored run."""

    run_id: str
    profile: str
    """Name of the agent profile."""
    task: str
    state: AgentState
    started: float
    """Seconds since the epoch, UTC."""
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The data with which the run began: `profile` as written, `model`, `budget`, `system`, `caller`."""
    outcome: AgentOutcome | None = None
    events: tuple[AgentEvent, ...] = field(default=(), repr=False)
    """Empty in a list of runs."""

    def to_json(self) -> dict[str, Any]:
        return {
            "runId": self.run_id, "profile": self.profile, "task": self.task, "state": self.state, "started": iso_utc(self.started),
            "outcome": None if self.outcome is None else self.outcome.to_json(), "events": [event.to_json() for event in self.events],
        }  # fmt: skip
