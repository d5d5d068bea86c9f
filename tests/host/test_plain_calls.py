"""A call has the same result whichever way it takes: first or later, plain or with an option, with the log or without it."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tavern_core import CallContext, Plugin, Tavern, ToolResult, ToolSpec, hookimpl, tool
from tavern_core.builtin.executors.python import PythonExecutor
from tavern_core.contract.protocols import BoundTool

from .conftest import Opened, run, tools

QUIET: dict[str, Any] = {"audit": {"enabled": False}}
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@tool(fast=True)
def late(n: int) -> Any:
    """Return an awaitable."""

    async def later() -> int:
        await asyncio.sleep(0)
        return n

    return later()


@tool(fast=True)
def stops(n: int) -> int:
    """Raise what a coroutine cannot raise."""
    raise StopIteration(n)


@tool
async def twice(n: int) -> int:
    """Suspend twice."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return n


def of(result: ToolResult) -> tuple[Any, ...]:
    error = result.error
    return result.ok, result.value, error and (error.kind, error.message, error.details.get("exception"))


OPTIONS: list[dict[str, Any]] = [{}, {"context": CallContext()}, {"purpose": "why"}, {"idempotency_key": "k"}]


@pytest.mark.parametrize("name", ["late", "stops", "twice"])
def test_each_call_of_a_tool_has_the_same_result_with_any_option_and_log(opened: Opened, name: str) -> None:
    found = set()
    for config in (QUIET, {}):
        host = opened(tools(late, stops, twice), config=config)
        for options in OPTIONS:
            for n in (3, 3) if "idempotency_key" not in options else (3,):
                found.add(of(host.invoke_sync(f"t:{name}", {"n": n}, **options)))
                other = {"idempotency_key": "l"} if "idempotency_key" in options else options
                found.add(of(run(host.invoke(f"t:{name}", {"n": n}, **other))))
    assert len(found) == 1, found
    ok, value, error = found.pop()
    assert (ok, value) == ((False, None) if name == "stops" else (True, 3))
    assert name != "stops" or error[2] == "StopIteration"


@pytest.mark.parametrize("config", [QUIET, {}], ids=["quiet", "with the log"])
@pytest.mark.parametrize("options", [{}, {"context": CallContext()}], ids=["plain", "for a caller"])
def test_a_call_may_end_in_another_context_than_the_one_in_which_it_began(
    opened: Opened, config: dict[str, Any], options: dict[str, Any]
) -> None:
    host = opened(tools(twice), config=config)

    async def step_in_two_contexts() -> ToolResult:
        call = host.invoke("t:twice", {"n": 4}, **options)
        first, second = contextvars.copy_context(), contextvars.copy_context()
        first.run(call.send, None)
        while True:
            try:
                second.run(call.send, None)
            except StopIteration as ended:
                return ended.value  # type: ignore[no-any-return]

    for _ in range(2):
        assert of(run(step_in_two_contexts())) == (True, 4, None)


class Counting(PythonExecutor):
    """Counts the runs of tools, as a wrapper of another plugin may do."""

    def __init__(self) -> None:
        self.runs = 0

    def bind(self, spec: ToolSpec, home: Any, /) -> BoundTool:
        bound = super().bind(spec, home)

        def run(arguments: Mapping[str, Any], call: Any) -> Any:
            self.runs += 1
            return bound.run(arguments, call)

        return dataclasses.replace(bound, run=run)


class Controlled:
    """Makes tools that want the control of their calls, but not the calls."""

    def bind(self, spec: ToolSpec, home: Any, /) -> BoundTool:
        return BoundTool(lambda arguments, call: arguments["n"], is_async=False, blocking=False, wants_control=True)


def with_executor(executor: Any) -> Plugin:
    class Offers:
        @hookimpl
        def tavern_register_executors(self) -> Any:
            return {"own": executor}

        @hookimpl
        def tavern_register_tools(self) -> Any:
            def one(n: int) -> int:
                return n

            return [ToolSpec("one", kind="own", input_schema=NUMBER, impl=one, fast=True)]

    return Plugin(Offers(), name="w")


def test_an_executor_that_wraps_the_one_for_python_sees_every_call(opened: Opened) -> None:
    counting = Counting()
    host = opened(with_executor(counting), config=QUIET)
    assert [of(host.invoke_sync("w:one", {"n": 1})) for _ in range(3)] == [(True, 1, None)] * 3
    assert counting.runs == 3


@pytest.mark.parametrize("config", [QUIET, {}], ids=["quiet", "with the log"])
def test_a_tool_that_wants_control_and_no_call_runs(opened: Opened, config: dict[str, Any]) -> None:
    host = opened(with_executor(Controlled()), config=config)
    assert [of(host.invoke_sync("w:one", {"n": 1})) for _ in range(2)] == [(True, 1, None)] * 2


def test_what_an_attempt_left_behind_makes_no_call_after_its_time(opened: Opened) -> None:
    ended: list[tuple[Any, ...]] = []
    spawned: list[asyncio.Task[None]] = []
    now = asyncio.Event()

    @tool(idempotent=True, limits={"attempt_ms": 50})
    async def spawns() -> int:
        """Start a task that outlives the attempt."""

        async def goes_on() -> None:
            await now.wait()
            result = await host.invoke("t:twice", {"n": 1})
            ended.append((result.ok, result.error and result.error.kind))

        spawned.append(asyncio.create_task(goes_on()))
        await asyncio.Event().wait()
        return 1

    host: Tavern = opened(tools(spawns, twice), config=QUIET)

    async def main() -> ToolResult:
        result = await host.invoke("t:spawns")
        now.set()
        await asyncio.gather(*spawned)
        return result

    result = run(main())
    assert result.error is not None and result.error.kind == "TIMEOUT"
    assert ended == [(False, "TIMEOUT")]


MISUSED: dict[str, Callable[[Tavern], ToolResult]] = {
    "a list as name": lambda host: host.invoke_sync(["t"], {}, context=CallContext(principal="agent:a"), purpose="why"),  # type: ignore[arg-type]
    "a list as name, traced": lambda host: host.invoke_from_sync("cli", ["t"], {}, trace=True),  # type: ignore[arg-type]
    "text as context": lambda host: host.invoke_sync("t:twice", {"n": 1}, context="agent:a"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("how", list(MISUSED))
def test_a_misused_call_is_an_error_and_recorded_alike_before_and_after_its_tool_is_ready(
    opened: Opened, how: str
) -> None:
    host = opened(tools(twice))
    events: list[Any] = []
    host.events.subscribe(events.append, "TOOL_RESULT")
    results, seen = [], []
    for _ in range(2):
        events.clear()
        results.append(of(MISUSED[how](host)))
        seen += [(event.plugin, event.data.get("principal"), event.data.get("purpose")) for event in events]
        host.invoke_sync("t:twice", {"n": 1})
    assert results[0] == results[1] and results[0][0] is False
    assert len(set(seen)) == 1 and len(seen) == 2, seen
    if "name" in how and "traced" not in how:
        assert seen[0][1:] == ("agent:a", "why")
