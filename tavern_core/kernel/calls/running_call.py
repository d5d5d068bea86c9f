"""The state of one call in the pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from time import perf_counter, time
from typing import Any, Protocol

from tavern_core.contract.stores import Record
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.catalogue.call_plan import CallPlan
from tavern_core.kernel.execution.sync_async_drivers import TimeLimit, cancellations, running_task
from tavern_core.kernel.log.call_changes import CallChange
from tavern_core.model.call import CallContext, ToolCall
from tavern_core.model.config import ArtifactsConfig, LimitsConfig
from tavern_core.model.result import CallTrace


class Frame(Protocol):
    """What nested calls see of the call, or of the run, that makes them."""

    @property
    def depth(self) -> int: ...

    @property
    def deadline(self) -> float | None:
        """On the monotonic clock."""
        ...

    @property
    def caller(self) -> CallContext | None:
        """The context of nested calls; None: the host's."""
        ...

    @property
    def call_id(self) -> str: ...

    @property
    def reader(self) -> Any:
        """What has read the content of nested calls (`taint_tracking.ContentReader`); None: nothing."""
        ...


@dataclass(frozen=True, slots=True)
class FixedFrame:
    """A frame that is not a call: of a run, a job, or code in a worker."""

    depth: int = 0
    deadline: float | None = None
    caller: CallContext | None = None
    call_id: str = ""
    reader: Any = None


current: ContextVar[Frame | None] = ContextVar("tavern_call", default=None)
frame, enter, leave = current.get, current.set, current.reset
"""The methods of `current`, looked up once: each call of a tool needs all three."""


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The `limits` of tavern.yaml for calls. Every call reads them, for which a pydantic model is too slow."""

    depth: int
    """How deep calls may be nested."""
    argument_bytes: int
    output_bytes: int
    keep_raw: bool
    inline_bytes: int | None = None
    """From how many bytes on an answer becomes an artifact; None: never."""
    preview: int = 0
    """Characters of such an answer that are returned with the link."""

    @classmethod
    def of(cls, config: LimitsConfig, artifacts: ArtifactsConfig) -> CallLimits:
        largest = config.output_bytes if artifacts.over is None else artifacts.max_bytes
        return cls(config.depth, config.argument_bytes, largest, config.keep_raw, artifacts.over, artifacts.preview)


@dataclass(frozen=True, slots=True)
class SingleUse:
    """An approval or a plan token, which lets a call run once."""

    before: Record
    """The unused record, with the version that its store has now."""
    used: Record
    is_own: bool
    """Whether this call used it up; False: an earlier call with the same idempotency key did."""


class RunningCall:
    """The state of one call. Each step reads what earlier steps stored, and adds to it."""

    # Set by `begin`.
    number: int
    outer: Frame | None
    started: float
    """Seconds since the epoch."""
    clock: float
    """The same moment on the monotonic clock."""
    task: asyncio.Task[Any] | None
    """The task in which the call runs; None without an event loop."""
    reads: Mapping[str, None] | None
    """The sources of untrusted content that this call, or a nested one, has read; None: not recorded."""
    stage: str
    """The current step, for `details.stage` of an error; `CallPlan.steps` lists the names."""
    plan: CallPlan | None
    values: Mapping[str, Any] | None
    """The arguments as the host's own copy in plain JSON."""
    # Class attributes until they are set: a call by the host without any option needs few of them.
    written: str
    arguments: Mapping[str, Any] | None
    context: CallContext | None = None
    purpose: str = ""
    key: str | None = None
    door: str = "api"
    depth: int = 0
    deadline: float | None = None
    """On the monotonic clock."""
    call: ToolCall | None = None
    """None if no step needs it; see `CallPlan.needs_call`."""
    tool_arguments: Mapping[str, Any]
    """The part of `values` that the tool gets."""
    call_for_tool: ToolCall | None = None
    """`call` as the tool gets it."""
    has_begun: bool = False
    """Whether its tool has begun."""
    cancellations: int = 0
    """Number of cancellations that its task already had when the call began; see `cancellations()`."""
    caller_values: Mapping[str, Any] | None = None
    """`values` as the caller passed them, if hooks may have changed them."""
    is_validated: bool = False
    """Whether `values` are known to fit the schema."""
    changes: list[CallChange] | None = None
    """The changes that hooks made to the arguments; None if no hook may change them."""
    is_recorded: bool = False
    """Whether the beginning of the call is in the log."""
    is_cancelled: bool = False
    """Whether the call was cancelled (`Cancellation.cancel`), or its caller no longer waits for it."""
    used_up: tuple[SingleUse, ...] = ()
    """The approval and the plan token of the call. What it used up itself is given back if the tool does not begin."""
    is_unsure: bool = False
    """Whether an earlier attempt may have had an effect, so that the call may have had one."""
    is_again: bool = False
    """Whether the call with this key was begun by a process that has ended."""
    limit: tuple[str, float] | None = None
    """The limit that ended an attempt, and its milliseconds; None: no limit did."""
    value: Any = None
    """What the tool returned; only if the host stores it (`limits.keepRaw`)."""
    unexpected_error: BaseException | None = None
    """The unexpected exception that ended the call: its traceback is logged."""
    moved_at: float = 0.0
    """Time of the last reported progress, on the monotonic clock."""

    @property
    def name(self) -> str:
        """The tool's id; if there is no such tool, the name as the caller wrote it."""
        if self.plan is not None:
            return self.plan.id
        return self.written[:200] if isinstance(self.written, str) else f"<{type(self.written).__name__}>"

    @property
    def caller(self) -> CallContext | None:
        """See `Frame`; likewise `call_id` and `reader`."""
        return None if self.plan is not None and self.context is self.plan.admission.host else self.context

    @property
    def call_id(self) -> str:
        return self.call.id if self.call is not None else ""

    @property
    def reader(self) -> RunningCall:
        return self

    def time_left(self) -> float | None:
        """Seconds until the deadline; None: no deadline.

        Raises:
            TimeLimit: the deadline has passed.
        """
        if self.deadline is None:
            return None
        remaining = self.deadline - perf_counter()
        if remaining <= 0:
            raise TimeLimit(stopped=True, begun=False)
        return remaining

    @property
    def seconds(self) -> float | None:
        """Seconds until the deadline, at least 0; None: there is none."""
        return None if self.deadline is None else max(self.deadline - perf_counter(), 0)

    def trace(self, series: str) -> CallTrace:
        """The result's data about its call: tool, number, start (seconds since the epoch), duration (seconds)."""
        return (self.name, self.number, self.started, perf_counter() - self.clock, series)


