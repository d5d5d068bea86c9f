"""What a node of a workflow costs: against floors and other engines, at 100, 1,000 and 10,000 nodes.

    python tests/benchmarks/report.py --only engine

Every candidate runs the same graph of nodes that add one: a chain, a fan, layers of ten. Ours runs through a host with its
defaults (events, cache keys, the limit of nodes at a time, cancellation), kept and not; once more with two hooks, an input
check and the rights of a caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import graphlib
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from tavern_core import CallContext, Out, Plugin, Tavern, hookimpl, node
from tavern_core.graph.compile import compile_workflow
from tavern_core.kernel.nodes.node_signature_reading import NodeOwner, describe_nodes
from tavern_core.model.workflow import Workflow

CONDITIONS = "audit on; numbers; any CPU"
ALONE = "no host; numbers; any CPU"
SIZES = (100, 1_000, 10_000)
SHAPES = ("chain", "fan", "layers")


@node("t:Inc")
async def inc(x: int = 0) -> Out(y=int):
    return x + 1


@node("t:Kept", cache=True)
async def kept(x: int = 0) -> Out(y=int):
    return x + 1


@node("t:Wait")
async def wait(x: int = 0) -> Out(y=int):
    await asyncio.sleep(0.05)
    return x


@node("t:Texts")
async def texts(a: str = "one short text") -> Out(a=str, b=str):
    return {"a": "one short text", "b": "another one, also short"}


@node("t:Big")
async def big() -> Out(y=str):
    return BIG


BIG = "lorem ipsum dolor sit amet " * 150_000
"""4 MB."""
NODES = [inc, kept, wait, texts, big]


class Nodes:
    @hookimpl
    def tavern_register_nodes(self) -> list[Any]:
        return NODES


SPECS = {spec.type: spec for spec in describe_nodes(NODES, NodeOwner("t", "1"))}


class Library:
    def node(self, type_: str) -> Any:
        return SPECS.get(type_)

    def node_types(self) -> list[str]:
        return list(SPECS)

    def workflow(self, id_: str) -> Any:
        return None

    def workflow_ids(self) -> list[str]:
        return []

    def problems_of(self, workflow: Workflow) -> list[Any]:
        return []


def wires(shape: str, count: int) -> list[tuple[int, int]]:
    match shape:
        case "chain":
            return [(i, i + 1) for i in range(count - 1)]
        case "fan":
            return [(0, i) for i in range(1, count)]
    return [(i, i + 10) for i in range(count - 10)]


def document(shape: str, count: int, type_: str = "t:Inc", output: str = "y", slot: str = "x") -> dict[str, Any]:
    return {
        "nodes": [{"id": f"n{i}", "type": type_} for i in range(count)],
        "edges": [
            {"id": f"e{i}", "source": f"n{a}", "sourceHandle": output, "target": f"n{b}", "targetHandle": slot}
            for i, (a, b) in enumerate(wires(shape, count))
        ],
    }


def workflow(shape: str, count: int, type_: str = "t:Inc") -> Workflow:
    return Workflow.model_validate(document(shape, count, type_))


def timed(run: Callable[[], Any], repeat: int) -> float:
    """The median of several runs in a row, in seconds. The first is not counted.

    Garbage is collected once, before all of them: to collect it before each empties the caches of the processor, which costs a run
    of a hundred nodes a third of its time.
    """
    gc.collect()
    run()
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


async def timed_async(run: Callable[[], Awaitable[Any]], repeat: int) -> float:
    """As `timed`."""
    gc.collect()
    await run()
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        await run()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def repeats(count: int) -> int:
    return {100: 60, 1_000: 12}.get(count, 4)


class Ours:
    """A host with its defaults, and workflow files in its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "workflows"
        self._folder.mkdir()
        self.tavern = Tavern.open(
            {"workflows": {"roots": [str(self._folder)]}}, plugins=[Plugin(Nodes(), name="t")], home=folder / "ours"
        )

    def write(self, id_: str, content: dict[str, Any]) -> str:
        (self._folder / f"{id_}.json").write_text(json.dumps(content), "utf-8")
        return id_

    async def cost(self, what: Any, count: int, **options: Any) -> float:
        """What one node costs, in seconds."""

        async def once() -> None:
            assert (await self.tavern.workflows.run(what, **options)).ok

        return await timed_async(once, repeats(count)) / count

    async def longest_pause(self, what: Any) -> float:
        """The longest time that others waited for their turn while a workflow ran, in seconds."""
        longest, last = 0.0, time.perf_counter()

        async def turns() -> None:
            nonlocal longest, last
            while True:
                await asyncio.sleep(0)
                now = time.perf_counter()
                longest, last = max(longest, now - last), now

        others = asyncio.create_task(turns())
        await self.tavern.workflows.run(what)
        others.cancel()
        return longest


