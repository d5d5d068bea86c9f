"""Steps that stand for a workflow: run once (`core:NodeGroup`), for each item (`core:Map`), or again and again (`core:Loop`).

Each run of the inner workflow is a scope of its own, below the same run: its nodes have paths (``g/a``; ``m/0/a`` for the
first item), and nothing is shared between the scopes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from tavern_core.contract.nodes import Skip
from tavern_core.errors import BudgetExceeded
from tavern_core.graph.plan import map_keys
from tavern_core.graph.slots import value_misfit
from tavern_core.kernel.engine.parts import ScopePart
from tavern_core.kernel.engine.prepared import Prepared, Work
from tavern_core.kernel.engine.trouble import GroupFailed, MisfitInput
from tavern_core.model.node import ABSENT

_AT_A_TIME: Final = 16
_MOST_ROUNDS: Final = 100


async def run_group(scope: ScopePart, number: int, work: Work, inputs: dict[str, Any]) -> dict[str, Any]:
    """Run what a group step stands for, and give its outputs.

    Raises:
        GroupFailed: a node inside failed and nothing inside caught it.
    """
    inner = scope.prepared.inner[number]
    marks: list[bytes] = []
    match work.step.kind:
        case "map":
            outputs = await _each(scope, work, inner, inputs, marks)
        case "loop":
            outputs = await _again(scope, work, inner, inputs, marks)
        case _:
            outputs = await _inside(scope, work.step.id, inner, inputs, marks)
    scope.mark(number, marks)
    return outputs


async def _inside(
    scope: ScopePart, name: str, inner: Prepared, inputs: Mapping[str, Any], marks: list[bytes]
) -> dict[str, Any]:
    """One run of the inner workflow below `name`; what it depended on is added to `marks`."""
    child = scope.child(inner, f"{scope.prefix}{name}/", given(inner, inputs))
    await child.drive()
    marks.append(child.digest())
    outputs = {key: child.results.get(key, Skip) for key in inner.plan.outputs}
    if child.fatal:
        raise GroupFailed(child.fatal, outputs)
    return outputs


def given(inner: Prepared, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Values for the interface of a workflow, defaults filled in.

    Raises:
        MisfitInput: a required one is missing, or a value does not fit.
    """
    found: dict[str, Any] = {}
    for key, slot in inner.plan.inputs.items():
        value = inputs.get(key, slot.default)
        if value is ABSENT or value is Skip:
            if slot.is_required({}):
                raise MisfitInput(key, "is required and was not given")
            value = None
        elif why := value_misfit(slot, value):
            raise MisfitInput(key, why)
        found[key] = value
    return found


async def _each(
    scope: ScopePart, work: Work, inner: Prepared, inputs: dict[str, Any], marks: list[bytes]
) -> dict[str, Any]:
    """Once for each item, several at a time; the answers in the order of the items."""
    items = inputs.pop("items", None)
    if not isinstance(items, list | tuple):
        raise MisfitInput("items", f"takes a list, got {type(items).__name__}")
    config = work.step.config
    into, index_into = map_keys(config, inner.plan.inputs)
    room = asyncio.Semaphore(_count(config.get("concurrency"), _AT_A_TIME))
    failed: list[GroupFailed] = []
    own_marks: list[list[bytes]] = [[] for _ in items]

    async def one(at: int, item: Any) -> Any:
        async with room:
            own = {**inputs, into: item} | ({index_into: at} if index_into else {})
            try:
                outputs = await _inside(scope, f"{work.step.id}/{at}", inner, own, own_marks[at])
            except GroupFailed as error:
                failed.append(error)
                return None
        plain = {key: None if value is Skip else value for key, value in outputs.items()}
        return next(iter(plain.values())) if len(plain) == 1 else plain

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one(at, item)) for at, item in enumerate(items)]
    results = [task.result() for task in running]
    marks.extend(mark for each in own_marks for mark in each)
    if failed:
        raise GroupFailed(failed[0].errors, {"results": results})
    return {"results": results, "count": len(results)}


async def _again(
    scope: ScopePart, work: Work, inner: Prepared, inputs: dict[str, Any], marks: list[bytes]
) -> dict[str, Any]:
    """Again and again: outputs become the inputs of the same name, until the output `done` (or `until`) is true.

    Raises:
        BudgetExceeded: it was not done after `maxIterations` rounds (BUDGET_EXCEEDED).
    """
    config = work.step.config
    most = _count(config.get("maxIterations"), _MOST_ROUNDS)
    stop = str(config.get("until") or "done")
    state, outputs = dict(inputs), dict[str, Any]()
    for at in range(most):
        own = state | ({"index": at} if "index" in inner.plan.inputs else {})
        outputs = await _inside(scope, f"{work.step.id}/{at}", inner, own, marks)
        if outputs.get(stop) is True:
            return outputs | {"iterations": at + 1}
        state.update({key: value for key, value in outputs.items() if key in inner.plan.inputs and value is not Skip})
    if stop not in inner.plan.outputs:
        return outputs | {"iterations": most}
    raise BudgetExceeded(
        f"{work.step.id} was not done after {most} rounds", hint=f"let its output {stop!r} become true, or raise maxIterations", limit=most
    )


def _count(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default
