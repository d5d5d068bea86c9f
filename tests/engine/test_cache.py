"""Kept answers: a change reruns exactly what depends on it, whatever the graph; nothing is taken that could be another answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from tavern_core.contract.nodes import Final, Node, NodeContext, Out, Port, Skip, Stream, node
from tavern_core.flow.engine.cache import DiskCache, EarlierResults, RunCache, SessionCache
from tests.engine.nodes import ALL
from tests.engine.workbench import flow, group, made

pytestmark = pytest.mark.anyio
RAN: list[str] = []


@node("t:Kept", cache=True)
async def kept(
    ctx: NodeContext, xs: Annotated[list[int], Port(multi=True)] = (), own: int = 0, waits: bool = False
) -> Out(y=int):
    RAN.append(ctx.path)
    if waits:
        await asyncio.sleep(0)
    return (own + 3 * sum(xs) + len(xs)) % 1_000_003


@node("t:Each")
async def each_time(ctx: NodeContext, xs: Annotated[list[int], Port(multi=True)] = (), own: int = 0) -> Out(y=int):
    RAN.append(ctx.path)
    return (own + 5 * sum(xs)) % 1_000_003


@node("t:LazyKept", cache=True)
async def lazy_kept(ctx: NodeContext, a: Annotated[int | None, Port(lazy=True)] = None) -> Out(y=int):
    RAN.append(ctx.path)
    return await ctx.need("a")


@node("t:MayFail", cache=True)
async def may_fail(ctx: NodeContext, fail: bool = False) -> Out(y=int):
    RAN.append(ctx.path)
    if RAN.count(ctx.path) == 1:
        raise ConnectionError("only the first time")
    return 5


@node("t:KeptList", cache=True)
async def kept_list(ctx: NodeContext) -> Out(xs=list):
    RAN.append(ctx.path)
    return [1, [2]]


@node("t:Spoils")
async def spoils(xs: list) -> Out(n=int):
    xs[1].append(3)
    xs.clear()
    return 0


@node("t:Show")
async def show(xs: list) -> Out(seen=list):
    return [repr(xs)]


@node("t:KeptAny", cache=True)
async def kept_any(ctx: NodeContext, x: Any = None) -> Out(y=str):
    RAN.append(ctx.path)
    return repr(x)


@node("t:Talks")
async def talks(ctx: NodeContext, n: int = 3) -> Out(chunks=Stream[str], text=str):
    RAN.append(ctx.path)
    for at in range(n):
        yield str(at)
    yield Final(text="said")


@node("t:Hears")
async def hears(ctx: NodeContext, chunks: Stream[str], fail: bool = False) -> Out(all=list):
    RAN.append(ctx.path)
    if fail:
        raise ValueError("deaf")
    return [chunk async for chunk in chunks]


class Fingers(Node):
    type = "t:Finger"
    cache = True
    print_ = 0

    def fingerprint(self, ctx: NodeContext, **_: Any) -> Any:
        if isinstance(Fingers.print_, Exception):
            raise Fingers.print_
        return Fingers.print_

    async def run(self, ctx: NodeContext, x: int = 0) -> Out(y=int):
        RAN.append(ctx.path)
        return x


NODES = [*ALL, kept, each_time, lazy_kept, may_fail, kept_list, spoils, show, kept_any, talks, hears, Fingers]


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()
    Fingers.print_ = 0
    return


class Bench:
    """Runs workflows on one cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.session, self.disk = SessionCache(), DiskCache(folder / "answers.db")
        self.steps: dict[str, Any] = {}

    async def run(
        self, workflow: Any, inputs: Any = None, *, earlier: EarlierResults | None = None, **options: Any
    ) -> Any:
        RAN.clear()
        cache = RunCache(self.session, self.disk, earlier)
        run = made(workflow, NODES, inputs, cache=cache, **options)
        result = await asyncio.wait_for(run.execute(), 30)
        self.steps = cache.steps
        return result

    async def again(self, workflow: Any, *start_at: str, **options: Any) -> Any:
        """Take up the last run, with no other cache."""
        earlier, self.session = EarlierResults(self.steps, start_at), SessionCache()
        self.disk.close()
        (self.folder / "answers.db").unlink(missing_ok=True)
        return await self.run(workflow, earlier=earlier, **options)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    found.disk.close()


