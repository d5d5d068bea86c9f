"""Limits: never more at a time than they say, first come first served, nobody forgotten, and no way to lock a run with them."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from typing import Annotated, Any

import pytest

from tavern_core.contract.nodes import Final, NodeContext, Out, Port, Stream, node
from tavern_core.errors import UsageError
from tests.engine.workbench import flow, group, kinds, made, ran, reported

pytestmark = pytest.mark.anyio
PATIENCE = 30
"""Seconds after which a run counts as locked."""


class Meter:
    """Who works at the same time."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.order: list[str] = []

    def enter(self, *names: str) -> None:
        for name in names:
            self.now[name] += 1
            self.most[name] = max(self.most[name], self.now[name])

    def leave(self, *names: str) -> None:
        self.now.subtract(names)


def types(meter: Meter) -> list[Any]:
    """Three node types that add one to the sum of their inputs, each limited in another way."""

    def made_type(name: str, **options: Any) -> Any:
        @node(f"t:{name}", **options)
        async def work(ctx: NodeContext, xs: Annotated[list[int], Port(multi=True)] = (), waits: int = 0) -> Out(y=int):
            meter.order.append(ctx.path)
            meter.enter("all", name, options.get("resource", ""))
            for _ in range(waits):
                await asyncio.sleep(0)
            meter.leave("all", name, options.get("resource", ""))
            return (1 + sum(xs)) % 1_000_003

        return work

    return [
        made_type("Free"),
        made_type("Own", limit=2),
        made_type("Gpu", resource="gpu"),
        made_type("Both", limit=1, resource="gpu"),
    ]


KINDS = ("Free", "Own", "Gpu", "Both")


@pytest.mark.parametrize("seed", range(25))
async def test_random_graphs_give_the_same_and_keep_every_limit(seed: int) -> None:
    dice = random.Random(seed)
    count = dice.randint(2, 60)
    kind = [dice.choice(KINDS) for _ in range(count)]
    feeds = [sorted(dice.sample(range(at), min(at, dice.randint(0, 4)))) for at in range(count)]
    names = list(range(count))
    dice.shuffle(names)  # the order of the file is not that of the graph
    nodes = {f"n{at}": {"type": f"t:{kind[at]}", "waits": dice.choice((0, 0, 1, 3))} for at in names}
    wires = " ".join(f"n{a}.y>n{b}.xs" for b in range(count) for a in feeds[b])
    total, own, gpu = dice.choice((None, 1, 2, 5)), dice.choice((None, 1, 3)), dice.choice((1, 2))
    expected: list[int] = []
    for at in range(count):
        expected.append((1 + sum(expected[a] for a in feeds[at])) % 1_000_003)
    meter = Meter()
    options = {"types": {"t:Own": own} if own else {}, "resources": {"gpu": gpu}, "concurrency": total}
    run = made(flow(nodes, wires), types(meter), **options)
    result = await asyncio.wait_for(run.execute(), PATIENCE)
    assert result.ok
    assert {path: out["y"] for path, out in result.outputs.items()} == {
        f"n{at}": expected[at] for at in range(count) if f"n{at}" in result.outputs
    }
    assert sorted(meter.order) == sorted(nodes)
    limits = {"all": total or count, "Own": own or 2, "gpu": gpu, "Both": 1}
    assert {name: meter.most[name] for name in limits if meter.most[name] > limits[name]} == {}
    assert all(value == 0 for value in meter.now.values())


async def test_first_come_first_served() -> None:
    meter = Meter()
    nodes = {f"n{at}": {"type": ("t:Own", "t:Free")[at % 2], "waits": 2} for at in range(60)}
    assert (await ran(flow(nodes), types(meter), concurrency=3)).ok
    for kind in (0, 1):
        own = [path for path in meter.order if int(path[1:]) % 2 == kind]
        assert own == sorted(own, key=lambda path: int(path[1:]))


