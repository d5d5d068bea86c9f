"""What comes out of a run: values, streams, skips, errors, in every form a node can have."""

from __future__ import annotations

import asyncio
import threading
from typing import Annotated, Any

import pytest

from tavern_core.contract.nodes import Node, NodeContext, Out, Port, node
from tavern_core.errors import BudgetExceeded, CallError, UpstreamError
from tavern_core.flow.run_handle import follow_events
from tavern_core.model.node import PassThrough
from tests.engine.nodes import ALL
from tests.engine.workbench import flow, group, kinds, made, ran, reported

pytestmark = pytest.mark.anyio

INNER = flow(
    {"i": "core:GroupInput", "a": "t:Inc", "o": "core:GroupOutput"},
    "i.p>a.x a.y>o.q",
    name="inner",
    interfaceInputs={"p": {"dataFlowType": "INTEGER", "required": True}},
    interfaceOutputs={"q": {"dataFlowType": "INTEGER"}},
)

RUNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "a value flows along an edge": (flow({"a": {"type": "t:Inc", "x": 1}, "b": "t:Inc"}, "a.y>b.x"), {"b": {"y": 3}}),
    "sync, fast and async nodes mix": (
        flow({"a": "t:Sync", "b": "t:Fast", "c": "t:Inc"}, "a.y>b.x b.y>c.x"),
        {"c": {"y": 3}},
    ),
    "a multi input keeps all values in edge order": (
        flow({"a": {"type": "t:Inc", "x": 1}, "b": {"type": "t:Inc", "x": 5}, "s": "t:List"}, "b.y>s.xs a.y>s.xs"),
        {"s": {"all": [6, 2]}},
    ),
    "connection orders put some of them first": (
        flow(
            {
                "a": {"type": "t:Inc", "x": 1},
                "b": {"type": "t:Inc", "x": 5},
                "s": {"type": "t:List", "orders": {"xs": ["e1"]}},
            },
            "b.y>s.xs a.y>s.xs",
        ),
        {"s": {"all": [2, 6]}},
    ),
    "numbered handles mean the multi input": (
        flow({"a": "t:Inc", "b": "t:Inc", "s": "t:Sum"}, "a.y>s.xs__0 b.y>s.xs__1"),
        {"s": {"y": 2}},
    ),
    "a number becomes text where text is taken": (
        flow({"a": "t:Inc", "b": "t:Text"}, "a.y>b.value"),
        {"b": {"text": "1"}},
    ),
    "one output feeds many": (
        flow({"a": "t:Inc", "b": "t:Inc", "c": "t:Inc"}, "a.y>b.x a.y>c.x"),
        {"b": {"y": 2}, "c": {"y": 2}},
    ),
    "chunks reach stream readers and the final value the others": (
        flow({"g": "t:Count", "r": "t:Read", "t": "t:Text"}, "g.chunks>r.chunks g.text>t.value"),
        {"r": {"all": ["0", "1", "2"]}, "t": {"text": "012"}},
    ),
    "two readers each see every chunk": (
        flow({"g": "t:Count", "r": "t:Read", "s": "t:Read"}, "g.chunks>r.chunks g.chunks>s.chunks"),
        {"r": {"all": ["0", "1", "2"]}, "s": {"all": ["0", "1", "2"]}},
    ),
    "a reader that leaves early holds nobody up": (
        flow({"g": {"type": "t:Count", "n": 500}, "f": "t:First"}, "g.chunks>f.chunks"),
        {"f": {"one": "0"}},
    ),
    "a reader that also needs the final value does not lock": (
        flow({"g": {"type": "t:Count", "n": 100}, "r": "t:ReadBoth"}, "g.chunks>r.chunks g.text>r.text"),
        {"r": {"all": [*map(str, range(100)), "".join(map(str, range(100)))]}},
    ),
    "a sync generator streams": (
        flow({"g": "t:SyncCount", "r": "t:Read"}, "g.chunks>r.chunks"),
        {"r": {"all": ["0", "1", "2"]}},
    ),
    "a skipped branch is skipped and the other goes on": (
        flow(
            {"p": {"type": "t:Pick", "yes": True, "value": 7}, "y": "t:Need", "n": "t:Need", "m": "t:Merge"},
            "p.yes>y.x p.no>n.x y.y>m.a n.y>m.b",
        ),
        {"m": {"value": 7}},
    ),
    "a tuple gives the outputs in order": (flow({"a": "t:Two"}), {"a": {"a": 1, "b": "one"}}),
    "slots that nobody declared reach an open node": (
        flow({"a": "t:Inc", "o": {"type": "t:Open", "k": 5}}, "a.y>o.made"),
        {"o": {"all": {"k": 5, "made": 1}}},
    ),
    "a lazy input is not run when nobody asks": (
        flow({"s": "t:Inc", "l": {"type": "t:Lazy", "take": False}}, "s.y>l.a"),
        {"l": {"y": -1}},
    ),
    "a lazy input without an edge has the value of the file, or its default": (
        flow({"l": {"type": "t:Lazy", "take": True, "a": 7}, "d": {"type": "t:LazyDefault"}}),
        {"l": {"y": 7}, "d": {"y": 5}},
    ),
    "a lazy input is run when its node asks": (
        flow({"r": "t:Inc", "s": "t:Inc", "l": {"type": "t:Lazy", "take": True}}, "r.y>s.x s.y>l.a"),
        {"l": {"y": 2}},
    ),
    "the class form needs one of two": (
        flow({"a": "t:Inc", "b": "t:Bad", "c": {"type": "t:Choose", "which": "a"}}, "a.y>c.a b.y>c.b"),
        {"c": {"y": 1}},
    ),
    "a group is used twice": (
        flow({"g": group("inner", p=3), "h": group("inner")}, "g.q>h.p"),
        {"h": {"q": 5}},
    ),
    "a bypassed node hands its input on": (
        flow(
            {"a": {"type": "t:Inc", "x": 4}, "b": {"type": "t:Inc", "exec": {"bypassed": True}}, "c": "t:Inc"},
            "a.y>b.x b.y>c.x",
        ),
        {"c": {"y": 6}},
    ),
    "a bypassed node hands on an input that it would request": (
        flow(
            {"a": {"type": "t:Inc", "x": 4}, "l": {"type": "t:Lazy", "exec": {"bypassed": True}}, "c": "t:Inc"},
            "a.y>l.a l.y>c.x",
        ),
        {"c": {"y": 6}},
    ),
    "a map runs a workflow for each item": (
        flow({"m": group("inner", type="core:Map", items=[1, 2, 3], config={"itemInput": "p"})}),
        {"m": {"results": [2, 3, 4], "count": 3}},
    ),
}


