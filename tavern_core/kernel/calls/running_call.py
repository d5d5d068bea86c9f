"""One call on its way through the pipeline: what its steps have found out so far."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar, Token
from time import perf_counter, time
from typing import Any

from tavern_core.contract.stores import Record
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.catalogue.call_plan import CallPlan
from tavern_core.kernel.execution.sync_async_drivers import TimeLimit, cancellations, running_task
from tavern_core.kernel.log.call_changes import CallChange
from tavern_core.model.call import CallContext, ToolCall
from tavern_core.model.config import ArtifactsConfig, LimitsConfig
from tavern_core.model.result import CallTrace

Frame = tuple[int, float | None, CallContext | None, str, Any]
"""(depth, deadline on the monotonic clock, context, call id, reader) of the call that is running; the host itself has no context.

The reader is what has read the content that the call reads (`taint_tracking.ContentReader`): the call itself, or a run; None: nothing.
"""

current: ContextVar[Frame | None] = ContextVar("tavern_call", default=None)
frame, enter, leave = current.get, current.set, current.reset
"""The methods of `current`, looked up once: each call of a tool needs all three."""


@dataclass(frozen=True, slots=True)
class CallLimits:
    """What `limits` of tavern.yaml says of a call; read at every call, which attributes of a pydantic model are too slow for."""

    depth: int
    """How many calls may be within each other."""
    argument_bytes: int
    output_bytes: int
    keep_raw: bool
    inline_bytes: int | None = None
    """Bytes of an answer from which on it becomes an artifact; None: never."""
    preview: int = 0
    """Characters of it that are shown then."""

    @classmethod
    def of(cls, config: LimitsConfig, artifacts: ArtifactsConfig) -> CallLimits:
        largest = config.output_bytes if artifacts.over is None else artifacts.max_bytes
        return cls(config.depth, config.argument_bytes, largest, config.keep_raw, artifacts.over, artifacts.preview)


class RunningCall:
    """The state of one call. Each step reads what earlier steps stored, and adds its own."""

    # Slots for what every call has. What only some calls have is an attribute of the class until it is set: `begin` runs for every call.
    __slots__ = (
        "__dict__", "arguments", "call", "clock", "context", "deadline", "depth", "door", "given", "handed", "key",
        "number", "outer", "plan", "purpose", "reads", "stage", "started", "task", "token", "values", "written",
    )  # fmt: skip

    # What came in, and when.
    written: str
    arguments: Mapping[str, Any] | None
    context: CallContext | None
    purpose: str
    key: str | None
    door: str
    number: int
    outer: Frame | None
    started: float
    clock: float
    # What the steps find out.
    stage: str
    """The step that runs, for `details.stage` of an error; `CallPlan.steps` names them."""
    plan: CallPlan | None
    depth: int
    deadline: float | None
    """On the monotonic clock."""
    values: Mapping[str, Any] | None
    """The arguments as plain JSON of the host's own."""
    call: ToolCall | None
    """None where no step looks at it; see `CallPlan.needs_call`."""
    given: Mapping[str, Any]
    """What the tool gets of `values`."""
    handed: ToolCall | None
    """`call` as the tool gets it."""
    task: asyncio.Task[Any] | None
    """The one in which it runs; None without an event loop."""
    token: Token[Frame | None] | None
    """Set while, and after, the tool runs."""
    reads: Mapping[str, None] | None
    """The sources of untrusted content that it, or a call within it, has read; None: nothing is recorded, nor watched."""
    # What few calls have.
    cancellations: int = 0
    """How many cancellations its task had had when it began; see `cancellations()`."""
    asked: Mapping[str, Any] | None = None
    """`values` as the caller gave them, where hooks may have changed them."""
    fits: bool = False
    """Whether `values` are known to fit the schema."""
    changes: list[CallChange] | None = None
    """What hooks changed of the arguments; None where no hook may."""
    is_recorded: bool = False
    """Whether the log has the beginning of the call."""
    is_cancelled: bool = False
    """Whether it was cancelled (`Pipeline.cancel`), or its caller no longer waits for it."""
    used_up: tuple[Record, ...] = ()
    """What it needed to run and can be used once, an approval and a plan token: each as it was before, to be given back if the
    tool does not begin."""
    is_unsure: bool = False
    """Whether an attempt before the current one may have had an effect: then the call may have had one."""
    is_again: bool = False
    """Whether a process that has ended began the call of this key."""
    limit: tuple[str, float] | None = None
    """The limit of one try that ended it, and its milliseconds; None: none did."""
    value: Any = None
    """What the tool returned; only when the host keeps it (`limits.keepRaw`)."""
    broken: BaseException | None = None
    """What ended it and is not a failure that the host knows: its traceback is logged."""
    moved_at: float = 0.0
    """When it last said how far it is, on the monotonic clock."""

    @property
    def name(self) -> str:
        """The tool's id; as it was written when there is no such tool."""
        if self.plan is not None:
            return self.plan.id
        return self.written[:200] if isinstance(self.written, str) else f"<{type(self.written).__name__}>"

    def time_left(self) -> float | None:
        """Seconds until the deadline; None: no deadline.

        Raises:
            TimeLimit: it has passed.
        """
        if self.deadline is None:
            return None
        left = self.deadline - perf_counter()
        if left <= 0:
            raise TimeLimit(stopped=True, begun=False)
        return left

    @property
    def seconds(self) -> float | None:
        """Seconds until the deadline, at least 0; None: there is none."""
        return None if self.deadline is None else max(self.deadline - perf_counter(), 0)

    def trace(self, series: str) -> CallTrace:
        """What the result says of the call itself: tool, number, when it started (s since the epoch), duration (s)."""
        return (self.name, self.number, self.started, perf_counter() - self.clock, series)


class TracedCall(RunningCall):
    """A call that writes down when each of its steps began."""

    __slots__ = ("_stage", "steps")

    steps: list[tuple[str, float]]

    @property
    def stage(self) -> str:
        return self._stage

    @stage.setter
    def stage(self, name: str) -> None:
        self._stage = name
        self.steps.append((name, perf_counter()))


def begin_traced(call: RunningCall, steps: list[tuple[str, float]]) -> TracedCall:
    """`call`, just begun, with a listener for its steps."""
    traced = TracedCall()
    traced.steps = steps
    for name in RunningCall.__slots__:
        if name != "stage" and hasattr(call, name):
            setattr(traced, name, getattr(call, name))
    traced.stage = call.stage
    return traced


def frame_of(plan: CallPlan, call: RunningCall) -> Frame:
    """What the calls that a tool makes see of its own."""
    caller = None if call.context is plan.admission.host else call.context
    return (call.depth, call.deadline, caller, call.call.id if call.call else "", call)


def begin(
    written: str,
    arguments: Mapping[str, Any] | None,
    context: CallContext | None,
    purpose: str,
    key: str | None,
    door: str,
    number: int,
) -> RunningCall:
    """A call that has just come in; the arguments are those of `Pipeline.run`."""
    call = RunningCall()  # and no __init__, which would cost half as much again
    call.written = written
    call.arguments = arguments
    call.context = context
    call.purpose = purpose
    call.key = key
    call.door = door
    call.number = number
    call.outer = frame()
    task = call.task = running_task()
    if task is not None and task.cancelling():
        call.cancellations = cancellations()
    call.started = time()
    call.clock = perf_counter()
    call.stage = "resolve"
    call.plan = None
    call.depth = 0
    call.deadline = None
    call.values = None
    call.call = None
    call.handed = None
    call.token = None
    call.reads = None
    return call
