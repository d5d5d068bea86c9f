"""No tool takes the threads of the others, however slow it is, and none is lost for good."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tavern_core import Budget, CallContext, Out, Plugin, hookimpl, node, tool

from .conftest import Opened, run, tools

pytestmark = pytest.mark.slow

THREADS = 4
CONFIG = {"limits": {"threads": THREADS}}
WITHIN = 20
"""Seconds after which a test gives up what should come at once."""


class Slow:
    """Tools that wait until they are let go, and count how many do."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.running = threading.Semaphore(0)
        self.count = 0

    @tool
    def slow(self, n: int = 0) -> int:
        """Wait."""
        self.count += 1
        self.running.release()
        assert self.go.wait(60)
        return n

    @tool
    def other(self) -> str:
        """Answer at once."""
        return "other"


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.go.set()


@tool
def quick() -> str:
    """Answer at once."""
    return "quick"


@tool
async def runs_async() -> str:
    """Answer at once."""
    return "async"


async def begun(slow: Slow, count: int) -> None:
    """Wait until so many calls of a slow tool run."""
    for _ in range(count):
        assert await asyncio.to_thread(slow.running.acquire, timeout=WITHIN)


def limited(ms: int) -> CallContext:
    return CallContext(budget=Budget(timeout_ms=ms))


@pytest.mark.parametrize("threads", [1, 2, THREADS, 32])
def test_a_slow_tool_delays_no_other_however_often_it_is_called(opened: Opened, slow: Slow, threads: int) -> None:
    host = opened(
        Plugin([slow], name="slow"), tools(quick, runs_async, name="quick"), config={"limits": {"threads": threads}}
    )

    async def both() -> None:
        waiting = [asyncio.ensure_future(host.invoke("slow:slow", {"n": n})) for n in range(threads * 3)]
        await begun(slow, 1)
        for name, answer in {"quick:quick": "quick", "slow:other": "other", "quick:runs_async": "async"}.items():
            for _ in range(3):
                assert (await asyncio.wait_for(host.invoke(name), WITHIN)).value == answer
        assert slow.count <= max(1, threads - 1)
        slow.go.set()
        assert [result.value for result in await asyncio.gather(*waiting)] == list(range(threads * 3))

    run(both())


def test_the_calls_of_one_tool_run_in_the_order_in_which_they_were_made(opened: Opened, slow: Slow) -> None:
    order: list[int] = []

    @tool
    def notes(n: int) -> None:
        order.append(n)

    @tool
    def waits() -> None:
        slow.slow()

    host = opened(tools(notes, waits), config={"limits": {"threads": 1}})

    async def several() -> None:
        first = asyncio.ensure_future(host.invoke("t:waits"))
        await begun(slow, 1)
        rest = [asyncio.ensure_future(host.invoke("t:notes", {"n": n})) for n in range(20)]
        await asyncio.gather(*rest)
        slow.go.set()
        await first

    run(several())
    assert order == list(range(20))


def test_many_slow_tools_of_many_plugins_leave_a_thread_for_one_more(opened: Opened, slow: Slow) -> None:
    plugins = [Plugin([tool(name=f"slow{m}")(lambda: slow.slow()) for m in range(3)], name=f"p{n}") for n in range(4)]
    host = opened(*plugins, tools(quick, name="quick"), config=CONFIG)
    names = [f"p{n}:slow{m}" for n in range(4) for m in range(3)]

    async def all_of_them() -> None:
        waiting = [asyncio.ensure_future(host.invoke(name)) for name in names * 3]
        await begun(slow, len(names))  # each of them runs once
        assert (await asyncio.wait_for(host.invoke("quick:quick"), WITHIN)).value == "quick"
        slow.go.set()
        assert all(result.ok for result in await asyncio.gather(*waiting))

    run(all_of_them())