class Graph:
    """A random graph, and what an independent reading of it says of an edit."""

    def __init__(self, dice: random.Random, place: str) -> None:
        self.count = dice.randint(2, 40)
        self.place = place
        self.kept = [dice.random() < 0.75 for _ in range(self.count)]
        self.own = [dice.randint(0, 9) for _ in range(self.count)]
        self.feeds = [sorted(dice.sample(range(at), min(at, dice.randint(0, 3)))) for at in range(self.count)]

    def edit(self, dice: random.Random) -> int:
        at = dice.randrange(self.count)
        if self.feeds[at] and dice.random() < 0.4:
            self.feeds[at].pop(dice.randrange(len(self.feeds[at])))
        else:
            self.own[at] += 10
        return at

    def workflow(self) -> Any:
        kinds = ("t:Each", "t:Kept")
        nodes = {f"n{at}": {"type": kinds[self.kept[at]], "own": self.own[at]} for at in range(self.count)}
        for at in range(self.count):
            if self.kept[at]:
                nodes[f"n{at}"]["exec"] = {"cache": self.place}
        return flow(nodes, " ".join(f"n{a}.y>n{b}.xs" for b in range(self.count) for a in self.feeds[b]))

    def values(self) -> list[int]:
        found: list[int] = []
        for at in range(self.count):
            xs = [found[a] for a in self.feeds[at]]
            found.append((self.own[at] + (3 * sum(xs) + len(xs) if self.kept[at] else 5 * sum(xs))) % 1_000_003)
        return found

    def behind(self, start: set[int]) -> set[str]:
        reached = set(start)
        for at in range(self.count):
            if reached & set(self.feeds[at]):
                reached.add(at)
        return {f"n{at}" for at in reached}

    def never_kept(self) -> set[int]:
        return {at for at in range(self.count) if not self.kept[at]}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
async def test_an_edit_reruns_exactly_what_depends_on_it(bench: Bench, seed: int) -> None:
    dice = random.Random(seed)
    graph = Graph(dice, "disk" if seed % 2 else "session")
    first = await bench.run(graph.workflow())
    before = dict(bench.steps)
    assert set(RAN) <= {f"n{at}" for at in range(graph.count)}
    at = graph.edit(dice)
    # with the cache: what is edited, what is never kept, and all behind them; equal nodes elsewhere may have given the answer
    result = await bench.run(graph.workflow())
    assert set(RAN) <= graph.behind({at} | graph.never_kept())
    assert {f"n{n}" for n in graph.never_kept()} <= set(RAN)
    expected = {f"n{n}": {"y": value} for n, value in enumerate(graph.values())}
    assert result.outputs == {path: expected[path] for path in result.outputs}
    # taken up again, without any other cache: the edited node and what is behind it, neither more nor less
    bench.steps = before
    again = await bench.again(graph.workflow())
    assert (set(RAN), again.outputs) == (graph.behind({at}), result.outputs)
    bench.steps = before
    node_ = f"n{dice.randrange(graph.count)}"
    await bench.again(graph.workflow(), node_)
    assert set(RAN) == graph.behind({at, int(node_[1:])})
    assert first.ok


async def test_a_cached_node_behind_a_lazy_one_sees_its_changes(bench: Bench) -> None:
    def workflow(own: int, type_: str = "t:Kept") -> Any:
        return flow({"u": {"type": type_, "own": own}, "m": "t:Kept", "l": "t:LazyKept"}, "u.y>m.xs m.y>l.a")

    values = []
    for own in (1, 1, 2, 1):
        values.append(((await bench.run(workflow(own))).outputs["l"]["y"], list(RAN)))
    assert values == [(4, ["l", "u", "m"]), (4, []), (7, ["l", "u", "m"]), (4, [])]
    for _ in range(2):  # what is not kept may be another answer each time
        await bench.run(workflow(1, "t:Each"))
        assert RAN == ["l", "u", "m"]
    await bench.again(workflow(1, "t:Each"))
    assert RAN == []


HANDLED = {"type": "t:MayFail", "exec": {"onError": "default", "defaults": {"y": 100}}}