class TracedCall(RunningCall):
    """A call that records the start of each of its steps."""

    steps: list[tuple[str, float]]

    @property
    def stage(self) -> str:
        return self._stage

    @stage.setter
    def stage(self, name: str) -> None:
        self._stage = name
        self.steps.append((name, perf_counter()))


def traced(call: RunningCall, steps: list[tuple[str, float]]) -> TracedCall:
    """A call that has just begun, which adds its steps to `steps`."""
    traced_call = TracedCall()
    traced_call.steps = steps
    vars(traced_call).update(vars(call))
    traced_call.stage = call.stage
    return traced_call


def begin(number: int) -> RunningCall:
    """Create a call at its beginning; `of_request` adds the options of its caller."""
    call = RunningCall()  # without an __init__, which would take half as long again
    call.number = number
    call.outer = frame()
    task = call.task = running_task()
    if task is not None and task.cancelling():
        call.cancellations = cancellations()
    call.started = time()
    call.clock = perf_counter()
    call.stage = "resolve"
    call.plan = None
    call.values = None
    call.reads = None
    return call


def of_request(
    call: RunningCall,
    written: str,
    arguments: Mapping[str, Any] | None,
    context: CallContext | None,
    purpose: str = "",
    key: str | None = None,
    door: str = "api",
) -> RunningCall:
    """Add what is requested to a call that has just begun; the arguments are those of `Pipeline.run`."""
    call.written = written
    call.arguments = arguments
    call.context = context
    call.purpose = purpose
    call.key = key
    call.door = door
    return call
