"""The published JSON Schema of workflow files takes what the reader takes, and refuses what it refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tavern_core.errors import WorkflowInvalid
from tavern_core.kernel.manifest.published_schemas import published_schema
from tavern_core.kernel.manifest.workflow_file_codec import workflow_of
from tavern_core.model.workflow import NodeExec
from tests.rows import each_row
from tests.workflows.test_bad_input import GOOD, PLACES, changed

JUDGE = Draft202012Validator(published_schema("workflow"))
AS_EDITORS_WRITE_IT: dict[str, Any] = {
    "id": "wf_1", "name": "新建工作流", "viewport": {"x": 12.5, "y": 0, "zoom": 0.8}, "createdAt": "2025-06-01T00:00:00.000Z",
    "creationMethod": "group", "previewTarget": None, "referencedWorkflows": ["inner"], "description": None,
    "nodes": [
        {
            "id": "n1", "type": "core:NodeGroup", "position": {"x": 0, "y": 0}, "zIndex": 3, "label": "g", "width": 300.5,
            "data": {
                "nodeType": "NodeGroup", "referencedWorkflowId": "inner", "componentStates": {"a": {"height": 20}},
                "groupInterface": {"inputs": {"a": {"key": "a", "dataFlowType": "STRING"}}},
            },
            "inputConnectionOrders": {"a": ["e1"]}, "customSlotDescriptions": {"inputs": {"a": "text"}}, "parentNode": None,
        },
        {"id": "n2", "type": "gone:Type", "position": {"x": 1, "y": 1}, "configValues": {"any": {"thing": [1]}}},
    ],
    "edges": [
        {
            "id": "e1", "source": "n2", "target": "n1", "sourceHandle": None, "targetHandle": "a__0", "type": "smoothstep",
            "markerEnd": {"type": "arrowclosed", "strokeWidth": 2}, "data": {"x": 1}, "label": "l",
        }
    ],
    "interfaceInputs": {
        "a": {"key": "a", "displayName": "A", "dataFlowType": "STRING", "matchCategories": ["ComboOption"], "hideHandle": False,
              "config": {"suggestions": [{"value": "x", "label": "X"}]}, "allowDynamicType": True, "min": 0, "max": 1.5},
    },
}  # fmt: skip
SEED: dict[str, Any] = {  # an interface alone
    "description": "对提供的长文本进行摘要。",
    "interfaceInputs": {"text": {"description": "原始长文本", "dataFlowType": "STRING", "required": True}},
    "interfaceOutputs": {"summary": {"dataFlowType": "STRING"}},
}  # fmt: skip


def is_taken(document: Any) -> bool:
    try:
        workflow_of(document, "x")
    except WorkflowInvalid:
        return False
    return True


@each_row("document", [GOOD, AS_EDITORS_WRITE_IT, SEED, {"edges": []}], ids=["good", "editor", "seed", "empty"])
def test_files_of_editors_are_taken_by_schema_and_reader(document: dict[str, Any]) -> None:
    assert [error.message for error in JUDGE.iter_errors(document)] == []
    assert is_taken(document)


VALUES = [
    None,
    True,
    3,
    -1,
    1.5,
    1.0,
    1e308,
    "",
    "text",
    "x" * 201,
    [],
    ["a"],
    [None],
    {},
    {"a": 1},
    {"": 1},
    {"a": {}},
]


@pytest.mark.slow
@each_row("path", PLACES)
def test_schema_and_reader_agree_about_every_place(path: tuple[Any, ...]) -> None:
    told_later = "$exec" in path  # by the compiler, as BAD_EXEC
    for value in VALUES:
        document = changed(path, "replace", copy.deepcopy(value))
        if not told_later:
            assert JUDGE.is_valid(document) == is_taken(document), value
    without = changed(path, "remove", None)
    assert JUDGE.is_valid(without) == is_taken(without)


def test_options_of_a_node_are_in_the_schema() -> None:
    for exec_, fits in (
        ({"retry": 2}, True),
        ({"retry": {"times": 1, "delayMs": 5}}, True),
        ({"retries": 2}, False),
        ({"onError": "stop"}, False),
    ):
        document = {"nodes": [{"id": "a", "type": "t:Inc", "configValues": {"$exec": exec_}}], "edges": []}
        assert JUDGE.is_valid(document) is fits


ADDED = {
    (): ["$schema", "id", "raw", "interface_inputs", "version", "viewport", "referencedWorkflows", "未知"],
    ("nodes", 0): ["input_values", "type_version", "typeVersion", "parentNode", "width", "zIndex", "data"],
    ("edges", 0): ["source_handle", "label", "data"],
    ("interfaceInputs", "n"): ["data_flow_type", "min", "label", "isStream"],
}


@pytest.mark.slow
@pytest.mark.parametrize("path", ADDED, ids=lambda path: ".".join(map(str, path)) or "top")
def test_schema_and_reader_agree_about_keys_that_are_added_and_about_those_they_do_not_know(
    path: tuple[Any, ...],
) -> None:
    for key in ADDED[path]:
        for value in VALUES:
            document = copy.deepcopy(GOOD)
            here: Any = document
            for part in path:
                here = here[part]
            here[key] = copy.deepcopy(value)
            assert JUDGE.is_valid(document) == is_taken(document), (key, value)


def test_a_whole_number_may_be_written_with_a_point() -> None:
    found = workflow_of(
        {
            "rev": 2.0,
            "nodes": [{"id": "a", "type": "t:Inc", "typeVersion": 1.0, "configValues": {"$exec": {"retry": 2.0}}}],
        },
        "x",
    )
    assert (
        found.rev,
        found.nodes[0].type_version,
        NodeExec.model_validate({"retry": 2.0, "timeoutMs": 5.0}).retry.times,
    ) == (2, 1, 2)
    assert found.raw["rev"] == 2.0
