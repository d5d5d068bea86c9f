"""A run of a compiled workflow: its events, limits and questions, and its end.

async with: execute() ──> root scheduler ──> RunResult
               cancel() ends it from anywhere
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import field
from functools import partial
from typing import Any, Final, Protocol

from tavern_core.contract.nodes import Skip
from tavern_core.errors import SchemaInvalid, UsageError
from tavern_core.flow.engine.concurrency import RunConcurrency
from tavern_core.flow.engine.node_outputs import SKIPPED
from tavern_core.flow.engine.node_value_encoding import deep_copy
from tavern_core.flow.engine.plan_tables import PreparedPlan
from tavern_core.flow.engine.protocols import NodeCache, NodeInterceptor
from tavern_core.flow.engine.run_event_log import LONGEST_CHUNK, ChunkRedactor, RunEventLog
from tavern_core.flow.engine.run_options import NodeQuestion, RunOptions
from tavern_core.flow.engine.scheduler import Scheduler
from tavern_core.flow.engine.subworkflows import interface_values
from tavern_core.flow.node_facilities import NodeFacilities
from tavern_core.frozen_dataclass import dataclass
from tavern_core.graph.order import reachable
from tavern_core.kernel.calls.background_call_request import while_run_waits
from tavern_core.kernel.calls.running_call import Frame, current
from tavern_core.kernel.calls.taint_tracking import is_watched
from tavern_core.kernel.execution.sync_async_drivers import caught
from tavern_core.kernel.execution.threads import Owner, ThreadPool
from tavern_core.kernel.settings.secret_masking import KnownSecrets
from tavern_core.model.call import CallContext
from tavern_core.model.run import FINAL_STATES, NodeError, NodeState, RunResult, RunState
from tavern_core.schema.schema_check import check_schema
from tavern_core.schema.secret_encodings import secret_redactor

GRACE_S: Final = 1.0
"""Time in which cancelled nodes must end."""


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class RunHost:
    """The parts of a host that all its runs share."""

    threads: ThreadPool
    facilities: NodeFacilities
    mask: Callable[[Any], Any] = _same
    known_secrets: KnownSecrets = field(default_factory=KnownSecrets)


class RunStorage(Protocol):
    """Stores a run while it goes on; see `RunRecorder`."""

    def node_ended(self, run: Run, path: str) -> None:
        """Record the outputs of the node at a path."""
        ...

    def questions_changed(self, run: Run) -> None:
        """Record that a node started to wait for a person, or has the answer."""
        ...

    def answered(self, question: str, value: Any) -> None:
        """Record an answer that its node does not have yet, from any thread."""
        ...


def new_run_id() -> str:
    """An id for a run that has none yet."""
    return f"run-{secrets.token_hex(8)}"


@dataclass(frozen=True, slots=True)
class RunStart:
    """The start of a run: its own id and parts, and data of earlier runs.

    Args:
        run_id: empty: a new one.
        log: goes on with the events of the run that it takes up.
        changes: above 0: the run that it takes up may have changed something.
        around: hooks around every node.
        recorder: None: the run is not stored.
    """

    run_id: str = ""
    cache: NodeCache | None = None
    answers: Mapping[str, Any] = field(default_factory=dict)
    log: RunEventLog = field(default_factory=RunEventLog)
    times_taken_up: int = 0
    changes: int = 0
    around: NodeInterceptor | None = None
    recorder: RunStorage | None = None


class Run:
    """A run of a workflow. Create it, then `await execute()` once."""

    def __init__(
        self,
        prepared: PreparedPlan,
        inputs: Mapping[str, Any],
        *,
        host: RunHost,
        context: CallContext,
        options: RunOptions = RunOptions(),
        beginning: RunStart | None = None,
    ) -> None:
        beginning = beginning or RunStart()
        self.id = beginning.run_id or new_run_id()
        self.times_taken_up = beginning.times_taken_up
        self.turn = f"{self.id}#{secrets.token_hex(4)}" if self.times_taken_up else self.id
        self.prepared = prepared
        self.inputs = inputs
        self.facilities = host.facilities
        self.context = context
        self.outer: Frame | None = current.get()
        """The call within which it runs."""
        self.reads: Mapping[str, None] | None = {} if is_watched(context, self.outer) else None
        """The sources of untrusted content that its nodes have read (`kernel/calls/taint_tracking.py`)."""
        self.changes = beginning.changes
        self.options = options
        self.targets = options.to
        self.cache = beginning.cache
        self.around = beginning.around
        self._recorder = beginning.recorder
        self.grace = GRACE_S
        self.concurrency: RunConcurrency | None = None
        if options.concurrency is not None or options.types or options.resources or _has_limits(prepared):
            self.concurrency = RunConcurrency(options.concurrency, options.types, options.resources)
        self.states: dict[str, NodeState] = {}
        self.errors: list[NodeError] = []
        self.started = 0.0
        self.is_cancelled = False
        self.is_left = False
        self._leaves = self._is_check_pending = False
        self.promised = False
        """Whether a caller knows that it goes on once its questions are answered."""
        self._scope: Scheduler | None = None
        self.questions: dict[str, NodeQuestion] = {}
        self._entering: set[str] = set()
        """Questions with an answer whose nodes wait for a place of their job."""
        self.unanswered: dict[str, NodeQuestion] = {}
        """Questions without an answer when the node or the run ended."""
        self.answers = dict(beginning.answers)
        self.mask, self.known_secrets = host.mask, host.known_secrets
        self._chunks = ChunkRedactor(host.known_secrets)
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._threads = host.threads
        self._task: asyncio.Task[Any] | None = None
        self._thread = 0
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop on which it runs; None: it was not started."""
        self._log = beginning.log
        self.emit, self.listen, self.rows, self.events = (
            self._log.add,
            self._log.listen,
            self._log.rows,
            self._log.read,
        )
        self._is_begun = False
        self.is_over = False
        self._has_stopped = False
        self._lock = threading.Lock()

    # Running -------------------------------------------------------------------------------------------------------------

    async def _driven(self, scope: Scheduler, task: asyncio.Task[Any], others: int) -> RunState:
        """Run all steps; returns the final state. A cancellation that is not the run's own is raised."""
        try:
            await scope.drive()
        except BaseException as error:
            for name, future in [*self._waiting.items()]:  # of tools in other processes and threads, which end later
                self.unanswered[name] = self.questions.pop(name)
                future.cancel()
            is_ours = isinstance(error, asyncio.CancelledError) and self._has_stopped and task.uncancel() <= others
            if not is_ours:
                self.is_cancelled = True
                self.emit("run:cancelled", "")
                raise
            return "waiting" if self.is_left and self.unanswered else "cancelled"
        return "error" if scope.fatal else "complete"

    async def execute(self) -> RunResult:
        """Run to the end. Errors of nodes are not raised; a cancelled caller cancels the run.

        Raises:
            MismatchedInput: an input of the workflow is missing or does not fit.
            UsageError: it has already run, or `to` names no node (USAGE).
        """
        if self.started:
            raise UsageError(f"{self.id} was run already", hint="start a new run")
        self.started, clock = time.time(), time.perf_counter()
        self.loop, self._task, self._thread = asyncio.get_running_loop(), asyncio.current_task(), threading.get_ident()
        assert self._task is not None
        others = self._task.cancelling()  # of our caller, before the start
        inputs = interface_values(self.prepared, deep_copy(dict(self.inputs)))
        wanted = wanted_steps(self.prepared, self.targets)
        self.begin()
        self._scope = scope = Scheduler(self, self.prepared, "", inputs, wanted)
        timer = self._deadline()
        if self.is_cancelled:  # before it could begin
            self._stop(self._task)
        try:
            state = await self._driven(scope, self._task, others)
            self.emit(f"run:{state}", "")
        finally:
            self.is_over = True  # last: who sees it on another thread sees all events
            if timer is not None:
                timer.cancel()
        return self._result(scope, state, (time.perf_counter() - clock) * 1000)

    def _result(self, scope: Scheduler, state: RunState, latency: float) -> RunResult:
        questions = tuple(question.to_json() for question in self.unanswered.values()) if state == "waiting" else ()
        return RunResult(
            self.id,
            self.prepared.plan.id,
            state,
            self._outputs(scope),
            tuple(self.errors),
            dict(self.states),
            self.started,
            latency,
            questions,
            may_have_changed=self.changes > 0,
        )

    def begin(self) -> None:
        """Emit the event that it runs; `execute` does it unless it was done before."""
        if not self._is_begun:
            self._is_begun = True
            self.emit("run:running", "")

    def _deadline(self) -> asyncio.TimerHandle | None:
        if self.options.timeout_ms is None or self.loop is None:
            return None

        def ring() -> None:
            if self.is_cancelled or self.is_over:
                return
            self.errors.append(
                NodeError(
                    "",
                    "",
                    "TIMEOUT",
                    f"the run took longer than its timeout_ms: {self.options.timeout_ms} ms",
                    "",
                    "raise timeout_ms of the run",
                    details={"limit": "timeout_ms"},
                )
            )
            self.cancel()

        return self.loop.call_later(self.options.timeout_ms / 1000, ring)

    def _outputs(self, scope: Scheduler) -> dict[str, Any]:
        plan = self.prepared.plan
        if plan.outputs and not self.options.to:
            return {key: scope.results.get(key) for key in plan.outputs}
        asked = {source.step for step in plan.steps for binding in step.lazy for source in binding.sources}
        last = (step for step in plan.steps if not step.after and not step.listeners and step.index not in asked)
        end_steps = [plan.step(node) for node in self.options.to] or [*last]
        found: dict[str, Any] = {}
        for step in end_steps:
            if step is not None and (outputs := scope.outputs[step.index]) is not None and outputs is not SKIPPED:
                found[step.id] = {key: value for key, value in outputs.items() if value is not Skip}
        return found

    def cancel(self) -> bool:
        """End the run from any thread: running nodes and their processes are cancelled. False: it is already over."""
        with self._lock:
            if self.is_over or self.is_cancelled:
                return False
            self.is_cancelled = True
            if self._task is None or self.loop is None:
                return True  # it ends as soon as it starts
        try:
            self.loop.call_soon_threadsafe(self._stop, self._task)
        except RuntimeError:  # its loop is closed, so it has ended
            return False
        return True

    def leave(self) -> bool:
        """End the run as `waiting` once only questions are left, from any thread; it can be resumed. False: it is already over."""
        self._leaves = True
        if self.is_over or self.is_cancelled:
            return False
        if self.loop is not None:
            with suppress(RuntimeError):  # its loop is closed, so it has ended
                self.loop.call_soon_threadsafe(self.check_stalled)
        return True

    def close(self) -> None:
        """End the run because its host closes, on its loop. A `promised` one waits on if a question is open."""
        waits_on = self.promised and bool(self.questions)
        if self.cancel():
            self.is_left = waits_on

    def check_stalled(self) -> None:
        """End a run that should be left once it is stalled; called after each change."""
        if self._leaves and not self._is_check_pending and self.loop is not None:
            self._is_check_pending = True
            self.loop.call_soon(self._leave_if_stalled)

    def _leave_if_stalled(self) -> None:
        self._is_check_pending = False
        is_asking = bool(self.questions) and self.questions.keys() <= self._waiting.keys() | self._entering
        if is_asking and not self.is_over and self._scope is not None and self._scope.is_stalled():
            self.is_left = self.cancel()

    def _stop(self, task: asyncio.Task[Any]) -> None:
        if not self.is_over and not self._has_stopped:  # else the task already does something else
            self._has_stopped = True
            task.cancel()

    # Requests of nodes and schedulers------------------------------------------------------------------------------------

    async def in_thread(
        self,
        function: Callable[..., Any],
        named: Mapping[str, Any],
        *args: Any,
        owner: Owner = None,
        left: list[Future[Any]] | None = None,
    ) -> Any:
        """Run sync code of a node in a worker thread.

        Args:
            owner: plugin and type of the node.
            left: gets the thread's future, to check whether it still runs.
        """
        future = self._threads.submit(caught, partial(function, **named), args, owner=owner)
        if left is not None:
            left.append(future)
        try:
            answer, error = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._threads.abandon(future)
            raise
        if error is not None:
            raise error
        return answer

    async def ask(self, path: str, number: int, schema: Mapping[str, Any], prompt: str) -> Any:
        """Ask a person; see NodeContext.ask."""
        name = f"{path}#{number}"
        if wrong := check_schema(schema, output=True):  # an error of the node, before the question is asked
            raise SchemaInvalid(f"ctx.ask: {wrong[0].message}", hint=wrong[0].hint, findings=tuple(wrong))
        prompt = secret_redactor(self.known_secrets.values)(str(prompt)[:LONGEST_CHUNK])
        question = NodeQuestion(name, path, schema, prompt)
        if name in self.answers and not question.mismatch(self.answers[name]):
            return self.answers[name]
        self._waiting[name] = future = asyncio.get_running_loop().create_future()
        self.questions[name] = question
        before, self.states[path] = self.states.get(path), "waiting"
        self.emit("ask", path, {"question": name, "schema": dict(schema), "prompt": prompt})
        self._record_questions()
        self.check_stalled()
        try:
            async with while_run_waits(self.id):
                value = await future
                self._entering.add(name)
                self._record_questions()  # and the answer
                self.check_stalled()
        except asyncio.CancelledError:
            self.unanswered[name] = question
            raise
        finally:
            self.questions.pop(name, None)
            self._waiting.pop(name, None)
            self._entering.discard(name)
        self.states[path] = before or "running"
        self.emit("answered", path, {"question": name})
        self._record_questions()
        return value

    def _record_questions(self) -> None:
        if self._recorder is not None:
            self._recorder.questions_changed(self)

    @property
    def open_questions(self) -> tuple[NodeQuestion, ...]:
        """The questions without an answer; a node may not have received its answer yet."""
        if self.is_cancelled:
            return ()
        return tuple(question for name, question in [*self.questions.items()] if name in self._waiting)

    def answer(self, question: str, value: Any) -> bool:
        """Answer a question, from any thread. False: it is not open.

        Raises:
            InputInvalid: the answer does not fit the schema of the question, which stays open (INPUT_SCHEMA_INVALID).
        """
        asked, future = self.questions.get(question), self._waiting.get(question)
        if asked is None or future is None or self.loop is None:
            return False
        if (refusal := asked.refusal(value)) is not None:
            raise refusal
        with self._lock:
            if self._waiting.pop(question, None) is None:
                return False  # another answer came first
        self.answers[question] = value = deep_copy(value)
        if self._recorder is not None:  # the loop may be busy, and who answers has been promised that it counts
            self._recorder.answered(question, value)

        def give() -> None:
            if not future.done():
                future.set_result(deep_copy(value))

        try:
            self.loop.call_soon_threadsafe(give)
        except RuntimeError:  # its loop is closed, so it has ended
            return False
        return True

    # Events --------------------------------------------------------------------------------------------------------------

    def node_ended(
        self, state: NodeState, path: str, began: float = 0.0, outputs: Mapping[str, Any] | int | None = None
    ) -> None:
        """Record the final state of a node; `began`: its start or 0; `outputs`: these, or their approximate size."""
        self._end_chunks(path)
        self.states[path] = state
        self.emit(state, path, (began, outputs))
        self.check_stalled()
        if self._recorder is not None:
            self._recorder.node_ended(self, path)

    def failed(self, error: NodeError, is_repeated: bool, began: float) -> None:
        """Record that a node failed. `is_repeated`: the error of a group that only repeats an inner one."""
        self._end_chunks(error.path)
        self.states[error.path] = "error"
        if not is_repeated:
            self.errors.append(error)
        took = {"durationMs": max(0.0, round((time.time() - began) * 1000, 3))} if began else {}
        self.emit("error", error.path, {"error": error.to_json(), **took})
        self.check_stalled()

    def progress(self, path: str, done: float, total: float, text: str) -> None:
        """Record the progress of a node, from any thread; ignored after its end."""
        data = {"done": done, "total": total, "text": self.mask(str(text)[:LONGEST_CHUNK])}

        def wake() -> None:
            if not self.is_over and self.states.get(path) not in FINAL_STATES:
                self.emit("progress", path, data)

        if threading.get_ident() == self._thread:
            wake()
        elif self.loop is not None:
            with suppress(RuntimeError):  # its loop is closed, so it has ended
                self.loop.call_soon_threadsafe(wake)

    def chunk(self, path: str, number: int, chunks: Mapping[str, Any]) -> None:
        """Emit chunks that a node wrote to its streams, if there are listeners."""
        said = self._chunks.reported(path, number, chunks)
        if self._log.is_followed:
            self.emit("chunk", path, {"number": number, "chunks": said})

    def _end_chunks(self, path: str) -> None:
        for number, said in self._chunks.rest(path) if self._chunks else ():
            if self._log.is_followed:
                self.emit("chunk", path, {"number": number, "chunks": said})

    @property
    def event_count(self) -> int:
        """The number of events."""
        return len(self._log)

    @property
    def events_before(self) -> int:
        """The number of its events before it was resumed."""
        return self._log.before


def wanted_steps(prepared: PreparedPlan, to: Collection[str]) -> frozenset[int]:
    """The steps that lead to the nodes `to`; empty: all that the workflow wants. Raises UsageError: there is no such node (USAGE)."""
    plan = prepared.plan
    if not to:
        return plan.wanted
    steps = []
    for node in to:
        step = plan.step(node)
        if step is None:
            raise UsageError(
                f"the workflow has no node {node!r}", hint=f"nodes: {', '.join(s.id for s in plan.steps[:20])}"
            )
        steps.append(step.index)
    return frozenset(reachable(plan.needs, steps))


def _has_limits(prepared: PreparedPlan) -> bool:
    inner = any(_has_limits(each) for each in {id(p): p for p in prepared.inner.values()}.values())
    return inner or any(work.step.spec.limit is not None for work in prepared.works)
