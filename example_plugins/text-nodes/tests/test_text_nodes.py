"""The nodes one by one, and the workflows as an agent calls them; without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tavern_plugin_bilibili_fetcher
import tavern_plugin_text_nodes
from tavern_plugin_bilibili_fetcher.fake_endpoint import FakeEndpoint

from tavern_core import CallContext, Tavern
from tavern_core.errors import WorkflowInvalid

ENDPOINT = "extensions.bilibili-fetcher.getSubtitle.endpoint"


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with FakeEndpoint() as served:
        yield served


@pytest.fixture
def tavern(tmp_path: Path, endpoint: FakeEndpoint) -> Iterator[Tavern]:
    # The endpoint of the tests is on this machine, where no scope of the plugin leads; so its scripts may what its code may.
    config = {
        "plugins": {"roots": [], "entryPoints": False},
        "settings": {ENDPOINT: endpoint.url},
        "isolation": {"scripts": "tier"},
    }
    plugins = [tavern_plugin_text_nodes, tavern_plugin_bilibili_fetcher]
    with Tavern.open(config, plugins=plugins, home=tmp_path) as host:
        yield host


def ran(tavern: Tavern, type_: str, config: dict[str, Any] | None = None, **inputs: Any) -> dict[str, Any]:
    """What one node gives."""
    node = {"id": "n", "type": f"text-nodes:{type_}", "inputValues": inputs, "configValues": config or {}}
    result = tavern.workflows.run_sync({"nodes": [node], "edges": []})
    assert result.ok, result.errors
    outputs: dict[str, Any] = result.outputs["n"]
    return outputs


NODES: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("Statistics", {}, {"text": "one two One", "top": 1}, {"words": 3, "characters": 11, "frequent": ["one"]}),
    ("Statistics", {}, {"text": "大家好 hi"}, {"words": 4, "characters": 6, "frequent": ["大", "家", "好"]}),
    ("Difference", {}, {"texts": ["a b", "b c"]}, {"common": ["b"], "rest": ["a", "c"]}),
    ("Difference", {}, {"texts": ["a b\nc", "c\nd"], "unit": "lines"}, {"common": ["c"], "rest": ["a b", "d"]}),
    ("Excerpt", {}, {"text": "abcdef", "length": 3}, {"text": "abc…"}),
    ("Excerpt", {}, {"text": "abc", "length": 3}, {"text": "abc"}),
    ("Excerpt", {}, {"text": "abcdef", "length": 3, "ellipsis": " and so on"}, {"text": "abc and so on"}),
    ("Excerpt", {"by": "lines"}, {"text": "a\nb\nc", "lines": 2}, {"text": "a\nb…"}),
]


@pytest.mark.parametrize("at", range(len(NODES)))
def test_a_node_gives_what_it_says(tavern: Tavern, at: int) -> None:
    type_, config, inputs, wanted = NODES[at]
    assert ran(tavern, type_, config, **inputs) == wanted


def test_lines_come_one_by_one_and_their_number_at_the_end(tavern: Tavern) -> None:
    nodes = [
        {"id": "lines", "type": "text-nodes:Lines", "inputValues": {"text": "a\nb\nc"}},
        {"id": "out", "type": "core:GroupOutput"},
    ]
    edges = [
        {"id": "1", "source": "lines", "sourceHandle": "lines", "target": "out", "targetHandle": "all"},
        {"id": "2", "source": "lines", "sourceHandle": "count", "target": "out", "targetHandle": "count"},
    ]
    interface = {"all": {"dataFlowType": "STRING", "isStream": True}, "count": {"dataFlowType": "INTEGER"}}
    result = tavern.workflows.run_sync({"nodes": nodes, "edges": edges, "interfaceOutputs": interface})
    assert result.outputs == {"all": "abc", "count": 3}


def test_a_file_of_the_first_version_is_read_and_a_wrong_one_refused(tavern: Tavern) -> None:
    old = {"id": "n", "type": "text-nodes:Excerpt", "typeVersion": 1, "inputValues": {"text": "abcdef", "max": 2}}
    assert tavern.workflows.run_sync({"nodes": [old], "edges": []}).outputs == {"n": {"text": "ab…"}}
    with pytest.raises(WorkflowInvalid, match="characters or lines"):
        ran(tavern, "Excerpt", {"by": "pages"}, text="a")


def test_an_ellipsis_that_is_not_needed_is_never_worked_out(tavern: Tavern) -> None:
    nodes = [
        {"id": "e", "type": "core:Text", "inputValues": {"text": "!"}},
        {"id": "n", "type": "text-nodes:Excerpt", "inputValues": {"text": "abc", "length": 5}},
    ]
    edges = [{"id": "1", "source": "e", "sourceHandle": "text", "target": "n", "targetHandle": "ellipsis"}]
    assert "e" not in tavern.workflows.run_sync({"nodes": nodes, "edges": edges}).states
    nodes[1]["inputValues"] = {"text": "abcdef", "length": 5}
    assert tavern.workflows.run_sync({"nodes": nodes, "edges": edges}).outputs == {"n": {"text": "abcde!"}}


def test_everything_is_valid_and_listed(tavern: Tavern) -> None:
    for name in ("text-nodes.compare", "text-nodes.subtitles-to-summary"):
        assert tavern.workflows.check(name) == []
    listed = {spec.id for spec in tavern.tools.list()}
    ours = {
        "workflow:text-nodes.compare",
        "workflow:text-nodes.subtitles-to-summary",
        "text-nodes:statistics",
        "text-nodes:summarizeVideo",
    }
    assert ours <= listed


def test_a_workflow_is_a_tool(tavern: Tavern) -> None:
    result = tavern.invoke_sync("workflow:text-nodes.compare", {"first": "a b c", "second": "b c d"})
    assert result.value == ["b", "c"], result.error
    refused = tavern.invoke_sync("workflow:text-nodes.compare", {"first": "a", "second": "b", "unit": "pages"})
    assert refused.error is not None
    assert refused.error.kind == "INPUT_SCHEMA_INVALID"


def test_a_node_is_a_tool_and_says_its_own_parameters(tavern: Tavern) -> None:
    schema = tavern.tool_schema("text-nodes:statistics")
    assert schema["parameters"] == {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "what is counted."},
            "top": {
                "type": "integer",
                "description": "how many of the most frequent words are named.",
                "minimum": 0,
                "maximum": 50,
                "default": 3,
            },
        },
        "required": ["text"],
    }
    assert tavern.invoke_sync("text-nodes:statistics", {"text": "a a b"}).value == {
        "words": 3,
        "characters": 5,
        "frequent": ["a", "b"],
    }


@pytest.mark.parametrize("tool", ["workflow:text-nodes.subtitles-to-summary", "text-nodes:summarizeVideo"])
def test_subtitles_become_a_summary(tavern: Tavern, endpoint: FakeEndpoint, tool: str) -> None:
    result = tavern.invoke_sync(tool, {"video": "BV1xx411c7mD"})
    assert result.value == "摘要：大家好……（共 3 行）", result.error
    assert endpoint.seen


def test_a_caller_needs_the_rights_of_the_tools_inside(tavern: Tavern, endpoint: FakeEndpoint) -> None:
    alone = CallContext(principal="agent:x")
    with_a_model = CallContext(
        principal="agent:x", permissions=frozenset({"network"})
    )  # enough for the model, not for the video
    for caller, path in ((alone, None), (with_a_model, "fetch")):
        refused = tavern.invoke_sync("text-nodes:summarizeVideo", {"video": "BV1xx411c7mD"}, context=caller)
        assert refused.error is not None
        assert (refused.error.kind, refused.error.details.get("path")) == ("POLICY_DENIED", path)
    assert endpoint.seen == []


def test_a_video_without_subtitles_is_an_error_of_its_node(tavern: Tavern) -> None:
    result = tavern.invoke_sync("text-nodes:summarizeVideo", {"video": "BV1No00000SS"})
    assert result.error is not None
    assert (result.error.kind, result.error.details["path"], result.error.details["type"]) == (
        "TOOL_ERROR",
        "fetch",
        "core:CallTool",
    )
    assert "没有字幕" in result.error.message