@pytest.mark.slow
@pytest.mark.parametrize("end", ["their time is over", "their callers are cancelled"])
def test_stuck_calls_are_reported_and_take_nothing_from_others(opened: Opened, slow: Slow, end: str) -> None:
    barrier = threading.Barrier(THREADS - 1)
    meets = tool(name="meets")(lambda: barrier.wait(WITHIN))
    host = opened(Plugin([slow], name="slow"), tools(meets, name="meeting"), config=CONFIG)
    reported: list[Any] = []
    host.events.subscribe(lambda event: reported.append((event.plugin, dict(event.data))), "THREADS_STUCK")

    async def stuck() -> None:
        calls = [
            asyncio.ensure_future(host.invoke("slow:slow", context=limited(100 if "time" in end else 60_000)))
            for _ in range(2)
        ]
        await begun(slow, 2)
        if "cancelled" in end:
            for call in calls:
                call.cancel()
        await asyncio.wait(calls)
        late = [await host.invoke("slow:slow", context=limited(100)) for _ in range(4)]
        assert {result.error.kind for result in late} == {"TIMEOUT"}
        assert slow.count == THREADS - 1  # the share of its plugin: it cannot pile up
        assert [result.error.outcome for result in late] == ["unknown", "none", "none", "none"]
        met = await asyncio.gather(*(host.invoke("meeting:meets") for _ in range(THREADS - 1)))
        assert all(result.ok for result in met), met

    run(stuck())
    assert ("slow", {"of": "slow:slow", "threads": 1}) in reported
    assert ("slow", {"of": "slow:slow", "threads": 2}) in reported
    [noticed] = [d for d in host.diagnostics if d.code == "THREADS_STUCK"]
    assert (noticed.plugin, noticed.details["of"]) == ("slow", "slow:slow")
    assert "still runs after its caller stopped waiting" in host.tools.why("slow:slow").reason
    ended = threading.Event()
    host.events.subscribe(lambda event: ended.set() if event.data["threads"] == 0 else None, "THREADS_STUCK")
    slow.go.set()
    assert ended.wait(WITHIN)
    assert not [d for d in host.diagnostics if d.code == "THREADS_STUCK"]
    assert "goes on" not in host.tools.why("slow:slow").reason
    assert host.invoke_sync("slow:slow").ok


def test_a_slow_hook_of_one_plugin_does_not_keep_the_hooks_of_others_from_running(opened: Opened, slow: Slow) -> None:
    class SlowGate:
        @hookimpl
        def tavern_after_execute(self, call: Any) -> None:
            if call.tool == "t:quick":
                slow.slow()

    seen: list[str] = []

    class Other:
        @hookimpl
        def tavern_check_call(self, call: Any) -> None:
            seen.append(call.tool)

    host = opened(
        tools(quick),
        tools(quick, name="u"),
        Plugin(SlowGate(), name="gate"),
        Plugin(Other(), name="other"),
        config=CONFIG,
    )

    async def both() -> None:
        held = [asyncio.ensure_future(host.invoke("t:quick")) for _ in range(THREADS * 3)]
        await begun(slow, 1)
        assert "t:quick" in seen
        seen.clear()
        judged = asyncio.ensure_future(host.invoke("u:quick"))
        while "u:quick" not in seen:
            await asyncio.wait([judged], timeout=0.01)
        slow.go.set()
        await asyncio.gather(judged, *held)

    run(asyncio.wait_for(both(), 60))


def test_a_slow_node_delays_no_tool_and_no_other_node(opened: Opened, slow: Slow) -> None:
    @node("s:Slow")
    def slow_node() -> Out(y=int):
        return slow.slow()

    @node("s:Quick")
    def quick_node() -> Out(y=int):
        return 1

    class Nodes:
        @hookimpl
        def tavern_register_nodes(self) -> list[Any]:
            return [slow_node, quick_node]

    host = opened(Plugin(Nodes(), name="s"), tools(quick), config=CONFIG)

    async def both() -> None:
        flow = {"nodes": [{"id": f"n{n}", "type": "s:Slow"} for n in range(THREADS * 3)], "edges": []}
        held = asyncio.ensure_future(host.workflows.run(flow))
        await begun(slow, 1)
        assert (await asyncio.wait_for(host.invoke("t:quick"), WITHIN)).ok
        one = await asyncio.wait_for(
            host.workflows.run({"nodes": [{"id": "q", "type": "s:Quick"}], "edges": []}), WITHIN
        )
        assert one.ok
        slow.go.set()
        assert (await held).ok

    run(both())