async def floor(shape: str, count: int) -> None:
    """Counters and eager coroutines: what any engine must do."""
    after: list[list[int]] = [[] for _ in range(count)]
    waits = [0] * count
    for a, b in wires(shape, count):
        after[a].append(b)
        waits[b] += 1
    values = [0] * count
    ready = [i for i in range(count) if not waits[i]]
    began = time.perf_counter()
    for i in ready:
        coroutine = inc(values[i])
        try:
            coroutine.send(None)
        except StopIteration as done:
            for b in after[i]:
                values[b] = done.value
                waits[b] -= 1
                if not waits[b]:
                    ready.append(b)
    floor.seconds = time.perf_counter() - began  # type: ignore[attr-defined]


async def graphlib_floor(shape: str, count: int) -> None:
    """The standard library's sorter with a task for each node."""
    sorter: graphlib.TopologicalSorter[int] = graphlib.TopologicalSorter(dict.fromkeys(range(count), ()))
    for a, b in wires(shape, count):
        sorter.add(b, a)
    sorter.prepare()
    pending: dict[asyncio.Task[int], int] = {}
    while sorter.is_active():
        for i in sorter.get_ready():
            pending[asyncio.create_task(inc(i))] = i
        done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            sorter.done(pending.pop(task))


def langgraph_run(count: int) -> Callable[[], Any] | None:
    if importlib.util.find_spec("langgraph") is None:
        return None
    from typing import TypedDict

    from langgraph.graph import END, START, StateGraph

    class State(TypedDict):
        x: int

    graph = StateGraph(State)
    for i in range(count):
        graph.add_node(f"n{i}", lambda state: {"x": state["x"] + 1})
    graph.add_edge(START, "n0")
    for a, b in wires("chain", count):
        graph.add_edge(f"n{a}", f"n{b}")
    graph.add_edge(f"n{count - 1}", END)
    app = graph.compile()
    return lambda: app.invoke({"x": 0}, {"recursion_limit": count + 10})


def hamilton_run(count: int) -> Callable[[], Any] | None:
    if importlib.util.find_spec("hamilton") is None:
        return None
    import types

    from hamilton import base, driver

    module = types.ModuleType("bench_flow")
    lines = ["def n0() -> int:\n    return 1\n"]
    lines += [f"def n{b}(n{a}: int) -> int:\n    return n{a} + 1\n" for a, b in wires("chain", count)]
    exec("\n".join(lines), module.__dict__)
    for _name, value in list(vars(module).items()):
        if callable(value):
            value.__module__ = module.__name__
    sys.modules[module.__name__] = module
    found = driver.Driver({}, module, adapter=base.SimplePythonGraphAdapter(base.DictResult()))
    return lambda: found.execute([f"n{count - 1}"])


async def hosted(folder: Path, count: int) -> float:
    """The whole way through a host: two hooks, the rights of a caller, inputs checked."""

    class Hooks:
        @hookimpl(fast=True)
        def tavern_before_node(self, node: Any) -> None:
            return None

        @hookimpl(fast=True)
        def tavern_after_node(self, node: Any) -> None:
            return None

    plugins = [Plugin(Nodes(), name="t"), Plugin(Hooks(), name="hooks")]
    async with Tavern.open({}, plugins=plugins, home=folder / "home") as tavern:
        flow = workflow("chain", count)
        caller = CallContext(principal="user:bench", permissions={"read:fs"})

        async def once() -> None:
            assert (await tavern.workflows.run(flow, context=caller, keep=False, concurrency=None)).ok

        return await timed_async(once, repeats(count))


