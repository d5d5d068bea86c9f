"""A job of this process while it waits or runs, and the questions of its tool."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from tavern_core.contract.tool_context import LogLevel
from tavern_core.errors import InputInvalid, TavernError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.calls.background_call_request import BackgroundCallRequest
from tavern_core.kernel.calls.elicitation import mismatch, unanswered
from tavern_core.kernel.calls.running_call import Frame
from tavern_core.kernel.jobs.job_records import JobRecords
from tavern_core.model.job import JobStatus
from tavern_core.model.question import Question, QuestionKind
from tavern_core.model.result import ToolResult

AGAIN_S: Final = 0.2
"""Interval between retries of a store that could not be used."""


@dataclass(frozen=True, slots=True)
class ResumeState:
    """The stored state of a job for the process that resumes it."""

    has_asked: bool = False
    """Whether it was waiting for an answer, or then for a slot, when its process ended."""
    point: str = ""
    """Finds its work in another system again; see `background_call_request.ResumePoint`."""
    followed: str = ""
    """The definition of a tool whose adapter only follows that work."""
    answers: tuple[tuple[str, Any], ...] = ()
    """(name, answer) pairs; each answers the next question of that name."""


_NOT_RESUMED: Final = ResumeState()


class RunningJob:
    """A job of this process.

    Args:
        owner: the owner of its record in the store.
        request: its arguments are not changed by other code; its context is the caller, None: the host.
        trace: `traceparent` and `tracestate` of the call that began the job.
        outer: the call that began the job.
    """

    # Attributes that few jobs need belong to the class until they are set.
    done: Future[ToolResult] | None = None
    """Created for the first caller that waits for the job."""
    wake: asyncio.Event | None = None
    """Set when the approval that the job waits for is decided."""
    task: asyncio.Task[Any] | None = None
    is_cancelled = has_begun = False
    has_slot = False
    """Whether it counts as running."""
    has_ended = False
    """Whether its call is over; work that its tool left running takes no slot."""
    waits = 0
    """Number of answers and other jobs that it waits for; while there are any, it has no slot."""
    is_waiting = False
    """Whether it waits for an approval: its tool is not running."""
    has_acted = False
    """Whether its run may have changed something before it began to wait for an approval."""
    is_entering = False
    """Whether its tool has its answers and waits for a slot before it continues."""
    is_left = False
    """Whether its host is closing: if unfinished, it stays stored as it is, to be resumed."""
    call_id = ""
    """The id of its call, once the call has ended."""
    saved_at = 0.0
    """Time at which its progress was last stored, on the monotonic clock."""
    progress: Mapping[str, Any] | None = None
    """The latest progress that has to be stored."""
    saving: asyncio.Task[None] | None = None
    """Stores its progress if the store is slow."""
    is_shown = True
    """Whether its current questions have been stored."""
    is_elsewhere = False
    """Whether its record belongs to another process: it was cancelled or taken over before it began."""

    def __init__(
        self,
        id: str,  # noqa: A002 - the job's
        owner: str,
        request: BackgroundCallRequest,
        trace: Mapping[str, str],
        outer: Frame | None = None,
        resumed: ResumeState = _NOT_RESUMED,
    ) -> None:
        self.id = id
        self.owner = owner
        self.request = request
        self.arguments = request.arguments
        self.context = request.context
        self.trace = trace
        self.outer = outer
        if request.done is not None:
            self.done = request.done
        self.has_asked = resumed.has_asked
        self.point, self.followed = resumed.point, resumed.followed
        self.unstopped_threads: list[Future[Any]] = []
        """Its threads that could not be stopped."""
        self.open_questions: dict[str, tuple[Question, asyncio.Future[Any]]] = {}
        """The open questions of its tool, each with a future for the answer."""
        self.earlier_answers: list[tuple[str, Any]] = [*resumed.answers]
        """Answers given in an earlier process, which its tool has not received yet."""
        self.given_answers: list[tuple[str, Any]] = []
        """The answers that its tool has received: a resuming process gives them again."""
        self.entering = asyncio.Lock()
        """Held while the job takes its slot again."""
        self.storing = threading.Lock()
        """Held while questions and answers change or are stored, so that the latest are stored last."""


class JobRunner(Protocol):
    """The parts of `RunningJobs` that a job's tool uses."""

    records: JobRecords

    @property
    def is_full(self) -> bool:
        """Whether a job that releases its slot may have to wait for the next one."""
        ...

    def without_slot(self, running: RunningJob) -> AbstractAsyncContextManager[None]:
        """Inside, the job waits for others and has no slot."""
        ...

    async def keep_point(self, running: RunningJob, text: str, followed: str) -> None:
        """Store the text that finds the job's work again."""
        ...


