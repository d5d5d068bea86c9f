"""Patches that are applied: both forms, ids, edges of removed nodes, and everything that stays."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tavern_core import Tavern
from tavern_core.errors import UsageError
from tavern_core.flow.patching import PatchOutcome
from tests.counting import calls_made
from tests.patches.example import BY_ID, BY_PLACE, TEMPLATE, edge, flow, op
from tests.rows import each_row


def shape(outcome: PatchOutcome) -> tuple[Any, ...]:
    """The patched workflow without ids that were drawn."""
    names = {node.id: node.display_name or node.type for node in outcome.workflow.nodes}
    nodes = [(names[n.id], n.type, n.input_values) for n in outcome.workflow.nodes]
    edges = [(names[e.source], e.source_handle, names[e.target], e.target_handle) for e in outcome.workflow.edges]
    return sorted(nodes, key=str), sorted(edges, key=str)


@pytest.mark.parametrize("seed", [1, 2])
def test_both_forms_of_a_patch_do_the_same(host: Tavern, seed: int) -> None:
    one, other = host.workflows.patch(flow(), BY_ID, seed=seed), host.workflows.patch(flow(), BY_PLACE, seed=seed)
    assert one.ok and other.ok, (one.problems, other.problems)
    assert shape(one) == shape(other)
    assert set(one.ids) == {"ending", "ending-join", "topic"} and set(other.ids) == {"ending"}
    assert [edge.id for edge in one.removed_edges] == [edge.id for edge in other.removed_edges] == ["e1", "e2"]
    assert one.workflow.rev == 4
    ran = host.workflows.run_sync(one.workflow, {"topic": "us"}, keep=False)
    assert ran.outputs == {"said": "bye\n!\nus"}


def test_ids_are_drawn_by_the_host_and_reproducible_with_a_seed(host: Tavern) -> None:
    def ids(**options: Any) -> dict[str, str]:
        return dict(host.workflows.patch(flow(), BY_ID, **options).ids)

    assert ids(seed=7) == ids(seed=7) != ids(seed=8)
    assert ids() != ids()
    assert not {"ending", "ending-join"} & set(ids(seed=7).values())
    made = host.workflows.patch(flow(), BY_ID, seed=7)
    assert {made.ids["ending"]} < {node.id for node in made.workflow.nodes}


def test_what_a_patch_does_not_name_stays_as_it_was(host: Tavern) -> None:
    before = flow()
    after = dict(host.workflows.patch(before, BY_ID, seed=1).workflow.raw)
    assert before == flow(), "the content that was passed is not changed"
    assert after["zoom"] == {"theirs": True} and after["name"] == "Greeting"
    assert after["interfaceInputs"] == before["interfaceInputs"]
    kept = {node["id"]: node for node in after["nodes"]}
    text = before["nodes"][1]
    assert kept["text"] == {**text, "inputValues": {"text": "bye"}}
    assert [kept[id_] for id_ in ("in", "out")] == [before["nodes"][0], before["nodes"][4]]
    assert kept["join"]["inputConnectionOrders"] == {"parts": ["e3"]}, "a removed edge is in no order"
    assert [edge for edge in after["edges"] if edge["id"] in ("e3", "e4")] == before["edges"][2:]
    assert [node["id"] for node in after["nodes"]][:4] == ["in", "text", "join", "out"], "the order of the file stays"


def edges_of(outcome: PatchOutcome) -> list[str]:
    return sorted(edge.id for edge in outcome.workflow.edges)


def node(outcome: PatchOutcome, id_: str) -> dict[str, Any]:
    return next(dict(each) for each in outcome.workflow.raw["nodes"] if each["id"] == outcome.ids.get(id_, id_))


APPLIED: dict[str, tuple[list[Any], Callable[[PatchOutcome], bool]]] = {
    "nothing": ([], lambda o: o.workflow.rev == 4 and o.changes == ()),
    "an edge that a later operation reconnects is kept": (
        [op("remove", "/nodes/case"), op("replace", "/edges/e1/target", "join"), op("replace", "/edges/e1/targetHandle", "parts")],
        lambda o: edges_of(o) == ["e1", "e3", "e4"] and [e.id for e in o.removed_edges] == ["e2"],
    ),
    "a node and then its edges are removed": (
        [op("remove", "/nodes/text"), op("remove", "/edges/e3")], lambda o: edges_of(o) == ["e1", "e2", "e4"],
    ),
    "edges and then their node are removed": (
        [op("remove", "/edges/e3"), op("remove", "/nodes/text")], lambda o: edges_of(o) == ["e1", "e2", "e4"] and o.removed_edges == (),
    ),
    "a node is added and removed again": (
        [op("add", "/nodes/n", TEMPLATE), op("add", "/edges/x", edge("n.text", "join.parts")), op("remove", "/nodes/n")],
        lambda o: edges_of(o) == ["e1", "e2", "e3", "e4"] and not o.ids and o.removed_edges == (),
    ),
    "a node is copied under a new name": (
        [op("copy", "/nodes/twin", source="/nodes/text"), op("replace", "/nodes/twin/inputValues/text", "me")],
        lambda o: node(o, "twin")["inputValues"] == {"text": "me"} and node(o, "text")["inputValues"] == {"text": "hello"},
    ),
    "a value is copied from one node to another": (
        [op("copy", "/nodes/case/inputValues/text", source="/nodes/text/inputValues/text"), op("remove", "/edges/e1")],
        lambda o: node(o, "case")["inputValues"] == {"form": "upper", "text": "hello"},
    ),
    "a value is moved": (
        [op("move", "/nodes/text/configValues/was", source="/nodes/text/inputValues/text")],
        lambda o: node(o, "text")["configValues"] == {"was": "hello"} and node(o, "text")["inputValues"] == {},
    ),
    "sections that the file does not have are there": (
        [op("add", "/nodes/out/configValues/x", 1)], lambda o: node(o, "out")["configValues"] == {"x": 1} and "inputValues" not in node(o, "out"),
    ),
    "a whole node is replaced and keeps what is not shown": (
        [op("replace", "/nodes/text", {"type": "core:Text", "inputValues": {"text": "new"}, "id": "z", "position": {"x": 9}})],
        lambda o: node(o, "text") == {"id": "text", "type": "core:Text", "position": {"x": 0, "y": 200}, "inputValues": {"text": "new"}, "zIndex": 3, "typeVersion": 1},
    ),
    "another type has another version": (
        [op("replace", "/nodes/text/type", "core:Template"), op("replace", "/nodes/text/inputValues", {"template": "x"})],
        lambda o: "typeVersion" not in node(o, "text"),
    ),
    "a node is replaced by hand": (
        [op("add", "/nodes/new", {**TEMPLATE, "localId": "new"}), op("replace", "/edges/e3/source", "new"), op("remove", "/nodes/text")],
        lambda o: o.removed_edges == () and next(e.source for e in o.workflow.edges if e.id == "e3") == o.ids["new"],
    ),
    "the interface grows": (
        [op("add", "/interfaceInputs/style", {"dataFlowType": "STRING"}), op("remove", "/interfaceInputs/topic/required")],
        lambda o: set(o.workflow.interface_inputs) == {"topic", "style"} and o.workflow.raw["interfaceInputs"]["topic"] == {"dataFlowType": "STRING", "theirs": 1},
    ),
    "the workflow is named and described": (
        [op("replace", "/name", "Hi"), op("add", "/description", "Greets.")],
        lambda o: (o.workflow.name, o.workflow.description, o.workflow.raw["description"]) == ("Hi", "Greets.", "Greets."),
    ),
    "an order names a new edge": (
        [op("add", "/nodes/n", TEMPLATE), op("add", "/edges/first", edge("n.text", "join.parts")), op("replace", "/nodes/join/inputConnectionOrders", {"parts": ["first"]})],
        lambda o: node(o, "join")["inputConnectionOrders"] == {"parts": [o.ids["first"]]},
    ),
    "a new node is inside of another": (
        [op("add", "/nodes/box", {"type": "core:frame"}), op("add", "/nodes/n", {**TEMPLATE, "parentNode": "box"})],
        lambda o: node(o, "n")["parentNode"] == o.ids["box"],
    ),
    "all is tested at once": (
        [op("test", "/interfaceOutputs", {"said": {"dataFlowType": "STRING"}}), op("test", "/edges/e4", edge("join.text", "out.said")), op("test", "/nodes/text", {"type": "core:Text", "displayName": "", "inputValues": {"text": "hello"}, "configValues": {}})],
        lambda o: True,
    ),
}  # fmt: skip


@each_row("name", APPLIED)
def test_a_patch_is_applied(host: Tavern, name: str) -> None:
    patch, holds = APPLIED[name]
    written = copy.deepcopy(patch)
    outcome = host.workflows.patch(flow(), patch, seed=1)
    assert outcome.ok, outcome.problems
    assert holds(outcome), json.dumps(dict(outcome.workflow.raw), indent=1)
    assert patch == written, "the patch is not changed"
    assert not [p for p in host.workflows.check(outcome.workflow) if p.severity == "error"]


DATA: list[tuple[dict[str, Any], Any]] = [
    ({"data": {"text": "hi", "form": "upper"}}, "HI"),
    ({"data": {"text": "hi"}, "inputValues": {"form": "upper"}}, "HI"),
    ({"data": {"text": "no", "note": 1}, "inputValues": {"text": "yes"}}, "yes"),
    ({"data": {"text": "hi", "form": "loud"}}, "BAD_VALUE"),
]


@each_row(("value", "said"), DATA)
def test_values_in_data_of_a_new_node_are_values_of_its_inputs(host: Tavern, value: dict[str, Any], said: str) -> None:
    patch = [{"op": "add", "path": "/nodes/-", "value": {"localId": "case", "type": "core:Case", **value}}]
    outcome = host.workflows.patch({"nodes": [], "edges": []}, patch)
    if not outcome.ok:
        assert [problem.code for problem in outcome.errors] == [said]
        return
    assert outcome.problems == ()
    assert dict(outcome.workflow.raw["nodes"][0]["data"]) == value["data"]
    assert [*host.workflows.run_sync(outcome.workflow, keep=False).outputs.values()] == [{"text": said}]


def test_numbers_are_places_unless_they_are_ids(host: Tavern) -> None:
    numbered = {
        "nodes": [{"id": name, "type": "core:Text"} for name in ("5", "0", "a")],
        "edges": [],
    }

    def left(*patch: dict[str, Any]) -> list[str]:
        outcome = host.workflows.patch(numbered, list(patch))
        return [node.id for node in outcome.workflow.nodes] if outcome.ok else [outcome.problems[0].code]

    assert left(op("remove", "/nodes/0")) == ["5", "a"], "an id"
    assert left(op("remove", "/nodes/2")) == ["5", "0"], "a place"
    assert left(op("remove", "/nodes/2"), op("remove", "/nodes/1")) == ["5"], "places in the original list"
    new = op("add", "/nodes/-", {"type": "core:Text", "localId": "n"})
    assert left(new, op("remove", "/nodes/0")) == ["AMBIGUOUS_PATH"]
    assert left(op("remove", "/nodes/9")) == ["PATH_MISSING"]


def test_a_projection_shows_what_a_patch_can_name(host: Tavern) -> None:
    shown = host.workflows.project(flow())
    assert list(shown) == ["rev", "name", "nodes", "edges", "interfaceInputs", "interfaceOutputs"]
    assert shown["rev"] == 3
    assert shown["nodes"]["case"] == {"type": "core:Case", "displayName": "Shout", "inputValues": {"form": "upper"}, "configValues": {}}  # fmt: skip
    assert shown["edges"]["e1"] == edge("in.topic", "case.text")
    shown["nodes"]["text"]["inputValues"]["text"] = "changed"
    assert host.workflows.project(flow())["nodes"]["text"]["inputValues"] == {"text": "hello"}


def test_children_of_a_removed_group_stay_where_they_are_on_the_canvas(host: Tavern) -> None:
    nested = {
        "nodes": [
            {"id": "box", "type": "core:frame", "position": {"x": 100, "y": 50}},
            {"id": "a", "type": "core:Text", "position": {"x": 20, "y": 40}, "parentNode": "box"},
        ],
        "edges": [],
    }
    outcome = host.workflows.patch(nested, [op("remove", "/nodes/box")])
    assert outcome.workflow.raw["nodes"] == [{"id": "a", "type": "core:Text", "position": {"x": 120, "y": 90}}]


OLD: dict[str, tuple[dict[str, Any], str]] = {
    "a type that is not there any more": ({"nodes": [{"id": "gone", "type": "gone:Type"}]}, "UNKNOWN_TYPE"),
    "a dangling edge": ({"edges": [{"id": "x", **edge("ghost.text", "join.parts")}]}, "DANGLING_EDGE"),
    "a cycle": ({"edges": [{"id": "x", **edge("join.text", "case.text")}]}, "CYCLE"),
    "a required input": ({"nodes": [{"id": "c", "type": "core:Case"}]}, "MISSING_INPUT"),
}


@each_row("name", OLD)
def test_an_error_that_was_there_before_does_not_refuse_a_patch(host: Tavern, name: str) -> None:
    more, code = OLD[name]
    old = {**flow(), **{section: [*flow()[section], *items] for section, items in more.items()}}
    outcome = host.workflows.patch(old, [op("replace", "/nodes/text/inputValues/text", "bye")])
    found = [(p.code, p.is_old, p.op) for p in outcome.problems]
    assert outcome.ok and (code, True, None) in found and outcome.errors == ()


def large(nodes: int) -> dict[str, Any]:
    """A chain, about 400 bytes a node."""
    return {
        "nodes": [
            {"id": f"n{n}", "type": "core:Case", "position": {"x": n % 50 * 280, "y": n // 50 * 120}, "inputValues": {"form": "upper", "pad": ["x" * 120]}}
            for n in range(nodes)
        ],
        "edges": [{"id": f"e{n}", **edge(f"n{n}.text", f"n{n + 1}.text")} for n in range(nodes - 1)],
    }  # fmt: skip


def many(count: int) -> list[dict[str, Any]]:
    """Operations of every kind."""
    found: list[dict[str, Any]] = []
    for n in range(count // 5):
        found += [
            op("add", f"/nodes/new{n}", {"type": "core:Text", "inputValues": {"text": "hi"}}),
            op("add", f"/edges/to{n}", edge(f"new{n}.text", f"n{n * 3}.text")),
            op("replace", f"/nodes/n{n * 2}/inputValues/form", "lower"),
            op("remove", f"/nodes/n{500 + n}"),
            op("test", f"/nodes/n{n * 2}/type", "core:Case"),
        ]
    return found


@pytest.mark.slow
def test_the_work_grows_with_the_workflow_and_with_the_patch_and_not_with_their_product() -> None:
    from tavern_core.graph.patch import apply_patch
    from tavern_core.graph.patch_ids import with_ids
    from tavern_core.kernel.manifest.workflow_file_codec import workflow_of

    def work(nodes: int, operations: int) -> int:
        workflow, patch = workflow_of(large(nodes)), many(operations)
        with_ids(apply_patch(workflow, patch), 1)  # imports, caches
        return calls_made(lambda: with_ids(apply_patch(workflow, patch), 1))

    base, more_nodes, more_operations = work(1_000, 100), work(2_000, 100), work(1_000, 200)
    assert more_nodes < 2.1 * base
    assert more_operations < 2.1 * base
    assert work(2_000, 200) < more_nodes + more_operations


@pytest.mark.parametrize("written", [str, str.encode], ids=["text", "bytes"])
def test_a_patch_may_be_its_json_text(host: Tavern, written: Any) -> None:
    operations = [op("replace", "/nodes/text/inputValues/text", "你好")]
    assert host.workflows.patch(flow(), written(json.dumps(operations))).workflow.raw == (
        host.workflows.patch(flow(), operations).workflow.raw
    )


@each_row("wrong", [{"seed": []}, {"seed": 1.5}, {"rev": "1"}, {"rev": True}])
@each_row("as_session", [False, True])
def test_a_seed_and_a_revision_are_whole_numbers(host: Tavern, wrong: dict[str, Any], as_session: bool) -> None:
    patch = host.workflows.session(flow()).apply if as_session else partial(host.workflows.patch, flow())
    with pytest.raises(UsageError, match="is a whole number, got"):
        patch([], **wrong)
