"""Patches that are refused: each way of breaking a valid patch has its own code, its place, and what to write instead."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core import Tavern
from tavern_core.errors import UsageError, WorkflowInvalid
from tavern_core.flow.patching import PatchOutcome
from tavern_core.graph.patch_problems import PATCH_CODES
from tavern_core.graph.problems import PROBLEM_CODES
from tests.patches.example import BY_ID, BY_PLACE, TEMPLATE, edge, flow, op
from tests.rows import each_row

Break = Callable[[list[dict[str, Any]]], Any]
"""Changes a valid patch (its form by id), so that it is none; what it returns takes its place."""


def at(number: int, **members: Any) -> Break:
    """Replace members of one operation."""

    def change(patch: list[dict[str, Any]]) -> None:
        patch[number].update(members)

    return change


def value(number: int, **members: Any) -> Break:
    """Replace members of the value of one operation; None: take it out."""

    def change(patch: list[dict[str, Any]]) -> None:
        patch[number]["value"] = {k: v for k, v in {**patch[number]["value"], **members}.items() if v is not None}

    return change


def more(*operations: dict[str, Any]) -> Break:
    """Add operations at the end; their numbers begin with 6."""
    return lambda patch: patch.extend(operations)


def nested(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = [found]
    return found


BREAKS: dict[str, tuple[Break, str, dict[str, Any]]] = {
    # the form
    "the patch is one operation": (lambda p: p[0], "NOT_A_PATCH", {}),
    "the patch is text": (lambda p: "add a node", "NOT_JSON", {}),
    "the patch is half of its JSON": (lambda p: json.dumps(p)[:-1], "NOT_JSON", {}),
    "the patch is the JSON of one operation": (lambda p: json.dumps(p[0]), "NOT_A_PATCH", {}),
    "an operation is a list": (lambda p: [list(p[0])], "NOT_A_PATCH", {"op": 0}),
    "a value that is not a number": (value(1, inputValues={"template": math.nan}), "NOT_JSON", {"op": 1}),
    "a value of a program": (value(1, inputValues={"template": object()}), "NOT_JSON", {"op": 1}),
    "half a character": (value(1, displayName="\ud800"), "NOT_JSON", {"op": 1}),
    "a value that is too deep": (value(1, inputValues=nested(80)), "PATCH_TOO_DEEP", {}),
    "a value that would be too deep": (more(op("add", "/nodes/text/data", {"a": nested(61)})), "PATCH_TOO_DEEP", {}),
    "a value that is too large": (value(1, inputValues={"x": [0] * 600_000}), "PATCH_TOO_LARGE", {}),
    "texts that are too long": (value(1, inputValues={"template": "x" * 17_000_000}), "PATCH_TOO_LARGE", {"op": 1}),
    "too many operations": (lambda p: p * 2_000, "TOO_MANY_OPERATIONS", {}),
    "a misspelt operation": (at(1, op="ad"), "UNKNOWN_OP", {"op": 1, "nearest": ("add",)}),
    "an operation of another standard": (at(1, op="merge"), "UNKNOWN_OP", {"op": 1}),
    "no path": (lambda p: p[3].pop("path") and None, "MISSING_MEMBER", {"op": 3}),
    "no value": (lambda p: p[3].pop("value") and None, "MISSING_MEMBER", {"op": 3}),
    "no slash": (at(3, path="nodes/text"), "BAD_POINTER", {"op": 3}),
    "dots for slashes": (at(3, path="nodes.text.inputValues.text"), "BAD_POINTER", {"op": 3}),
    # where
    "another revision": (at(0, value=2), "REV_CONFLICT", {"op": 0, "pointer": "/rev"}),
    "a test of what was": (more(op("test", "/nodes/text/inputValues/text", "hello")), "TEST_FAILED", {"op": 6}),
    "a test of a node that is gone": (more(op("test", "/nodes/ghost/type", "x")), "TEST_FAILED", {"op": 6}),
    "a misspelt node": (at(4, path="/nodes/cas"), "PATH_MISSING", {"op": 4, "nearest": ("case",), "pointer": "/nodes/cas"}),
    "a misspelt edge": (more(op("remove", "/edges/e33")), "PATH_MISSING", {"op": 6, "nearest": ("e3",)}),
    "a member that is not there": (more(op("remove", "/nodes/join/inputValues/seperator")), "PATH_MISSING", {"op": 6, "pointer": "/nodes/join/inputValues/seperator"}),
    "a node that was removed": (more(op("replace", "/nodes/case/displayName", "x")), "PATH_MISSING", {"op": 6}),
    "a way through a text": (more(op("add", "/nodes/text/inputValues/text/de", "x")), "NOT_A_CONTAINER", {"op": 6}),
    "a place in a list that has none": (more(op("replace", "/nodes/join/inputConnectionOrders/parts/4", "e3")), "BAD_INDEX", {"op": 6}),
    "a move into itself": (more(op("move", "/nodes/text/inputValues/a/b", source="/nodes/text/inputValues")), "MOVE_INTO_ITSELF", {"op": 6}),
    # what the host sets
    "the revision": (at(0, op="replace"), "READ_ONLY", {"op": 0}),
    "the whole workflow": (more(op("replace", "", {})), "READ_ONLY", {"op": 6}),
    "all nodes": (more(op("replace", "/nodes", {})), "READ_ONLY", {"op": 6}),
    "no edges": (more(op("remove", "/edges")), "READ_ONLY", {"op": 6}),
    "an id": (more(op("replace", "/nodes/text/id", "x")), "READ_ONLY", {"op": 6}),
    "a position": (more(op("add", "/nodes/text/position", {"x": 1, "y": 1})), "READ_ONLY", {"op": 6}),
    "another id by a move": (more(op("move", "/nodes/renamed", source="/nodes/text")), "READ_ONLY", {"op": 6}),
    # names
    "a node that exists": (at(1, path="/nodes/text"), "NODE_EXISTS", {"op": 1, "pointer": "/nodes/text"}),
    "an edge that exists": (at(2, path="/edges/e1"), "EDGE_EXISTS", {"op": 2}),
    "an old node under its old name": (more(op("add", "/nodes/case", TEMPLATE)), "NODE_EXISTS", {"op": 6}),
    "two nodes of one name": (more(op("add", "/nodes/ending", TEMPLATE)), "DUPLICATE_LOCAL_ID", {"op": 6}),
    "two edges of one name": (more(op("add", "/edges/topic", edge("text.text", "join.parts"))), "DUPLICATE_LOCAL_ID", {"op": 6}),
    "a localId that is an id": (more(op("add", "/nodes/-", {**TEMPLATE, "localId": "join"})), "LOCAL_ID_TAKEN", {"op": 6}),
    "two names for one node": (value(1, localId="end"), "LOCAL_ID_MISMATCH", {"op": 1}),
    "a name with a slash": (at(1, path="/nodes/a~1b"), "BAD_LOCAL_ID", {"op": 1}),
    "a name that is a number": (value(1, localId=5), "BAD_LOCAL_ID", {"op": 1}),
    "an empty name": (at(1, path="/nodes/"), "BAD_LOCAL_ID", {"op": 1}),
    "a name for browsers": (at(1, path="/nodes/__proto__"), "UNSAFE_KEY", {"op": 1}),
    "a key for browsers": (value(1, inputValues={"a": {"__proto__": {}}}), "UNSAFE_KEY", {"op": 1}),
    # nodes and edges
    "a node that is text": (at(1, value="core:Template"), "BAD_SHAPE", {"op": 1}),
    "a node without a type": (value(1, type=None), "MISSING_TYPE", {"op": 1}),
    "a node with a misspelt key": (value(1, inputvalues={}), "UNKNOWN_KEY", {"op": 1, "nearest": ("inputValues",), "pointer": "/nodes/ending/inputvalues"}),
    "a key of a node that does not exist": (more(op("add", "/nodes/text/inputs", {})), "UNKNOWN_KEY", {"op": 6}),
    "a key of a workflow that does not exist": (more(op("add", "/interfaceInput", {})), "UNKNOWN_KEY", {"op": 6, "nearest": ("interfaceInputs", "interfaceOutputs")}),
    "an edge with a misspelt key": (value(2, sourcehandle="text"), "UNKNOWN_KEY", {"op": 2, "nearest": ("sourceHandle",)}),
    "values that are a list": (value(1, inputValues=[]), "BAD_SHAPE", {"op": 1, "pointer": "/nodes/ending/inputValues"}),
    "a slot of an unknown type": (more(op("add", "/interfaceInputs/n", {"dataFlowType": "TEXT"})), "BAD_SHAPE", {"op": 6, "pointer": "/interfaceInputs/n/dataFlowType"}),
    "a slot that is text": (more(op("add", "/interfaceInputs/n", "STRING")), "BAD_SHAPE", {"op": 6}),
    "a name that is a list": (more(op("replace", "/name", [])), "BAD_SHAPE", {"op": 6}),
    "an edge without a source": (value(2, source=None), "MISSING_END", {"op": 2}),
    "an edge without a target": (value(5, target=None), "MISSING_END", {"op": 5}),
    "an edge with two sources": (value(2, sourceLocalId="text"), "CONFLICTING_END", {"op": 2}),
    "a source that is a list": (more(op("replace", "/edges/e3/source", [])), "BAD_SHAPE", {"op": 6}),
    # the result
    "a type that does not exist": (value(1, type="core:Templat"), "UNKNOWN_TYPE", {"op": 1, "nearest": ("core:Template",), "pointer": "/nodes/ending/type"}),
    "a type without a namespace": (value(1, type="Template"), "UNKNOWN_TYPE", {"op": 1, "nearest": ("core:Template",)}),
    "a dangling edge": (value(2, source="endin"), "DANGLING_EDGE", {"op": 2, "nearest": ("ending",), "pointer": "/edges/ending-join/source"}),
    "an edge from a removed node": (value(5, source="case"), "DANGLING_EDGE", {"op": 5, "edge": "topic"}),
    "an output that does not exist": (value(2, sourceHandle="txt"), "UNKNOWN_HANDLE", {"op": 2, "allowed": ("text",), "nearest": ("text",), "pointer": "/edges/ending-join/sourceHandle"}),
    "an input that does not exist": (value(2, targetHandle="part"), "UNKNOWN_HANDLE", {"op": 2, "nearest": ("parts",), "pointer": "/edges/ending-join/targetHandle"}),
    "two edges into one input": (more(op("add", "/nodes/c", {"type": "core:Case"}), op("add", "/edges/x", edge("text.text", "c.text")), op("add", "/edges/y", edge("ending.text", "c.text"))), "TOO_MANY_CONNECTIONS", {"op": 8}),
    "types that do not fit": (more(op("add", "/nodes/s", {"type": "core:Map", "configValues": {"referencedWorkflowId": "x"}}), op("add", "/edges/x", edge("text.text", "s.items"))), "TYPE_MISMATCH", {"op": 7, "edge": "x", "pointer": "/edges/x/targetHandle", "allowed": ()}),
    "a required input without a value": (value(1, inputValues=None), "MISSING_INPUT", {"op": 1, "pointer": "/nodes/ending/inputValues/template"}),
    "a required input without its edge": (more(op("add", "/nodes/c", {"type": "core:Case"})), "MISSING_INPUT", {"op": 6, "node": "c", "slot": "text"}),
    "a value of another type": (at(3, value=5), "BAD_VALUE", {"op": 3, "pointer": "/nodes/text/inputValues/text"}),
    "a choice that does not exist": (more(op("add", "/nodes/c", {"type": "core:Case", "inputValues": {"text": "x", "form": "uper"}})), "BAD_VALUE", {"op": 6, "allowed": ("upper", "lower", "title", "trim")}),
    "a cycle": (more(op("add", "/nodes/c", {"type": "core:Case"}), op("add", "/edges/x", edge("join.text", "c.text")), op("add", "/edges/y", edge("c.text", "join.parts"))), "CYCLE", {"op": 8, "pointer": "/edges/y"}),
    "options that do not exist": (value(1, configValues={"$exec": {"retries": 3}}), "BAD_EXEC", {"op": 1, "pointer": "/nodes/ending/configValues"}),
    "a group without a workflow": (value(1, type="core:NodeGroup"), "GROUP_MISSING", {"op": 1}),
    "an output of the workflow that comes twice": (more(op("add", "/nodes/o", {"type": "core:GroupOutput"}), op("add", "/edges/x", edge("text.text", "o.said"))), "DUPLICATE_OUTPUT", {"op": 7}),
}  # fmt: skip


def broken(name: str) -> Any:
    patch = copy.deepcopy(BY_ID)
    instead = BREAKS[name][0](patch)
    return patch if instead is None else instead


@pytest.mark.slow
@each_row("name", BREAKS)
def test_each_break_is_reported_with_its_own_code(host: Tavern, name: str) -> None:
    _, code, fields = BREAKS[name]
    document = flow()
    outcome = host.workflows.patch(document, broken(name))
    assert not outcome.ok
    assert code in [problem.code for problem in outcome.errors], [str(p) for p in outcome.problems]
    problem = next(each for each in outcome.errors if each.code == code)
    assert {key: getattr(problem, key) for key in fields} == fields
    assert problem.fix or problem.allowed, "there is a way out"
    assert document == flow() and dict(outcome.workflow.raw) == flow(), "nothing changed"
    json.dumps(outcome.to_json(), allow_nan=False)


def test_every_code_of_the_table_has_a_break_or_a_test_of_its_own() -> None:
    tested = {code for _, code, _ in BREAKS.values()} | {"AMBIGUOUS_PATH"}
    assert set(PATCH_CODES) - tested == set()
    assert tested <= {*PATCH_CODES, *PROBLEM_CODES}


MESSAGES: dict[str, tuple[list[Any], str]] = {
    "a node without a name is named by its operation": ([op("add", "/nodes/-", {"type": "core:Text"}), op("add", "/nodes/-", {"type": "core:Txt"})], "'op 1'"),
    "an ignored id is explained": ([op("add", "/nodes/-", {"type": "core:Text", "id": "n"}), op("add", "/edges/-", edge("n.text", "join.parts"))], '"localId": \'n\''),
    "an ignored id beside a localId is explained": ([op("add", "/nodes/-", {"type": "core:Text", "id": "n", "localId": "m"}), op("add", "/edges/-", edge("n.text", "join.parts"))], "the localId 'm'"),
    "a value that is not JSON has its place": ([op("add", "/name", math.nan)], "/0/value: NaN is not a JSON number"),
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_uses_the_words_of_the_patch(host: Tavern, name: str) -> None:
    patch, words = MESSAGES[name]
    outcome = host.workflows.patch(flow(), patch)
    assert words in " ".join(map(str, outcome.errors))


def test_all_problems_of_the_result_are_reported_at_once(host: Tavern) -> None:
    patch = [
        op("add", "/nodes/a", {"type": "core:Nothing"}),
        op("replace", "/nodes/text/inputValues/text", 5),
        op("add", "/edges/x", edge("ghost.text", "join.parts")),
    ]
    found = {(problem.code, problem.op) for problem in host.workflows.patch(flow(), patch).errors}
    assert found == {("UNKNOWN_TYPE", 0), ("BAD_VALUE", 1), ("DANGLING_EDGE", 2)}


def test_a_removed_node_is_the_cause_of_what_lacks_its_edge(host: Tavern) -> None:
    outcome = host.workflows.patch(flow(), [op("test", "/rev", 3), op("remove", "/nodes/in")])
    assert [(p.code, p.op, p.node, p.slot) for p in outcome.errors] == [("MISSING_INPUT", 1, "case", "text")]


@pytest.mark.parametrize("section", ["nodes", "edges"])
def test_a_workflow_with_an_id_twice_cannot_be_patched(host: Tavern, section: str) -> None:
    document = flow()
    document[section].append(dict(document[section][0]))
    code = f"DUPLICATE_{section[:-1].upper()}"
    assert [p.code for p in host.workflows.patch(document, []).problems] == [code]
    with pytest.raises(WorkflowInvalid, match="have the id"):
        host.workflows.project(document)


def test_what_is_no_workflow_is_refused(host: Tavern) -> None:
    with pytest.raises(UsageError):
        host.workflows.patch(5, [])
    with pytest.raises(WorkflowInvalid):
        host.workflows.patch({"a": 1}, [])


PATHS = st.sampled_from([
    "", "/rev", "/nodes", "/nodes/-", "/nodes/text", "/nodes/1", "/nodes/new", "/nodes/text/inputValues/text", "/nodes/text/position",
    "/edges/-", "/edges/e1", "/edges/e1/source", "/edges/9", "/interfaceInputs/topic", "/interfaceInputs", "/name", "/nodes/join/inputConnectionOrders/parts/0",
])  # fmt: skip
VALUES = st.sampled_from([
    None, 5, "text", [], {}, TEMPLATE, {**TEMPLATE, "localId": "new"}, edge("text.text", "join.parts"), {"source": [], "target": {}}, {"type": 5},
    {"sourceLocalId": "new", "target": "join"}, {"dataFlowType": "STRING"},
])  # fmt: skip
OPERATIONS = st.builds(
    lambda kind, path, source, given: {"op": kind, "path": path, "from": source, "value": given},
    st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]), PATHS, PATHS, VALUES,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(OPERATIONS, max_size=4), st.sampled_from([[], BY_ID, BY_PLACE]))
def test_whatever_a_patch_holds_it_is_applied_or_refused_and_its_undo_is_the_identity(
    host: Tavern, patch: list[Any], before: list[Any]
) -> None:
    session = host.workflows.session(flow())
    assert session.apply(before).ok
    was = {**session.workflow.raw, "rev": 0}
    outcome: PatchOutcome = session.apply(patch)
    if outcome.ok:
        session.undo()
    else:
        assert outcome.errors
    assert {**session.workflow.raw, "rev": 0} == was
    assert session.workflow.nodes == host.workflows.find(dict(session.workflow.raw)).nodes, "model and document agree"
