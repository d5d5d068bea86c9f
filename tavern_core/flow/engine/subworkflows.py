"""Steps that run a workflow: once (`core:NodeGroup`), for each item (`core:Map`), or repeatedly (`core:Loop`).

Each run of the inner workflow has its own scheduler in the same run: its nodes have paths (``g/a``; ``m/0/a`` for the
first item), and the schedulers share nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from tavern_core.contract.nodes import MismatchedInput, Skip
from tavern_core.errors import BudgetExceeded
from tavern_core.flow.engine.channel import Channel, ChannelReader
from tavern_core.flow.engine.eager_task import together
from tavern_core.flow.engine.node_errors import GroupFailed
from tavern_core.flow.engine.node_runner import run_with_retries
from tavern_core.flow.engine.node_value_encoding import copy_containers, private
from tavern_core.flow.engine.plan_tables import PreparedPlan, PreparedStep
from tavern_core.flow.engine.protocols import SchedulerPart
from tavern_core.graph.plan import map_keys
from tavern_core.graph.slot_compatibility import nesting_mismatch, value_mismatch
from tavern_core.kernel.execution.sync_async_drivers import wait_bounded
from tavern_core.model.node import ABSENT, Slot

_AT_A_TIME: Final = 16
_MOST_ROUNDS: Final = 100
_IN_A_ROW: Final = 64
"""Rounds, or items, before the event loop can do other work."""


async def run_group(scope: SchedulerPart, number: int, work: PreparedStep, inputs: dict[str, Any]) -> dict[str, Any]:
    """Run the workflow of a group step and return its outputs, with retries and a time limit if its file sets them.

    Raises:
        GroupFailed: a node inside failed and nothing inside caught it.
        TimeLimit: it took too long.
    """

    async def once(attempt: int = 1) -> dict[str, Any]:
        body = _run_group(
            scope, number, work, copy_containers(inputs) if attempt < work.step.exec.retry.times + 1 else dict(inputs)
        )
        timeout = work.step.exec.timeout_ms
        return await (body if timeout is None else wait_bounded(body, timeout / 1000))

    if work.step.exec.retry.times and not work.step.streams:
        found: dict[str, Any] = await run_with_retries(scope, number, work, once)
        return found
    return await once()


async def _run_group(scope: SchedulerPart, number: int, work: PreparedStep, inputs: dict[str, Any]) -> dict[str, Any]:
    inner = scope.prepared.inner[number]
    marks: list[bytes] = []
    if work.step.kind != "group":
        for value in inputs.values():
            if isinstance(value, ChannelReader):
                value.pause(1)  # each inner run reads it from the beginning
    match work.step.kind:
        case "map":
            outputs = await _each(scope, work, inner, inputs, marks)
        case "loop":
            outputs = await _again(scope, work, inner, inputs, marks)
        case _:
            outputs = await _inside(scope, work, inner, inputs, marks, out=scope.streams.of(number))
    scope.depends.join(number, marks)
    return outputs


async def _inside(
    scope: SchedulerPart, work: PreparedStep, inner: PreparedPlan, inputs: Mapping[str, Any], marks: list[bytes],
    *, at: int | None = None, out: Mapping[str, Channel] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Run the inner workflow of a step once, of a map or loop number `at`; its dependencies are added to `marks`."""
    name = work.step.id if at is None else f"{work.step.id}/{at}"
    child = scope.child(inner, f"{scope.prefix}{name}/", interface_values(inner, inputs), out)
    if out is not None:
        for value in inputs.values():
            if isinstance(value, ChannelReader):
                value.leave()  # the inner nodes read it now
    await child.drive()
    marks.append(child.depends.digest())
    if child.unsettled:
        scope.unsettled.add(work.step.index)
    outputs = {key: child.results.get(key, Skip) for key in inner.plan.outputs}
    if child.fatal:
        raise GroupFailed(child.fatal, outputs)
    return outputs


