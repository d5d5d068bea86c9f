"""Running a tool, and converting its answer to a result.

`execute_of` is the innermost step. It returns an awaitable, or the value itself if nothing has to be awaited: a fast sync
tool costs no coroutine. The steps of its limits are composed around it when its plan is compiled (`optional_steps.py`).
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, Final

from tavern_core.contract.protocols import BoundTool
from tavern_core.errors import OutputInvalid
from tavern_core.kernel.calls.call_errors import explained, timed_out
from tavern_core.kernel.calls.result_normalisation import to_result
from tavern_core.kernel.calls.running_call import CallLimits, RunningCall
from tavern_core.kernel.calls.taint_tracking import mark_sources, taken_over
from tavern_core.kernel.catalogue.call_plan import CallPlan, Execute, Runner
from tavern_core.kernel.execution.sync_async_drivers import ExecutionMode
from tavern_core.kernel.execution.threads import Owner
from tavern_core.model.result import ToolResult, success

SMALL_BITS: Final = 64
"""Integers with fewer bits can always be written as JSON."""


def execute_of(bound: BoundTool, owner: Owner, *, in_thread: bool = False) -> Execute:
    """The function that runs a tool, by its kind.

    Args:
        owner: plugin and id: decides which threads a blocking tool uses.
        in_thread: whether sync work runs in a thread, so that its caller can watch the time.
    """
    run = bound.run

    def awaited(call: RunningCall, mode: ExecutionMode) -> Any:
        if call.deadline is None:
            return run(call.tool_arguments, call.call_for_tool)
        seconds = call.time_left()
        return mode.awaited(run(call.tool_arguments, call.call_for_tool), seconds)

    def threaded(call: RunningCall, mode: ExecutionMode) -> Any:
        return mode.blocking(run, call.tool_arguments, call.call_for_tool, seconds=call.time_left(), owner=owner)

    def at_once(call: RunningCall, mode: ExecutionMode) -> Any:
        if call.deadline is not None:
            call.time_left()
        return run(call.tool_arguments, call.call_for_tool)

    if bound.is_async:
        return awaited
    return threaded if bound.blocking or in_thread else at_once


def runner_of(
    bound: BoundTool, owner: Owner, kind: str, *, preview: Execute | None = None, in_thread: bool = False
) -> Runner:
    """The function that runs a tool of this kind; the arguments are those of `execute_of`."""
    return Runner(
        bound,
        execute_of(bound, owner, in_thread=in_thread),
        bound.is_async or bound.blocking or in_thread,
        preview,
        f"runs the {kind} tool {_way_of(bound)}",
    )


def _way_of(bound: BoundTool) -> str:
    """The way in which `execute_of` runs the tool, in words."""
    if bound.place:
        return bound.place
    if bound.is_async:
        return "on the event loop"
    return "in a worker thread" if bound.blocking else "at once, on the thread of the caller"


def accept(plan: CallPlan, call: RunningCall, value: Any, limits: CallLimits, series: str) -> ToolResult:
    """The result of a tool that returned `value`.

    Raises:
        CallTimeout: it returned after its deadline (TIMEOUT, outcome ``done``).
        OutputInvalid, OutputTooLarge: its answer is not JSON, does not fit the output schema, or is too large.
    """
    now = perf_counter()
    if call.deadline is not None and now > call.deadline:
        if limits.keep_raw:
            call.value = value
        raise timed_out(call, stopped=False, outcome="done")
    call.stage, kind = plan.answers.stage, type(value)
    trace = (plan.id, call.number, call.started, now - call.clock, series)
    if kind in plan.answers.accepted_types and (kind is not int or value.bit_length() < SMALL_BITS):
        result = success(value, trace)
        return mark_sources(call, result) if call.reads else result
    if limits.keep_raw:
        call.value = value
    result = to_result(value, trace, limits.output_bytes, plan.id)
    if result._meta is not None:
        result = taken_over(call, result)
    accepts = plan.answers.accepts
    if accepts is not None and result.ok and not accepts(result.value) and plan.answers.apply_to(result):
        raise _output_invalid(plan, result.value)
    if call.reads:
        result = mark_sources(call, result)
    return result.replace(raw=value) if limits.keep_raw else result


def _output_invalid(plan: CallPlan, value: Any) -> OutputInvalid:
    assert plan.answers.validator is not None
    error = explained(OutputInvalid, plan.id, plan.answers.validator, value, "answer")
    # The hints of the schema are for the tool's author, not for the caller.
    error.hint = "report it to the plugin's author"
    for problem in error.details["problems"]:
        problem.pop("hint", None)
    error.outcome = "none" if plan.spec.read_only else "done"
    return error
