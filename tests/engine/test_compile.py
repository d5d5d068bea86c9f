"""Everything that is wrong with a workflow is told at once, before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.nodes import ALL
from tests.engine.workbench import compiled, flow, group
from tests.rows import each_row

IN_Q = {"q": {"dataFlowType": "INTEGER"}}
SELF = flow({"g": group("self")}, name="self")
EVEN = flow({"g": group("odd")}, name="even")
ODD = flow({"g": group("even")}, name="odd")
BROKEN = flow({"deep": "t:Incc"}, name="broken")

PROBLEMS: dict[str, tuple[Any, list[tuple[str, str, str, str]], str]] = {
    # name: (workflow, [(code, node, slot, edge)], words of the hint or message of the first)
    "two nodes with one id": (
        flow({"a": "t:Inc"}).model_copy(update={"nodes": flow({"a": "t:Inc"}).nodes * 2}),
        [("DUPLICATE_NODE", "a", "", "")],
        "another id",
    ),
    "an unknown type with a near name": (flow({"a": "t:Incc"}), [("UNKNOWN_TYPE", "a", "", "")], "t:Inc"),
    "an unknown type of a plugin that is missing": (
        flow({"a": "maps:Draw"}),
        [("UNKNOWN_TYPE", "a", "", "")],
        "plugin 'maps'",
    ),
    "an edge from nowhere": (
        flow({"alpha": "t:Inc"}, "alpa.y>alpha.x"),
        [("DANGLING_EDGE", "alpa", "", "e0")],
        "'alpha'",
    ),
    "an edge to nowhere": (
        flow({"a": "t:Inc"}, "a.y>gone.x"),
        [("DANGLING_EDGE", "gone", "", "e0")],
        "remove the edge",
    ),
    "an unknown output": (
        flow({"a": "t:Text", "b": "t:Text"}, "a.txt>b.value"),
        [("UNKNOWN_HANDLE", "a", "txt", "e0")],
        "'text'",
    ),
    "an unknown input": (flow({"a": "t:Inc", "b": "t:Inc"}, "a.y>b.zz"), [("UNKNOWN_HANDLE", "b", "zz", "e0")], "'x'"),
    "a numbered handle of an input that takes one": (
        flow({"a": "t:Inc", "b": "t:Inc"}, "a.y>b.x__0"),
        [("UNKNOWN_HANDLE", "b", "x__0", "e0")],
        "'x'",
    ),
    "text where a number is taken": (
        flow({"a": "t:Text", "b": "t:Inc"}, "a.text>b.x"),
        [("TYPE_MISMATCH", "b", "x", "e0")],
        "gives STRING, 'x' takes INTEGER",
    ),
    "a stream where none is taken": (
        flow({"a": "t:Count", "b": "t:Text"}, "a.chunks>b.value"),
        [("STREAM_MISMATCH", "b", "value", "e0")],
        "a stream",
    ),
    "no stream where one is taken": (
        flow({"a": "t:Text", "b": "t:Read"}, "a.text>b.chunks"),
        [("STREAM_MISMATCH", "b", "chunks", "e0")],
        "no stream",
    ),
    "two edges into an input that takes one": (
        flow({"a": "t:Inc", "b": "t:Inc", "c": "t:Inc"}, "a.y>c.x b.y>c.x"),
        [("TOO_MANY_CONNECTIONS", "c", "x", "e1")],
        "remove all but one",
    ),
    "a required input that nobody gives": (flow({"n": "t:Need"}), [("MISSING_INPUT", "n", "x", "")], "inputValues"),
    "a stream that nobody gives": (flow({"r": "t:Read"}), [("MISSING_INPUT", "r", "chunks", "")], "connect it"),
    "a value of the wrong type": (
        flow({"a": {"type": "t:Inc", "x": "1"}}),
        [("BAD_VALUE", "a", "x", "")],
        "takes INTEGER, got the text '1'",
    ),
    "a boolean where a number is taken": (
        flow({"a": {"type": "t:Inc", "x": True}}),
        [("BAD_VALUE", "a", "x", "")],
        "the boolean true",
    ),
    "a choice that there is not": (
        flow({"c": {"type": "t:Choose", "which": "z"}}),
        [("BAD_VALUE", "c", "which", "")],
        "'a', 'b'",
    ),
    "an item of a list": (flow({"s": {"type": "t:Sum", "xs": [1, "2"]}}), [("BAD_VALUE", "s", "xs", "")], "item 1"),
    "options of the run that do not exist": (
        flow({"a": {"type": "t:Inc", "exec": {"retries": 3}}}),
        [("BAD_EXEC", "a", "", "")],
        "retry",
    ),
    "a circle of three": (
        flow({"a": "t:Inc", "b": "t:Inc", "c": "t:Inc"}, "a.y>b.x b.y>c.x c.y>a.x"),
        [("CYCLE", "a", "", "")],
        "a → b → c → a",
    ),
    "a node that waits for itself": (flow({"a": "t:Inc"}, "a.y>a.x"), [("CYCLE", "a", "", "")], "a → a"),
    "a circle through a lazy input": (
        flow({"l": "t:Lazy", "a": "t:Inc"}, "l.y>a.x a.y>l.a"),
        [("CYCLE", "l", "", "")],
        "l → a → l",
    ),
    "two circles": (
        flow({"a": "t:Inc", "b": "t:Inc", "c": "t:Inc", "d": "t:Inc"}, "a.y>b.x b.y>a.x c.y>d.x d.y>c.x"),
        [("CYCLE", "a", "", ""), ("CYCLE", "c", "", "")],
        "a → b → a",
    ),
    "a group of nothing": (
        flow({"g": {"type": "core:NodeGroup"}}),
        [("GROUP_MISSING", "g", "", "")],
        "referencedWorkflowId",
    ),
    "a group of a workflow that is missing": (
        flow({"g": group("brokn")}),
        [("GROUP_MISSING", "g", "", "")],
        "'broken'",
    ),
    "a workflow that contains itself": (SELF, [("GROUP_RECURSION", "", "", "")], "self → self"),
    "two workflows that contain each other": (EVEN, [("GROUP_RECURSION", "", "", "")], "even → odd → even"),
    "a problem inside of a group, with its path": (
        flow({"g": group("broken")}),
        [("UNKNOWN_TYPE", "g/deep", "", "")],
        "t:Inc",
    ),
    "outputs that no node gives": (
        flow({"a": "t:Inc"}, interfaceOutputs=IN_Q),
        [("INTERFACE", "", "", "")],
        "core:GroupOutput",
    ),
    "one output given twice": (
        flow(
            {"a": "t:Inc", "o": "core:GroupOutput", "p": "core:GroupOutput"}, "a.y>o.q a.y>p.q", interfaceOutputs=IN_Q
        ),
        [("DUPLICATE_OUTPUT", "p", "q", "e1")],
        "leave one",
    ),
    "a group that lacks a required input": (
        flow({"g": group("inner")}),
        [("MISSING_INPUT", "g", "p", "")],
        "connect it",
    ),
}
INNER = flow(
    {"i": "core:GroupInput", "a": "t:Inc", "o": "core:GroupOutput"},
    "i.p>a.x a.y>o.q",
    name="inner",
    interfaceInputs={"p": {"dataFlowType": "INTEGER", "required": True}},
    interfaceOutputs=IN_Q,
)


@each_row("name", PROBLEMS)
def test_a_workflow_is_refused_with_everything_that_is_wrong(name: str) -> None:
    workflow, wanted, words = PROBLEMS[name]
    found = compiled(workflow, ALL, [SELF, EVEN, ODD, BROKEN, INNER])
    assert found.plan is None
    assert [(p.code, p.node, p.slot, p.edge) for p in found.errors] == wanted
    assert words in f"{found.errors[0].message} {found.errors[0].hint}"


def test_all_problems_are_reported_at_once() -> None:
    workflow = flow(
        {"a": "t:Incc", "b": {"type": "t:Inc", "x": "no"}, "n": "t:Need", "c": "t:Inc", "d": "t:Inc"},
        "b.z>c.x gone.y>c.x c.y>d.x d.y>c.x",
    )
    codes = sorted(p.code for p in compiled(workflow, ALL).errors)
    assert codes == ["BAD_VALUE", "CYCLE", "DANGLING_EDGE", "MISSING_INPUT", "UNKNOWN_HANDLE", "UNKNOWN_TYPE"]


def test_values_for_inputs_that_do_not_exist_are_a_warning() -> None:
    found = compiled(flow({"a": {"type": "t:Text", "vlue": "x"}}), ALL)
    assert found.plan is not None
    assert [(p.code, p.severity, p.nearest) for p in found.problems] == [("UNKNOWN_INPUT", "warning", ("value",))]


def test_values_inside_of_data_are_ignored_with_a_warning() -> None:
    given = {"data": {"inputValues": {"value": "x"}, "configValues": {"a": 1}, "color": "red"}}
    found = compiled(flow({"a": {"type": "t:Text", **given}}), ALL)
    assert [(p.code, p.severity) for p in found.problems] == [("UNKNOWN_INPUT", "warning")] * 2
    assert "beside `data`" in found.problems[0].hint
    node = {"type": "t:Text", "data": {"value": "hello", "color": "red", "inputs": {}}}
    [problem] = compiled(flow({"a": node}), ALL).problems
    assert (problem.severity, problem.slot, problem.hint) == ("warning", "value", "write it as inputValues.value")
    assert not compiled(flow({"a": {**node, "value": "hello"}}), ALL).problems


def test_groups_may_be_nested_deeply_but_not_without_end() -> None:
    flows = [flow({"g": group(f"f{i + 1}")}, name=f"f{i}") for i in range(400)] + [flow({"a": "t:Inc"}, name="f400")]
    assert [p.code for p in compiled(flows[0], ALL, flows).errors] == ["TOO_DEEP"]
    assert compiled(flows[360], ALL, flows).plan is not None


def test_a_group_used_often_is_compiled_once() -> None:
    outer = flow({f"g{i}": group("inner", p=1) for i in range(50)})
    plan = compiled(outer, ALL, [INNER]).plan
    assert plan is not None
    assert len({id(step.plan) for step in plan.steps}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("count", [10_000])
def test_long_chains_compile_and_their_circle_is_reported_briefly(count: int) -> None:
    nodes = {f"n{i}": "t:Inc" for i in range(count)}
    wires = " ".join(f"n{i}.y>n{i + 1}.x" for i in range(count - 1))
    assert compiled(flow(nodes, wires), ALL).plan is not None
    [problem] = compiled(flow(nodes, f"{wires} n{count - 1}.y>n0.x"), ALL).errors
    assert problem.code == "CYCLE"
    assert len(problem.message) < 300
