"""`tavern.jobs`: calls that go on in the background.

    queued → running → completed | failed | cancelled
                ↕
          input_required: a person must approve or answer

A job is a whole call on the usual path. It runs on the host's own loop, and is stored where every process of the state folder
sees it. A run of a workflow is a job with the id of the run.
"""

from __future__ import annotations

import asyncio
import builtins
import contextvars
import secrets
import threading
import time
from asyncio import _get_running_loop as _running_loop
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from tavern_core.contract.protocols import Calls, RunJobs
from tavern_core.contract.tool_context import LogLevel
from tavern_core.errors import (
    CallError,
    InputInvalid,
    InternalError,
    JobNotFound,
    StateDamaged,
    TavernError,
    UsageError,
)
from tavern_core.kernel.calls.background import Request, job_id
from tavern_core.kernel.calls.call_control import Progress, on_left_behind, on_progress
from tavern_core.kernel.calls.conversation import conversation, misfit
from tavern_core.kernel.calls.running_call import Frame, current
from tavern_core.kernel.calls.stored_approvals import StoredApprovals
from tavern_core.kernel.calls.untrusted_content import inherited, running_call_has_read, sources_of
from tavern_core.kernel.execution.portal import Portal
from tavern_core.kernel.jobs.job_records import LOST, JobRecords, KeptJob, ended
from tavern_core.kernel.limits.slots import Full, Slots
from tavern_core.kernel.log.recorder import Recorder
from tavern_core.kernel.settings.result_redaction import ForDisk
from tavern_core.model.call import HOST_PRINCIPAL, CallContext
from tavern_core.model.event import JOB_CHANGED
from tavern_core.model.job import JOB_STATUSES, Job, JobStatus, handle
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.question import Question, QuestionKind
from tavern_core.model.result import ToolError, ToolResult, failure
from tavern_core.schema.limits import json_copy

_WATCH_S: Final = 0.2
"""How often a process checks for cancellations and approvals of its jobs by other processes."""
_SAVE_S: Final = 0.2
"""Progress is written so often at most."""
_MOST_WAITING: Final = 10_000
_HOST: Final = CallContext(principal=HOST_PRINCIPAL)
_CANCELLED: Final = ToolError("CANCELLED", "the job was cancelled", {}, False, "unknown", None, "")


class _Running:
    """A job of this process."""

    __slots__ = ("asked", "done", "has_begun", "id", "is_cancelled", "left", "owner", "saved_at", "task", "wake")

    def __init__(self, id: str, owner: str) -> None:  # noqa: A002 - the job's
        self.id = id
        self.owner = owner
        self.done: Future[ToolResult] = Future()
        self.task: asyncio.Task[Any] | None = None
        self.wake = asyncio.Event()
        self.is_cancelled = self.has_begun = False
        self.saved_at = 0.0
        self.left: builtins.list[Future[Any]] = []
        """Threads of it that could not be stopped."""
        self.asked: dict[str, tuple[Question, asyncio.Future[Any]]] = {}
        """What its tool asks now, and where the answer is waited for."""

    @property
    def whose(self) -> dict[str, str]:
        """As `CallContext.whose`."""
        principal, _, user = self.owner.partition("\x1f")
        return {"principal": principal, "userId": user} if user else {"principal": principal}


class _JobConversation:
    """What the tool of a job asks stays open with the job until it is answered; see `Jobs.answer`."""

    def __init__(self, jobs: Jobs, running: _Running) -> None:
        self._jobs, self._running = jobs, running

    def can_ask(self, kind: QuestionKind) -> bool:
        return True

    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Any]:
        asked, loop = self._running.asked, asyncio.get_running_loop()
        waits: dict[str, tuple[str, asyncio.Future[Any]]] = {}
        for key, question in questions.items():
            name = next(n for i in range(1, 1_000_000) if (n := key if i == 1 else f"{key}-{i}") not in asked)
            future: asyncio.Future[Any] = loop.create_future()
            asked[name], waits[key] = (question, future), (name, future)
        self._jobs.show_questions(self._running)
        try:
            return {key: await future for key, (_, future) in waits.items()}
        finally:
            for name, future in waits.values():
                if asked.get(name, (None, None))[1] is future:  # it ends unanswered
                    del asked[name]
            self._jobs.show_questions(self._running)

    def log(self, level: LogLevel, message: str) -> None:
        pass  # the log of the process has it