@pytest.mark.parametrize("name", RUNS)
async def test_a_run_gives(name: str) -> None:
    workflow, outputs = RUNS[name]
    result = await ran(workflow, ALL, workflows=[INNER])
    assert result.errors == ()
    assert (result.state, {**result.outputs, **outputs}) == ("complete", result.outputs)


async def test_the_interface_is_given_and_returned() -> None:
    result = await ran(INNER, ALL, {"p": 41})
    assert (result.ok, result.outputs) == (True, {"q": 42})


@node("t:Given")
async def given(a: int | None = 3, b: str = "d", many: Annotated[list[int], Port(multi=True)] = ()) -> Out(all=list):
    return [a, b, many]


@node("t:Required")
async def required(many: Annotated[list[int], Port(multi=True)]) -> Out(all=list):
    return many


def leaving_out(type_: str, taking: str) -> Any:
    """A workflow whose optional input `p` goes to the input `taking` of one node."""
    slots = {
        "interfaceInputs": {"p": {"dataFlowType": "WILDCARD"}},
        "interfaceOutputs": {"q": {"dataFlowType": "WILDCARD"}},
    }
    output = {"t:Need": "y", "t:LazyDefault": "y", "core:NodeGroup": "q"}.get(type_, "all")
    nodes = {
        "i": "core:GroupInput",
        "n": group("within") if type_ == "core:NodeGroup" else type_,
        "o": "core:GroupOutput",
    }
    return flow(nodes, f"i.p>n.{taking} n.{output}>o.q", name="within", **slots)


