"""A background call, as all callers see it (seed 004 §8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final, Literal

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.result import ToolError, iso_utc

JobStatus = Literal["queued", "running", "input_required", "completed", "failed", "cancelled"]
JOB_STATUSES: Final[tuple[JobStatus, ...]] = (
    "queued", "running", "input_required", "completed", "failed", "cancelled",
)  # fmt: skip
ENDED: Final = frozenset({"completed", "failed", "cancelled"})
OF_RUNS: Final[Mapping[str, JobStatus]] = {
    "running": "running", "waiting": "input_required", "complete": "completed", "error": "failed", "cancelled": "cancelled",
    "interrupted": "failed",
}  # fmt: skip
"""State of a workflow run → status of the job that it is."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job. ``await tavern.jobs.wait(id)`` waits for its end, `tavern.jobs.result(id)` returns its result."""

    id: str
    tool: str
    status: JobStatus
    principal: str = ""
    """The caller."""
    created: float = 0.0
    """Seconds since the epoch, UTC."""
    updated: float = 0.0
    progress: Mapping[str, Any] | None = None
    """``{done, total, message}``, as the tool last reported."""
    questions: tuple[Mapping[str, Any], ...] = ()
    """The questions that a person must answer or approve before it continues, each with an ``id``."""
    error: ToolError | None = None
    call_id: str = ""
    poll_ms: int = 500
    """The poll interval in milliseconds."""
    ttl_ms: int = 0
    """The time that it is stored after its end, in milliseconds."""
    purpose: str = ""
    request_id: str = ""
    task_id: str = ""
    trace: Mapping[str, str] = field(default_factory=dict)
    """`traceparent` and `tracestate` of the call that began it; empty without a trace."""

    @property
    def is_over(self) -> bool:
        """Whether it is over."""
        return self.status in ENDED

    def to_json(self) -> dict[str, Any]:
        return {
            "jobId": self.id,
            "status": self.status,
            "tool": self.tool,
            "progress": None if self.progress is None else dict(self.progress),
            "questions": [dict(question) for question in self.questions],
            "error": None if self.error is None else self.error.to_json(),
            "principal": self.principal,
            "callId": self.call_id or None,
            "createdAt": iso_utc(self.created),
            "updatedAt": iso_utc(self.updated or self.created),
            "pollIntervalMs": self.poll_ms,
            "ttlMs": self.ttl_ms,
            "purpose": self.purpose,
            "requestId": self.request_id,
            "taskId": self.task_id,
            "trace": dict(self.trace),
        }


def handle(job: Job) -> dict[str, Any]:
    """The answer to a caller whose call became a job: the data for polling it, and its questions if there are some."""
    questions = {"questions": [dict(question) for question in job.questions]} if job.questions else {}
    return {
        "jobId": job.id,
        "status": job.status,
        "progress": None if job.progress is None else dict(job.progress),
        "pollIntervalMs": job.poll_ms,
        "ttlMs": job.ttl_ms,
        **questions,
    }
