"""A node runs before it has a task, and sees none of that: what asyncio and anyio offer works in it from its first line on."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tavern_core.contract.nodes import Out, node
from tests.engine.workbench import flow, kinds, made, ran, reported

pytestmark = pytest.mark.anyio


def of(body: Callable[[], Awaitable[Any]]) -> Any:
    """A node type that does what `body` does."""

    @node("t:Body")
    async def run() -> Out(y=Any):
        return await body()

    return run


async def forever() -> None:
    await asyncio.Event().wait()


async def timeout_rings() -> str:
    try:
        async with asyncio.timeout(0.01):
            await forever()
    except TimeoutError:
        return "rung"
    return "not"


async def timeout_begun_after_a_wait() -> str:
    await asyncio.sleep(0)
    return await timeout_rings()


async def timeout_that_is_over_at_once() -> str:
    try:
        async with asyncio.timeout(-1):
            await asyncio.sleep(0)
            await forever()
    except TimeoutError:
        return "rung"
    return "not"


async def task_group() -> list[int]:
    async with asyncio.TaskGroup() as tasks:
        made = [tasks.create_task(asyncio.sleep(0, at)) for at in range(3)]
    return [task.result() for task in made]


async def task_group_that_fails() -> str:
    async def fail() -> None:
        raise ValueError("inside")

    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())
            await forever()
    except* ValueError as group:
        said = str(group.exceptions[0])
    return said


async def wait_for() -> str:
    try:
        await asyncio.wait_for(forever(), 0.01)
    except TimeoutError:
        return await asyncio.wait_for(asyncio.sleep(0, "rung"), 5)
    return "not"


async def shield() -> str:
    done = asyncio.Event()

    async def inner() -> None:
        await asyncio.sleep(0.001)
        done.set()

    work = asyncio.shield(asyncio.ensure_future(inner()))
    work.cancel()
    await done.wait()
    return "shielded"


async def gather() -> list[int]:
    return await asyncio.gather(*(asyncio.sleep(0, at) for at in range(3)))


async def anyio_move_on() -> bool:
    with anyio.move_on_after(0.01) as scope:
        await forever()
    return scope.cancelled_caught


async def anyio_cancelled_before_it_waits() -> bool:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await anyio.sleep(60)
    return scope.cancelled_caught


async def anyio_task_group() -> list[int]:
    found: list[int] = []

    async def add(at: int) -> None:
        await anyio.lowlevel.checkpoint()
        found.append(at)

    async with anyio.create_task_group() as tasks:
        for at in range(3):
            tasks.start_soon(add, at)
    return sorted(found)


async def anyio_threads() -> int:
    return await anyio.to_thread.run_sync(lambda: 7)


async def one_task_all_along() -> bool:
    first = asyncio.current_task()
    await asyncio.sleep(0)
    second = asyncio.current_task()
    await asyncio.sleep(0.001)
    return first is not None and first is second is asyncio.current_task() and not first.done()


async def callbacks() -> bool:
    task, seen = asyncio.current_task(), []
    assert task is not None
    task.add_done_callback(seen.append)
    task.set_name("mine")
    await asyncio.sleep(0)
    return (task.remove_done_callback(seen.append), task.get_name()) == (1, "mine")


async def cancel_is_taken_back() -> int:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        return task.uncancel()
    return -1


BODIES: dict[str, tuple[Callable[[], Awaitable[Any]], Any]] = {
    "a time-out rings": (timeout_rings, "rung"),
    "a time-out begun after a wait rings": (timeout_begun_after_a_wait, "rung"),
    "a time-out that is over at once rings": (timeout_that_is_over_at_once, "rung"),
    "a task group waits": (task_group, [0, 1, 2]),
    "a task group that fails cancels its own body": (task_group_that_fails, "inside"),
    "wait_for rings and passes": (wait_for, "rung"),
    "shield shields": (shield, "shielded"),
    "gather gathers": (gather, [0, 1, 2]),
    "an anyio scope moves on": (anyio_move_on, True),
    "an anyio scope cancelled before the first wait": (anyio_cancelled_before_it_waits, True),
    "an anyio task group": (anyio_task_group, [0, 1, 2]),
    "a thread of anyio": (anyio_threads, 7),
    "current_task is one and the same": (one_task_all_along, True),
    "callbacks and names of the task": (callbacks, True),
    "a cancellation is taken back": (cancel_is_taken_back, 0),
}


@pytest.mark.parametrize("name", BODIES)
async def test_works_in_a_node(name: str) -> None:
    body, answer = BODIES[name]
    before, mine = asyncio.all_tasks(), asyncio.current_task()
    result = await asyncio.wait_for(ran(flow({"a": "t:Body"}), [of(body)]), 20)
    assert (result.errors, result.outputs) == ((), {"a": {"y": answer}})
    assert asyncio.current_task() is mine
    assert asyncio.all_tasks() <= before


async def test_context_variables_of_nodes_are_their_own_and_those_of_the_caller_are_seen() -> None:
    own: contextvars.ContextVar[str] = contextvars.ContextVar("own", default="unset")
    seen: list[str] = []

    @node("t:Set")
    async def sets(name: str = "", x: Any = None) -> Out(y=str):
        seen.append(own.get())
        own.set(name)
        await asyncio.sleep(0)
        seen.append(own.get())
        return name

    @node("t:Quick")
    async def quick(x: Any = None) -> Out(y=str):
        seen.append(own.get())
        own.set("quick")
        return ""

    own.set("caller")
    nodes = {"a": {"type": "t:Set", "name": "a"}, "q": "t:Quick", "b": {"type": "t:Set", "name": "b"}}
    assert (await ran(flow(nodes, "a.y>q.x q.y>b.x"), [sets, quick])).ok
    assert (seen, own.get()) == (["caller", "a", "caller", "caller", "b"], "caller")


async def test_a_stored_placeholder_reaches_no_other_code() -> None:
    kept: list[Any] = []

    @node("t:Keeps")
    async def keeps() -> Out(y=int):
        kept.append(asyncio.current_task())
        return 1

    @node("t:After")
    async def after(x: int) -> Out(y=int):
        assert not kept[0].cancel()
        assert kept[0].done()
        await asyncio.sleep(0)
        return x + 1

    result = await ran(flow({"a": "t:Keeps", "b": "t:After"}, "a.y>b.x"), [keeps, after])
    assert (result.errors, result.outputs) == ((), {"b": {"y": 2}})


async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def cancels_itself_and_waits() -> None:
    await cancels_itself()
    await asyncio.sleep(60)


async def cancels_itself_after_a_wait() -> None:
    await asyncio.sleep(0)
    await cancels_itself_and_waits()


async def raises_it() -> None:
    raise asyncio.CancelledError


async def raises_it_later() -> None:
    await asyncio.sleep(0)
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    "body", [cancels_itself, cancels_itself_and_waits, cancels_itself_after_a_wait, raises_it, raises_it_later]
)
async def test_a_node_that_cancels_itself_has_failed_and_no_other(body: Callable[[], Awaitable[None]]) -> None:
    workflow = flow({"a": "t:Body", "w": "t:Other", "v": "t:Other"}, "w.y>v.x")

    @node("t:Other")
    async def other(x: int = 0) -> Out(y=int):
        await asyncio.sleep(0)
        return x

    result = await asyncio.wait_for(ran(workflow, [of(body), other]), 20)
    assert (result.state, result.states) == ("error", {"a": "error", "w": "complete", "v": "complete"})
    assert [(e.path, e.kind) for e in result.errors] == [("a", "CANCELLED")]


@pytest.mark.parametrize("when", ["at once", "later", "in a thread"])
@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, StopIteration, StopAsyncIteration, BaseException])
async def test_whatever_a_node_raises_is_its_own_error(kind: type[BaseException], when: str) -> None:
    @node("t:Raises")
    async def raises() -> Out(y=int):
        if when == "later":
            await asyncio.sleep(0)
        raise kind("out")

    @node("t:Raises")
    def raises_in_thread() -> Out(y=int):
        raise kind("out")

    result = await asyncio.wait_for(
        ran(flow({"a": "t:Raises"}), [raises_in_thread if when == "in a thread" else raises]), 20
    )
    assert (result.state, [e.path for e in result.errors]) == ("error", ["a"])


@pytest.mark.parametrize("later", [False, True])
def test_a_keyboard_interrupt_ends_the_run_and_goes_to_the_caller(later: bool) -> None:
    @node("t:Raises")
    async def raises() -> Out(y=int):
        if later:
            await asyncio.sleep(0)
        raise KeyboardInterrupt

    @node("t:Waits")
    async def waits() -> Out(y=int):
        await forever()
        return 1

    runs: list[Any] = []

    async def main() -> None:
        runs.append(made(flow({"w": "t:Waits", "a": "t:Raises"}), [raises, waits]))
        await runs[0].execute()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert (runs[0].is_over, runs[0].states["w"]) == (True, "interrupted")


async def test_a_node_that_swallows_its_cancellation_is_left_behind_and_says_nothing_more() -> None:
    go = asyncio.Event()

    @node("t:Stubborn")
    async def stubborn() -> Out(y=int):
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue
        return 1

    @node("t:Next")
    async def following(x: int) -> Out(y=int):
        return x

    before = asyncio.all_tasks()
    run = made(flow({"s": "t:Stubborn", "n": "t:Next"}, "s.y>n.x"), [stubborn, following])
    run.grace = 0.01
    task = asyncio.create_task(run.execute())
    await reported(run, lambda: "running" in kinds(run, "s"))
    run.cancel()
    result = await task
    assert (result.state, result.states) == ("cancelled", {"s": "interrupted", "n": "interrupted"})
    count = len(run.events())
    go.set()
    await asyncio.gather(*(asyncio.all_tasks() - before))
    assert (len(run.events()), result.states) == (count, run.states)


async def test_a_node_cancelled_in_the_turn_it_began_to_wait_cleans_up() -> None:
    seen: list[str] = []
    runs: list[Any] = []

    @node("t:Waits")
    async def waits() -> Out(y=int):
        try:
            await forever()
        finally:
            await asyncio.sleep(0)
            seen.append("cleaned")
        return 1

    @node("t:Cancels", fast=True)
    def cancels() -> Out(y=int):
        runs[0].cancel()
        return 1

    runs.append(made(flow({"a": "t:Waits", "b": "t:Waits", "c": "t:Cancels", "d": "t:Waits"}), [waits, cancels]))
    result = await asyncio.wait_for(runs[0].execute(), 20)
    assert (result.state, seen) == ("cancelled", ["cleaned"] * 2)
    assert result.states == {"a": "interrupted", "b": "interrupted", "c": "complete", "d": "interrupted"}


async def test_a_run_cancelled_before_it_begins_runs_nothing() -> None:
    ran_: list[int] = []

    @node("t:Runs")
    async def runs() -> Out(y=int):
        await asyncio.sleep(0)
        ran_.append(1)
        return 1

    run = made(flow({"a": "t:Runs"}), [runs])
    assert run.cancel()
    assert not run.cancel()
    result = await run.execute()
    assert (result.state, result.states, ran_) == ("cancelled", {"a": "interrupted"}, [])


async def test_the_callers_own_cancellation_is_not_swallowed_by_that_of_the_run() -> None:
    @node("t:Waits")
    async def waits() -> Out(y=int):
        await forever()
        return 1

    run = made(flow({"a": "t:Waits"}), [waits])
    task = asyncio.create_task(run.execute())
    await reported(run, lambda: "running" in kinds(run, "a"))
    run.cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert run.states == {"a": "interrupted"}