@pytest.mark.parametrize(
    ("workflow", "inputs", "wanted"),
    [
        (leaving_out("t:Given", "a"), {}, [3, "d", []]),
        (leaving_out("t:Given", "a"), {"p": None}, [None, "d", []]),
        (leaving_out("t:Given", "b"), {}, [3, "d", []]),
        (leaving_out("t:Given", "many__0"), {}, [3, "d", []]),
        (leaving_out("t:LazyDefault", "a"), {}, 5),
        (leaving_out("core:NodeGroup", "p").model_copy(update={"id": "outer"}), {}, [3, "d", []]),
        (leaving_out("t:Need", "x"), {}, "input 'x': takes a value, got null"),
        (leaving_out("t:Required", "many__0"), {}, "input 'many': item 0: takes a value, got null"),
    ],
)
async def test_an_input_that_the_caller_leaves_out_leaves_the_node_its_default(
    workflow: Any, inputs: dict[str, Any], wanted: Any
) -> None:
    result = await ran(workflow, [*ALL, given, required], inputs, workflows=[leaving_out("t:Given", "a")])
    assert ([error.message for error in result.errors] or [result.outputs["q"]]) == [wanted]


async def test_an_error_names_path_type_and_place_and_other_branches_finish() -> None:
    inner = flow({"deep": {"type": "t:Bad", "x": 7}}, name="inner")
    result = await ran(flow({"g": group("inner"), "w": "t:Wait", "d": "t:Inc"}, "w.y>d.x"), ALL, workflows=[inner])
    assert (result.state, result.states["d"], result.states["g"]) == ("error", "complete", "error")
    [error] = result.errors
    assert (error.path, error.type, error.kind, error.message) == (
        "g/deep",
        "t:Bad",
        "UPSTREAM_ERROR",
        "ValueError: no 7",
    )
    assert "nodes.py:" in error.details["where"]


@pytest.mark.parametrize(
    ("how", "state", "outputs"),
    [
        ({"onError": "fail"}, "error", {}),
        ({"onError": "skip"}, "complete", {}),
        ({"onError": "default", "defaults": {"y": 10}}, "complete", {"d": {"y": 11}}),
    ],
)
async def test_what_a_failed_node_does_to_its_branch(how: dict[str, Any], state: str, outputs: dict[str, Any]) -> None:
    result = await ran(flow({"b": {"type": "t:Bad", "exec": how}, "d": "t:Inc"}, "b.y>d.x"), ALL)
    assert (result.state, {k: v for k, v in result.outputs.items() if k == "d"}) == (state, outputs)


@node("t:Data")
async def data(x: int = 0) -> Out(data=bytes, number=float):
    raise ValueError("no data")


@node("t:Size")
async def size(data: bytes) -> Out(n=int):
    return len(data)


async def test_the_defaults_of_a_failed_node_have_the_types_of_its_outputs() -> None:
    how = {"onError": "default", "defaults": {"data": "aGVsbG8=", "number": 2}}
    workflow = flow(
        {"d": {"type": "t:Data", "exec": how}, "s": "t:Size", "t": "t:Text"}, "d.data>s.data d.number>t.value"
    )
    assert (await ran(workflow, [*ALL, data, size])).outputs == {"s": {"n": 5}, "t": {"text": "2.0"}}


@node("t:Anything")
async def anything(value: Any = 5) -> Out(value=Any):
    return value


