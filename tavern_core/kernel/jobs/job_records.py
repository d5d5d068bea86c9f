"""Stored jobs: one record per job, and one for its result, which may be large. Each change emits `JOB_CHANGED`."""

from __future__ import annotations

import builtins
import json
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

from pydantic_core import to_json

from tavern_core.contract.stores import Record, RecordStore
from tavern_core.errors import CallError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.calls.pending_approval_store import denial
from tavern_core.kernel.calls.result_serialization import result_of, result_text
from tavern_core.kernel.execution.sync_async_drivers import ExecutionMode
from tavern_core.kernel.log.recorder import Recorder
from tavern_core.kernel.settings.result_redaction import StorageRedactor
from tavern_core.model.event import JOB_CHANGED
from tavern_core.model.job import ENDED, Job, JobStatus
from tavern_core.model.result import ToolError, ToolResult

T = TypeVar("T")
KIND: Final = "job"
RESULT: Final = "job-result"
ANSWER: Final = "job-answer"
_LONGEST_S: Final = 90 * 86_400.0
"""Time for which a job is stored that waits, or whose process has died. A running job is stored until it ends."""
_MOST_SEARCHED: Final = 10_000
LOST: Final = ToolError(
    "CONNECTION_LOST", "the process that ran the job ended before it did", {}, False, "unknown", None,
    "look whether it happened before you start it again",
)  # fmt: skip
NEVER_BEGUN: Final = ToolError(
    "CONNECTION_LOST", "the process ended before the job began", {}, True, "none", None, "start it again"
)


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job, and the facts that only its host needs."""

    job: Job
    record: Record
    facts: Mapping[str, Any]
    """`process`, `caller` (a context as JSON; None: the host), `arguments` (None: not stored), `key`, `door`, `user`, `approval`,
    `point` (finds its work in another system), `followed` (see `ResumePoint.followed`), `named` (see
    `BackgroundCallRequest.named`)."""
    is_lost: bool = False
    """Whether its process ended before the job did."""


class JobRecords:
    """The jobs of one store. Every change emits an event.

    Args:
        seconds: how long a job stays stored after its end.
        disk: redacts secrets before storing.
        mode: runs calls of a slow store.
    """

    def __init__(
        self, store: RecordStore, seconds: float, recorder: Recorder, disk: StorageRedactor, mode: ExecutionMode
    ) -> None:
        self.store = store
        self.disk = disk
        self.mode = mode
        self._seconds = seconds
        self._recorder = recorder

    async def off_thread(self, method: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call the store; a slow store in a thread, so that the loop can serve other calls."""
        if self.store.is_quick:
            return method(*args, **options)
        return await self.mode.guarded(partial(method, *args, **options), seconds=None)  # type: ignore[no-any-return]

    def add(self, job: Job, owner: str, facts: Mapping[str, Any]) -> StoredJob | None:
        """Store a new job; return the stored job with the same id, if there is one."""
        known = self.store.add(Record(KIND, job.id, owner, job.status, _text(job, facts), job.created, 0.0))
        return None if known is None else self._from_record(known, {}) or StoredJob(job, known, {})

    def get(self, id: str) -> StoredJob | None:  # noqa: A002 - the job's
        """A job by its id; None: it does not exist or is unreadable."""
        record = self.store.get(KIND, id)
        return None if record is None else self._from_record(record, {})

    def list(
        self, owner: str | None, states: tuple[str, ...], most: int, tools: Collection[str] = ()
    ) -> list[StoredJob]:
        """Jobs, newest first. A job whose process has ended counts as failed, unless an answer to it may still come.

        Args:
            tools: only calls of one of these ids; empty: of any tool.
        """
        alive: dict[str, bool] = {}
        is_sure = not tools and ENDED.issuperset(states)  # otherwise some of the records found may not match
        records = [*self.store.list(KIND, owner=owner, states=states, most=most if is_sure else _MOST_SEARCHED)]
        if ENDED.intersection(states):
            unsure = tuple(state for state in ("queued", "running", "input_required") if state not in states)
            records += self.store.list(KIND, owner=owner, states=unsure, most=_MOST_SEARCHED) if unsure else ()
            records.sort(key=lambda record: record.created, reverse=True)
        # Parsing all records takes ten times as long.
        if named := [f'"tool":{to_json(tool).decode()}' for tool in tools]:
            records = [record for record in records if any(name in record.data for name in named)]
        found = filter(self._is_current, (self._from_record(record, alive) for record in records))
        fitting = (
            stored
            for stored in found
            if stored is not None
            and (not states or stored.job.status in states)
            and (not tools or stored.job.tool in tools)
        )
        return builtins.list(islice(fitting, most))

    def _is_current(self, kept: StoredJob | None) -> bool:
        """Whether a job is listed; a job whose process died long ago is removed."""
        is_dead = kept is not None and kept.job.is_over and not kept.record.expires
        is_old = kept is not None and is_dead and time.time() - kept.job.updated > _LONGEST_S
        if is_old and kept is not None:
            self.store.remove(KIND, kept.job.id)
        return not is_old

    def change(
        self,
        id: str,  # noqa: A002 - the job's
        edit: Callable[[Job], Job],
        when: Callable[[StoredJob], bool] | None = None,
        **facts: Any,
    ) -> Job | None:
        """Change an unfinished job, and report it; None: it is finished or removed, or `when` refuses it.

        Args:
            facts: changes of its facts; see `StoredJob.facts`.
        """
        if (stored := self._changed(id, edit, when, facts)) is None:
            return None
        self.report(stored.job, str(stored.facts.get("user") or ""))
        return stored.job

    def change_facts(self, id: str, when: Callable[[StoredJob], bool], **facts: Any) -> None:  # noqa: A002 - the job's
        """`change` for facts that only the host needs; emits no event."""
        self._changed(id, lambda job: job, when, facts)

    def _changed(
        self, id_: str, edit: Callable[[Job], Job], when: Callable[[StoredJob], bool] | None, facts: Mapping[str, Any]
    ) -> StoredJob | None:
        while True:
            record = self.store.get(KIND, id_)
            before = None if record is None else self._from_record(record, None)
            if (
                record is None
                or before is None
                or before.job.status in ENDED
                or (when is not None and not when(before))
            ):
                return None
            job = replace(edit(before.job), updated=time.time())
            stored = self._seconds if job.status in ENDED else _LONGEST_S
            expires = 0.0 if job.status in ("queued", "running") else time.time() + stored
            known = {**before.facts, **facts}
            if self.store.replace(replace(record, state=job.status, data=_text(job, known), expires=expires)):
                return StoredJob(job, record, known)

    def leave_answer(self, id: str, question: str, value: Any) -> bool:  # noqa: A002 - the job's
        """Store the answer to a question for the process that runs the job; False: another answer came first."""
        now = time.time()
        text = to_json({"value": value}).decode()
        answer = Record(ANSWER, f"{id}\x1f{question}", "", "given", text, now, now + self._seconds)
        if (known := self.store.add(answer)) is None:
            return True
        is_corrupt = not self.answer_left(id, question)
        return is_corrupt and self.store.replace(replace(answer, version=known.version))

    def answer_left(self, id: str, question: str) -> builtins.list[Any]:  # noqa: A002 - the job's
        """The stored answer to a question; none or one."""
        record = self.store.get(ANSWER, f"{id}\x1f{question}")
        try:
            return [] if record is None else [json.loads(record.data)["value"]]
        except (ValueError, KeyError, TypeError):  # the record is corrupt
            return []

    def forget_answer(self, id: str, question: str) -> None:  # noqa: A002 - the job's
        """Remove the stored answer to a question, once the job has it."""
        self.store.remove(ANSWER, f"{id}\x1f{question}")

    def put_result(self, id: str, owner: str, result: ToolResult) -> None:  # noqa: A002 - the job's
        """Store the result of a job, before it is reported as finished."""
        now = time.time()
        self.store.remove(RESULT, id)
        self.store.add(
            Record(RESULT, id, owner, "result", result_text(result, with_call=True), now, now + self._seconds)
        )

    def result(self, id: str) -> ToolResult | None:  # noqa: A002 - the job's
        """The outcome of a job; None: there is none."""
        record = self.store.get(RESULT, id)
        return None if record is None or not record.data else result_of(json.loads(record.data))

    def _from_record(self, record: Record, alive: dict[str, bool] | None) -> StoredJob | None:
        """A record as a job.

        Args:
            alive: process → whether it is alive, as far as checked; None: trust the record.
        """
        try:
            data = json.loads(record.data)
            facts, members = data["facts"], data["job"]
            error = members.get("error")
            job = Job(
                record.key, members["tool"], record.state, members["principal"], record.created, members["updated"], members.get("progress"),  # type: ignore[arg-type]
                tuple(members.get("questions", ())), error and ToolError(**error), members.get("callId", ""), members["pollMs"],
                members["ttlMs"], members.get("purpose", ""), members.get("requestId", ""), members.get("taskId", ""), members.get("trace", {}),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError):
            return None
        is_lost = False
        if alive is not None and job.status not in ENDED:
            process = str(facts.get("process", ""))
            if process not in alive:
                alive[process] = self.store.is_present(process)
            # A job with questions starts again from its beginning when it is resumed; a run stores its own questions.
            is_waiting = facts.get("approval") or (job.questions and not job.id.startswith("run-"))
            if alive[process]:
                pass
            elif (result := self.result(job.id)) is not None:
                job = ended_job(job, status_of(result), result.error)  # it was killed between its result and its end
            elif not (job.status == "input_required" and is_waiting):
                job = replace(job, status="failed", error=NEVER_BEGUN if job.status == "queued" else LOST)
                is_lost = True
            elif (denied := self._denial(job, facts)) is not None:
                job = ended_job(job, "failed", ToolError.of(denied))
        return StoredJob(job, record, facts, is_lost)

    def _denial(self, job: Job, facts: Mapping[str, Any]) -> CallError | None:
        approval = facts.get("approval")
        denied = None if not approval else denial(self.store, str(approval), job.tool)
        if denied is not None and facts.get("asked"):
            denied.outcome = "unknown"  # nodes of the run have run
        return denied

    def report(self, job: Job, user: str) -> None:
        """Emit JOB_CHANGED. Progress goes to subscribers only: it would fill the log.

        Args:
            user: the user id of its caller; empty: none.
        """
        if not self._recorder.is_on:
            return
        data: dict[str, Any] = {"job": job.id, "tool": job.tool, "status": job.status, "principal": job.principal}
        if user:
            data["userId"] = user
        if job.progress is not None:
            data["progress"] = job.progress
        if job.trace:
            data |= job.trace
        if job.status == "running" and job.progress is not None:
            self._recorder.show(JOB_CHANGED, data, call_id=job.call_id)
        else:
            self._recorder.note(JOB_CHANGED, data, call_id=job.call_id)


