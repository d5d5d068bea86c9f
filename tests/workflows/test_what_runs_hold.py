"""What nodes of a run are given, what becomes of streams nobody reads, what events and records say, and how much is kept."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest

from tavern_core import Final, Node, NodeContext, Out, Plugin, Port, Skip, Stream, ToolFailed, hookimpl, node
from tavern_core.errors import InputInvalid, UsageError
from tavern_core.flow import run_handle
from tavern_core.flow.engine import sqlite_run_store
from tavern_core.flow.engine.cache import SessionCache
from tests.engine.workbench import flow, group
from tests.rows import row
from tests.workflows.folder import Flows

pytestmark = pytest.mark.anyio
INTEGER = {"dataFlowType": "INTEGER"}
ARRAY = {"dataFlowType": "ARRAY"}


@node("h:List")
async def numbers() -> Out(v=list):
    return [1]


@node("h:Push")
async def push(v: list, x: int = 9) -> Out(v=list):
    v.append(x)
    return v


@node("h:All")
async def all_of(v: Annotated[list[Any], Port(multi=True)]) -> Out(n=int):
    for each in v:
        each.append(0)
    return len(v)


@node("h:Nothing")
async def nothing(how: str = "skip") -> Out(y=int):
    if how == "fail":
        raise ToolFailed("not today")
    return Skip


@node("h:Asks")
async def asks(ctx: NodeContext, a: Annotated[int, Port(lazy=True)]) -> Out(y=int):
    return await ctx.need("a")


class Needs(Node):
    """Needs its lazy input always."""

    type = "h:Needs"

    def needs(self, ctx: NodeContext, **_: Any) -> list[str]:
        return ["a"]

    async def run(self, a: Annotated[int, Port(lazy=True)] = 5) -> Out(y=int):
        return a


@node("h:Numbers")
async def endless(most: int = 0) -> Out(s=Stream[int], last=int):
    at = 0
    while not most or at < most:
        yield at
        at += 1
    yield Final(last=at)


@node("h:Take")
async def take(s: Stream[int], n: int = 3) -> Out(got=list):
    got: list[int] = []
    async for chunk in s:
        got.append(chunk)
        if len(got) == n:
            break
    return {"got": got}


@node("h:Tells")
async def tells(ctx: NodeContext, text: str = "") -> Out(y=str):
    ctx.progress(1, 2, text)
    return "x" * 10


@node("h:Schema")
async def bad_schema(ctx: NodeContext) -> Out(y=str):
    return await ctx.ask({"type": "strng"})


@node("h:Loud")
async def loud(n: int = 1_000_000) -> Out(y=str):
    raise ToolFailed("m" * n, hint="h" * n)


@node("h:Kept", cache=True)
async def kept(x: int = 0) -> Out(y=int):
    return x + 1


@node("h:Big")
async def big(n: int) -> Out(y=str):
    return "x" * n


class Nodes:
    @hookimpl
    def tavern_register_nodes(self) -> list[Any]:
        return [numbers, push, all_of, nothing, asks, Needs, endless, take, tells, bad_schema, loud, kept, big]


PLUGIN = Plugin(Nodes(), name="h")


async def ran(flows: Flows, nodes: dict[str, Any], wires: str = "", **options: Any) -> Any:
    async with flows.open(PLUGIN) as tavern:
        return await asyncio.wait_for(tavern.workflows.run(flow(nodes, wires), **options), 30)


OWN: dict[str, tuple[dict[str, Any], str, Any]] = {
    "two nodes": ({"l": "h:List", "a": "h:Push", "b": "h:Push"}, "l.v>a.v l.v>b.v", {"a": {"v": [1, 9]}, "b": {"v": [1, 9]}}),
    "an input that takes several": ({"l": "h:List", "a": "h:All", "b": "h:Push"}, "l.v>a.v l.v>b.v", {"a": {"n": 1}, "b": {"v": [1, 9]}}),
    "items of a map": ({"m": {"type": "core:Map", "config": {"referencedWorkflowId": "push"}, "items": [1, 2], "v": [0]}}, "", {"m": {"results": [[0, 1], [0, 2]], "count": 2}}),
    "rounds of a loop": ({"m": group("twice", type="core:Loop", v=[0], config={"maxIterations": 2})}, "", {"m": {"out": [0, 9], "iterations": 2}}),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
async def test_a_list_that_one_changes_is_not_changed_for_others(flows: Flows, name: str) -> None:
    for id_, out in (("push", "v"), ("twice", "out")):
        inputs = {"v": ARRAY, **({"item": INTEGER} if id_ == "push" else {})}
        wires = f"i.v>p.v p.v>o.{out}" + (" i.item>p.x" if id_ == "push" else "")
        flows.write(
            id_,
            {"i": "core:GroupInput", "p": "h:Push", "o": "core:GroupOutput"},
            wires,
            interfaceInputs=inputs,
            interfaceOutputs={out: ARRAY},
        )
    nodes, wires, outputs = OWN[name]
    result = await ran(flows, nodes, wires)
    assert (result.errors, result.outputs) == ((), outputs)


@pytest.mark.parametrize("asker", ["h:Asks", "h:Needs", "core:Choose"])
@pytest.mark.parametrize("how", ["skip", "fail"])
async def test_a_node_that_asks_for_what_never_comes_is_skipped(flows: Flows, asker: str, how: str) -> None:
    choose = {"type": asker, "condition": True} if asker == "core:Choose" else asker
    slot, out = ("yes", "value") if asker == "core:Choose" else ("a", "y")
    nodes = {"n": {"type": "h:Nothing", "how": how}, "a": choose, "b": "h:Kept"}
    result = await ran(flows, nodes, f"n.y>a.{slot} a.{out}>b.x")
    assert (result.states["a"], result.states["b"], [error.path for error in result.errors]) == (
        "skipped",
        "skipped",
        ["n"] if how == "fail" else [],
    )


@pytest.mark.parametrize("nested", [False, True])
async def test_a_writer_without_end_ends_with_its_last_reader(flows: Flows, nested: bool) -> None:
    stream = {"s": {**INTEGER, "isStream": True}}
    flows.write("inner", {"w": "h:Numbers", "o": "core:GroupOutput"}, "w.s>o.s", interfaceOutputs=stream)
    writer: Any = group("inner") if nested else "h:Numbers"
    result = await ran(
        flows, {"w": writer, "a": {"type": "h:Take", "n": 3}, "b": {"type": "h:Take", "n": 30}}, "w.s>a.s w.s>b.s"
    )
    assert (result.state, result.outputs["a"], result.outputs["b"]["got"]) == (
        "complete",
        {"got": [0, 1, 2]},
        [*range(30)],
    )
    assert result.states["w/w" if nested else "w"] == "complete"


async def test_a_writer_whose_other_outputs_are_wanted_goes_on_to_its_end(flows: Flows) -> None:
    nodes = {"w": {"type": "h:Numbers", "most": 200}, "a": "h:Take", "k": "h:Kept"}
    assert (await ran(flows, nodes, "w.s>a.s w.last>k.x")).outputs["k"] == {"y": 201}
    assert (await ran(flows, nodes, "w.s>a.s", to=["w"])).outputs["w"] == {"last": 200}


async def test_a_writer_that_was_broken_off_is_taken_up_unless_its_end_is_wanted(flows: Flows) -> None:
    nodes: dict[str, Any] = {"w": {"type": "h:Numbers", "most": 200}, "a": "h:Take"}
    async with flows.open(PLUGIN) as tavern:
        first = await tavern.workflows.run(flow(nodes, "w.s>a.s"))
        assert (await tavern.workflows.resume(first.run_id)).states == {"w": "cached", "a": "cached"}
        edited = flow({**nodes, "k": "h:Kept"}, "w.s>a.s w.last>k.x")
        for options, outputs in (({}, ("k", {"y": 201})), ({"to": ["w"]}, ("w", {"last": 200}))):
            result = await tavern.workflows.run(
                edited if not options else flow(nodes, "w.s>a.s"), again=first.run_id, **options
            )
            assert (result.states["w"], result.outputs[outputs[0]]) == ("complete", outputs[1])


async def test_a_writer_without_a_reader_can_be_cancelled(flows: Flows) -> None:
    async with flows.open(PLUGIN) as tavern:
        handle = await tavern.workflows.start(flow({"w": "h:Numbers"}))
        await asyncio.sleep(0)
        handle.cancel()
        assert (await asyncio.wait_for(handle, 30)).states == {"w": "interrupted"}


async def test_events_say_how_long_and_how_much_and_progress_comes_before_the_end(flows: Flows) -> None:
    async with flows.open(PLUGIN) as tavern:
        result = await tavern.workflows.run(
            flow({"t": "h:Tells", "f": {"type": "h:Nothing", "how": "fail"}, "s": "h:Nothing"})
        )
        events = {
            path: [(e.kind, e.data) for e in tavern.workflows.events(result.run_id) if e.path == path] for path in "tfs"
        }
    assert [kind for kind, _ in events["t"]] == ["queued", "running", "progress", "complete"]
    assert events["t"][-1][1]["bytes"] == 10
    assert events["t"][-1][1]["durationMs"] > 0
    assert {"error", "durationMs"} == set(events["f"][-1][1])
    assert events["s"][-1] == ("skipped", {"durationMs": events["s"][-1][1]["durationMs"]})


async def test_a_record_tells_every_node_in_another_host_too(flows: Flows) -> None:
    nodes = {"i": "core:GroupInput", "k": "h:Kept", "p": {"type": "h:Nothing", "how": "fail"}, "l": "h:Kept"}
    flows.write("recorded", nodes, "i.x>k.x p.y>l.x", interfaceInputs={"x": INTEGER})
    async with flows.open(PLUGIN) as tavern:
        run = (await tavern.workflows.run("recorded", {"x": 4})).run_id
        first = await tavern.workflows.record(run)
    async with flows.open(PLUGIN) as other:
        record = await other.workflows.record(run)
    assert record == first
    assert (record.state, record.inputs, [error["path"] for error in record.errors]) == ("error", {"x": 4}, ["p"])
    reported = {
        path: (node.state, dict(node.inputs), dict(node.outputs)) for path, node in record.nodes.items() if path != "i"
    }
    assert reported == {
        "k": ("complete", {"x": 4}, {"y": 5}),
        "p": ("error", {"how": "fail"}, {}),
        "l": ("skipped", {}, {}),
    }
    assert record.nodes["k"].started
    assert record.nodes["p"].error


async def test_what_nodes_say_is_bounded(flows: Flows) -> None:
    result = await ran(flows, {"l": "h:Loud", "t": {"type": "h:Tells", "text": "t" * 1_000_000}})
    [error] = result.errors
    assert len(str(error.to_json())) < 10_000


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "an option that does not exist": ({"concurency": 3}, UsageError, "concurency"),
    "limits that are none": ({"types": 5}, UsageError, "takes a mapping"),
    "a target that is none": ({"to": 5}, UsageError, "ids of nodes"),
    "a run that is none": ({"again": 5}, UsageError, "`again` takes"),
    "an answer to what was not asked": ({"answers": {"q#2": "x"}}, InputInvalid, "did not ask 'q#2'"),
    "a place to begin without a run": ({"start_at": ["q"]}, UsageError, "needs `again`"),
}


async def test_wishes_that_mean_nothing_are_refused(flows: Flows) -> None:
    flows.write("asks", {"q": "t:Ask"})
    async with flows.open(PLUGIN) as tavern:
        handle = await tavern.workflows.start("asks")
        async for event in handle.events():
            if event.kind == "ask":
                handle.cancel()
        await handle
        for what, (options, kind, text) in REFUSED.items():
            with row(what), pytest.raises(kind, match=text):
                await (
                    tavern.workflows.resume(handle.id, **options)
                    if "answers" in options
                    else tavern.workflows.run("asks", **options)
                )


async def test_a_question_whose_schema_is_none_is_never_asked(flows: Flows) -> None:
    [error] = (await ran(flows, {"q": "h:Schema"})).errors
    assert (error.kind, "strng" in error.message) == ("SCHEMA_INVALID", True)


def damage(statement: str) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute(statement)
        db.close()

    return spoil


SPOILT: dict[str, Callable[[Path], None]] = {
    "null": damage("UPDATE answers SET outputs = 'null'"),
    "a list": damage("UPDATE answers SET outputs = '[1]'"),
    "another type": damage("""UPDATE answers SET outputs = '{"y": "text"}'"""),
    "no outputs": damage("UPDATE answers SET outputs = '{}'"),
    "no text": damage("UPDATE answers SET outputs = 5"),
    "another key": damage("UPDATE answers SET outputs = '{\"y\": 77}'"),
    "a table of somebody else": damage("ALTER TABLE answers RENAME COLUMN crc TO theirs"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SPOILT)
async def test_an_answer_on_the_disk_that_is_not_as_it_was_written_is_none(flows: Flows, name: str) -> None:
    workflow = {"k": {"type": "h:Kept", "x": 1, "exec": {"cache": "disk"}}, "l": "h:Kept"}
    for spoil in (None, SPOILT[name], None):
        if spoil is not None:
            spoil(flows.root / "home" / "cache" / "answers.db")
        result = await ran(flows, workflow, "k.y>l.x")
        assert (result.errors, result.outputs) == ((), {"l": {"y": 3}})
        wanted = "complete" if spoil is not None or result.states["k"] == "complete" else "cached"
        assert result.states["k"] == wanted
    assert result.states["k"] == "cached"


async def test_a_called_workflow_has_ended_when_its_caller_was_cancelled(flows: Flows) -> None:
    flows.write("slow", {"w": "t:Wait"}, description="Waits.")
    async with flows.open(PLUGIN) as tavern:
        before = asyncio.all_tasks()
        handle = await tavern.workflows.start(flow({"c": {"type": "core:CallTool", "tool": "workflow:slow"}}))

        def states(run: str) -> bool:
            return "running" in [event.kind for event in tavern.workflows.events(run)]

        while not (inner := [run for run in tavern.workflows.runs() if run != handle.id]) or not states(inner[0]):  # noqa: ASYNC110 - it appears by itself
            await asyncio.sleep(0)
        handle.cancel()
        await asyncio.wait_for(handle, 30)
        assert tavern.workflows.events(inner[0])[-1].kind == "run:cancelled"
        assert asyncio.all_tasks() == before


@pytest.mark.slow
async def test_what_runs_gave_is_held_within_bounds(flows: Flows, monkeypatch: pytest.MonkeyPatch) -> None:
    session = SessionCache(most=3, most_bytes=1_000)
    for at in range(5):
        session.store(bytes([at]), {"y": "x" * 300})
    session.store(b"much", {"y": "x" * 2_000})
    assert [session.find(bytes([at])) is not None for at in range(5)] + [session.find(b"much")] == [
        False,
        False,
        False,
        True,
        True,
        None,
    ]
    monkeypatch.setattr(sqlite_run_store, "MOST_RECORD", 10_000)
    monkeypatch.setattr(sqlite_run_store, "MOST_BYTES", 20_000)
    monkeypatch.setattr(sqlite_run_store, "_TIDY_EVERY", 5)
    monkeypatch.setattr(run_handle, "MOST_BYTES", 30_000)
    async with flows.open(PLUGIN) as tavern:
        ids = [
            (
                await tavern.workflows.run(
                    flow({"b": {"type": "h:Big", "n": 8_000}, "c": {"type": "h:Big", "n": 11_000}})
                )
            ).run_id
            for _ in range(10)
        ]
        assert tavern.workflows.runs() == ids[-1:]
        assert len(tavern.workflows.kept()) < 7
        again = await tavern.workflows.resume(tavern.workflows.kept()[1].run_id)
        reported = [(e.path, e.data["why"]) for e in tavern.workflows.events(again.run_id) if e.kind == "again"]
        assert (again.states, reported) == ({"b": "cached", "c": "complete"}, [("c", "size")])