@pytest.mark.parametrize(
    ("inside", "failing"), [(None, "f"), ("t:MayFail", "f/f"), (HANDLED, "f/f")],
    ids=["node", "group", "group that handles it"],
)  # fmt: skip
async def test_a_node_that_requested_a_value_from_a_failed_one_runs_again(
    bench: Bench, inside: Any, failing: str
) -> None:
    inner = flow(
        {"f": inside or "t:Kept", "k": "t:Kept", "o": "core:GroupOutput"}, "k.y>o.y", name="inner",
        interfaceOutputs={"y": {"dataFlowType": "INTEGER"}},
    )  # fmt: skip
    workflow = flow({"f": group("inner") if inside else HANDLED, "l": "t:LazyKept"}, "f.y>l.a")
    for run in (bench.run, bench.run, bench.again):
        result = await run(workflow, workflows=[inner])
        assert [error.path for error in result.errors] == [failing]
        assert {failing, "l"} <= set(RAN)


@pytest.mark.parametrize("start_at", ["m", "g", "g/k"])
async def test_a_node_with_a_lazy_input_that_depends_on_the_start_runs_again(bench: Bench, start_at: str) -> None:
    inner = flow(
        {"k": "t:Kept", "o": "core:GroupOutput"}, "k.y>o.y", name="inner",
        interfaceOutputs={"y": {"dataFlowType": "INTEGER"}},
    )  # fmt: skip
    nodes = {"g": group("inner"), "m": "t:Kept", "l": "t:LazyKept", "after": "t:Kept"}
    workflow = flow(nodes, "g.y>m.xs m.y>l.a l.y>after.xs")
    await bench.run(workflow, workflows=[inner])
    await bench.again(workflow, start_at, workflows=[inner])
    assert {"l", "m", "after"} <= set(RAN)
    await bench.again(workflow, workflows=[inner])
    assert RAN == []


async def test_the_defaults_of_a_failed_node_are_never_cached(bench: Bench) -> None:
    nodes = {"f": {"type": "t:MayFail", "exec": {"onError": "default", "defaults": {"y": 100}}}, "k": "t:Kept"}
    workflow = flow(nodes, "f.y>k.xs")
    earlier = await bench.run(workflow)
    assert earlier.outputs["k"] == {"y": 301}
    RAN.append("f")
    run = made(workflow, NODES, cache=RunCache(bench.session, bench.disk))
    assert (await run.execute()).outputs["k"] == {"y": 16}


async def test_a_cached_answer_cannot_be_changed(bench: Bench) -> None:
    workflow = flow({"k": "t:KeptList", "s": "t:Spoils", "v": "t:Show"}, "k.xs>s.xs k.xs>v.xs")
    for at in range(3):
        result = await bench.run(flow({"k": "t:KeptList", "v": "t:Show"}, "k.xs>v.xs"))
        assert result.outputs["v"] == {"seen": ["[1, [2]]"]}
        await (bench.again(workflow) if at else bench.run(workflow))
    assert bench.steps["k"][2] == {"xs": [1, [2]]}


SIMILAR: list[Any] = [
    1,
    1.0,
    True,
    "1",
    None,
    [],
    {},
    [1],
    {"1": 1},
    b"YQ==",
    {"$bytes": "YQ=="},
    "YQ==",
    [None],
    "",
    float("inf"),
]


@pytest.mark.slow
async def test_values_that_look_alike_have_keys_of_their_own(bench: Bench) -> None:
    inner = flow({"i": "core:GroupInput", "k": "t:KeptAny", "o": "core:GroupOutput"}, "i.x>k.x k.y>o.y",
                 interfaceInputs={"x": {"dataFlowType": "WILDCARD"}}, interfaceOutputs={"y": {"dataFlowType": "STRING"}})  # fmt: skip
    for value in SIMILAR:
        for _ in range(2):
            assert (await bench.run(inner, {"x": value})).outputs == {"y": repr(value)}


async def test_a_fingerprint_is_asked_and_its_error_is_the_nodes(bench: Bench) -> None:
    workflow = flow({"f": "t:Finger", "k": "t:Kept"}, "f.y>k.xs")
    states = []
    for Fingers.print_ in (1, 1, 2, ValueError("no print")):
        states.append((await bench.run(workflow)).states["f"])
    assert states == ["complete", "cached", "complete", "error"]