def interface_values(inner: PreparedPlan, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Values for the interface of a workflow, defaults filled in; what has neither is left out.

    Raises:
        MismatchedInput: a required one is missing, or a value does not fit.
    """
    found: dict[str, Any] = {}
    for key, slot in inner.plan.inputs.items():
        value = inputs[key] if key in inputs else private(slot.default)
        if slot.is_stream and not isinstance(value, ChannelReader):
            value = Channel.of(_chunks(key, value)) if value is not ABSENT and value is not None else value
        if isinstance(value, ChannelReader):
            found[key] = value
            continue
        if why := input_mismatch(slot, value):
            raise MismatchedInput(key, why)
        if value is not ABSENT and value is not Skip:
            found[key] = value
    return found


def input_mismatch(slot: Slot, value: Any) -> str:
    """Why a value cannot be given to a slot of an interface, which is not a stream; empty: it can."""
    if value is ABSENT or value is Skip:
        return "is required and was not given" if slot.is_required({}) else ""
    return nesting_mismatch(value) or value_mismatch(slot, value)


async def _each(
    scope: SchedulerPart, work: PreparedStep, inner: PreparedPlan, inputs: dict[str, Any], marks: list[bytes]
) -> dict[str, Any]:
    """Run the inner workflow for each item, several at the same time; the answers have the order of the items."""
    items = inputs.pop("items", None)
    if not isinstance(items, list | tuple):
        raise MismatchedInput("items", f"takes a list, got {type(items).__name__}")
    into, index_into = map_keys(work.step.config, inner.plan.inputs)
    room = _count(work.step.config.get("concurrency"), _AT_A_TIME)
    results: list[Any] = [None] * len(items)
    own_marks: list[list[bytes]] = [[] for _ in items]
    failed: list[GroupFailed] = []
    mismatches: list[MismatchedInput] = []
    todo = iter(enumerate(items))

    async def runner() -> None:
        for at, item in todo:
            given_now = {**copy_containers(inputs), into: item} | ({index_into: at} if index_into else {})
            try:
                outputs = await _inside(scope, work, inner, given_now, own_marks[at], at=at)
            except GroupFailed as error:
                failed.append(error)
                continue
            except MismatchedInput as error:
                mismatches.append(MismatchedInput("items", f"item {at}: {error.slot}: {error.why}", error.hint))
                continue
            plain = {key: None if value is Skip else value for key, value in outputs.items()}
            results[at] = next(iter(plain.values())) if len(plain) == 1 else plain
            if at % _IN_A_ROW == _IN_A_ROW - 1:
                await asyncio.sleep(0)

    await together([runner() for _ in range(min(room, len(items)))])
    marks.extend(mark for each in own_marks for mark in each)
    if mismatches:
        raise mismatches[0]
    if failed:
        raise GroupFailed(
            [error for each in failed for error in each.errors], {"results": results, "count": len(results)}
        )
    return {"results": results, "count": len(results)}


async def _again(
    scope: SchedulerPart, work: PreparedStep, inner: PreparedPlan, inputs: dict[str, Any], marks: list[bytes]
) -> dict[str, Any]:
    """Run the inner workflow until its output `done` (or `until`) is true; outputs become the inputs of the same name.

    Raises:
        BudgetExceeded: it was not done after `maxIterations` rounds (BUDGET_EXCEEDED).
    """
    config = work.step.config
    most = _count(config.get("maxIterations"), _MOST_ROUNDS)
    stop = str(config.get("until") or "done")
    state, outputs = dict(inputs), dict[str, Any]()
    for at in range(most):
        given_now = copy_containers(state) | ({"index": at} if "index" in inner.plan.inputs else {})
        outputs = await _inside(scope, work, inner, given_now, marks, at=at)
        if outputs.get(stop) is True:
            return outputs | {"iterations": at + 1}
        if at % _IN_A_ROW == _IN_A_ROW - 1:
            await asyncio.sleep(0)
        state.update({key: value for key, value in outputs.items() if key in inner.plan.inputs and value is not Skip})
    if stop not in inner.plan.outputs:
        return outputs | {"iterations": most}
    raise BudgetExceeded(
        f"{work.step.id} was not done after {most} rounds",
        hint=f"let its output {stop!r} become true, or raise maxIterations",
        limit="maxIterations",
        most=most,
    )


def _chunks(key: str, value: Any) -> list[Any]:
    """The chunks of a stream that was passed as a whole."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list | tuple):
        return list(value)
    raise MismatchedInput(key, f"takes a list of chunks, got {type(value).__name__}")


def _count(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default
