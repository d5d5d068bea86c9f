"""Calls from a task that was cancelled before: each ends with a result, and only a new cancellation of the caller passes.

And hosts that a cancelled task closes.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from tavern_core import Approval, Budget, CallContext, Out, Plugin, Service, Tavern, ToolResult, hookimpl, node, tool

pytestmark = pytest.mark.anyio

FAR = """\
import asyncio, time
from tavern_core import hookimpl, tool

@tool
async def cancels_itself() -> int:
    "Raise what a cancellation raises."
    raise asyncio.CancelledError

@tool(timeout_ms=50)
async def late() -> int:
    "Take too long."
    await asyncio.sleep(60)

@tool(timeout_ms=20_000)
async def limited() -> int:
    "Have time enough to be cancelled on a busy machine."
    await asyncio.sleep(60)

@tool
def add(a: int, b: int) -> int:
    "Add."
    return a + b

@hookimpl
def tavern_register_tools():
    return [cancels_itself, late, limited, add]
"""
FILES = {
    "far/__init__.py": FAR,
    "far/plugin.yaml": 'name: far\nversion: "1"\nisolation: process\n'
    "tools: [{id: cancels_itself, implementation: {type: python}}, {id: late, implementation: {type: python}}, {id: limited, implementation: {type: python}}, {id: add, implementation: {type: python}}]\n",
    "dying/__init__.py": "import asyncio\nraise asyncio.CancelledError\n",
    "dying/plugin.yaml": 'name: dying\nversion: "1"\ntools: [{id: t, implementation: {type: python}}]\n',
    "slow/plugin.yaml": 'name: slow\nversion: "1"\ntools: [{id: wait, description: Wait., parameters: {type: object, properties: {}}, implementation: {type: script, command: python wait.py, timeout: 100}}]\n',
    "slow/wait.py": "import time\ntime.sleep(60)\n",
}


async def fails_in_a_group() -> None:
    async def fails() -> None:
        raise ValueError("no")

    async with asyncio.TaskGroup() as group:
        group.create_task(fails())


@tool
async def group() -> None:
    """Fail in a group of tasks."""
    await fails_in_a_group()


@tool(timeout_ms=500)
async def group_then_late() -> None:
    """Let a group of tasks fail, then take too long."""
    try:
        await fails_in_a_group()
    except* ValueError:
        pass
    await asyncio.sleep(60)


@tool
async def cancels_itself() -> int:
    """Raise what a cancellation raises."""
    raise asyncio.CancelledError


@tool
def cancels_itself_in_a_thread() -> int:
    """Raise what a cancellation raises."""
    raise asyncio.CancelledError


@tool(timeout_ms=50)
async def late() -> int:
    """Take too long."""
    await asyncio.sleep(60)
    return 1


@tool(timeout_ms=20_000)
async def limited() -> int:
    """Have time enough to be cancelled on a busy machine."""
    await asyncio.sleep(60)
    return 1


@tool(timeout_ms=50)
def late_in_a_thread() -> int:
    """Take too long."""
    time.sleep(0.3)
    return 1


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
async def gated() -> int:
    """Be refused by a gate that raises what a cancellation raises."""
    return 1


@tool(requires_approval=True)
async def asks() -> int:
    """Need an approval."""
    return 1


@tool
async def waits(seconds: float = 60) -> int:
    """Wait."""
    await asyncio.sleep(seconds)
    return 1


@node("knots:Late", timeout_ms=50)
async def late_node() -> Out(y=int):
    await asyncio.sleep(60)
    return 1


class Gate:
    @hookimpl
    async def tavern_check_call(self, call: Any) -> None:
        if call.tool == "near:gated":
            raise asyncio.CancelledError


class Nodes:
    @hookimpl
    def tavern_register_nodes(self) -> list[Any]:
        return [late_node]


async def approve(request: Any) -> Approval:
    raise asyncio.CancelledError


NEAR = [
    group,
    group_then_late,
    cancels_itself,
    cancels_itself_in_a_thread,
    late,
    limited,
    late_in_a_thread,
    add,
    gated,
    asks,
    waits,
]
ENDS = {
    "near:cancels_itself": "CONNECTION_LOST", "near:cancels_itself_in_a_thread": "CONNECTION_LOST", "near:late": "TIMEOUT",
    "near:late_in_a_thread": "TIMEOUT", "near:group_then_late": "TIMEOUT", "near:group": "UPSTREAM_ERROR", "near:gated": "POLICY_DENIED",
    "near:asks": "APPROVAL_REJECTED", "far:cancels_itself": "CONNECTION_LOST", "far:late": "TIMEOUT", "slow:wait": "TIMEOUT",
    "dying:t": "UPSTREAM_ERROR",
}  # fmt: skip


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Tavern]:
    for name, text in FILES.items():
        place = tmp_path / "plugins" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, "utf-8")
    config = {"plugins": {"entryPoints": False, "roots": [str(tmp_path / "plugins")]}, "isolation": {"level": "none"}}
    plugins = [Plugin(NEAR, name="near"), Plugin(Gate(), name="gate"), Plugin(Nodes(), name="knots")]
    async with Tavern.open(config, plugins=plugins, home=tmp_path / "home", approve=approve) as tavern:
        yield tavern


async def after_a_failed_group(work: Callable[[], Awaitable[Any]]) -> Any:
    with pytest.raises(ExceptionGroup):
        await fails_in_a_group()
    return await work()


async def in_a_finally(work: Callable[[], Awaitable[Any]]) -> Any:
    found = []

    async def cancelled() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            found.append(await work())

    task = asyncio.create_task(cancelled())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return found[0]


async def at_first(work: Callable[[], Awaitable[Any]]) -> Any:
    return await work()


FROM = [at_first, after_a_failed_group, in_a_finally]


@pytest.mark.slow
@pytest.mark.parametrize("way", FROM)
async def test_a_call_ends_with_a_result_whatever_was_cancelled_before(host: Tavern, way: Callable[..., Any]) -> None:
    for name, kind in ENDS.items():
        if (name, way) == ("near:group_then_late", in_a_finally) and sys.version_info >= (3, 13):
            kind = "CONNECTION_LOST"  # a group that fails in a cancelled task passes the cancellation on
        result = await way(lambda name=name: host.invoke(name))
        assert isinstance(result, ToolResult), name
        assert result.error is not None, name
        assert result.error.kind == kind, name
        assert (await way(lambda: host.invoke("near:add", {"a": 1, "b": 2}))).value == 3, name
        assert (await way(lambda: host.invoke("far:add", {"a": 1, "b": 2}))).value == 3, name


@pytest.mark.slow
@pytest.mark.parametrize("way", FROM)
async def test_a_workflow_ends_with_a_result_whatever_was_cancelled_before(
    host: Tavern, way: Callable[..., Any]
) -> None:
    flow = {"nodes": [{"id": "n", "type": "knots:Late"}], "edges": []}
    result = await way(lambda: host.workflows.run(flow))
    assert (result.state, [error.kind for error in result.errors]) == ("error", ["TIMEOUT"])


@pytest.mark.parametrize("way", FROM)
async def test_a_text_ends_with_results_whatever_was_cancelled_before(host: Tavern, way: Callable[..., Any]) -> None:
    text = "".join(
        f"<|[REQUEST_TOOL]|>\ncommand:「始」{name}「末」\n<|[END_TOOL]|>\n"
        for name in ("near:late", "near:cancels_itself")
    )
    outcome = await way(lambda: host.run_text(text))
    assert [result.error.kind for result in outcome.results] == ["TIMEOUT", "CONNECTION_LOST"]


@pytest.mark.slow
@pytest.mark.parametrize("way", FROM)
@pytest.mark.parametrize("name", ["near:waits", "near:limited", "far:limited"])
async def test_a_new_cancellation_of_the_caller_passes_and_is_on_the_record(
    host: Tavern, name: str, way: Callable[..., Any]
) -> None:
    await host.plugins.activate(name.partition(":")[0])
    ended: list[Any] = []
    host.events.subscribe(ended.append, "TOOL_RESULT")

    async def work() -> str:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        end = host.events.subscribe(lambda event: loop.call_soon(task.cancel), "TOOL_CALLED")
        try:
            await host.invoke(name, context=CallContext(budget=Budget(timeout_ms=30_000)))
        except asyncio.CancelledError:
            return "passed"
        finally:
            end()
        return "swallowed"

    assert await way(work) == "passed"
    assert len(ended) == 1


async def test_a_cancellation_that_was_asked_for_before_the_call_and_comes_within_it_passes(host: Tavern) -> None:
    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await host.invoke("near:waits", {"seconds": 5})

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(work())


class _Holding:
    """A plugin with a call that can be held."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.began = asyncio.Event()
        self.is_stopped = False

    @hookimpl
    def tavern_register_tools(self) -> list[Any]:
        @tool
        async def hold() -> str:
            """Hold."""
            self.began.set()
            await self.goes_on.wait()
            return "answer"

        return [hold]

    @hookimpl
    def tavern_stop(self) -> None:
        self.is_stopped = True