class Engines(Protocol):
    """What is looked up when a job begins: jobs make calls, and calls become jobs."""

    calls: Calls | None
    runs: RunJobs | None


class Jobs(Mapping[str, Job]):
    """The jobs of a host and of every other process of its state folder.

    Args:
        engines: runs calls and workflows.
        disk: redacts secrets before storing.
        concurrency: jobs of this process that run at a time; callers alternate.
        poll_ms: how long callers should wait before they poll again.
    """

    def __init__(
        self,
        records: JobRecords,
        approvals: StoredApprovals,
        portal: Portal,
        recorder: Recorder,
        engines: Engines,
        disk: ForDisk,
        *,
        concurrency: int,
        poll_ms: int,
        ttl_ms: int,
    ) -> None:
        self._records = records
        self._approvals = approvals
        self._portal = portal
        self._recorder = recorder
        self._slots = Slots(concurrency, _MOST_WAITING)
        self._poll_ms, self._ttl_ms = poll_ms, ttl_ms
        self._process = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._running: dict[str, _Running] = {}
        self._starting: builtins.list[tuple[Request, _Running, Frame | None]] = []
        self._watcher: asyncio.Task[None] | None = None
        self._entered = False
        self._engines = engines
        self._disk = disk

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
            status: only in this status, or one of these.
            tool: only calls of this tool.
            context: only those of this caller; None: of all.

        Raises:
            UsageError: there is no such status (USAGE).
        """
        wanted = (status,) if isinstance(status, str) and status else tuple(status)
        if unknown := [one for one in wanted if one not in JOB_STATUSES]:
            raise UsageError(
                f"{unknown[0]!r:.80} is not a status of a job",
                hint=did_you_mean(str(unknown[0]), JOB_STATUSES) or f"there are: {', '.join(JOB_STATUSES)}",
            )
        owner = None if context is None else _owner(context)
        found = {
            kept.job.id: self._seen(kept.job)
            for kept in self._records.list(owner, wanted, 10_000 if tool else most)
            if not tool or kept.job.tool == tool
        }
        if self._engines.runs is not None:
            for job in self._engines.runs.list(wanted, most):
                if job.id in found or (tool and job.tool != tool):
                    continue
                if context is None or self._engines.runs.owner(job.id) == (context.principal, context.user_id):
                    found[job.id] = job
        listed = [job for job in found.values() if not wanted or job.status in wanted]
        return tuple(sorted(listed, key=lambda job: job.created, reverse=True)[:most])

    def find(self, id: str, *, context: CallContext | None = None) -> Job:  # noqa: A002 - the job's
        """One job as it is now.

        Args:
            context: the caller; None: the host.

        Raises:
            JobNotFound: it does not exist, or is another caller's (JOB_NOT_FOUND).
        """
        return self._found(id, context)[0]

    def get(self, id: str, default: Any = None, *, context: CallContext | None = None) -> Any:  # noqa: A002 - the job's
        """`find`, and `default` if there is none."""
        try:
            return self.find(id, context=context)
        except JobNotFound:
            return default

    def result(self, id: str, *, context: CallContext | None = None) -> ToolResult:  # noqa: A002 - the job's
        """What came of a job; of one that is not over, a result with status ``job`` that says how far it is. Raises as `find`."""
        job, kept = self._found(id, context)
        if (known := self._records.result(id)) is not None:
            running_call_has_read(sources_of(known))
            return known
        if job.is_over:
            if job.error is not None:
                return ToolResult(False, error=job.error, job=id)
            if kept is None:
                return ToolResult(True, job=id, meta={"run": id})
            return ToolResult(False, error=LOST, job=id)
        status: Any = "input_required" if job.status == "input_required" else "job"
        return ToolResult(True, handle(job), status=status, job=id)

    async def wait(self, id: str, seconds: float | None = None, *, context: CallContext | None = None) -> Job:  # noqa: A002 - the job's
        """Wait until a job is finished or has a question, for at most `seconds`; the job at that time. Raises as `find`."""
        end = None if seconds is None else time.monotonic() + seconds
        pause = 0.01
        while True:
            job = self.find(id, context=context)
            if job.is_over or job.status == "input_required" or (end is not None and time.monotonic() >= end):
                return job
            await asyncio.sleep(pause if end is None else max(min(pause, end - time.monotonic()), 0))
            pause = min(pause * 1.5, self._poll_ms / 1000)

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
            CallError: it cannot be stored (INTERNAL), or too many wait (BUDGET_EXCEEDED).
        """
        is_run = isinstance(tool, str) and tool.startswith("workflow:")
        return self.begin(Request(tool, arguments, context, purpose, idempotency_key, "api", is_run))

    def cancel(self, id: str, *, context: CallContext | None = None) -> bool:  # noqa: A002 - the job's
        """Ask a job to end, in any process; False: it is finished already. Raises as `find`."""
        job, kept = self._found(id, context)
        if job.is_over:
            return False
        if kept is None:
            return self._engines.runs is not None and self._engines.runs.cancel(id)
        if (running := self._running.get(id)) is not None:
            self._end(running)
            return True
        if self._records.records.is_present(str(kept.facts.get("process", ""))):
            self._records.ask_to_end(id)
            return True
        return self._changed(id, lambda job: ended(job, "cancelled", _CANCELLED)) is not None

    def answer(self, id: str, value: Any, question: str = "", *, context: CallContext | None = None) -> bool:  # noqa: A002 - the job's
        """Answer a question of a job; False: it has no open question.

        Args:
            value: True or False if it waits for approval, else the answer to its question.
            question: which one, if it has several.
            context: who answers; an approval needs an approver.

        Raises:
            JobNotFound: it does not exist, or is another caller's (JOB_NOT_FOUND).
            PolicyDenied: the caller may not approve (POLICY_DENIED).
            UsageError: it has several questions and none is named, or the named one does not exist (USAGE).
            InputInvalid: the answer does not fit (INPUT_SCHEMA_INVALID).
        """
        is_approver = context is not None and "approver" in context.roles
        job, kept = self._found(id, None if is_approver else context)
        asked = {str(each["id"]): each for each in job.questions}
        if not asked:
            return False
        if not question and len(asked) > 1:
            raise UsageError(f"{id} asks {len(asked)} questions", hint=f"name one of {', '.join(asked)}")
        name = question or next(iter(asked))
        if name not in asked:
            raise UsageError(f"{id} does not ask {name!r:.80}", hint=did_you_mean(name, asked) or ", ".join(asked))
        if name.startswith("apr-"):
            if not isinstance(value, bool):
                raise UsageError(f"{id} waits for approval", hint="answer true or false")
            decide = self._approvals.approve if value else self._approvals.reject
            decide(name, by=context)
            if (running := self._running.get(id)) is not None and running.task is not None:
                running.task.get_loop().call_soon_threadsafe(running.wake.set)
            return True
        if kept is not None and not id.startswith("run-"):
            self._answer(id, name, value)
            return True
        return self._engines.runs is not None and self._engines.runs.answer(id, name, value)

    def _answer(self, id_: str, name: str, value: Any) -> None:
        """Hand an answer to the tool that asked, or leave it for the process in which it runs.

        Raises:
            InputInvalid: it does not fit the question, which stays open (INPUT_SCHEMA_INVALID).
        """
        running = self._running.get(id_)
        if running is None or running.task is None:
            self._records.leave_answer(id_, name, value)
            return
        question, future = running.asked.get(name, (None, None))
        if question is None or future is None:
            return
        if why := misfit(question, value):
            raise InputInvalid(
                f"the answer to {name} does not fit: {why}", hint="answer again; the question stays open"
            )
        if running.asked.pop(name, None) is None:  # it was answered already
            return
        running.task.get_loop().call_soon_threadsafe(lambda: None if future.done() else future.set_result(value))
        self.show_questions(running)

    def show_questions(self, running: _Running) -> None:
        """Keep with a job what its tool asks now, from any thread."""

        def now(job: Job) -> Job:
            questions = tuple(
                {"id": name, **question.to_json()} for name, (question, _) in tuple(running.asked.items())
            )
            return replace(job, status="input_required" if questions else "running", questions=questions)

        with suppress(TavernError):
            self._changed(running.id, now)

    async def resume(self, id: str, *, context: CallContext | None = None) -> Job:  # noqa: A002 - the job's
        """Start a job again whose process ended, as its own caller: one that had not begun, or whose tool may do the same twice.

        Raises:
            JobNotFound: it does not exist, or is another caller's (JOB_NOT_FOUND).
            UsageError: it runs, is finished, may have happened, or its arguments held secrets (USAGE).
        """
        job, kept = self._found(id, context)
        if kept is None:
            raise UsageError(f"{id} is a run of a workflow", hint=f"tavern.workflows.resume({id!r})")
        is_waiting = job.status == "input_required" and id not in self._running
        if not is_waiting and (job.error is None or job.error.kind != "CONNECTION_LOST"):
            raise UsageError(f"{id} is {job.status}: there is nothing to resume", hint="start it again")
        if not is_waiting and job.error is not None and job.error.outcome != "none" and not kept.facts.get("again"):
            raise UsageError(
                f"{id} had started, and it is unknown whether it happened", hint="look, then start it again"
            )
        if kept.facts.get("arguments") is None:
            raise UsageError(f"the arguments of {id} held secrets and were not stored", hint="start it again")
        caller = kept.facts.get("caller")
        request = Request(
            job.tool,
            kept.facts["arguments"],
            None if caller is None else CallContext.from_json(caller),
            job.purpose,
            kept.facts.get("key"),
            str(kept.facts.get("door", "api")),
        )
        self._enter()
        changed = self._records.change(
            id, lambda one: replace(one, status="queued", error=None, questions=()), process=self._process
        )
        if changed is None:
            raise UsageError(f"{id} was taken up elsewhere", hint=f"tavern jobs show {id}")
        self._go(request, id, kept.record.owner)
        return changed

    # Running -------------------------------------------------------------------------------------------------------------

    def begin(self, request: Request) -> Job:
        """Keep a job and let it run as soon as there is a place.

        Raises:
            InternalError: the store cannot be used (INTERNAL).
        """
        now = time.time()
        id_ = f"{'run' if request.is_run else 'job'}-{secrets.token_hex(8)}"
        outer = current.get()
        context = request.context or (outer[2] if outer is not None else None)
        if context is not None and outer is not None:
            context = inherited(context, outer[4])
        caller = context or _HOST
        purpose = self._disk.text(request.purpose) if request.purpose else ""
        job = Job(
            id_, request.tool, "queued", caller.principal, now, now, None, (), None, "", self._poll_ms, self._ttl_ms,
            purpose, "" if context is None else caller.request_id, caller.task_id,
        )  # fmt: skip
        arguments = _plain(request.arguments)
        if arguments:
            arguments = self._disk.arguments(arguments)
        facts = {
            "process": self._process, "caller": None if context is None else context.to_json(), "user": caller.user_id,
            "arguments": arguments, "key": request.key, "door": request.door, "again": request.is_harmless_again,
        }  # fmt: skip
        try:
            self._enter()
            self._records.add(job, _owner(caller), facts)
        except StateDamaged as error:
            raise InternalError(f"the job cannot be stored: {error.message}", hint=error.hint) from error
        self._tell(job, caller.whose())
        if context is not request.context:
            request = replace(request, context=context)
        self._go(request, id_, _owner(caller), outer)
        return job

    def inline(self, id: str) -> Future[ToolResult] | None:  # noqa: A002 - the job's
        """Done when a job of this process is; None: it is over already."""
        running = self._running.get(id)
        return None if running is None else running.done

    def _enter(self) -> None:
        if not self._entered:
            self._records.records.enter(self._process)
            self._entered = True

    def _go(self, request: Request, id_: str, owner: str, outer: Frame | None = None) -> None:
        running = self._running[id_] = _Running(id_, owner)
        with self._lock:
            self._starting.append((request, running, outer))
            if len(self._starting) > 1:  # the loop is about to look: waking it costs more than all the rest of this
                return
        # A woken thread takes the interpreter's lock from the caller, so the caller's loop finishes its turn first.
        if (loop := _running_loop()) is not None:
            loop.call_soon(self._wake)
        else:
            self._wake()

    def _wake(self) -> None:
        # Nothing of the caller's surroundings comes along: neither its deadline nor the places that it holds.
        self._portal.loop().call_soon_threadsafe(self._start, context=contextvars.Context())

    def _start(self) -> None:
        """On the portal's loop: begin what was handed over."""
        with self._lock:
            starting, self._starting = self._starting, []
        for request, running, outer in starting:
            running.task = asyncio.ensure_future(self._through(request, running, outer))
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.ensure_future(self._watch())

    async def _through(self, request: Request, running: _Running, outer: Frame | None) -> None:
        """A job from its beginning to its end."""
        status: JobStatus = "failed"
        result = ToolResult(False, error=_CANCELLED, job=running.id)
        place: Future[None] | None = None
        has_place = False
        try:
            running.has_begun = True
            if running.is_cancelled:
                raise asyncio.CancelledError
            try:
                place = self._slots.enter(running.owner)
            except Full:
                result = ToolResult(
                    False,
                    error=ToolError(
                        "BUDGET_EXCEEDED",
                        f"{_MOST_WAITING:,} jobs wait already",
                        {},
                        True,
                        "none",
                        None,
                        "try again later",
                    ),
                    job=running.id,
                )
                return
            if place is not None:
                await asyncio.wrap_future(asyncio_future(place))
            has_place = True
            self._changed(running.id, lambda job: replace(job, status="running"))
            result = await self._called(request, running, outer)
            status = (
                "completed"
                if result.ok
                else "cancelled"
                if result.error and result.error.kind == "CANCELLED"
                else "failed"
            )
        except asyncio.CancelledError:
            status = "cancelled"
            if any(not one.done() for one in running.left):
                result = result.replace(error=replace(_CANCELLED, details={"stopped": False}))
        except Exception as error:  # noqa: BLE001 - a job ends, whatever happens
            failed = error if isinstance(error, CallError) else CallError(f"the job failed: {error}", outcome="unknown")
            result = failure(failed).replace(job=running.id)
        finally:
            if has_place:
                self._leave(running)
            elif place is not None:
                self._slots.give_up(running.owner, place)
            self._over(request, running, result.replace(job=running.id), status)

    def _leave(self, running: _Running) -> None:
        """Give its place back, as soon as the last thread of it has ended that could not be stopped."""
        left = [one for one in running.left if not one.done()]
        if not left:
            self._slots.leave()
            return
        running.left = left[1:]
        left[0].add_done_callback(lambda _: self._leave(running))

    async def _called(self, request: Request, running: _Running, outer: Frame | None) -> ToolResult:
        """The call, repeated until no approval is missing."""
        calls = self._engines.calls
        assert calls is not None
        job_id.set(running.id)
        on_progress.set(lambda progress: self._moved(running, progress))
        on_left_behind.set(running.left.append)
        conversation.set(_JobConversation(self, running))
        if outer is not None:  # its caller does not wait for it, and still counts as one that it runs within
            current.set((outer[0] + 1, None, request.context, "", outer[4]))
        while True:
            result = await calls(
                request.tool, request.arguments, request.context, request.purpose, request.key, request.door
            )
            self._changed(running.id, partial(replace, call_id=result.call_id), quietly=True)
            runs = self._engines.runs
            if result.status == "job" and result.job == running.id and runs is not None:
                asked = runs.job(running.id)
                questions = () if asked is None else asked.questions
                self._changed(running.id, partial(replace, status="input_required", questions=questions))
                return await runs.outcome(running.id)
            approval = result.error.details.get("approval") if result.error is not None else None
            if result.status != "input_required" or not isinstance(approval, str):
                return result
            why = result.error.message if result.error is not None else ""
            question = {"id": approval, "type": "approval", "prompt": why}
            waiting = partial(replace, status="input_required", questions=(question,))
            self._changed(running.id, waiting, approval=approval)
            await self._decided(running, approval)
            self._changed(running.id, partial(replace, status="running", questions=()), approval=None)

    async def _decided(self, running: _Running, approval: str) -> None:
        while True:
            try:
                if self._approvals.get(approval).state != "pending":
                    return
            except UsageError:
                return
            running.wake.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(running.wake.wait(), _WATCH_S)

    def _over(self, request: Request, running: _Running, result: ToolResult, status: JobStatus) -> None:
        clean = self._disk.result(result, request.arguments)
        with suppress(TavernError, ValueError):  # it is still reported as finished; the result is known here
            self._records.put_result(running.id, running.owner, clean)
        with suppress(TavernError):
            self._changed(running.id, lambda job: ended(job, status, clean.error), approval=None)
        self._running.pop(running.id, None)
        if not running.done.done():
            running.done.set_result(result)

    def _end(self, running: _Running) -> None:
        running.is_cancelled = True
        task = running.task

        def end() -> None:
            # A task that is cancelled before its first step never sees it, and the job would never be over.
            if running.task is not None and running.has_begun and not running.task.done():
                running.task.cancel()

        loop = self._portal.loop() if task is None else task.get_loop()
        loop.call_soon_threadsafe(end)

    def _moved(self, running: _Running, progress: Progress) -> None:
        now = time.monotonic()
        if now - running.saved_at < _SAVE_S and progress.done != progress.total:
            return
        running.saved_at = now
        shown = progress.to_json()
        with suppress(TavernError):
            self._changed(running.id, lambda job: replace(job, progress=shown))

    async def _watch(self) -> None:
        """While jobs run here: check for requests of other processes to end one."""
        while self._running:
            await asyncio.sleep(_WATCH_S)
            with suppress(TavernError):  # tried again in a moment
                for id_ in self._records.asked_to_end():
                    if (running := self._running.get(id_)) is not None and not running.is_cancelled:
                        self._end(running)
                for running in builtins.list(self._running.values()):
                    for name in builtins.list(running.asked):
                        for value in self._records.take_answer(running.id, name):
                            with suppress(InputInvalid):  # the question stays open
                                self._answer(running.id, name, value)

    def _changed(self, id_: str, edit: Callable[[Job], Job], *, quietly: bool = False, **facts: Any) -> Job | None:
        job = self._records.change(id_, edit, **facts)
        if job is not None and not quietly:
            running = self._running.get(id_)
            self._tell(job, {} if running is None else running.whose)
        return job

    def _tell(self, job: Job, whose: Mapping[str, Any]) -> None:
        if not self._recorder.is_on:
            return
        data = {"job": job.id, "tool": job.tool, "status": job.status, **whose}
        if job.progress is not None:
            data["progress"] = job.progress
        if job.status == "running" and job.progress is not None:
            self._recorder.show(JOB_CHANGED, data, call_id=job.call_id)
        else:
            self._recorder.note(JOB_CHANGED, data, call_id=job.call_id)

    def _found(self, id_: str, context: CallContext | None) -> tuple[Job, KeptJob | None]:
        known = id_ if isinstance(id_, str) and id_.isprintable() else ""
        kept, runs = self._records.get(known), self._engines.runs
        if kept is not None and (context is None or kept.record.owner == _owner(context)):
            return self._seen(kept.job), kept
        job = runs.job(known) if kept is None and runs is not None else None
        is_own = context is None or (runs is not None and runs.owner(known) == (context.principal, context.user_id))
        if job is not None and is_own:
            return job, None
        near = [job.id for job in self.list(context=context)] if isinstance(id_, str) else []
        raise JobNotFound(
            f"there is no job {id_!r:.80}",
            hint=did_you_mean(str(id_), near) or "`tavern jobs list` shows what there is",
        )

    def _seen(self, job: Job) -> Job:
        """The open questions of a job that is a run."""
        if job.status == "input_required" and job.id.startswith("run-") and self._engines.runs is not None:
            known = self._engines.runs.job(job.id)
            if known is not None and known.status in ("input_required", "running"):
                return replace(job, questions=known.questions, status=known.status)
        return job

    async def close(self) -> None:
        """End the jobs of this process."""
        for running in builtins.list(self._running.values()):
            self._end(running)
        waits = [running.done for running in builtins.list(self._running.values())]
        for done in waits:
            with suppress(Exception):
                await asyncio.wait_for(asyncio.wrap_future(done), 5)
        if self._entered:
            with suppress(StateDamaged):
                self._records.records.leave(self._process)


def asyncio_future(place: Future[None]) -> Future[None]:
    """A second future for another one: cancelling the wait for it leaves the other alone."""
    beside: Future[None] = Future()

    def done(_: object) -> None:
        if beside.set_running_or_notify_cancel():
            beside.set_result(None)

    place.add_done_callback(done)
    return beside


def _owner(context: CallContext) -> str:
    return f"{context.principal}\x1f{context.user_id}"


def _plain(arguments: Mapping[str, Any] | None) -> Any:
    """Arguments as they can be kept; None where they cannot."""
    if not isinstance(arguments, Mapping):
        return {} if arguments is None else None
    copy, problem = json_copy(dict(arguments))
    return None if problem is not None else copy