async def test_readers_of_streams_are_resumed_and_writers_run_only_for_a_reader(bench: Bench) -> None:
    def workflow(fail: bool) -> Any:
        return flow({"t": "t:Talks", "h": {"type": "t:Hears", "fail": fail}, "o": "t:Hears", "x": "t:Text"},
                    "t.chunks>h.chunks t.chunks>o.chunks t.text>x.value")  # fmt: skip

    failed = await bench.run(workflow(True))
    assert (failed.states["h"], failed.states["o"]) == ("error", "complete")
    result = await bench.again(workflow(False))
    assert (result.state, result.outputs["h"], sorted(RAN)) == ("complete", {"all": ["0", "1", "2"]}, ["h", "t"])
    assert (result.outputs["o"], result.outputs["x"]) == ({"all": ["0", "1", "2"]}, {"text": "said"})
    again = await bench.again(workflow(False))
    assert (again.outputs, RAN) == (result.outputs, [])


async def test_a_streamed_output_is_taken_up_without_its_writer(bench: Bench) -> None:
    workflow = flow({"t": "t:Talks", "e": "t:Each", "o": "core:GroupOutput"}, "t.chunks>o.s e.y>o.y",
                    interfaceOutputs={"s": {"dataFlowType": "STRING", "isStream": True}, "y": {"dataFlowType": "INTEGER"}})  # fmt: skip
    first = await bench.run(workflow)
    again = await bench.again(workflow)
    assert (first.outputs, again.outputs, RAN) == ({"s": "012", "y": 0}, {"s": "012", "y": 0}, [])


async def test_nodes_inside_of_groups_maps_and_loops_are_taken_up_too(bench: Bench) -> None:
    deep = flow({"i": "core:GroupInput", "e": "t:Each", "o": "core:GroupOutput"}, "i.x>e.xs e.y>o.y", name="deep",
                interfaceInputs={"x": {"dataFlowType": "INTEGER"}}, interfaceOutputs={"y": {"dataFlowType": "INTEGER"}})  # fmt: skip
    nodes = {"g": group("deep", x=1), "m": group("deep", type="core:Map", items=[1, 2, 3]),
             "l": group("deep", type="core:Loop", x=1, config={"maxIterations": 3}), "e": "t:Each", "s": "t:Each"}  # fmt: skip
    wires = "g.y>e.xs l.y>s.xs"
    first = await bench.run(flow(nodes, wires), workflows=[deep])
    assert sorted(RAN) == ["e", "g/e", "l/0/e", "l/1/e", "l/2/e", "m/0/e", "m/1/e", "m/2/e", "s"]
    before = dict(bench.steps)
    again = await bench.again(flow(nodes, wires), workflows=[deep])
    assert (again.outputs, RAN) == (first.outputs, [])
    nodes["m"] = group("deep", type="core:Map", items=[1, 5, 3])
    bench.steps = before
    await bench.again(flow(nodes, wires), workflows=[deep])
    assert RAN == ["m/1/e"] or sorted(RAN) == ["m/0/e", "m/1/e", "m/2/e"]
    bench.steps = before
    await bench.again(flow(nodes, wires), "l/1/e", workflows=[deep])
    assert "l/0/e" not in RAN
    assert {"l/1/e", "s"} <= set(RAN)


@pytest.mark.slow
async def test_scopes_of_keeping(bench: Bench, tmp_path: Path) -> None:
    def workflow(place: str) -> Any:
        return flow(
            {
                "a": {"type": "t:Kept", "own": 7, "exec": {"cache": place}},
                "b": {"type": "t:Kept", "own": 7, "exec": {"cache": place}},
            },
            "a.y>b.xs",
        )

    for place, second, other_host in (
        ("none", ["a", "b"], ["a", "b"]),
        ("run", ["a", "b"], ["a", "b"]),
        ("session", [], ["a", "b"]),
        ("disk", [], []),
    ):
        await bench.run(workflow(place))
        await bench.run(workflow(place))
        assert second == RAN, place
        bench.session = SessionCache()
        await bench.run(workflow(place))
        assert other_host == RAN, place


async def test_a_skipped_answer_is_not_kept_and_its_branch_stays_skipped(bench: Bench) -> None:
    @node("t:MaySkip", cache=True)
    async def may_skip(ctx: NodeContext) -> Out(y=int):
        RAN.append(ctx.path)
        return Skip

    NODES.append(may_skip)
    try:
        for _ in range(2):
            result = await bench.run(
                flow({"s": "t:MaySkip", "k": {"type": "t:Kept"}, "n": "t:Need"}, "s.y>k.xs s.y>n.x")
            )
            assert (result.states["s"], result.states["n"], "s" in RAN) == ("skipped", "skipped", True)
    finally:
        NODES.remove(may_skip)