async def test_limited_nodes_that_need_ask_and_wait_for_each_other_do_not_lock() -> None:
    @node("t:Needs", limit=1)
    async def needs(ctx: NodeContext, a: Annotated[int | None, Port(lazy=True)] = None) -> Out(y=int):
        return 1 + await ctx.need("a")

    @node("t:NeedsTwo", limit=1)
    async def needs_two(
        ctx: NodeContext,
        a: Annotated[int | None, Port(lazy=True)] = None,
        b: Annotated[int | None, Port(lazy=True)] = None,
    ) -> Out(y=int):
        one, other = await asyncio.gather(ctx.need("a"), ctx.need("b"))
        return one + other

    @node("t:Asks", limit=1)
    async def asks(ctx: NodeContext, x: int = 0) -> Out(y=int):
        return await ctx.ask({"type": "integer"}) + x

    @node("t:One", limit=1)
    async def one() -> Out(y=int):
        await asyncio.sleep(0)
        return 1

    nodes = {"o": "t:One", "n": "t:Needs", "m": "t:Needs", "t": "t:NeedsTwo", "q": "t:Asks", "r": "t:Asks"}
    run = made(flow(nodes, "o.y>n.a n.y>m.a m.y>t.a n.y>t.b t.y>q.x"), [needs, needs_two, asks, one], concurrency=1)
    task = asyncio.create_task(run.execute())
    for answered in ("r#1", "q#1"):
        await asyncio.wait_for(reported(run, lambda name=answered: name in run.questions), PATIENCE)
        run.answer(answered, 10)
    result = await asyncio.wait_for(task, PATIENCE)
    assert (result.errors, result.outputs) == ((), {"q": {"y": 15}, "r": {"y": 10}})


async def test_a_node_that_comes_back_from_a_rest_waits_for_room_and_comes_first() -> None:
    meter, seen = Meter(), []

    @node("t:Needs")
    async def needs(ctx: NodeContext, a: Annotated[int | None, Port(lazy=True)] = None) -> Out(y=int):
        value = await ctx.need("a")
        meter.enter("all")
        seen.append("back")
        await asyncio.sleep(0)
        meter.leave("all")
        return value

    @node("t:Work")
    async def work() -> Out(y=int):
        meter.enter("all")
        seen.append("work")
        await asyncio.sleep(0)
        meter.leave("all")
        return 1

    nodes = {"n": "t:Needs", **{f"w{at}": "t:Work" for at in range(5)}, "l": "t:Work"}
    result = await asyncio.wait_for(ran(flow(nodes, "l.y>n.a"), [needs, work], concurrency=1), PATIENCE)
    assert (result.ok, meter.most["all"], len(seen)) == (True, 1, 7)


@pytest.mark.parametrize("room", [1, 2, 3])
async def test_streams_go_on_under_the_narrowest_limit_and_memory_stays_bounded(room: int) -> None:
    written = read = furthest = 0

    @node("t:Writes", limit=1)
    async def writes(n: int = 500) -> Out(chunks=Stream[int]):
        nonlocal written, furthest
        for at in range(n):
            written += 1
            furthest = max(furthest, written - read)
            yield at

    @node("t:Reads", limit=1)
    async def reads(chunks: Stream[int]) -> Out(total=int):
        nonlocal read
        total = 0
        async for chunk in chunks:
            read += 1
            total += chunk
            await asyncio.sleep(0)
        return total

    result = await asyncio.wait_for(
        ran(flow({"w": "t:Writes", "r": "t:Reads"}, "w.chunks>r.chunks"), [writes, reads], concurrency=room), PATIENCE
    )
    assert (result.errors, result.outputs["r"], furthest < 40) == ((), {"total": 499 * 250}, True)


async def test_a_reader_that_needs_a_node_behind_its_writer_does_not_deadlock() -> None:
    @node("t:Writes")
    async def writes(n: int = 200) -> Out(chunks=Stream[int], count=int):
        for at in range(n):
            yield at
        yield Final(count=n)

    @node("t:Reads")
    async def reads(ctx: NodeContext, chunks: Stream[int], a: Annotated[int | None, Port(lazy=True)] = None) -> Out(
        total=int
    ):
        first = await anext(chunks)
        count = await ctx.need("a")
        return first + count + sum([chunk async for chunk in chunks])

    workflow = flow({"w": "t:Writes", "r": "t:Reads"}, "w.chunks>r.chunks w.count>r.a")
    for room in (None, 1):
        result = await asyncio.wait_for(ran(workflow, [writes, reads], concurrency=room), PATIENCE)
        assert (result.errors, result.outputs["r"]) == ((), {"total": 199 * 100 + 200})