FAR = """
from tavern_core import Out, node

@node("far:Inc")
def inc(x: int = 0) -> Out(y=int):
    return x + 1
"""
MARK = f"bench-{os.getpid()}"
"""The last word of the command line of the script."""
SLEEP = {
    "id": "sleep", "description": "Sleeps.", "parameters": {"type": "object", "properties": {}},
    "implementation": {"type": "script", "command": f"python sleep.py {MARK}"},
}  # fmt: skip


@contextlib.asynccontextmanager
async def processes(folder: Path) -> AsyncIterator[Tavern]:
    """A host with a plugin in a worker, and one whose tool is a script."""
    files = {
        "far/__init__.py": "", "far/nodes.py": FAR, "far/plugin.yaml": 'name: far\nversion: "1"\nnodes: {entry: nodes.py}\nisolation: process\n',
        "slow/plugin.yaml": 'name: slow\nversion: "1"\ntools: {entry: tools}\n', "slow/tools/sleep.tool.json": json.dumps(SLEEP),
        "slow/sleep.py": "import time\ntime.sleep(600)\n",
    }  # fmt: skip
    for name, text in files.items():
        path = folder / "plugins" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    config = {"plugins": {"entryPoints": False, "roots": [str(folder / "plugins")]}}
    async with Tavern.open(config, home=folder / "processes") as tavern:
        yield tavern


async def isolated(tavern: Tavern, count: int) -> float:
    """One node after the other in the worker of its plugin, in seconds for each."""
    flow = workflow("chain", count, "far:Inc")

    async def once() -> None:
        result = await tavern.workflows.run(flow, keep=False)
        assert result.outputs == {f"n{count - 1}": {"y": count}}, result

    return await timed_async(once, 10) / count