class JobPoint:
    """The resume point of a job, stored with it; see `background_call_request.ResumePoint`."""

    def __init__(self, runner: JobRunner, running: RunningJob) -> None:
        self._runner, self._running, self.text, self.followed = runner, running, running.point, running.followed

    def is_of(self, arguments: object) -> bool:
        return arguments is self._running.arguments

    @property
    def is_left(self) -> bool:
        return self._running.is_left and bool(self._running.point)

    async def store(self, text: str, followed: str) -> None:
        await self._runner.keep_point(self._running, text, followed)


class JobConversation:
    """Keeps the questions of a job's tool open until they are answered; see `Jobs.answer`."""

    def __init__(self, runner: JobRunner, running: RunningJob) -> None:
        self._runner, self._running, self._records = runner, running, runner.records

    def can_ask(self, kind: QuestionKind) -> bool:
        return True

    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Any]:
        asked, loop = self._running.open_questions, asyncio.get_running_loop()
        waits: dict[str, tuple[str, asyncio.Future[Any]]] = {}
        known = {key: answer for key, question in questions.items() for answer in self._earlier_answer(key, question)}
        if len(known) == len(questions):
            return known
        for key, question in questions.items():
            if key in known:
                continue
            name = next(n for i in range(1, 1_000_000) if (n := key if i == 1 else f"{key}-{i}") not in asked)
            future: asyncio.Future[Any] = loop.create_future()
            asked[name], waits[key] = (question, future), (name, future)
        try:
            await self._show()
            async with self._runner.without_slot(self._running):
                answers = {**known, **{key: await future for key, (_, future) in waits.items()}}
                if self._runner.is_full and not asked:
                    self._running.is_entering = True
                    await self._show()
            return answers
        except asyncio.CancelledError:
            if self._running.is_left:  # nothing was changed before the question, so the key of the call is released
                raise unanswered(questions) from None
            raise
        finally:
            for name, future in waits.values():
                if asked.get(name, (None, None))[1] is future:  # the question ends without an answer
                    del asked[name]
            if not self._running.is_left:  # otherwise the stored questions stay for the process that resumes the job
                self._running.is_entering = False
            await self._go_on()

    async def _go_on(self) -> None:
        """Continue once the store records that the job does not wait: after a kill, a waiting job starts again."""
        running = self._running
        while not running.is_left:  # otherwise its questions stay open for the process that resumes it
            await self._show()
            if running.is_shown or running.is_cancelled:
                return
            await asyncio.sleep(AGAIN_S)

    def _earlier_answer(self, name: str, question: Question) -> list[Any]:
        """Take the answer that an earlier process received to this question; none or one."""
        running = self._running
        for at, (of, answer) in enumerate(running.earlier_answers):
            if of == name and not mismatch(question, answer):
                del running.earlier_answers[at]
                running.given_answers.append((name, answer))
                return [answer]
        return []

    async def _show(self) -> None:
        await self._records.off_thread(show_questions, self._records, self._running)

    def log(self, level: LogLevel, message: str) -> None:
        pass  # already in the log of the process


def show_questions(records: JobRecords, running: RunningJob) -> None:
    """Store a job's open questions, from any thread."""
    with running.storing:
        is_entering = running.is_entering  # read once: status and fact must agree, and its loop may change it meanwhile
        open_questions = tuple(running.open_questions.items())
        questions = tuple({"id": name, **question.to_json()} for name, (question, _) in open_questions)
        status: JobStatus = "input_required" if questions else "queued" if is_entering else "running"
        now = partial(replace, status=status, questions=questions)
        answers = records.disk.arguments({"given": [*running.given_answers]}) or {}
        try:
            records.change(running.id, now, answers=answers.get("given", ()), asked=is_entering)
            running.is_shown = True
        except TavernError:
            running.is_shown = False  # stored as soon as the store can be used


def give_answer(records: JobRecords, running: RunningJob, name: str, value: Any) -> bool:
    """Pass an answer to the tool that asked, from any thread; False: another answer came first.

    Raises:
        InputInvalid: the answer does not fit the question, which stays open (INPUT_SCHEMA_INVALID).
    """
    with running.storing:  # so that every stored question is either open or answered
        question, future = running.open_questions.get(name, (None, None))
        if question is None or future is None:
            return False
        if why := mismatch(question, value):
            raise InputInvalid(
                f"the answer to {name} does not fit: {why}", hint="answer again; the question stays open"
            )
        del running.open_questions[name]
        running.given_answers.append((name, value))
    with suppress(RuntimeError):  # the loop of a thread that has ended
        future.get_loop().call_soon_threadsafe(lambda: None if future.done() else future.set_result(value))
    show_questions(records, running)
    return True