@node("t:LazyText")
async def lazy_text(ctx: NodeContext, value: Annotated[str, Port(lazy=True)] = "") -> Out(text=str):
    return await ctx.need("value")


@pytest.mark.parametrize("reader", ["t:Text", "t:LazyText"])
async def test_an_input_takes_a_value_only_if_it_fits_lazy_or_not(reader: str) -> None:
    nodes = [*ALL, anything, lazy_text]
    result = await ran(flow({"a": "t:Anything", "r": reader}, "a.value>r.value"), nodes)
    assert [(error.path, error.kind, error.slot) for error in result.errors] == [("r", "INPUT_SCHEMA_INVALID", "value")]
    result = await ran(flow({"a": "t:Inc", "r": reader}, "a.y>r.value"), nodes)
    assert result.outputs == {"r": {"text": "1"}}


@node("t:LazyList")
async def lazy_list(ctx: NodeContext, xs: Annotated[list[int], Port(multi=True, lazy=True)] = ()) -> Out(all=list):
    return await ctx.need("xs")


@pytest.mark.parametrize("reader", ["t:List", "t:LazyList"])
async def test_an_input_of_several_values_gets_the_items_of_another_one_lazy_or_not(reader: str) -> None:
    interface = {"xs": {"dataFlowType": "INTEGER", "multi": True}}
    nodes = {"i": "core:GroupInput", "n": "t:Inc", "r": reader}
    workflow = flow(nodes, "i.xs>r.xs n.y>r.xs", interfaceInputs=interface)
    assert (await ran(workflow, [*ALL, lazy_list], {"xs": [4, 5]})).outputs == {"r": {"all": [4, 5, 1]}}


async def test_an_error_port_gives_the_error_to_the_connected_nodes() -> None:
    bad = {"type": "t:Bad", "exec": {"onError": "port"}}
    result = await ran(flow({"b": bad, "m": "t:Merge"}, "b.error>m.a"), ALL)
    assert result.state == "complete"
    assert result.outputs["m"]["value"]["message"] == "ValueError: no 0"


@pytest.mark.parametrize("error", [ConnectionError("not yet"), SystemExit(3)], ids=repr)
async def test_a_node_is_tried_again_as_often_as_its_file_says(error: BaseException) -> None:
    tries: list[int] = []

    @node("t:Shaky")
    async def shaky() -> Out(y=int):
        tries.append(1)
        if len(tries) < 3:
            raise error
        return len(tries)

    run = made(flow({"s": {"type": "t:Shaky", "exec": {"retry": {"times": 4, "delayMs": 1}}}}), [*ALL, shaky])
    result = await run.execute()
    assert (result.ok, result.outputs["s"]["y"], kinds(run, "s").count("retry")) == (True, 3, 2)


@pytest.mark.parametrize(
    "error",
    [
        UpstreamError("come back tomorrow", outcome="none", retryable=True, retry_after_ms=86_400_000),
        BudgetExceeded("the budget allows 1", limit="budget.maxToolCalls"),
    ],
    ids=lambda error: error.code,
)
async def test_a_node_for_which_waiting_does_not_help_is_not_tried_again(error: CallError) -> None:
    @node("t:Busy")
    async def busy() -> Out(y=int):
        raise error

    run = made(flow({"s": {"type": "t:Busy", "exec": {"retry": {"times": 4, "delayMs": 1}}}}), [*ALL, busy])
    result = await run.execute()
    assert (result.ok, kinds(run, "s").count("retry")) == (False, 0)


async def test_a_deadline_ends_a_node() -> None:
    result = await ran(flow({"w": {"type": "t:Wait", "ms": 60_000, "exec": {"timeoutMs": 20}}}), ALL)
    assert [(e.kind, e.path, e.details) for e in result.errors] == [
        ("TIMEOUT", "w", {"stopped": True, "limit": "$exec.timeoutMs"})
    ]


