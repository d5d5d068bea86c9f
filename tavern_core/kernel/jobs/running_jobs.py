"""The jobs of this process, from the time they are stored to their end.

    take up (on the caller's thread) → wait for a slot → make the call, again after each approval → store its result

Jobs run on the host's own loop. A job makes a complete call through the pipeline. A job that waits for a person or
for another job releases its slot, and takes one again before it continues.
"""

from __future__ import annotations

import asyncio
import contextvars
import secrets
import threading
import time
from asyncio import _get_running_loop as _running_loop
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from tavern_core.contract.trace_context import within_trace
from tavern_core.errors import (
    ApprovalRejected,
    CallCancelled,
    CallError,
    InputInvalid,
    Outcome,
    StateDamaged,
    TavernError,
    UsageError,
)
from tavern_core.kernel.calls.background_call_request import (
    has_asked,
    is_made_again,
    job_id,
    resume_point,
    without_slot,
)
from tavern_core.kernel.calls.cross_process_cancellation import asked_to_end
from tavern_core.kernel.calls.elicitation import conversation
from tavern_core.kernel.calls.pending_approval_store import StoredApprovals, denial
from tavern_core.kernel.calls.running_call import FixedFrame, current
from tavern_core.kernel.calls.taint_tracking import JobOrigin
from tavern_core.kernel.calls.tool_context_control import Progress, on_left_behind, on_progress
from tavern_core.kernel.execution.portal import Portal
from tavern_core.kernel.jobs.job_records import LOST, JobRecords, StoredJob, ended_job, status_of
from tavern_core.kernel.jobs.running_job import (
    AGAIN_S,
    JobConversation,
    JobPoint,
    RunningJob,
    give_answer,
    show_questions,
)
from tavern_core.kernel.limits.slots import QueueFull, Slots
from tavern_core.kernel.plugins.host_registries import Engines
from tavern_core.kernel.stores.unwritten_changes import UnwrittenChanges
from tavern_core.model.job import Job, JobStatus
from tavern_core.model.result import ToolError, ToolResult, failure

_WATCH_S: Final = 0.2
"""Interval at which a process checks for cancellations and approvals of its jobs by other processes."""
_SAVE_S: Final = 0.2
"""The minimum interval between stored progress reports."""
_CLOSE_S: Final = 5.0
"""Time in which jobs must end when their host closes."""
_MOST_WAITING: Final = 10_000
CANCELLED: Final = ToolError.of(CallCancelled("the job was cancelled", outcome="unknown"))
NEVER_RAN: Final = ToolError.of(CallCancelled("the job was cancelled before its tool ran"))
_TOO_MANY: Final = ToolError(
    "BUDGET_EXCEEDED", f"{_MOST_WAITING:,} jobs wait already", {"limit": "jobs"}, True, "none", 1_000, "try again later"
)


class _ApprovalRefused(Exception):
    """A person did not approve the call."""


