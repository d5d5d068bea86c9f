"""The state of one call in the pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar, Token
from time import perf_counter, time
from typing import Any

from tavern_core.contract.stores import Record
from tavern_core.contract.tool_context import RUNNING
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.catalogue.call_plan import CallPlan
from tavern_core.kernel.execution.sync_async_drivers import TimeLimit, cancellations, running_task
from tavern_core.kernel.log.call_changes import CallChange
from tavern_core.model.call import CallContext, ToolCall
from tavern_core.model.config import ArtifactsConfig, LimitsConfig
from tavern_core.model.result import CallTrace

Frame = tuple[int, float | None, CallContext | None, str, Any]
"""(depth, deadline on the monotonic clock, context, call id, reader) of the running call; the host has no context.

The reader (`taint_tracking.ContentReader`) is what has read the call's content: the call itself, or a run; None:
nothing.
"""

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

    # Slots hold what every call has. The rest are class attributes until they are set: `begin` is on the hot path.
    __slots__ = (
        "__dict__",
        "arguments",
        "call",
        "call_for_tool",
        "clock",
        "context",
        "deadline",
        "depth",
        "door",
        "key",
        "number",
        "outer",
        "plan",
        "purpose",
        "reads",
        "stage",
        "started",
        "task",
        "token",
        "tool_arguments",
        "values",
        "written",
    )  # fmt: skip

    # Input, and its time.
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
    # Set by the steps.
    stage: str
    """The current step, for `details.stage` of an error; `CallPlan.steps` lists the names."""
    plan: CallPlan | None
    depth: int
    deadline: float | None
    """On the monotonic clock."""
    values: Mapping[str, Any] | None
    """The arguments as the host's own copy in plain JSON."""
    call: ToolCall | None
    """None if no step needs it; see `CallPlan.needs_call`."""
    tool_arguments: Mapping[str, Any]
    """The part of `values` that the tool gets."""
    call_for_tool: ToolCall | None
    """`call` as the tool gets it."""
    task: asyncio.Task[Any] | None
    """The task in which the call runs; None without an event loop."""
    token: Token[Frame | None] | None
    """Set from the start of the tool on."""
    reads: Mapping[str, None] | None
    """The sources of untrusted content that this call, or a nested one, has read; None: not recorded."""
    # Only some calls have these.
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
    """Turn a call that has just begun into one that records its steps."""
    traced = TracedCall()
    traced.steps = steps
    for name in RunningCall.__slots__:
        if name != "stage" and hasattr(call, name):
            setattr(traced, name, getattr(call, name))
    traced.stage = call.stage
    return traced


def frame_of(plan: CallPlan, call: RunningCall) -> Frame:
    """The frame that calls nested in this one see."""
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
    """Create a call at its beginning; the arguments are those of `Pipeline.run`."""
    call = RunningCall()  # without an __init__, which would take half as long again
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
    call.call_for_tool = None
    call.token = None
    call.reads = None
    return call


def end(call: RunningCall, token: Token[Frame | None] | None) -> None:
    """End the call: it encloses no other call any more, it cannot be cancelled, and its progress cannot be read."""
    if token is not None:
        try:
            leave(token)
        except ValueError:  # it ends in another context than the one in which it began
            pass
    if (plan := call.plan) is not None:
        plan.usage.calls.discard(call)
        if call.call is not None and plan.runner.bound.wants_control:
            RUNNING.pop(call.call.id, None)