async def test_events_tell_the_life_of_each_node_in_order() -> None:
    run = made(flow({"a": "t:Inc", "b": "t:Bad", "c": "t:Inc"}, "a.y>b.x b.y>c.x"), ALL)
    await run.execute()
    assert {path: kinds(run, path) for path in "abc"} == {
        "a": ["queued", "running", "complete"],
        "b": ["queued", "running", "error"],
        "c": ["queued", "skipped"],
    }
    assert [e.seq for e in run.events()] == list(range(1, len(run.events()) + 1))
    assert [e.kind for e in run.events(after=run.events()[-2].seq)] == ["run:error"]


async def test_cancelling_interrupts_what_runs_and_what_never_began() -> None:
    run = made(flow({"w": {"type": "t:Wait", "ms": 60_000}, "d": "t:Inc"}, "w.y>d.x"), ALL)
    before = asyncio.all_tasks()
    task = asyncio.create_task(run.execute())
    await reported(run, lambda: "running" in kinds(run, "w"))
    assert run.cancel()
    result = await task
    assert (result.state, result.states) == ("cancelled", {"w": "interrupted", "d": "interrupted"})
    assert asyncio.all_tasks() == before


async def test_a_question_holds_up_its_own_branch_only() -> None:
    run = made(flow({"q": "t:Ask", "t": "t:Text", "a": "t:Inc"}, "q.answer>t.value"), ALL)
    task = asyncio.create_task(run.execute())
    await reported(run, lambda: bool(run.questions) and run.states.get("a") == "complete")
    assert (run.states["q"], [q.path for q in run.questions.values()]) == ("waiting", ["q"])
    assert run.answer("q#1", "yes")
    assert (await task).outputs["t"] == {"text": "yes"}


async def test_limits_hold_for_the_run_a_type_and_a_resource() -> None:
    now, most = 0, {"t:Gpu": 0, "all": 0}

    @node("t:Gpu", resource="gpu")
    async def gpu() -> Out(y=int):
        nonlocal now
        now += 1
        most["t:Gpu"] = max(most["t:Gpu"], now)
        await asyncio.sleep(0.001)
        now -= 1
        return 1

    result = await ran(flow({f"n{i}": "t:Gpu" for i in range(12)}), [gpu], resources={"gpu": 3})
    assert (result.ok, most["t:Gpu"]) == (True, 3)
    most["t:Gpu"] = 0
    result = await ran(flow({f"n{i}": "t:Gpu" for i in range(12)}), [gpu], concurrency=4, types={"t:Gpu": 5})
    assert (result.ok, most["t:Gpu"]) == (True, 4)


@pytest.mark.slow
async def test_a_chain_of_ten_thousand_runs_without_a_task_for_each_node() -> None:
    made_tasks: list[Any] = []
    loop = asyncio.get_running_loop()
    nodes = {f"n{i}": "t:Inc" for i in range(10_000)}
    chain = flow(nodes, " ".join(f"n{i}.y>n{i + 1}.x" for i in range(9_999)))
    run = made(chain, ALL)
    loop.set_task_factory(lambda loop, coro, **kw: made_tasks.append(1) or asyncio.Task(coro, loop=loop, **kw))
    try:
        result = await run.execute()
    finally:
        loop.set_task_factory(None)
    assert (result.outputs["n9999"], made_tasks) == ({"y": 10_000}, [])


async def test_two_runs_of_one_plan_share_nothing() -> None:
    @node("t:Grow")
    async def grow(xs: list) -> Out(n=int):
        xs.append(1)
        return len(xs)

    workflow = flow({"g": {"type": "t:Grow", "xs": [0]}})
    for _ in range(2):
        assert (await ran(workflow, [grow])).outputs == {"g": {"n": 2}}


@node("t:Grows")
async def grows(xs: list = [0], x: int = 0) -> Out(n=int):  # noqa: B006
    xs.append(1)
    return len(xs)