class RunningJobs:
    """The unfinished jobs of this process.

    Args:
        engines: runs calls and workflows.
        concurrency: number of jobs that run at a time; callers take turns.
    """

    def __init__(
        self, records: JobRecords, approvals: StoredApprovals, portal: Portal, engines: Engines, concurrency: int
    ) -> None:
        self.records = records
        self.engines = engines
        self.process = secrets.token_hex(8)
        self._approvals = approvals
        self._portal = portal
        self._slots = Slots(concurrency, _MOST_WAITING)
        self._lock = threading.Lock()
        self._running: dict[str, RunningJob] = {}
        self._starting: list[RunningJob] = []
        self._waker: asyncio.AbstractEventLoop | None = None
        """The caller's loop that wakes the host's loop at the end of its turn; None: that was woken already."""
        self._watcher: asyncio.Task[None] | None = None
        self.deferred_changes = UnwrittenChanges("tavern-jobs")
        """Changes of jobs that could not be stored yet, by job id: how a job ended, that it never began."""
        self._ending: set[asyncio.Task[None]] = set()
        self._entered = False

    def get(self, id: str) -> RunningJob | None:  # noqa: A002 - the job's
        """An unfinished job of this process; None: there is none with this id."""
        return self._running.get(id)

    def wake(self, id: str) -> None:  # noqa: A002 - the job's
        """Wake a job of this process: the approval that it waits for has been decided."""
        running = self._running.get(id)
        if running is not None and running.task is not None and running.wake is not None:
            running.task.get_loop().call_soon_threadsafe(running.wake.set)

    def inline(self, id: str) -> Future[ToolResult] | None:  # noqa: A002 - the job's
        """A future that is done when the job of this process ends; None: it has ended already."""
        with self._lock:
            running = self._running.get(id)
            if running is not None and running.done is None:
                running.done = Future()
        return None if running is None else running.done

    def enter(self) -> None:
        """Record that this process is alive; without that record, its jobs count as lost.

        Raises:
            StateDamaged: the store cannot be used (STATE_DAMAGED).
        """
        if not self._entered:
            self.records.store.enter(self.process)
            self._entered = True

    def take_up(self, running: RunningJob) -> None:
        """Let a stored job run as soon as a slot is free."""
        self._running[running.id] = running
        loop = _running_loop()
        with self._lock:
            self._starting.append(running)
            # The loop will check anyway, and waking it costs more than the rest of this method.
            if len(self._starting) > 1 and self._waker in (None, loop):
                return
            self._waker = loop
        # Deferred: a woken thread would take the interpreter's lock from the caller in the middle of its turn.
        if loop is not None:
            loop.call_soon(self._wake)
        else:
            self._wake()

    def _wake(self) -> None:
        # The job does not inherit the caller's deadline or slots.
        self._portal.loop().call_soon_threadsafe(self._start, context=contextvars.Context())

    def _start(self) -> None:
        """Begin the jobs that were passed on; runs on the portal's loop."""
        with self._lock:
            starting, self._starting = self._starting, []
        for running in starting:
            running.task = asyncio.ensure_future(self._through(running))
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.ensure_future(self._watch())

    # Running -------------------------------------------------------------------------------------------------------------

    async def _through(self, running: RunningJob) -> None:
        """Run a job from its beginning to its end."""
        status: JobStatus = "failed"
        result = ToolResult(False, error=CANCELLED)
        has_had_slot = False
        try:
            running.has_begun = True
            if running.is_cancelled:
                raise asyncio.CancelledError
            try:
                await self._enter(running)
            except QueueFull:
                result = ToolResult(False, error=_TOO_MANY)
                return
            has_had_slot = True
            # The store decides which process runs the job: another one may have taken it over, assuming this one died.
            facts = {"asked": False} if running.has_asked else {}
            begin = await self._mark(running, lambda job: replace(job, status="running"), when=self._is_ours, **facts)
            running.is_elsewhere = begin is None
            if running.is_elsewhere:
                return
            result = await self._called(running)
            status = status_of(result)
        except asyncio.CancelledError as error:
            status = "cancelled"
            details: dict[str, Any] = (
                {"stopped": False} if any(not one.done() for one in running.unstopped_threads) else {}
            )
            outcome: Outcome = getattr(error, "tavern_outcome", "unknown")  # the outcome of its call
            result = failure(CallCancelled(CANCELLED.message, outcome=outcome, **details))
            if (not has_had_slot or running.is_waiting) and not (running.point or running.has_acted):
                result = ToolResult(False, error=NEVER_RAN)
        except Exception as error:  # noqa: BLE001 - a job ends, whatever happens
            result = _failed(error)
        finally:
            running.has_ended = True
            if running.has_slot:
                running.has_slot = False
                self._leave(running)
            # The same call with the same key may be another run that waits for a person; this job follows that run.
            is_of_other = result.status == "job" and result.job is not None
            self._end_with(running, result if is_of_other else result.replace(job=running.id), status)

    def _end_with(self, running: RunningJob, result: ToolResult, status: JobStatus) -> None:
        """Store the outcome of a job, unless the job is another process's, or left to be resumed."""
        if (
            (running.point or running.has_acted) and result.error is not None and result.error.outcome == "none"
        ):  # its work continues elsewhere, or was done in part
            result = result.replace(error=replace(result.error, outcome="unknown"))
        is_unfinished = status == "cancelled" or result.status != ("ok" if result.ok else "error")
        if running.is_elsewhere or (running.is_left and is_unfinished):
            self._remove(running, ToolResult(False, error=LOST, job=running.id))
        elif self.records.store.is_quick:
            self._over(running, result, status)
        else:  # a separate task: a second cancellation cannot prevent the end from being stored
            ending = asyncio.ensure_future(self._over_aside(running, result, status))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def _mark(self, running: RunningJob, edit: Callable[[Job], Job], **options: Any) -> Job | None:
        """Change a stored job before it continues.

        Waits while the store cannot be used: after a kill, the record must be right.
        """
        while True:
            try:
                return await self.records.off_thread(self.records.change, running.id, edit, **options)
            except StateDamaged:
                await asyncio.sleep(AGAIN_S)

    def _is_ours(self, kept: StoredJob) -> bool:
        return kept.facts.get("process") == self.process

    async def _enter(self, running: RunningJob) -> None:
        """Wait for a slot. Raises QueueFull."""
        place = self._slots.enter(running.owner)
        try:
            if place is not None:
                await asyncio.wrap_future(_beside(place))
        except BaseException:
            assert place is not None
            self._slots.give_up(running.owner, place)
            raise
        running.has_slot = True

    @property
    def is_full(self) -> bool:
        """Whether a job that releases its slot may have to wait for the next one."""
        return self._slots.is_full

    @asynccontextmanager
    async def without_slot(self, running: RunningJob) -> AsyncIterator[None]:
        """Let the job wait for a person or for another job without a slot; it takes one before it continues."""
        assert running.task is not None
        loop, has_ended = running.task.get_loop(), False
        is_here = asyncio.get_running_loop() is loop  # otherwise a thread of its tool has a loop of its own
        if is_here:
            self._begin_to_wait(running)
        else:
            loop.call_soon_threadsafe(self._begin_to_wait, running)
        try:
            yield
            has_ended = True
        finally:
            ending = self._end_to_wait(running, has_ended)
            await (ending if is_here else asyncio.wrap_future(self._portal.begin(ending)))

    def _begin_to_wait(self, running: RunningJob) -> None:
        running.waits += 1
        self._give_back(running)

    async def _end_to_wait(self, running: RunningJob, has_ended: bool) -> None:
        """Wait for a slot. A job that is cancelled or out of time does not wait; it counts as running at once."""
        running.waits -= 1
        try:
            if has_ended:
                async with running.entering:
                    while self._needs_slot(running):
                        try:
                            await self._enter(running)
                        except QueueFull:
                            await asyncio.sleep(_WATCH_S)
        finally:
            if self._needs_slot(running) and not running.entering.locked():
                self._slots.enter_anyway()
                running.has_slot = True
        self._give_back(running)

    def _needs_slot(self, running: RunningJob) -> bool:
        """Whether it must take a slot. Work left running by a job that is over takes none: nothing would release it."""
        return not (running.waits or running.has_slot or running.has_ended)

    def _give_back(self, running: RunningJob) -> None:
        is_needless = running.has_ended or (running.waits and all(one.done() for one in running.unstopped_threads))
        if running.has_slot and is_needless:
            running.has_slot = False
            self._slots.leave()

    def _leave_behind(self, running: RunningJob, work: Future[Any]) -> None:
        """Let a tool continue without the work that it could not stop; that work keeps the slot until it ends."""
        running.unstopped_threads.append(work)
        assert running.task is not None
        loop = running.task.get_loop()

        def ended(_: object) -> None:
            with suppress(RuntimeError):  # the host has been closed
                loop.call_soon_threadsafe(self._give_back, running)

        work.add_done_callback(ended)

    def _leave(self, running: RunningJob) -> None:
        """Release the job's slot when the last of its threads that could not be stopped has ended."""
        running_threads = [one for one in running.unstopped_threads if not one.done()]
        if not running_threads:
            self._slots.leave()
            return
        running.unstopped_threads = running_threads[1:]
        running_threads[0].add_done_callback(lambda _: self._leave(running))

    async def _called(self, running: RunningJob) -> ToolResult:
        """Make the call, and repeat it until no approval is missing."""
        job_id.set(running.id)
        has_asked.set(((running.has_asked or running.point) and running.request.key) or "")
        resume_point.set(JobPoint(self, running))
        on_progress.set(lambda progress: self._report_progress(running, progress))
        on_left_behind.set(partial(self._leave_behind, running))
        without_slot.set(partial(self.without_slot, running))
        if not running.id.startswith("run-"):  # a run has questions of its own
            conversation.set(JobConversation(self, running))
        # Its caller does not wait for it, but still counts as its enclosing call.
        if (outer := running.outer) is not None:
            origin = outer.reader and JobOrigin(outer.reader)
            current.set(FixedFrame(outer.depth + 1, caller=running.context, reader=origin))
        while True:
            result = await (
                within_trace(running.trace, partial(self._call, running)) if running.trace else self._call(running)
            )
            running.call_id = result.call_id
            runs = self.engines.runs
            if result.status == "job" and result.job == running.id and runs is not None:
                asked = runs.job(running.id)
                questions = () if asked is None else asked.questions
                waiting = partial(replace, status="input_required", questions=questions, call_id=result.call_id)
                await self._mark(running, waiting)
                result = await runs.outcome(running.id)
            approval = result.error.details.get("approval") if result.error is not None else None
            if result.error is None or result.status != "input_required" or not isinstance(approval, str):
                return result
            if result.error.outcome != "none" and result.error.details.get("runId") != running.id:
                return result  # only a run goes on where it was; a tool would do again what it may have done
            if (denied := await self._approved(running, approval, result)) is not None:
                rejected = replace(ToolError.of(denied), outcome=result.error.outcome)
                return result.replace(value=None, status="error", error=rejected)
            is_made_again.set(running.context is not None and running.context.budget.max_tool_calls is not None)
            if running.has_acted:  # its run goes on, and its key is held for it
                has_asked.set(running.request.key or "")

    async def _approved(self, running: RunningJob, approval: str, result: ToolResult) -> ApprovalRejected | None:
        """Wait without a slot for the decision, then for a slot; return why the call cannot be made again, if so."""
        error = result.error
        why = "" if error is None else error.message
        running.has_acted = error is not None and error.outcome != "none"
        question = {"id": approval, "type": "approval", "prompt": why}
        waiting = partial(replace, status="input_required", questions=(question,), call_id=result.call_id)
        running.is_waiting = True
        await self._mark(running, waiting, approval=approval, asked=running.has_acted)
        try:
            async with self.without_slot(running):
                if await self._decided(running, approval) == "rejected":
                    raise _ApprovalRefused
                if self.is_full:
                    await self._mark(running, partial(replace, status="queued", questions=()), approval=None)
        except _ApprovalRefused:  # the call ends before its tool runs, so it waits for no slot
            pass
        except ApprovalRejected as denied:
            return denied
        await self._mark(running, partial(replace, status="running", questions=()), approval=None)
        running.is_waiting = False
        return None

    async def _call(self, running: RunningJob) -> ToolResult:
        calls, request = self.engines.calls, running.request
        assert calls is not None
        return await calls(request.tool, running.arguments, running.context, request.purpose, request.key, request.door)

    async def keep_point(self, running: RunningJob, text: str, followed: str) -> None:
        """Store the text that finds a job's work again, in this process and for the next one."""
        running.point, running.followed = text, followed
        with suppress(StateDamaged):  # the call continues; after a kill, its outcome is unknown
            await self.records.off_thread(
                self.records.change_facts, running.id, self._is_ours, point=text, followed=followed
            )

    async def _decided(self, running: RunningJob, approval: str) -> str:
        """The state of the request once it is decided. Raises ApprovalRejected: the request no longer exists."""
        wake = running.wake = asyncio.Event()
        while True:
            wake.clear()  # later decisions are seen at once
            try:
                if (state := (await self.records.off_thread(self._approvals.get, approval)).state) != "pending":
                    return state
            except UsageError:
                with suppress(StateDamaged):
                    denied = await self.records.off_thread(denial, self.records.store, approval, running.request.tool)
                    if denied is None:
                        return "approved"
                    raise denied from None
            except StateDamaged:
                pass  # tried again in a moment
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(wake.wait(), self._pause)

    def _report_progress(self, running: RunningJob, progress: Progress) -> None:
        now = time.monotonic()
        running.progress = progress.to_json()
        if now - running.saved_at < _SAVE_S and progress.done != progress.total:
            return
        running.saved_at = now
        if self.records.store.is_quick:
            self._save_progress(running)
        else:
            with suppress(TavernError, RuntimeError):  # the host has been closed
                self._portal.loop().call_soon_threadsafe(self._save_aside, running)

    def _save_progress(self, running: RunningJob) -> None:
        shown = running.progress
        with suppress(TavernError):
            self.records.change(running.id, lambda job: replace(job, progress=shown))

    def _save_aside(self, running: RunningJob) -> None:
        async def save() -> None:
            shown = None
            while shown is not running.progress:
                shown = running.progress
                await self.records.off_thread(self._save_progress, running)

        if running.saving is None or running.saving.done():
            running.saving = asyncio.ensure_future(save())

    # Ending --------------------------------------------------------------------------------------------------------------

    def _over(self, running: RunningJob, result: ToolResult, status: JobStatus) -> None:
        clean = self.records.disk.result(result, running.arguments)
        try:
            self._write_end(running, clean, status)
        except TavernError:
            self.deferred_changes.defer(running.id, partial(self._write_end, running, clean, status))
        self._remove(running, result)

    async def _over_aside(self, running: RunningJob, result: ToolResult, status: JobStatus) -> None:
        if running.saving is not None:
            await asyncio.wait([running.saving])
        await self.records.off_thread(self._over, running, result, status)

    def _write_end(self, running: RunningJob, clean: ToolResult, status: JobStatus) -> None:
        with suppress(ValueError):  # it is still reported as finished; the result is held in memory
            self.records.put_result(running.id, running.owner, clean)

        def over(job: Job) -> Job:
            # The last one may have come too soon after the one before to be stored.
            progress = running.progress or job.progress
            return replace(ended_job(job, status, clean.error, running.call_id), progress=progress)

        self.records.change(running.id, over, approval=None)

    def _remove(self, running: RunningJob, result: ToolResult) -> None:
        with self._lock:
            self._running.pop(running.id, None)
            done = running.done
        if done is not None and not done.done():
            done.set_result(result)

    def end(self, running: RunningJob) -> None:
        """Request the end of a job, from any thread."""
        running.is_cancelled = True
        task = running.task

        def stop() -> None:
            # A task that is cancelled before its first step would never end its job.
            if running.task is not None and running.has_begun and not running.task.done():
                running.task.cancel()

        loop = self._portal.loop() if task is None else task.get_loop()
        loop.call_soon_threadsafe(stop)

    @property
    def _pause(self) -> float:
        """The interval between checks of the store; with many waiting jobs, each is checked less often."""
        return _WATCH_S * (1 + len(self._running) // 200)

    async def _watch(self) -> None:
        """While jobs run here, check for other processes' requests to end them, and for their answers."""
        while self._running:
            await asyncio.sleep(self._pause)
            with suppress(TavernError):  # tried again in a moment
                for id_ in await self.records.off_thread(asked_to_end, self.records.store):
                    if (running := self._running.get(id_)) is not None and not running.is_cancelled:
                        self.end(running)
                for running in list(self._running.values()):
                    if running.open_questions:
                        await self.records.off_thread(self._take_answers, running)

    def _take_answers(self, running: RunningJob) -> None:
        """Pass the answers of other processes to the tool that asked."""
        if not running.is_shown:
            show_questions(self.records, running)
        for name in list(running.open_questions):
            for value in self.records.answer_left(running.id, name):
                with suppress(InputInvalid):  # the question stays open
                    give_answer(self.records, running, name, value)
                self.records.forget_answer(running.id, name)

    def leave(self) -> set[str]:
        """Mark the jobs that can be resumed, so that they stay stored when the host closes. Returns their ids."""
        for running in list(self._running.values()):
            running.is_left = not running.is_cancelled
        return set(self._running)

    async def close(self) -> None:
        """End the jobs of this process. As after a kill, unfinished jobs can be resumed (`Jobs.resume`)."""
        self.leave()
        jobs = list(self._running.values())
        end_futures = [asyncio.wrap_future(done) for running in jobs if (done := self.inline(running.id)) is not None]
        for running in jobs:
            self.end(running)
        if end_futures:
            await asyncio.wait(end_futures, timeout=_CLOSE_S)
        with suppress(StateDamaged):
            await self.records.off_thread(self.deferred_changes.close)
            if self._entered:
                await self.records.off_thread(self.records.store.leave, self.process)


def _beside(place: Future[None]) -> Future[None]:
    """A second future for another one: cancelling the wait does not cancel the other."""
    copy: Future[None] = Future()

    def done(_: object) -> None:
        if copy.set_running_or_notify_cancel():
            copy.set_result(None)

    place.add_done_callback(done)
    return copy


def _failed(error: Exception) -> ToolResult:
    known = error if isinstance(error, CallError) else CallError(f"the job failed: {error}", outcome="unknown")
    return failure(known)
