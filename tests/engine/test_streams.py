"""Streams: bounded memory, several readers, into and out of groups, and what becomes of everybody when one of them dies."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from tavern_core.contract.nodes import Final, Out, Stream, node
from tests.engine.nodes import ALL
from tests.engine.workbench import flow, group, ran

pytestmark = pytest.mark.anyio
STRINGS = {"dataFlowType": "STRING", "isStream": True}


@node("t:Dies")
async def dies(n: int = 3) -> Out(chunks=Stream[str], text=str):
    for at in range(n):
        yield str(at)
        await asyncio.sleep(0)
    raise ValueError("in the middle")


@node("t:Until")
async def until(chunks: Stream[str]) -> Out(got=list, error=str):
    got: list[str] = []
    try:
        async for chunk in chunks:
            got.append(chunk)
    except ValueError as error:
        return got, str(error)
    return got, ""


@node("t:Breaks")
async def breaks(chunks: Stream[str]) -> Out(y=int):
    async for _ in chunks:
        raise KeyError("reader")
    return 1


@node("t:Never")
async def never(chunks: Stream[str]) -> Out(y=int):
    return 1


@node("t:Zip")
async def zipped(a: Stream[str], b: Stream[str]) -> Out(all=list):
    got = []
    async for one in a:
        got.append(one + await anext(b))
    return got


@node("t:InTurn")
async def in_turn(a: Stream[str], b: Stream[str]) -> Out(all=list):
    return [*[chunk async for chunk in a], *[chunk async for chunk in b]]


@node("t:Through")
async def through(chunks: Stream[str]) -> Out(chunks=Stream[str], count=int):
    count = 0
    async for chunk in chunks:
        count += 1
        yield f"<{chunk}>"
    yield Final(count=count)


@node("t:Slow")
async def slow(chunks: Stream[str]) -> Out(all=list):
    got = []
    for _ in range(20):
        await asyncio.sleep(0)  # it has begun long before it reads
    async for chunk in chunks:
        got.append(chunk)
        await asyncio.sleep(0)
    return got


NODES = [*ALL, dies, until, breaks, never, zipped, in_turn, through, slow]
MANY = [*map(str, range(100))]
SOURCE = {"type": "t:Count", "n": 100}

IN = flow(
    {"i": "core:GroupInput", "r": "t:Read", "r2": "t:Slow", "j": "core:GroupInput", "o": "core:GroupOutput"},
    "i.s>r.chunks j.s>r2.chunks r.all>o.one r2.all>o.two", name="in",
    interfaceInputs={"s": STRINGS}, interfaceOutputs={"one": {"dataFlowType": "ARRAY"}, "two": {"dataFlowType": "ARRAY"}},
)  # fmt: skip
OUT = flow(
    {"g": SOURCE, "o": "core:GroupOutput"}, "g.chunks>o.s", name="out", interfaceOutputs={"s": STRINGS},
)  # fmt: skip
BOTH = flow(
    {"i": "core:GroupInput", "t": "t:Through", "o": "core:GroupOutput"}, "i.s>t.chunks t.chunks>o.s t.count>o.n", name="both",
    interfaceInputs={"s": STRINGS}, interfaceOutputs={"s": STRINGS, "n": {"dataFlowType": "INTEGER"}},
)  # fmt: skip
PASSED = flow(
    {"i": "core:GroupInput", "o": "core:GroupOutput"}, "i.s>o.s", name="passed", interfaceInputs={"s": STRINGS}, interfaceOutputs={"s": STRINGS},
)  # fmt: skip
DEEP = flow(
    {"i": "core:GroupInput", "g": group("both"), "p": group("passed"), "o": "core:GroupOutput"}, "i.s>p.s p.s>g.s g.s>o.s", name="deep",
    interfaceInputs={"s": STRINGS}, interfaceOutputs={"s": STRINGS},
)  # fmt: skip
FAILS = flow({"d": "t:Dies", "o": "core:GroupOutput"}, "d.chunks>o.s", name="fails", interfaceOutputs={"s": STRINGS})
INNER = [IN, OUT, BOTH, PASSED, DEEP, FAILS]

RUNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "into a group, read twice inside": (
        flow({"w": SOURCE, "g": group("in")}, "w.chunks>g.s"), {"g": {"one": MANY, "two": MANY}},
    ),
    "out of a group": (flow({"g": group("out"), "r": "t:Read"}, "g.s>r.chunks"), {"r": {"all": MANY}}),
    "out of a group, to two readers": (
        flow({"g": group("out"), "r": "t:Read", "s": "t:Slow"}, "g.s>r.chunks g.s>s.chunks"),
        {"r": {"all": MANY}, "s": {"all": MANY}},
    ),
    "through a group": (
        flow({"w": SOURCE, "g": group("both"), "r": "t:Read", "n": "t:Inc"}, "w.chunks>g.s g.s>r.chunks g.n>n.x"),
        {"r": {"all": [f"<{c}>" for c in MANY]}, "n": {"y": 101}},
    ),
    "through groups in groups, and handed on as it is": (
        flow({"w": SOURCE, "g": group("deep"), "r": "t:Read"}, "w.chunks>g.s g.s>r.chunks"), {"r": {"all": [f"<{c}>" for c in MANY]}},
    ),
    "out of a group that nobody reads": (flow({"g": group("out"), "a": "t:Inc"}), {"a": {"y": 1}}),
    "two streams side by side": (
        flow({"a": SOURCE, "b": SOURCE, "z": "t:Zip"}, "a.chunks>z.a b.chunks>z.b"), {"z": {"all": [c + c for c in MANY]}},
    ),
    "two streams one after the other": (
        flow({"a": SOURCE, "b": SOURCE, "z": "t:InTurn"}, "a.chunks>z.a b.chunks>z.b"), {"z": {"all": MANY + MANY}},
    ),
    "one stream twice, once through another node": (
        flow({"w": SOURCE, "t": "t:Through", "z": "t:InTurn"}, "w.chunks>t.chunks t.chunks>z.a w.chunks>z.b"),
        {"z": {"all": [*(f"<{c}>" for c in MANY), *MANY]}},
    ),
    "a reader that never reads": (flow({"w": SOURCE, "n": "t:Never"}, "w.chunks>n.chunks"), {"n": {"y": 1}}),
    "a reader that takes its time": (flow({"w": SOURCE, "s": "t:Slow"}, "w.chunks>s.chunks"), {"s": {"all": MANY}}),
}  # fmt: skip


@pytest.mark.parametrize("room", [None, 1])
@pytest.mark.parametrize("name", RUNS)
async def test_a_stream_goes(name: str, room: int | None) -> None:
    workflow, outputs = RUNS[name]
    result = await asyncio.wait_for(ran(workflow, NODES, workflows=INNER, concurrency=room), 30)
    assert result.errors == ()
    assert (result.state, {key: result.outputs[key] for key in outputs}) == ("complete", outputs)


@pytest.mark.parametrize("name", ["out", "both", "deep", "passed"])
async def test_the_streams_of_a_workflow_are_read_to_their_end_and_those_given_to_it_are_lists(name: str) -> None:
    workflow = next(flow for flow in INNER if flow.id == name)
    given = {"s": ["a", "b"]} if workflow.inputs() else {}
    result = await asyncio.wait_for(ran(workflow, NODES, given, workflows=INNER), 30)
    expected = {"out": "".join(MANY), "both": "<a><b>", "deep": "<a><b>", "passed": "ab"}
    assert (result.errors, result.outputs["s"]) == ((), expected[name])


@pytest.mark.parametrize("group_", [False, True])
async def test_readers_get_the_error_of_a_writer_that_dies(group_: bool) -> None:
    nodes = {"d": group("fails") if group_ else "t:Dies", "u": "t:Until", "v": "t:Until", "a": "t:Inc"}
    port = "s" if group_ else "chunks"
    result = await asyncio.wait_for(
        ran(flow(nodes, f"d.{port}>u.chunks d.{port}>v.chunks"), NODES, workflows=INNER), 30
    )
    assert (result.state, result.states["d"], result.states["u"], result.states["a"]) == (
        "error",
        "error",
        "complete",
        "complete",
    )
    for reader in "uv":
        assert result.outputs[reader]["got"] == ["0", "1", "2"]
        assert "in the middle" in result.outputs[reader]["error"]


HANDLED = [{"onError": "skip"}, {"onError": "port"}, {"onError": "default", "defaults": {}}]


@pytest.mark.parametrize("how", HANDLED, ids=lambda how: how["onError"])
@pytest.mark.parametrize(
    ("writer", "nodes", "edges"),
    [
        ("t:Dies", {"r": "t:Read"}, "w.chunks>r.chunks"),
        ("t:Dies", {"t": "t:Through", "r": "t:Read"}, "w.chunks>t.chunks t.chunks>r.chunks"),
        ("fails", {"r": "t:Read"}, "w.s>r.chunks"),
        ("t:Dies", {"g": group("passed"), "r": "t:Read"}, "w.chunks>g.s g.s>r.chunks"),
    ],
    ids=["a node", "a node and another one", "a group", "a node and a group"],
)
async def test_what_reads_the_stream_of_a_failed_writer_is_skipped_if_the_file_handles_its_failure(
    writer: str, nodes: dict[str, Any], edges: str, how: dict[str, Any]
) -> None:
    failing = {"type": writer} if ":" in writer else group(writer)
    workflow = flow({"w": {**failing, "exec": how}, **nodes}, edges)
    result = await asyncio.wait_for(ran(workflow, NODES, workflows=INNER), 30)
    assert (result.state, result.states["w"], result.states["r"]) == ("complete", "error", "skipped")
    assert {error.path for error in result.errors} <= {"w", "w/d"}


async def test_a_reader_that_dies_holds_up_neither_the_writer_nor_the_other_reader() -> None:
    workflow = flow(
        {"w": SOURCE, "b": "t:Breaks", "r": "t:Read", "t": "t:Text"},
        "w.chunks>b.chunks w.chunks>r.chunks w.text>t.value",
    )
    result = await asyncio.wait_for(ran(workflow, NODES), 30)
    assert (result.states["b"], [e.path for e in result.errors]) == ("error", ["b"])
    assert (result.outputs["r"], result.outputs["t"]) == ({"all": MANY}, {"text": "".join(MANY)})


@pytest.mark.slow
async def test_only_a_few_chunks_are_in_memory_at_a_time() -> None:
    class Chunk:
        pass

    alive: weakref.WeakSet[Chunk] = weakref.WeakSet()
    most = 0

    @node("t:Makes")
    async def makes(n: int = 2_000) -> Out(chunks=Stream[Any]):
        nonlocal most
        for _ in range(n):
            chunk = Chunk()
            alive.add(chunk)
            most = max(most, len(alive))
            yield chunk

    @node("t:Takes")
    async def takes(chunks: Stream[Any]) -> Out(n=int):
        await asyncio.sleep(0.01)
        return sum([1 async for _ in chunks])

    result = await asyncio.wait_for(
        ran(flow({"m": "t:Makes", "t": "t:Takes"}, "m.chunks>t.chunks"), [makes, takes]), 30
    )
    gc.collect()
    assert (result.outputs["t"], most <= 20, len(alive) <= 1) == ({"n": 2_000}, True, True)


@pytest.mark.parametrize("sync", [False, True])
async def test_a_generator_is_closed_when_its_run_is_cancelled_or_its_final_answer_is_there(sync: bool) -> None:
    closed: list[str] = []

    @node("t:Gen")
    async def generator(final: bool) -> Out(chunks=Stream[str], text=str):
        try:
            yield "a"
            if final:
                yield Final(text="t")
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            closed.append("closed")

    @node("t:Gen")
    def sync_generator(final: bool) -> Out(chunks=Stream[str], text=str):
        try:
            yield "a"
            if final:
                yield Final(text="t")
            raise ValueError("ended")
        finally:
            closed.append("closed")

    result = await asyncio.wait_for(
        ran(flow({"g": {"type": "t:Gen", "final": True}}), [sync_generator if sync else generator]), 30
    )
    assert (result.outputs, closed) == ({"g": {"text": "t"}}, ["closed"])


FINALIZERS = {
    "raises": ("error", "ValueError: while closing"),
    "ignores the end": ("error", "RuntimeError: async generator ignored GeneratorExit"),
}


@pytest.mark.parametrize("how", FINALIZERS)
async def test_a_finaliser_that_misbehaves_is_the_error_of_its_node(how: str) -> None:
    @node("t:Gen")
    async def generator() -> Out(text=str):
        try:
            yield Final(text="t")
        finally:
            if how == "raises":
                raise ValueError("while closing")
            yield "more"

    result = await asyncio.wait_for(ran(flow({"g": "t:Gen"}), [generator]), 30)
    assert (result.states["g"], result.errors[0].message) == FINALIZERS[how]


@node("t:Marks")
async def marks(chunks: Stream[str]) -> Out(chunks=Stream[str], text=str):
    async for chunk in chunks:
        yield f"{chunk}!"
    yield Final(text="all")


OFF = {"type": "t:Marks", "exec": {"bypassed": True}}
BYPASSED = {
    "its stream is that which it would read": (
        {"m": OFF, "r": "t:Read"},
        "c.chunks>m.chunks m.chunks>r.chunks",
        {"all": ["0", "1", "2"]},
    ),
    "so are those of several in a row": (
        {"m": OFF, "n": OFF, "r": "t:Read"},
        "c.chunks>m.chunks m.chunks>n.chunks n.chunks>r.chunks",
        {"all": ["0", "1", "2"]},
    ),
    "a stream is no value": ({"m": OFF, "r": "t:Merge"}, "c.chunks>m.chunks m.text>r.a", None),
    "without an edge it has no stream": ({"m": OFF, "r": "t:Read"}, "m.chunks>r.chunks", None),
}


@pytest.mark.parametrize("case", BYPASSED)
async def test_a_bypassed_node_passes_on_a_stream(case: str) -> None:
    nodes, edges, read = BYPASSED[case]
    result = await ran(flow({"c": "t:Count", **nodes}, edges), [*ALL, marks])
    assert result.state == "complete"
    assert result.outputs.get("r") == read