def ended_job(job: Job, status: JobStatus, error: ToolError | None = None, call_id: str = "") -> Job:
    """The job in its final state."""
    return replace(job, status=status, error=error, questions=(), call_id=call_id or job.call_id)


def status_of(result: ToolResult) -> JobStatus:
    """The final status of a job with this result."""
    if result.ok:
        return "completed"
    return "cancelled" if result.error is not None and result.error.kind == "CANCELLED" else "failed"


def _text(job: Job, facts: Mapping[str, Any]) -> str:
    error = job.error  # its members have Python names here, as in the jobs that are already stored
    members: dict[str, Any] = {
        "tool": job.tool, "principal": job.principal, "updated": job.updated or job.created, "pollMs": job.poll_ms, "ttlMs": job.ttl_ms,
    }  # fmt: skip
    optional = {
        "progress": job.progress and dict(job.progress), "questions": [dict(question) for question in job.questions],
        "trace": dict(job.trace), "callId": job.call_id, "purpose": job.purpose, "requestId": job.request_id, "taskId": job.task_id,
        "error": error and {
            "kind": error.kind, "message": error.message, "details": dict(error.details), "retryable": error.retryable,
            "outcome": error.outcome, "retry_after_ms": error.retry_after_ms, "fix": error.fix,
        },
    }  # fmt: skip
    members |= {name: value for name, value in optional.items() if value}
    return to_json({"job": members, "facts": facts}, inf_nan_mode="strings").decode()
