"""Editing through the API: what can be edited is, whatever the file leaves out, and what cannot be is refused and changes nothing."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tavern_core import Tavern
from tavern_core.errors import UsageError
from tavern_core.graph.edit import WorkflowEditor
from tavern_core.kernel.manifest.workflow_file_codec import workflow_of
from tests.rows import each_row
from tests.workflows.folder import Flows

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tavern]:
    with Flows(tmp_path_factory.mktemp("flows")).open() as tavern:
        yield tavern


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


Edit = Callable[[WorkflowEditor], Any]
EMPTY: list[dict[str, Any]] = [
    {"nodes": None, "edges": None},
    {"edges": []},
    {"nodes": []},
    {"nodes": [], "edges": [], "未知": {"键": 1.0}},
]


@each_row("at", range(len(EMPTY)))
def test_a_file_that_leaves_its_lists_out_can_be_edited(host: Tavern, at: int) -> None:
    editor = host.workflows.edit(EMPTY[at])
    editor.arrange()
    text, case = (
        editor.add("core:Text", node_id="文本", inputs={"text": "a"}),
        editor.add("core:Case", config={"$exec": None}),
    )
    editor.connect(text, "text", case, "text")
    editor.arrange()
    assert host.workflows.check(editor.workflow) == []
    assert {key: value for key, value in editor.workflow.raw.items() if key == "未知"} == {
        k: v for k, v in EMPTY[at].items() if k == "未知"
    }


GROUPS: dict[str, Any] = {
    "nodes": [
        {"id": "g", "type": "core:Map", "configValues": {"referencedWorkflowId": "inner"}}, {"id": "t", "type": "core:Template", "inputValues": {"template": "{{名}}"}},
        {"id": "x", "type": "core:Text", "parentNode": "g"}, {"id": "j", "type": "core:Join", "inputConnectionOrders": {"parts": ["2", "1"]}},
    ],
    "edges": [
        {"id": "1", "source": "x", "target": "j", "sourceHandle": "text", "targetHandle": "parts__0"}, {"id": "2", "source": "t", "target": "j", "targetHandle": "parts__1", "label": None},
        {"id": "3", "source": "x", "target": "t", "targetHandle": "名"},
    ],
}  # fmt: skip
ALLOWED: dict[str, Edit] = {
    "a group gets another id while it lacks an input": lambda e: e.rename("g", "组"),
    "a node gets another id while another lacks an input": lambda e: e.rename("x", "文本"),
    "a node keeps its id": lambda e: e.rename("g", "g"),
    "an input of a group is given": lambda e: e.set_input("g", "items", [1]),
    "a template gets another input": lambda e: (
        e.disconnect("3"),
        e.connect("x", "text", "t", "b"),
        e.set_input("t", "template", "{{b}}"),
    ),
    "a node with edges on both sides is taken out": lambda e: e.remove("t"),
    "a node that holds others is taken out": lambda e: e.remove("g"),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_an_edit_that_adds_no_error_is_taken(flows: Flows, name: str) -> None:
    inner = {
        "interfaceInputs": {"item": {"dataFlowType": "WILDCARD"}},
        "nodes": [{"id": "a", "type": "core:GroupInput"}],
    }
    (flows.folder / "inner.json").write_text(json.dumps(inner), "utf-8")
    with flows.open() as tavern:
        editor = tavern.workflows.edit(GROUPS)
        before = [p.code for p in tavern.workflows.check(GROUPS)]
        assert before == ["MISSING_INPUT"]
        ALLOWED[name](editor)
        assert [p.code for p in tavern.workflows.check(editor.workflow)] in (before, [])
        saved = tavern.workflows.save("edited", editor.workflow)
        assert json.loads((flows.folder / "edited.json").read_text("utf-8")) == dict(saved.raw)


REFUSED: dict[str, tuple[Edit, str]] = {
    "no number": (lambda e: e.set_input("v", "value", math.nan), "NaN"), "an object": (lambda e: e.set_input("v", "value", object()), "is not JSON"),
    "a set": (lambda e: e.set_input("v", "value", {1}), "is not JSON"), "half a character": (lambda e: e.set_input("v", "value", "\ud800"), "surrogate"),
    "a value that is too deep": (lambda e: e.set_input("v", "value", nested(5_000)), "nested deeper"), "an object as configuration": (lambda e: e.set_config("v", "k", object()), "is not JSON"),
    "an input that does not exist": (lambda e: e.set_input("v", "valeu", 1), "no input 'valeu'"), "a new node with one": (lambda e: e.add("core:Value", inputs={"valeu": 1}), "no input 'valeu'"),
    "an id that is not text": (lambda e: e.rename("v", 5), "id is text"), "no id": (lambda e: e.rename("v", ""), "cannot be empty"),
    "an id that is a path": (lambda e: e.rename("v", "g/a"), "cannot hold a /"), "a new node with one that is": (lambda e: e.add("core:Text", node_id="g/a"), "cannot hold a /"),
    "a place that is none": (lambda e: e.add("core:Text", position="ab"), "two numbers"), "a place nowhere": (lambda e: e.add("core:Text", position=(math.nan, 0)), "NaN"),
    "an output that does not exist": (lambda e: e.connect("t", "txet", "v", "value"), "no output 'txet'"),
}  # fmt: skip


@each_row("name", REFUSED)
def test_an_edit_that_no_file_could_hold_is_refused_and_changes_nothing(host: Tavern, name: str) -> None:
    edit, why = REFUSED[name]
    editor = host.workflows.edit(
        {
            "nodes": [
                {"id": "v", "type": "core:Value"},
                {"id": "t", "type": "core:Template", "inputValues": {"template": ""}},
            ]
        }
    )
    before = editor.workflow
    with pytest.raises(UsageError, match=re.escape(why)):
        edit(editor)
    assert editor.workflow is before


def test_a_value_that_is_changed_later_does_not_change_the_workflow(host: Tavern) -> None:
    editor, value = host.workflows.edit(), [1]
    editor.add("core:Value", node_id="v", inputs={"value": value})
    value.append(2)
    editor.set_input("v", "value", value)
    value.append(3)
    assert host.workflows.run_sync(editor.workflow, keep=False).outputs == {"v": {"value": [1, 2]}}


def test_a_batch_is_checked_once_and_taken_as_a_whole(host: Tavern) -> None:
    editor = host.workflows.edit()
    checks: list[Any] = []
    counted = WorkflowEditor(
        editor.workflow, lambda flow: checks.append(flow) or host.workflows.check(flow), workflow_of
    )  # type: ignore[func-returns-value]
    with counted.batch():
        text = counted.add("core:Text", inputs={"text": "hello"})
        case, other = counted.add("core:Case"), counted.add("core:Case")
        counted.connect(text, "text", case, "text")
        counted.connect(text, "text", other, "text")
        counted.set_input(case, "form", "upper")
        counted.rename(case, "loud")
        counted.disconnect("text-case-2")
        with counted.batch():
            counted.remove(other)
        assert counted.workflow.nodes == ()
    assert len(checks) == 2, "the first state, and the result"
    assert [node.id for node in counted.workflow.nodes] == ["text", "loud"]
    assert all(node.position for node in counted.workflow.nodes)
    assert host.workflows.run_sync(counted.workflow, keep=False).outputs == {"loud": {"text": "HELLO"}}


FAILING: dict[str, tuple[Edit, str]] = {
    "its edits add an error": (lambda e: (e.add("core:Case"), e.connect("t", "txet", "case", "text")), "no output 'txet'"),
    "an edit is refused at once": (lambda e: (e.add("core:Text", node_id="n"), e.remove("ghost")), "no node 'ghost'"),
    "an id is there twice": (lambda e: (e.add("core:Text", node_id="n"), e.add("core:Text", node_id="n")), "a node 'n' already"),
    "a removed edge is removed again": (lambda e: (e.disconnect("1"), e.disconnect("1")), "no edge '1'"),
    "a node that was renamed is named as before": (lambda e: (e.rename("t", "u"), e.set_input("t", "text", "x")), "no node 't'"),
}  # fmt: skip


@each_row(
    "edit",
    [
        lambda e: e.add("core:Text", node_id="n", inputs=[(["text"], "x")]),
        lambda e: e.add("core:Text", node_id="n", inputs=[["text", "x"]]),
        lambda e: e.set_config("t", ["key"], "x"),
        lambda e: e.set_input("t", ["key"], "x"),
    ],
    ids=["inputs with a key that is none", "inputs as pairs", "a key of the configuration", "a key of the inputs"],
)
def test_an_edit_of_a_batch_that_fails_leaves_nothing_behind(host: Tavern, edit: Edit) -> None:
    editor = host.workflows.edit({"nodes": [{"id": "t", "type": "core:Text"}]})
    with editor.batch():
        with pytest.raises(TypeError):
            edit(editor)
        editor.set_input("t", "text", "x")
        assert editor.add("core:Text", node_id="n") == "n"
    assert [node.id for node in editor.workflow.nodes] == ["t", "n"]
    assert editor.workflow.nodes[1].input_values == {}


@each_row("name", FAILING)
def test_a_batch_that_fails_changes_nothing(host: Tavern, name: str) -> None:
    edit, why = FAILING[name]
    editor = host.workflows.edit({
        "nodes": [{"id": "t", "type": "core:Text"}, {"id": "c", "type": "core:Case"}],
        "edges": [{"id": "1", "source": "t", "sourceHandle": "text", "target": "c", "targetHandle": "text"}],
    })  # fmt: skip
    before = editor.workflow
    with pytest.raises(UsageError, match=re.escape(why)), editor.batch():
        edit(editor)
    assert editor.workflow is before
    editor.set_input("t", "text", "after a failed batch")
    assert editor.workflow.nodes[0].input_values == {"text": "after a failed batch"}
