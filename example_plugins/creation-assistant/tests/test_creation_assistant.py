"""The tools one by one, and an agent that builds a workflow with them; the model is a scripted one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tavern_plugin_creation_assistant

from tavern_core import CallContext, Plugin, ScriptedLLM, Tavern, hookimpl

NAME = "creation-assistant"
CAPITALS = [
    {"op": "add", "path": "/interfaceInputs/text", "value": {"dataFlowType": "STRING", "required": True}},
    {"op": "add", "path": "/interfaceOutputs/result", "value": {"dataFlowType": "STRING"}},
    {"op": "add", "path": "/nodes/in", "value": {"type": "core:GroupInput"}},
    {"op": "add", "path": "/nodes/caps", "value": {"type": "core:Case", "inputValues": {"form": "upper"}}},
    {"op": "add", "path": "/nodes/out", "value": {"type": "core:GroupOutput"}},
    {"op": "add", "path": "/edges/a", "value": {"source": "in", "sourceHandle": "text", "target": "caps", "targetHandle": "text"}},
    {"op": "add", "path": "/edges/b", "value": {"source": "caps", "sourceHandle": "text", "target": "out", "targetHandle": "result"}},
]  # fmt: skip


class Model:
    """A scripted model: drafts a patch, or acts as the agent."""

    def __init__(self) -> None:
        self.model = ScriptedLLM(self.answer)
        self.steps: list[str] = []
        self.draft = json.dumps({"reason": "capitals", "operations": CAPITALS})

    def answer(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return self.steps.pop(0) if self.steps else self.draft

    @hookimpl
    def tavern_register_llms(self) -> dict[str, Any]:
        return {"scripted": self.model}


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def tavern(tmp_path: Path, model: Model) -> Iterator[Tavern]:
    config = {
        "plugins": {"roots": [], "entryPoints": False},
        "workflows": {"roots": [str(tmp_path / "flows")]},
        "tools": {"allow": [f"{NAME}:*"]},
    }
    with Tavern.open(
        config, plugins=[tavern_plugin_creation_assistant, Plugin(model, name="scripted")], home=tmp_path
    ) as host:
        yield host


def called(tavern: Tavern, tool: str, **arguments: Any) -> Any:
    result = tavern.invoke_sync(f"{NAME}:{tool}", arguments)
    assert result.ok, result.error
    return result.value


def test_nodes_are_found_by_what_they_do(tavern: Tavern) -> None:
    found = called(tavern, "FindNodes", request="upper case of a text", limit=5)
    case = next(node for node in found if node["type"] == "core:Case")
    assert case["inputs"]["form"]["choices"] == ["upper", "lower", "title", "trim"]
    assert case["outputs"] == {"text": {"type": "STRING"}}


def test_a_workflow_is_created_patched_checked_and_runs(tavern: Tavern) -> None:
    shown = called(tavern, "CreateWorkflow", workflow="capitals", description="Writes loudly.")
    assert shown["nodes"] == {}
    outcome = called(tavern, "PatchWorkflow", workflow="capitals", operations=CAPITALS, rev=shown["rev"])
    assert (outcome["ok"], "content" in outcome) == (True, False)
    assert called(tavern, "CheckWorkflow", workflow="capitals") == []
    assert [node["type"] for node in called(tavern, "ShowWorkflow", workflow="capitals")["nodes"].values()] == [
        "core:GroupInput",
        "core:Case",
        "core:GroupOutput",
    ]
    assert tavern.workflows.run_sync("capitals", {"text": "hi"}).outputs == {"result": "HI"}


def test_a_wrong_patch_changes_nothing_and_says_why(tavern: Tavern) -> None:
    called(tavern, "CreateWorkflow", workflow="capitals")
    wrong = [{**CAPITALS[3], "value": {"type": "core:Cases"}}]
    outcome = called(tavern, "PatchWorkflow", workflow="capitals", operations=wrong)
    assert outcome["ok"] is False
    assert [(problem["code"], problem["nearest"]) for problem in outcome["problems"]] == [
        ("UNKNOWN_TYPE", ["core:Case"])
    ]
    assert called(tavern, "ShowWorkflow", workflow="capitals")["nodes"] == {}


def test_an_existing_workflow_is_not_replaced(tavern: Tavern) -> None:
    called(tavern, "CreateWorkflow", workflow="capitals")
    again = tavern.invoke_sync(f"{NAME}:CreateWorkflow", {"workflow": "capitals"})
    assert again.error is not None
    assert "already" in again.error.message


def test_a_model_drafts_a_patch_that_can_be_applied(tavern: Tavern, model: Model) -> None:
    called(tavern, "CreateWorkflow", workflow="capitals")
    draft = called(tavern, "DraftPatch", workflow="capitals", request="put the text into capitals")
    assert (draft["reason"], draft["rev"]) == ("capitals", 1)
    assert called(tavern, "PatchWorkflow", workflow="capitals", operations=draft["operations"])["ok"] is True
    model.draft = "I would rather not."
    refused = tavern.invoke_sync(f"{NAME}:DraftPatch", {"workflow": "capitals", "request": "more"})
    assert refused.error is not None
    assert "wrote no operations" in refused.error.message


def test_a_caller_without_the_network_cannot_let_a_model_draft(tavern: Tavern) -> None:
    called(tavern, "CreateWorkflow", workflow="capitals")
    context = CallContext(principal="agent:x")
    refused = tavern.invoke_sync(f"{NAME}:DraftPatch", {"workflow": "capitals", "request": "more"}, context=context)
    assert refused.error is not None
    assert refused.error.kind == "POLICY_DENIED"


def block(tool: str, **fields: str) -> str:
    """A call in the text of the agent."""
    lines = [f"command:「始」{NAME}:{tool}「末」", *(f"{key}:「始」{value}「末」" for key, value in fields.items())]
    return "\n".join(["<|[REQUEST_TOOL]|>", *lines, "<|[END_TOOL]|>"])


def test_the_agent_of_the_plugin_builds_a_workflow(tavern: Tavern, model: Model) -> None:
    model.steps = [
        block("CreateWorkflow", workflow="capitals"),
        block("PatchWorkflow", workflow="capitals", operations=json.dumps(CAPITALS)),
        "The workflow capitals writes its text in capitals.",
    ]
    run = tavern.agents.run_sync("workflow-builder", "Make a workflow that puts a text into capitals.")
    assert run.answer == "The workflow capitals writes its text in capitals.", run.reason
    assert tavern.workflows.run_sync("capitals", {"text": "hi"}).outputs == {"result": "HI"}
    system = str(model.model.asked[0][0]["content"])
    assert f"{NAME}:PatchWorkflow" in system


def test_its_workflow_profile_and_skill_are_valid(tavern: Tavern) -> None:
    assert tavern.workflows.check(f"{NAME}.deliberate") == []
    assert len(tavern.profile("workflow-builder").written.tool_ids_inventory) == 7
    prompt = tavern.agents.prompt_sync("workflow-builder", "put a text into capitals")
    assert prompt.findings == ()
    assert "workflow-changes" in prompt.system


def test_a_missing_workflow_is_named(tavern: Tavern) -> None:
    for name in ("ShowWorkflow", "CheckWorkflow"):
        error = tavern.invoke_sync(f"{NAME}:{name}", {"workflow": "capitols"}).error
        assert error is not None
        assert "there is no workflow 'capitols'" in error.message
