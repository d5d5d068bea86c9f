"""Form layouts: made by rule, changed by a model through the same cycle, always checked against the schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from tavern_core import ScriptedLLM, hookimpl, tool
from tavern_core.errors import UsageError, WorkflowNotFound

from .answers import Models, Scripted, answer, host

pytestmark = pytest.mark.anyio


@tool(name="render")
def render(
    prompt: str, style: Literal["photo", "sketch", "oil", "pixel"], steps: Annotated[int, Field(ge=1, le=50)] = 20, draft: bool = False,
    tags: list[str] | None = None, output_file: str = "", mode: Literal["fast", "good"] = "fast",
) -> str:  # fmt: skip
    """Draws a picture.

    Args:
        prompt: what is on it.
    """
    return prompt


@tool(name="login", parameters={"type": "object", "properties": {"token": {"type": "string", "format": "password"}}})
def login(token: str = "") -> str:
    """Logs in."""
    return "ok"


class Painter(Scripted):
    @hookimpl
    def tavern_register_tools(self) -> list[Any]:
        return [render, login]


async def test_a_layout_by_rule_has_a_widget_for_each_type_and_the_required_fields_first(tmp_path: Path) -> None:
    plugin = Painter()
    async with host(tmp_path, plugin) as tavern:
        panel = await tavern.assistant.panel("painter:render")
    fields = panel.layout["fields"]
    assert {name: (field["group"], field["order"], field["widget"]) for name, field in fields.items()} == {
        "prompt": ("main", 1, "textarea"),
        "style": ("main", 2, "select"),
        "steps": ("more", 3, "slider"),
        "draft": ("more", 4, "switch"),
        "tags": ("more", 5, "tags"),
        "output_file": ("more", 6, "file"),
        "mode": ("more", 7, "radio"),
    }
    assert (fields["prompt"]["help"], fields["output_file"]["label"]) == ("what is on it.", "Output file")
    assert panel.layout["groups"]["more"]["collapsed"] is True
    assert panel.layout["outputs"] == {"result": {"order": 1, "widget": "text", "label": "Result"}}
    assert plugin.model.asked == []


async def test_a_workflow_has_a_panel_too(tmp_path: Path) -> None:
    slot = {"dataFlowType": "STRING", "required": True, "displayName": "正文", "description": "要处理的文本"}
    outputs = {"count": {"dataFlowType": "INTEGER", "displayName": "字数"}, "data": {"dataFlowType": "OBJECT"}}
    written = {"nodes": [], "edges": [], "interfaceInputs": {"text": slot}, "interfaceOutputs": outputs}
    async with host(tmp_path, Models()) as tavern:
        panel = await tavern.assistant.panel(written)
        empty = await tavern.assistant.panel({"nodes": [], "edges": []})
    fields, shown = panel.layout["fields"], panel.layout["outputs"]
    assert (list(fields), fields["text"]["label"], fields["text"]["help"]) == (["text"], "正文", "要处理的文本")
    assert [output["label"] for output in shown.values()] == ["字数", "Data"]
    assert empty.layout["fields"] == {}
    assert {name: shown["widget"] for name, shown in panel.layout["outputs"].items()} == {
        "count": "number",
        "data": "json",
    }


async def test_a_model_changes_a_layout_and_corrects_its_mistakes(tmp_path: Path) -> None:
    wrong = answer([{"op": "replace", "path": "/fields/style/widget", "value": "dropdown"}])
    right = answer([{"op": "replace", "path": "/fields/style/widget", "value": "radio"}], "radio buttons")
    plugin = Painter(wrong, right)
    async with host(tmp_path, plugin) as tavern:
        panel = await tavern.assistant.panel("painter:render", "show the styles as buttons")
        again = await tavern.assistant.panel("painter:render", layout=panel.layout)
    assert (panel.ok, panel.reason, len(panel.rounds)) == (True, "radio buttons", 2)
    assert panel.layout["fields"]["style"]["widget"] == "radio"
    assert "[LAYOUT] /fields/style/widget: 'dropdown' is no widget here (one of select, radio)" in plugin.asked(1)
    assert again.layout == panel.layout


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "a required field is removed": ({"op": "remove", "path": "/fields/prompt"}, "/fields/prompt", "has no field"),
    "a field of nothing": ({"op": "add", "path": "/fields/promt", "value": {"group": "main", "order": 1, "widget": "text"}}, "/fields/promt", "no input 'promt'"),
    "a group that is not there": ({"op": "replace", "path": "/fields/prompt/group", "value": "top"}, "/fields/prompt/group", "'top' is no group"),
    "a text as order": ({"op": "replace", "path": "/fields/prompt/order", "value": "1"}, "/fields/prompt/order", "whole number"),
    "a key of its own": ({"op": "add", "path": "/fields/prompt/color", "value": "red"}, "/fields/prompt/color", "no key 'color'"),
    "a name of its own with a slash": ({"op": "add", "path": "/fields/a~1b", "value": {}}, "/fields/a~1b", "no input 'a/b'"),
    "a name that browsers mistake": ({"op": "add", "path": "/groups/__proto__", "value": {}}, "/groups/__proto__", "not a name"),
    "a section of its own": ({"op": "add", "path": "/buttons", "value": {}}, "/buttons", "no key 'buttons'"),
    "fields as a list": ({"op": "replace", "path": "/fields", "value": []}, "/fields", "an object"),
    "an output of nothing": ({"op": "add", "path": "/outputs/image", "value": {"order": 2, "widget": "image"}}, "/outputs/image", "no output 'image'"),
    "a widget for no output": ({"op": "replace", "path": "/outputs/result/widget", "value": "textarea"}, "/outputs/result/widget", "no widget"),
    "a title that is none": ({"op": "replace", "path": "/title", "value": 3}, "/title", "is text"),
    "a path to nothing": ({"op": "replace", "path": "/field/prompt", "value": 3}, "/field", "no"),
    "another document": ({"op": "replace", "path": "", "value": []}, "", "an object"),
}  # fmt: skip


async def test_a_layout_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    async with host(tmp_path, Painter()) as tavern:
        plain = await tavern.assistant.panel("painter:render")
        for mistake, (operation, place, said) in WRONG.items():
            model = ScriptedLLM([answer([operation])])
            panel = await tavern.assistant.panel("painter:render", "make it nicer", model=model, rounds=0)
            assert not panel.ok, mistake
            assert panel.layout == plain.layout, mistake
            assert panel.problems[0].pointer == place, mistake
            assert said in panel.problems[0].message, mistake


async def test_a_given_layout_is_checked_and_a_missing_subject_reported(tmp_path: Path) -> None:
    async with host(tmp_path, Painter()) as tavern:
        with pytest.raises(UsageError, match="the required input 'prompt' has no field"):
            await tavern.assistant.panel("painter:render", layout={"fields": {}})
        with pytest.raises(WorkflowNotFound):
            await tavern.assistant.panel("nothing")


async def test_a_secret_is_never_typed_openly(tmp_path: Path) -> None:
    operation = {"op": "replace", "path": "/fields/token/widget", "value": "text"}
    async with host(tmp_path, Painter(answer([operation]))) as tavern:
        panel = await tavern.assistant.panel("painter:login", "show what is typed", rounds=0)
    assert panel.layout["fields"]["token"]["widget"] == "password"
    assert [problem.pointer for problem in panel.problems] == ["/fields/token/widget"]
