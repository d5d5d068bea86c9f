"""Whatever a workflow file holds: one report, nothing run, in bounded time; never an exception that is not ours."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tavern_core import Tavern
from tavern_core.errors import TavernError, UsageError, WorkflowInvalid, WorkflowNotFound
from tavern_core.graph.problems import FlowProblem
from tavern_core.model.workflow import Workflow
from tests.rows import each_row, row
from tests.workflows.folder import CALLS, Flows

pytestmark = pytest.mark.anyio

GOOD: dict[str, Any] = {
    "name": "all of it",
    "description": "what ComfyTavern writes",
    "viewport": {"x": 0, "y": 0.5, "zoom": 1},
    "interfaceInputs": {"n": {"key": "n", "dataFlowType": "INTEGER", "required": True, "config": {"default": 1, "min": 0}}},
    "interfaceOutputs": {"out": {"key": "out", "dataFlowType": "INTEGER", "customDescription": "the sum"}},
    "nodes": [
        {"id": "in", "type": "core:GroupInput", "position": {"x": 0, "y": 0}},
        {
            "id": "a", "type": "t:Inc", "position": {"x": 1, "y": 0}, "data": {"label": "a"}, "inputValues": {"x": 1}, "width": 9,
            "configValues": {"$exec": {"retry": {"times": 1}, "timeoutMs": 5000}}, "customSlotDescriptions": {"inputs": {"x": "n"}},
        },
        {"id": "m", "type": "core:Merge", "position": {"x": 2, "y": 0}, "inputConnectionOrders": {"values": ["2"]}},
        {"id": "out", "type": "core:GroupOutput", "position": {"x": 3, "y": 0}},
    ],
    "edges": [
        {"id": "1", "source": "in", "target": "a", "sourceHandle": "n", "targetHandle": "x", "markerEnd": {"type": "arrow"}},
        {"id": "2", "source": "a", "target": "m", "sourceHandle": "y", "targetHandle": "values__0", "type": "default", "label": None},
        {"id": "3", "source": "m", "target": "out", "sourceHandle": "value", "targetHandle": "out"},
    ],
    "version": "1.0", "referencedWorkflows": [], "requires": {"t": ""}, "formatVersion": 1, "rev": 3,
}  # fmt: skip
HOSTILE = st.sampled_from([
    None, True, False, 0, -1, 10**30, 1e308, float("nan"), float("inf"), "", "x" * 10_000, "../../etc/passwd", "a\x00b", "\u202egnp", "\ud800",
    [], {}, [[]], {"": None}, {"$exec": {}}, "core:NodeGroup", "core:Nothing", "in", "a", "__0", "values__99", object(), b"bytes", {1: 2}, (1, 2), {1, 2},
])  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*path, key))
    return found


PLACES = places(GOOD)[1:]


def changed(path: tuple[Any, ...], how: str, value: Any) -> dict[str, Any]:
    """GOOD with one thing replaced, taken away, doubled or added."""
    document = copy.deepcopy(GOOD)
    here: Any = document
    for part in path[:-1]:
        if (
            not isinstance(here, dict | list)
            or (isinstance(here, list) and part >= len(here))
            or (isinstance(here, dict) and part not in here)
        ):
            return document
        here = here[part]
    if how == "replace":
        here[path[-1]] = value
    elif how == "remove":
        del here[path[-1]]
    elif isinstance(here, list):
        here.append(copy.deepcopy(here[path[-1]]) if how == "double" else value)
    elif isinstance(value, str):
        here[value] = here[path[-1]]
    return document


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Any:
    flows = Flows(tmp_path_factory.mktemp("flows"))
    with flows.open() as tavern:
        yield tavern


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.sampled_from(PLACES), st.sampled_from(["replace", "remove", "double", "add"]), HOSTILE),
        min_size=1,
        max_size=1,
    )
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_corrupt_workflow_runs_or_is_refused_with_problems(
    host: Tavern, damage: list[tuple[tuple[Any, ...], str, Any]]
) -> None:
    [(path, how, value)] = damage
    document = changed(path, how, value)
    problems, refusal = _checked(host, document)
    if refusal is not None:
        assert refusal.findings
        return
    errors = [p for p in problems if p.severity == "error"]
    if errors:
        CALLS.clear()
        with pytest.raises(WorkflowInvalid) as caught:
            host.workflows.run_sync(document, {"n": 1}, keep=False)
        assert (len(caught.value.details["problems"]), CALLS) == (len(problems), [])
        return
    assert json.dumps(document, allow_nan=False)
    try:
        host.workflows.run_sync(document, keep=False)
    except TavernError:
        pass


def _checked(host: Tavern, document: Any) -> tuple[list[FlowProblem], WorkflowInvalid | None]:
    try:
        return host.workflows.check(document), None
    except WorkflowInvalid as error:
        return [], error


COUNT = 2_500
BIG: dict[str, Callable[[], Any]] = {
    "edges from nowhere": lambda: {
        "nodes": [{"id": f"n{i}", "type": "core:Text"} for i in range(COUNT)],
        "edges": [{"id": f"e{i}", "source": f"x{i}", "target": f"n{i}", "targetHandle": "text"} for i in range(COUNT)],
    },
    "unknown types": lambda: {"nodes": [{"id": f"n{i}", "type": f"p{i}:Text"} for i in range(COUNT)], "edges": []},
    "unknown handles": lambda: {
        "nodes": [{"id": f"n{i}", "type": "core:Text"} for i in range(COUNT)],
        "edges": [{"id": f"e{i}", "source": "n1", "sourceHandle": f"o{i}", "target": "n2", "targetHandle": "text"} for i in range(COUNT)],
    },
    "groups of nothing": lambda: {
        "nodes": [{"id": f"n{i}", "type": "core:NodeGroup", "data": {"referencedWorkflowId": f"w{i}"}} for i in range(COUNT)], "edges": [],
    },
    "one id for all": lambda: {"nodes": [{"id": "a", "type": "core:Text"}] * COUNT, "edges": []},
    "warnings before errors": lambda: {
        "nodes": [{"id": "a", "type": "core:Text", "inputValues": {f"k{i}": 1 for i in range(COUNT)}}, {"id": "b", "type": "gone:Type"}], "edges": [],
    },
    "circles": lambda: {
        "nodes": [{"id": f"n{i}", "type": "core:Text"} for i in range(COUNT)],
        "edges": [{"id": f"e{i}", "source": f"n{i}", "sourceHandle": "text", "target": f"n{i ^ 1}", "targetHandle": "text"} for i in range(COUNT)],
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", BIG)
def test_thousands_of_mistakes_are_one_bounded_report(host: Tavern, name: str) -> None:
    problems = host.workflows.check(BIG[name]())
    errors = [p for p in problems if p.severity == "error"]
    assert 0 < len(errors) <= 1_000
    assert len(problems) <= 2_000


def test_groups_in_groups_do_not_explode(flows: Flows) -> None:
    for level in range(30):
        config = {"referencedWorkflowId": f"f{level + 1}"}
        flows.write(
            f"f{level}",
            {"a": {"type": "core:NodeGroup", "config": config}, "b": {"type": "core:NodeGroup", "config": config}},
        )
    flows.write("f30", {"x": "core:Text"})
    with flows.open() as tavern:
        [problem] = tavern.workflows.check("f0")
        assert tavern.workflows.check("f20") == []
    assert (problem.code, "3,221,225,470" in problem.message) == ("TOO_LARGE", True)


@pytest.mark.slow
def test_a_thousand_groups_in_groups_are_one_problem_and_sixty_run(flows: Flows) -> None:
    for level in range(999):
        flows.write(f"f{level}", {"g": {"type": "core:NodeGroup", "config": {"referencedWorkflowId": f"f{level + 1}"}}})
    flows.write("f999", {"x": "core:Text"})
    with flows.open() as tavern:
        [problem] = tavern.workflows.check("f0")
        assert tavern.workflows.run_sync("f939", keep=False).states["/".join(["g"] * 60 + ["x"])] == "complete"
    assert (problem.code, "999 levels deep" in problem.message) == ("TOO_DEEP", True)


def test_workflows_that_contain_each_other_through_several_files_are_refused(flows: Flows) -> None:
    for name, other in (("a", "b"), ("b", "c"), ("c", "a")):
        flows.write(name, {"g": {"type": "core:NodeGroup", "config": {"referencedWorkflowId": other}}})
    with flows.open() as tavern:
        for name in "abc":
            [problem] = tavern.workflows.check(name)
            assert problem.code == "GROUP_RECURSION"
            assert problem.message.count("→") == 3


def test_a_group_whose_file_is_corrupt_is_not_called_missing(flows: Flows) -> None:
    (flows.folder / "inner.json").write_text("{", "utf-8")
    flows.write("outer", {"g": {"type": "core:NodeGroup", "config": {"referencedWorkflowId": "inner"}}})
    with flows.open() as tavern:
        [problem] = tavern.workflows.check("outer")
    assert (problem.code, problem.node, problem.hint) == ("GROUP_INVALID", "g", "tavern workflows check inner")


NOT_WORKFLOWS = [
    None,
    5,
    b"x",
    [],
    "",
    "..",
    "a/b",
    "../x",
    "x.json",
    "/etc/passwd",
    "/dev/zero",
    "/",
    "a\0b",
    "a\0/b",
    "x" * 100_000,
    "/" + "x" * 5_000,
    {},
    {"nodes": 5},
    {1: 2},
]


@each_row("at", range(len(NOT_WORKFLOWS)))
def test_what_is_no_workflow_is_refused_by_every_door(host: Tavern, at: int) -> None:
    what = NOT_WORKFLOWS[at]
    for door in (
        host.workflows.check,
        host.workflows.run_sync,
        host.workflows.graph,
        host.workflows.edit,
        host.workflows.find,
    ):
        if what is None and door == host.workflows.edit:
            continue  # begins an empty one
        with pytest.raises((WorkflowInvalid, WorkflowNotFound, UsageError)) as caught:
            door(what)
        assert len(caught.value.message) < 10_000


NAMES = [
    "",
    ".",
    "..",
    "a/b",
    "a\\b",
    "a\0b",
    "a\nb",
    "\u202egnp",
    "con",
    "NUL",
    "a.json",
    "a.tool",
    "a ",
    "a.",
    ".a",
    "中" * 100,
    "x" * 300,
    "a:b",
    "a*b",
]


def test_a_workflow_is_not_saved_under_a_name_that_is_no_file_everywhere(flows: Flows) -> None:
    with flows.open() as tavern:
        for name in NAMES:
            with row(name), pytest.raises(UsageError):
                tavern.workflows.save(name, {"nodes": [], "edges": []})
            assert list(flows.folder.iterdir()) == [], name


def test_names_that_differ_in_case_only_are_not_saved_side_by_side(flows: Flows) -> None:
    with flows.open() as tavern:
        tavern.workflows.save("Report", {"nodes": [], "edges": []})
        with pytest.raises(UsageError, match="one file on some systems"):
            tavern.workflows.save("report", {"nodes": [], "edges": []})


def test_a_workflow_shares_nothing_with_the_content_it_was_made_of(flows: Flows) -> None:
    content: dict[str, Any] = {"nodes": [{"id": "a", "type": "core:Value", "inputValues": {"value": [1]}}], "edges": []}
    with flows.open() as tavern:
        workflow = tavern.workflows.find(content)
        content["nodes"][0]["inputValues"]["value"].append(2)
        assert tavern.workflows.run_sync(workflow).outputs == {"a": {"value": [1]}}


def test_a_workflow_made_by_a_program_is_saved_with_what_it_says(flows: Flows) -> None:
    made = Workflow.model_validate(
        {"name": "made", "nodes": [{"id": "a", "type": "core:Text", "inputValues": {"text": "hi"}}]}
    )
    with flows.open() as tavern:
        tavern.workflows.save("made", made)
        assert tavern.workflows.run_sync("made").outputs == {"a": {"text": "hi"}}


EDITS: dict[str, Callable[[Any], Any]] = {
    "an id that is too long": lambda editor: editor.add("core:Text", node_id="x" * 500),
    "an id that is not text": lambda editor: editor.add("core:Text", node_id=5),
    "no type": lambda editor: editor.add(""),
    "a type that is not text": lambda editor: editor.add(None),
    "a new name that is too long": lambda editor: editor.rename("a", "x" * 500),
    "a key that is not text": lambda editor: editor.set_input("a", 5, "x"),
    "a value that does not fit": lambda editor: editor.set_input("a", "text", object()),
    "options that do not exist": lambda editor: editor.set_config("a", "$exec", {"retrys": 1}),
    "an edge to itself": lambda editor: editor.connect("a", "text", "a", "text"),
}


@each_row("name", EDITS)
def test_an_edit_that_cannot_be_is_refused_and_changes_nothing(host: Tavern, name: str) -> None:
    editor = host.workflows.edit({"nodes": [{"id": "a", "type": "core:Text"}], "edges": [], "kept": 1})
    before = copy.deepcopy(dict(editor.workflow.raw))
    with pytest.raises(UsageError):
        EDITS[name](editor)
    assert dict(editor.workflow.raw) == before


@pytest.mark.slow
def test_a_file_of_many_megabytes_is_refused_before_it_is_read(flows: Flows) -> None:
    (flows.folder / "large.json").write_bytes(b'{"nodes":[],"edges":[]}' + b" " * 50_000_000)
    (flows.folder / "wide.json").write_text('{"nodes":[],"x":[' + "1," * 2_000_000 + "1]}", "utf-8")
    with flows.open() as tavern:
        for name, words in (("large", "larger than"), ("wide", "more than")):
            with pytest.raises(WorkflowInvalid, match=words):
                tavern.workflows.check(name)


def test_saving_does_not_follow_a_link_out_of_the_folder(flows: Flows, tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text('{"nodes": [], "edges": []}', "utf-8")
    (flows.folder / "link.json").symlink_to(outside)
    with flows.open() as tavern:
        tavern.workflows.save("link", {"name": "mine", "nodes": [], "edges": []})
    assert json.loads(outside.read_text("utf-8")) == {"nodes": [], "edges": []}