async def test_a_host_whose_closing_is_cancelled_still_stops_everything(tmp_path: Path) -> None:
    plugin = _Holding()
    host = await Tavern.open(plugins=[Plugin(plugin, name="p")], home=tmp_path).start()
    call = asyncio.create_task(host.invoke("p:hold"))
    await plugin.began.wait()
    closing = asyncio.create_task(host.close())
    await asyncio.sleep(0)
    closing.cancel()
    plugin.goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert (await call).value == "answer"
    assert plugin.is_stopped


async def test_a_plugin_whose_service_is_being_stopped_when_the_closing_is_cancelled_stops_its_other_services(
    tmp_path: Path,
) -> None:
    stopping, stopped = asyncio.Event(), []

    async def never() -> None:
        stopping.set()
        await asyncio.Event().wait()

    class Serving:
        @hookimpl
        def tavern_register_services(self) -> list[Service]:
            return [
                Service("first", object(), stop=lambda: stopped.append("first")),
                Service("second", object(), stop=never),
            ]

    host = await Tavern.open(plugins=[Plugin(Serving(), name="p")], home=tmp_path, activate="all").start()
    closing = asyncio.create_task(host.close())
    await stopping.wait()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert stopped == ["first"]


class _Grouped(_Holding):
    """A plugin with a task group from its start to its stop."""

    @hookimpl
    async def tavern_start(self) -> None:
        self.group = anyio.create_task_group()
        await self.group.__aenter__()

    @hookimpl
    async def tavern_stop(self) -> None:
        await self.group.__aexit__(None, None, None)
        self.is_stopped = True


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_plugins_that_start_and_stop_with_a_host_do_so_in_the_same_task(
    tmp_path: Path, is_cancelled: bool
) -> None:
    plugins = [_Grouped(), _Grouped()]

    async def work() -> None:
        objects = [Plugin(each, name=f"p{at}") for at, each in enumerate(plugins)]
        host = await Tavern.open(plugins=objects, home=tmp_path).start()
        call = asyncio.create_task(host.invoke("p1:hold"))
        await plugins[1].began.wait()
        if not is_cancelled:
            plugins[1].goes_on.set()
            await call
        try:
            await host.close()
        finally:
            assert [each.message for each in host.diagnostics if "task" in each.message] == []
            plugins[1].goes_on.set()
            await call

    working = asyncio.create_task(work())
    await plugins[1].began.wait()
    if is_cancelled:
        for _ in range(10):
            await asyncio.sleep(0)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
    else:
        await working
    assert [each.is_stopped for each in plugins] == [True, True]


async def test_a_closing_that_is_cancelled_twice_waits_for_no_call(tmp_path: Path) -> None:
    plugin = _Holding()
    host = await Tavern.open(
        {"limits": {"drainMs": 3_600_000}}, plugins=[Plugin(plugin, name="p")], home=tmp_path
    ).start()
    call = asyncio.create_task(host.invoke("p:hold"))
    await plugin.began.wait()
    closing = asyncio.create_task(host.close())
    for _ in range(2):
        await asyncio.sleep(0)
        closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not call.done()
    plugin.goes_on.set()
    assert (await call).value == "answer"