class GrowsLazily(Node):
    type = "t:GrowsLazily"

    async def run(self, ctx: NodeContext, xs: Annotated[list, Port(lazy=True)] = [0]) -> Out(n=int):  # noqa: B006
        grown = await ctx.need("xs")
        grown.append(1)
        return len(grown)


@node("t:Lists", bypass=PassThrough(defaults={"xs": [0]}))
async def lists(x: int = 0) -> Out(xs=list):
    raise ValueError("no list")


LISTS = {"xs": {"dataFlowType": "ARRAY", "config": {"default": [0]}}}
DEFAULTS = {
    "of the interface": flow({"i": "core:GroupInput", "g": "t:Grows"}, "i.xs>g.xs", interfaceInputs=LISTS),
    "of a failed node": flow(
        {"l": {"type": "t:Lists", "exec": {"onError": "default", "defaults": {"xs": [0]}}}, "g": "t:Grows"}, "l.xs>g.xs"
    ),
    "of a bypassed node": flow({"l": {"type": "t:Lists", "exec": {"bypassed": True}}, "g": "t:Grows"}, "l.xs>g.xs"),
    "of an input without a value": flow(
        {"l": {"type": "t:Lists", "exec": {"onError": "skip"}}, "i": "t:Inc", "g": "t:Grows"}, "l.xs>g.xs i.y>g.x"
    ),
    "of a lazy input": flow({"g": "t:GrowsLazily"}),
}


@pytest.mark.parametrize("default", DEFAULTS)
async def test_a_node_that_changes_a_default_changes_no_later_run(default: str) -> None:
    for _ in range(2):
        assert (await ran(DEFAULTS[default], [*ALL, grows, GrowsLazily, lists])).outputs["g"] == {"n": 2}


@node("t:Split", bypass=PassThrough(outputs={"a": "x"}, defaults={"b": 7}))
async def split(x: int = 0) -> Out(a=int, b=int, c=int):
    return {"a": 100, "b": 100, "c": 100}


@node("t:Mute", bypass="mute")
async def mute(x: int = 0) -> Out(y=int):
    return 100


async def test_a_bypassed_node_gives_what_its_type_says_and_skips_what_depends_on_the_rest() -> None:
    off = {"exec": {"bypassed": True}}
    nodes = {"i": {"type": "t:Inc", "x": 4}, "s": {"type": "t:Split", **off}, "m": {"type": "t:Mute", **off}}
    ends = {"a": "t:Inc", "b": "t:Inc", "c": "t:Inc", "d": "t:Inc"}
    workflow = flow({**nodes, **ends}, "i.y>s.x i.y>m.x s.a>a.x s.b>b.x s.c>c.x m.y>d.x")
    result = await ran(workflow, [*ALL, split, mute])
    assert result.errors == ()
    assert {name: result.outputs.get(name) for name in ends} == {"a": {"y": 6}, "b": {"y": 8}, "c": None, "d": None}
    assert {name: result.states[name] for name in ends} == {
        "a": "complete",
        "b": "complete",
        "c": "skipped",
        "d": "skipped",
    }


async def test_who_follows_a_run_on_another_thread_sees_its_last_event() -> None:
    run, is_ending, has_looked = made(flow({"a": "t:Inc"}), ALL), threading.Event(), threading.Event()
    emit = run.emit

    def late(kind: str, path: str, data: Any = None) -> float:
        if kind == "run:complete":
            is_ending.set()
            has_looked.wait(30)
        return emit(kind, path, data)

    async def followed() -> list[str]:
        return [event.kind async for event in follow_events(run, 0)]

    run.emit = late
    thread = threading.Thread(target=lambda: asyncio.run(run.execute()))
    thread.start()
    await asyncio.to_thread(is_ending.wait, 30)
    following = asyncio.create_task(followed())
    await asyncio.sleep(0)  # it has read what there is
    has_looked.set()
    assert (await asyncio.wait_for(following, 30))[-1] == "run:complete"
    await asyncio.to_thread(thread.join)