def scripts() -> list[str]:
    """The processes of the script that run."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if place.read_bytes().rstrip(b"\0").endswith(MARK.encode()):
                found.append(place.parent.name)
    return found


async def process_cancelled(tavern: Tavern) -> float:
    """From the wish until the run has ended and the script, which a node of it called, is gone, in seconds."""
    call = {"id": "n", "type": "core:CallTool", "inputValues": {"tool": "slow:sleep"}}
    handle = await tavern.workflows.start({"nodes": [call], "edges": []})
    while not scripts():
        assert not handle.is_over, await handle
        await asyncio.sleep(0.005)
    began = time.perf_counter()
    handle.cancel()
    await handle
    while scripts():  # noqa: ASYNC110 - nothing tells of the end of a process of somebody else
        await asyncio.sleep(0.001)
    return time.perf_counter() - began


async def measure(folder: Path) -> list[dict[str, Any]]:
    ours, found = Ours(folder), list[dict[str, Any]]()

    def row(
        what: str,
        value: float,
        unit: str,
        against: str = "",
        ratio: float | None = None,
        target: float | None = None,
        conditions: str = CONDITIONS,
    ) -> None:
        found.append(
            {
                "name": what,
                "value": value,
                "unit": unit,
                "against": against,
                "ratio": ratio,
                "target": target,
                "conditions": conditions,
            }
        )

    async with ours.tavern as tavern:
        await in_process(ours, tavern, row)
    for count in SIZES:
        cost = await hosted(folder, count) / count * 1e6
        row(f"node with two hooks, rights and input check, chain of {count:,}", cost, "µs", "40 µs", cost / 40, 1)
    for count in (100, 10_000):
        await floor("chain", count)
        row(
            f"floor: counters and eager coroutines, chain of {count:,}",
            floor.seconds / count * 1e6,
            "µs",
            conditions=ALONE,
        )  # type: ignore[attr-defined]
        took = await timed_async(lambda c=count: graphlib_floor("chain", c), 3)
        row(f"floor: graphlib and tasks, chain of {count:,}", took / count * 1e6, "µs", conditions=ALONE)
    flow = workflow("layers", 10_000)
    took = timed(lambda: compile_workflow(flow, Library()), 3)
    row("compile 10,000 nodes", took * 1e3, "ms", "500 ms", took / 0.5, 1, ALONE)
    async with processes(folder) as tavern:
        took = await isolated(tavern, 100)
        row("isolated node, chain of 100", took * 1e6, "µs", "200 µs", took / 200e-6, 1)
        took = statistics.median([await process_cancelled(tavern) for _ in range(5)])
        row("cancel of a process", took * 1e3, "ms", "1,000 ms", took, 1)
    mine = next(each["value"] for each in found if each["name"] == "node, not cached, chain of 100")
    for name, make, target in (("LangGraph", langgraph_run, 0.1), ("Hamilton", hamilton_run, 1)):
        run = make(100)
        if run is None:
            continue
        peer = timed(run, 10) / 100 * 1e6
        row(f"{name}, chain of 100", peer, "µs", conditions=ALONE)
        row("node, not cached, chain of 100", mine, "µs", name, mine / peer, target)
    return found


async def in_process(ours: Ours, tavern: Tavern, row: Callable[..., None]) -> None:
    """The rows of nodes that run in the host."""
    costs: dict[tuple[str, int], float] = {}
    for shape in SHAPES:
        for count in SIZES:
            cost = await ours.cost(ours.write(f"{shape}-{count}", document(shape, count)), count, keep=False) * 1e6
            costs[shape, count] = cost
            row(f"node, not cached, {shape} of {count:,}", cost, "µs", "15 µs", cost / 15, 1)
        row(
            f"{shape}: 10,000 nodes against 100",
            costs[shape, 10_000],
            "µs",
            f"{costs[shape, 100]:.1f} µs",
            costs[shape, 10_000] / costs[shape, 100],
            1.5,
        )
    given = {"numbers": document("chain", 1_000), "two short texts": document("chain", 1_000, "t:Texts", "a", "a")}
    for (kind, content), bound in zip(given.items(), (25, 40), strict=True):
        named = await ours.cost(ours.write(f"kept-{bound}", content), 1_000) * 1e6
        row(
            "cached node, by name, chain of 1,000",
            named,
            "µs",
            f"{bound} µs",
            named / bound,
            1,
            f"audit on; {kind}; any CPU",
        )
        cost = await ours.cost(content, 1_000) * 1e6
        most = f"by name + 1 µs: {named + 1:.1f} µs"
        row(
            "cached node, of the same mapping, chain of 1,000",
            cost,
            "µs",
            most,
            cost / (named + 1),
            1,
            f"audit on; {kind}; any CPU",
        )
    big = ours.write("big", document("chain", 1, "t:Big"))
    pauses = [await ours.longest_pause(big) for _ in range(5)]
    took = statistics.median(pauses)
    row(
        "longest pause of the event loop while 4 MB are cached",
        took * 1e3,
        "ms",
        "30 ms",
        took / 0.03,
        1,
        "audit on; one text of 4 MB; any CPU",
    )
    cost = await ours.cost(ours.write("cached", document("chain", 1_000, "t:Kept")), 1_000, keep=False) * 1e6
    row("cached node", cost, "µs", "10 µs", cost / 10, 1)
    waits = ours.write("waits", {**document("fan", 64, "t:Wait"), "edges": []})
    took = await ours.cost(waits, 10_000, keep=False, concurrency=16) * 10_000
    row("64 nodes of 50 ms, 16 at a time", took * 1e3, "ms", "230 ms", took / 0.23, 1)
    took = statistics.median([await cancelled(tavern, waits) for _ in range(5)])
    row("cancel in process", took * 1e3, "ms", "10 ms", took / 0.01, 1)


async def cancelled(tavern: Tavern, waits: str) -> float:
    """From the wish to the end of a run whose nodes wait."""
    handle = await tavern.workflows.start(waits, keep=False)
    await asyncio.sleep(0.01)
    began = time.perf_counter()
    handle.cancel()
    await handle
    return time.perf_counter() - began


def rows() -> list[dict[str, Any]]:
    """The figures, for report.py."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(measure(Path(folder)))
