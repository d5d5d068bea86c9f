"""`tavern.jobs`: calls that continue in the background.

    queued → running → completed | failed | cancelled
                ↕
          input_required: a person must approve or answer

A job is stored where every process of the state folder sees it, and runs in one of them (`running_jobs.py`). A run
of a workflow is a job with the id of the run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from tavern_core.errors import InputInvalid, JobNotFound, StateDamaged, UsageError
from tavern_core.kernel.calls.background_call_request import BackgroundCallRequest, while_job_waits
from tavern_core.kernel.calls.compiler import Compiler
from tavern_core.kernel.calls.cross_process_cancellation import END, ask_to_end
from tavern_core.kernel.calls.elicitation import mismatch
from tavern_core.kernel.calls.pending_approval_store import StoredApprovals
from tavern_core.kernel.calls.taint_tracking import running_call_has_read, sources_of
from tavern_core.kernel.execution.sync_async_drivers import cancellations
from tavern_core.kernel.jobs.job_records import LOST, StoredJob, ended_job
from tavern_core.kernel.jobs.new_jobs import NewJobs
from tavern_core.kernel.jobs.running_job import ResumeState, RunningJob, give_answer
from tavern_core.kernel.jobs.running_jobs import CANCELLED, NEVER_RAN, RunningJobs
from tavern_core.model.call import CallContext, check_caller, check_most, owner_of, restored_context
from tavern_core.model.job import JOB_STATUSES, Job, handle
from tavern_core.model.naming_rules import spellings
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.question import Question
from tavern_core.model.result import ToolResult

_LONGEST_WAIT_S: Final = 1e9


class Jobs(Mapping[str, Job]):
    """The jobs of a host and of every other process of its state folder.

    Args:
        running: the jobs of this process.
        new: starts further jobs.
        compiler: has the plan of a tool, as for a call.
    """

    def __init__(
        self,
        running: RunningJobs,
        new: NewJobs,
        approvals: StoredApprovals,
        compiler: Compiler,
    ) -> None:
        self._compiler = compiler
        self._running = running
        self._new = new
        self._records = running.records
        self._engines = running.engines
        self._approvals = approvals

    # Asking --------------------------------------------------------------------------------------------------------------

    def __getitem__(self, id: str) -> Job:  # noqa: A002 - the job's
        try:
            return self.find(id)
        except JobNotFound as error:
            raise KeyError(str(error)) from error

    def __iter__(self) -> Iterator[str]:
        return iter([job.id for job in self.list(most=10_000)])

    def __len__(self) -> int:
        return len(self.list(most=10_000))

    def list(
        self,
        *,
        status: str | Collection[str] = (),
        tool: str = "",
        context: CallContext | None = None,
        most: int = 100,
    ) -> tuple[Job, ...]:
        """Jobs, newest first, those of other processes and runs of workflows included.

        Args:
            status: only jobs in this status, or in one of these.
            tool: only calls of this tool.
            context: only jobs of this caller; None: of all callers.

        Raises:
            UsageError: there is no such status, or an argument has the wrong type (USAGE).
        """
        check_most(most)
        check_caller(context)
        wanted = _statuses(status, tool)
        owner, named = None if context is None else owner_of(context), spellings(tool) if tool else ()
        kept_jobs = self._records.list(owner, wanted, most, named)
        found = {stored.job.id: self._current(stored) for stored in kept_jobs}
        if self._engines.runs is not None:
            caller = None if context is None else (context.principal, context.user_id)
            for job in self._engines.runs.list(wanted, named, caller, most):
                found.setdefault(job.id, job)
        listed = [job for job in found.values() if not wanted or job.status in wanted]
        return tuple(sorted(listed, key=lambda job: job.created, reverse=True)[:most])

    def find(self, id: str, *, context: CallContext | None = None) -> Job:  # noqa: A002 - the job's
        """The current state of a job.

        Args:
            context: the caller; None: the host.

        Raises:
            JobNotFound: it does not exist, or is another caller's (JOB_NOT_FOUND).
        """
        return self._find(id, context)[0]

    def get(self, id: str, default: Any = None, *, context: CallContext | None = None) -> Any:  # noqa: A002 - the job's
        """`find`, or `default` if there is no such job."""
        try:
            return self.find(id, context=context)
        except JobNotFound:
            return default

    def result(self, id: str, *, context: CallContext | None = None) -> ToolResult:  # noqa: A002 - the job's
        """The outcome of a job; of an unfinished one, a result with status ``job`` and its progress. See `find`."""
        job, stored = self._find(id, context)
        if (known := self._records.result(id)) is not None:
            running_call_has_read(sources_of(known))
            return known
        if job.is_over:
            if job.error is not None:
                return ToolResult(False, error=job.error, job=id)
            if stored is None or stored.is_lost or stored.facts.get("approval"):  # a run that was resumed
                known = (
                    None
                    if self._engines.runs is None
                    else self._engines.runs.result(id, () if stored is None else stored.facts.get("named", ()))
                )
                running_call_has_read(() if known is None else sources_of(known))
                return known or ToolResult(True, job=id, meta={"run": id})
            return ToolResult(False, error=LOST, job=id)
        status: Any = "input_required" if job.status == "input_required" else "job"
        return ToolResult(True, handle(job), status=status, job=id)

    async def wait(self, id: str, seconds: float | None = None, *, context: CallContext | None = None) -> Job:  # noqa: A002 - the job's
        """Wait until a job has finished or asks a question, at most `seconds`; return its state at that time.

        A job that waits for another one releases its slot meanwhile, and takes one again before it continues.

        Raises as `find`; UsageError: `seconds` is not a number (USAGE).
        """
        if not (seconds is None or (isinstance(seconds, int | float) and seconds == seconds)):
            raise UsageError(f"seconds={seconds!r:.80} is not a number", hint="jobs.wait(id, 10)")
        job, is_asking = await self._records.off_thread(self.inspect, id, context=context)
        if job.is_over or is_asking or (seconds is not None and seconds <= 0):
            return job
        end = None if seconds is None else time.monotonic() + min(seconds, _LONGEST_WAIT_S)
        pause = 0.01
        async with while_job_waits():
            while True:
                await asyncio.sleep(pause if end is None else max(min(pause, end - time.monotonic()), 0))
                job, is_asking = await self._records.off_thread(self.inspect, id, context=context)
                if job.is_over or is_asking or (end is not None and time.monotonic() >= end):
                    return job
                pause = min(pause * 1.5, self._new.poll_ms / 1000)

    def inspect(self, id: str, *, context: CallContext | None = None) -> tuple[Job, bool]:  # noqa: A002 - the job's
        """A job, and whether it has an unanswered question.

        Its process reacts to an answer or a cancellation a moment later.

        Raises as `find`.
        """
        job, stored = self._find(id, context)
        if job.status != "input_required":
            return job, False
        if (running := self._running.get(id)) is not None and running.is_cancelled:
            return job, False
        is_held = stored is not None and self._records.store.is_present(str(stored.facts.get("process")))
        return job, bool(job.questions) or not is_held

    def _is_open(self, job: Job, question: Mapping[str, Any], approval: object) -> bool:
        """Whether a stored question of a job has no answer yet."""
        name = str(question["id"])
        return self._is_pending(name) if name == approval else not self._records.answer_left(job.id, name)

    def _is_pending(self, approval: str) -> bool:
        try:
            return self._approvals.get(approval).state == "pending"
        except UsageError:  # it has expired, which the job will see in a moment
            return False

    # Changing ------------------------------------------------------------------------------------------------------------

    async def start(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        purpose: str = "",
        idempotency_key: str | None = None,
    ) -> Job:
        """Make a call in the background. The arguments are those of `Tavern.invoke`.

        Raises:
            UsageError: an argument has the wrong type (USAGE).
            CallError: it cannot be stored (INTERNAL), or too many wait (BUDGET_EXCEEDED).
        """
        check_caller(context)
        request = BackgroundCallRequest(tool, arguments, context, purpose, idempotency_key)
        before = cancellations()
        try:
            request = request.of(await self._compiler.find(tool, context))
        # Including errors of a plugin: the job itself reports why its tool cannot be called.
        except BaseException as error:
            is_ours = isinstance(error, asyncio.CancelledError) and cancellations() > before
            if is_ours or isinstance(error, KeyboardInterrupt | GeneratorExit):
                raise
        return await self._new.begin(request, self._records.mode, None)

    def cancel(self, id: str, *, context: CallContext | None = None) -> bool:  # noqa: A002 - the job's
        """Request the end of a job in any process; False: it has finished already. Raises as `find`."""
        job, stored = self._find(id, context)
        if job.is_over:
            return False
        if stored is None:
            return self._engines.runs is not None and self._engines.runs.cancel(id)
        if (running := self._running.get(id)) is not None:
            self._running.end(running)
            return True
        if self._records.store.is_present(str(stored.facts.get("process", ""))):
            ask_to_end(self._records.store, id)
            return True
        if stored.is_lost and (runs := self._engines.runs) is not None and runs.job(id) is not None:
            if not runs.cancel(id):
                return False
            run = runs.job(id)
            if run is not None and not run.is_over:  # it was resumed, and its process ends it in a moment
                return True
        has_run = job.status == "input_required" and (
            not stored.facts.get("approval") or bool(stored.facts.get("asked"))
        )
        cancelled, version = (
            partial(ended_job, status="cancelled", error=CANCELLED if has_run else NEVER_RAN),
            stored.record.version,
        )
        if self._records.change(id, cancelled, when=lambda now: now.record.version == version) is not None:
            return True
        return self.cancel(id, context=context)  # another process has resumed it meanwhile, or ended it

    def answer(self, id: str, value: Any, question: str = "", *, context: CallContext | None = None) -> bool:  # noqa: A002 - the job's
        """Answer a question of a job; False: it has no open question, or another answer came first.

        Args:
            value: True or False if the job waits for approval, else the answer to its question.
            question: the name of the question, if there are several.
            context: the answering caller; None: the host, which may answer anything. Else an approval needs an approver
                other than the job's caller, and a question the job's caller.

        Raises:
            JobNotFound: it does not exist, or is another caller's (JOB_NOT_FOUND).
            PolicyDenied: the caller may not approve (POLICY_DENIED).
            UsageError: it has several questions and none is named, or the named one does not exist (USAGE).
            InputInvalid: the answer does not fit (INPUT_SCHEMA_INVALID).
        """
        is_approver = context is not None and "approver" in context.roles
        job, stored = self._find(id, None if is_approver else context)
        asked = {str(each["id"]): each for each in job.questions}
        if not asked:
            return False
        if is_approver and (stored is None or stored.facts.get("approval") not in asked):
            self._find(id, context)  # only the job's caller may answer a question
        if not question and len(asked) > 1:
            raise UsageError(f"{id} asks {len(asked)} questions", hint=f"name one of {', '.join(asked)}")
        name = question or next(iter(asked))
        if name not in asked:
            raise UsageError(f"{id} does not ask {name!r:.80}", hint=did_you_mean(name, asked) or ", ".join(asked))
        # Decided by the stored fact and not by the question: tools choose the names of their questions.
        if stored is not None and stored.facts.get("approval") == name:
            return self._decide(id, name, value, context)
        if stored is not None and not id.startswith("run-"):
            if (running := self._running.get(id)) is None or running.task is None:
                if why := mismatch(Question.from_json(asked[name]), value):
                    raise InputInvalid(f"the answer to {name} does not fit: {why}", hint="answer again")
                return self._leave_answer(id, name, value)
            return give_answer(self._records, running, name, value)
        return self._engines.runs is not None and self._engines.runs.answer(id, name, value)

    def _leave_answer(self, id_: str, name: str, value: Any) -> bool:
        """Leave an answer for the process that runs the job; False: another answer came first."""
        if not self._records.leave_answer(id_, name, value):
            return False
        stored = self._records.get(id_)
        if stored is not None and any(question["id"] == name for question in stored.job.questions):
            return True
        self._records.forget_answer(id_, name)  # its question was closed meanwhile, perhaps by this very answer
        return stored is not None and [name, value] in [[*given] for given in stored.facts.get("answers") or ()]

    def _decide(self, id_: str, approval: str, value: Any, context: CallContext | None) -> bool:
        """Approve or reject the call of a job. Raises as `answer`."""
        if not isinstance(value, bool):
            raise UsageError(f"{id_} waits for approval", hint="answer true or false")
        decide = self._approvals.approve if value else self._approvals.reject
        decide(approval, by=context)
        self._running.wake(id_)
        return True

    async def resume(self, id: str, *, context: CallContext | None = None) -> Job:  # noqa: A002 - the job's
        """Start a job again whose process has ended; its caller stays the same.

        Possible for a job that had not begun, or whose tool may run twice or finds its work again; and for a run.

        Raises:
            JobNotFound: it does not exist, or is another caller's (JOB_NOT_FOUND).
            UsageError: it runs, has finished, may have had an effect, or its arguments contained secrets (USAGE).
        """
        job, stored = await self._records.off_thread(self._find, id, context)
        runs = self._engines.runs
        is_run = id.startswith("run-") and runs is not None and runs.job(id) is not None
        if stored is None or (is_run and not stored.facts.get("approval")):
            await self._resume_run(job)
            return await self._records.off_thread(self.find, id)
        process, is_waiting = str(stored.facts.get("process", "")), job.status == "input_required"
        if is_waiting and await self._records.off_thread(self._records.store.is_present, process):
            raise UsageError(f"a process of this home runs {id}", hint=f"answer it: tavern jobs answer {id} VALUE")
        if not is_waiting:
            self._check_lost(job, stored)
        request = _request(job, stored.facts)
        await self._records.off_thread(self._running.enter)
        running = RunningJob(
            id, stored.record.owner, request, job.trace, resumed=_resume_state(job, stored.facts, is_waiting)
        )
        changed = await self._records.off_thread(self._taken_up, running, stored)
        if changed is None:
            raise UsageError(f"{id} was taken up elsewhere", hint=f"tavern jobs show {id}")
        return changed

    async def _resume_run(self, job: Job) -> None:
        """`resume` for a run of a workflow. Raises UsageError: there is nothing to resume (USAGE)."""
        runs, is_lost = self._engines.runs, job.error is not None and job.error.kind == "CONNECTION_LOST"
        if runs is None or not (job.status == "input_required" or is_lost):
            can_go_on = job.status in ("failed", "cancelled")
            command = f"tavern workflows resume {job.id}" if can_go_on else f"tavern workflows runs {job.id}"
            raise UsageError(f"{job.id} is {job.status}: there is nothing to resume", hint=command)
        await runs.resume(job.id)

    def _check_lost(self, job: Job, stored: StoredJob) -> None:
        """Return if its process ended before the job did, and the job may start again. Raises UsageError (USAGE)."""
        if job.error is None or job.error.kind != "CONNECTION_LOST":
            raise UsageError(f"{job.id} is {job.status}: there is nothing to resume", hint="start it again")
        # Its key is stored before its tool runs. While the key is held, it gives the stored answer, or "unknown".
        is_keyed = stored.facts.get("key") is not None and time.time() < job.created + self._new.key_s
        is_safe = is_keyed or bool(stored.facts.get("again") or stored.facts.get("point"))
        if job.error.outcome != "none" and not is_safe:
            raise UsageError(
                f"{job.id} had started, and it is unknown whether it happened", hint="look, then start it again"
            )
        if not stored.is_lost:  # its process recorded its end
            raise UsageError(
                f"{job.id} is over: there is nothing to resume", hint=f"`tavern jobs show {job.id}` shows its error"
            )

    def _taken_up(self, running: RunningJob, found: StoredJob) -> Job | None:
        """Take over a job of another process; None: it has changed since it was read."""
        id_, process = running.id, self._running.process

        def is_as_found(stored: StoredJob) -> bool:
            return stored.record.version == found.record.version

        def is_ours(stored: StoredJob) -> bool:
            return stored.facts.get("process") == process

        again = partial(replace, status="queued", error=None, questions=())
        asked = [str(question["id"]) for question in found.job.questions]
        running.earlier_answers += [(name, value) for name in asked for value in self._records.answer_left(id_, name)]
        answers = self._records.disk.arguments({"given": [*running.earlier_answers]}) or {}
        has_request = self._records.store.get(END, id_) is not None  # addressed to the process that has ended
        try:
            changed = self._records.change(
                id_, again, is_as_found, process=process, answers=answers.get("given", ()), asked=running.has_asked
            )
            if changed is not None and has_request:
                self._records.store.remove(END, id_)
        except StateDamaged:  # the record may name this process nevertheless, and no process would run the job
            before = partial(replace, status=found.record.state, questions=found.job.questions)
            undo = partial(self._records.change, id_, before, is_ours, **found.facts)
            self._running.deferred_changes.defer(id_, undo, is_dispensable=True)
            raise
        if changed is not None:
            # Not the answers that have been left since: the tool gets them when it asks.
            for name in {name for name, _ in running.earlier_answers}:
                self._records.forget_answer(id_, name)
            self._running.take_up(running)
        return changed

    def _find(self, id_: str, context: CallContext | None) -> tuple[Job, StoredJob | None]:
        check_caller(context)
        known = id_ if isinstance(id_, str) and id_.isprintable() else ""
        stored, runs = self._records.get(known), self._engines.runs
        if stored is not None and (context is None or stored.record.owner == owner_of(context)):
            return self._current(stored), stored
        job = runs.job(known) if stored is None and runs is not None else None
        is_own = context is None or (runs is not None and runs.owner(known) == (context.principal, context.user_id))
        if job is not None and is_own:
            return job, None
        near = [job.id for job in self.list(context=context)] if isinstance(id_, str) else []
        raise JobNotFound(
            f"there is no job {id_!r:.80}",
            hint=did_you_mean(str(id_), near) or "`tavern jobs list` shows what there is",
        )

    def _current(self, stored: StoredJob) -> Job:
        """The current state of a job, with its open questions.

        A run has its own stored state: another process may have resumed it.
        """
        job, runs = stored.job, self._engines.runs
        approval = stored.facts.get("approval")
        if job.status == "input_required" and (approval or not job.id.startswith("run-")):
            job = replace(job, questions=tuple(each for each in job.questions if self._is_open(job, each, approval)))
        if not job.id.startswith("run-") or runs is None or not (job.status == "input_required" or stored.is_lost):
            return job
        known = runs.job(job.id)
        if known is None:
            return job
        waits_for_approval = bool(stored.facts.get("approval"))  # its run has failed, and continues after the approval
        if waits_for_approval and known.status == "failed":
            return job
        if (
            not stored.is_lost and not waits_for_approval and known.status not in ("input_required", "running")
        ):  # its result will be stored in a moment
            return replace(job, status="running", questions=())
        updated = max(job.updated, known.updated)
        return replace(job, questions=known.questions, status=known.status, error=known.error, updated=updated)


def _request(job: Job, facts: Mapping[str, Any]) -> BackgroundCallRequest:
    """The call of a stored job. Raises UsageError: its arguments were not stored (USAGE)."""
    if facts.get("arguments") is None:
        raise UsageError(f"the arguments of {job.id} held secrets and were not stored", hint="start it again")
    caller = facts.get("caller")
    context = None if caller is None else restored_context(caller)
    return BackgroundCallRequest(
        job.tool, facts["arguments"], context, job.purpose, facts.get("key"), str(facts.get("door", "api"))
    )  # fmt: skip


def _resume_state(job: Job, facts: Mapping[str, Any], is_waiting: bool) -> ResumeState:
    """The stored state of a job for the process that resumes it."""
    has_asked = facts.get("asked") and (job.error is None or job.error.outcome == "none")
    return ResumeState(
        bool(has_asked) or (is_waiting and not facts.get("approval")),
        str(facts.get("point") or ""),
        str(facts.get("followed") or ""),
        tuple((str(name), value) for name, value in facts.get("answers") or ()),
    )


def _statuses(status: str | Collection[str], tool: str) -> tuple[str, ...]:
    """The statuses for `Jobs.list`. Raises UsageError: there is no such status, or `tool` is not text (USAGE)."""
    if not isinstance(status, str | Collection) or not isinstance(tool, str):
        raise UsageError(
            "jobs.list takes statuses and the id of a tool", hint='jobs.list(status="running", tool="text:count")'
        )
    wanted = (status,) if isinstance(status, str) and status else tuple(status)
    if unknown := [one for one in wanted if one not in JOB_STATUSES]:
        raise UsageError(
            f"{unknown[0]!r:.80} is not a status of a job",
            hint=did_you_mean(str(unknown[0]), JOB_STATUSES) or f"there are: {', '.join(JOB_STATUSES)}",
        )
    return wanted