async def test_groups_maps_and_loops_hold_no_places() -> None:
    meter = Meter()
    deepest = flow(
        {"i": "core:GroupInput", "a": {"type": "t:Free", "waits": 1}, "o": "core:GroupOutput"}, "i.x>a.xs a.y>o.y", name="deepest",
        interfaceInputs={"x": {"dataFlowType": "INTEGER"}}, interfaceOutputs={"y": {"dataFlowType": "INTEGER"}},
    )  # fmt: skip
    middle = flow(
        {"i": "core:GroupInput", "g": group("deepest"), "o": "core:GroupOutput"}, "i.x>g.x g.y>o.y", name="middle",
        interfaceInputs={"x": {"dataFlowType": "INTEGER"}}, interfaceOutputs={"y": {"dataFlowType": "INTEGER"}},
    )  # fmt: skip
    workflow = flow({"m": group("middle", type="core:Map", items=list(range(30)))})
    result = await asyncio.wait_for(ran(workflow, types(meter), workflows=[middle, deepest], concurrency=1), PATIENCE)
    assert (result.errors, result.outputs["m"]["results"], meter.most["all"]) == ((), [x + 1 for x in range(30)], 1)


@pytest.mark.parametrize("ends", ["fails", "runs out of time", "is cancelled"])
async def test_places_are_given_back_however_a_node_ends(ends: str) -> None:
    @node("t:Ends")
    async def ending() -> Out(y=int):
        await asyncio.sleep(0)
        if ends == "fails":
            raise ValueError(ends)
        if ends == "is cancelled":
            raise asyncio.CancelledError
        await asyncio.sleep(60)
        return 1

    nodes = {f"n{at}": {"type": "t:Ends", "exec": {"timeoutMs": 10 if "time" in ends else 60_000}} for at in range(5)}
    result = await asyncio.wait_for(ran(flow(nodes), [ending], concurrency=1), PATIENCE)
    assert result.states == dict.fromkeys(nodes, "error")


@pytest.mark.slow
async def test_a_group_that_runs_out_of_time_gives_its_places_back() -> None:
    @node("t:Sleeps")
    async def sleeps() -> Out(y=int):
        await asyncio.sleep(60)
        return 1

    @node("t:One")
    async def one(x: Any = None) -> Out(y=int):
        return 1

    inner = flow({"a": "t:Sleeps", "b": "t:Sleeps"}, name="inner")
    nodes = {"g": group("inner", exec={"timeoutMs": 200}), "o": "t:One"}
    run = made(flow(nodes), [sleeps, one], workflows=[inner], concurrency=1)
    result = await asyncio.wait_for(run.execute(), PATIENCE)
    assert (result.states["g"], result.states["g/a"], result.states["o"]) == ("error", "interrupted", "complete")
    assert [(e.path, e.kind) for e in result.errors] == [("g", "TIMEOUT")]
    assert kinds(run, "g/b") == ["queued", "interrupted"]


@pytest.mark.parametrize(
    "options", [{"concurrency": 0}, {"types": {"t:A": -1}}, {"resources": {"gpu": True}}, {"timeout_ms": 0}]
)
async def test_limits_that_nothing_could_pass_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="whole number"):
        made(flow({}), [], **options)


@pytest.mark.slow
@pytest.mark.parametrize("limits", [{"concurrency": 1}, {"types": {"t:Stuck": 1}}], ids=["of the run", "of its type"])
async def test_a_sync_node_that_cannot_be_stopped_keeps_its_place_until_its_thread_ends(limits: dict[str, Any]) -> None:
    """Its time is over and the run goes on, but its code still uses what the limit protects."""
    release, working = threading.Event(), 0

    @node("t:Stuck", limit=1)
    def stuck(x: int = 0) -> Out(y=int):
        nonlocal working
        working += 1
        alone = working == 1
        if x == 1:
            release.wait(PATIENCE)
        working -= 1
        assert alone, "two at a time"
        return x

    nodes = {"a": {"type": "t:Stuck", "x": 1, "exec": {"timeoutMs": 200}}, "b": {"type": "t:Stuck", "x": 2}}
    run = made(flow(nodes), [stuck], **limits)
    task = asyncio.create_task(run.execute())
    while run.states.get("a") != "error":  # noqa: ASYNC110 - its state is what is looked at
        await asyncio.sleep(0.001)
    for _ in range(50):  # b has every chance to begin too early
        await asyncio.sleep(0.001)
    assert run.states.get("b") in (None, "queued")
    release.set()
    result = await asyncio.wait_for(task, PATIENCE)
    assert (result.states, [error.path for error in result.errors]) == ({"a": "error", "b": "complete"}, ["a"])
