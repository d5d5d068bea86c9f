"""Files of other products are recognised and named, wherever they are given; drawings in a file are kept and never run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Tavern
from tavern_core.errors import WorkflowInvalid
from tests import programs
from tests.rows import each_row, row

from .folder import Flows

COMFY_EDITOR: dict[str, Any] = {
    "last_node_id": 9, "last_link_id": 9, "groups": [], "config": {}, "extra": {}, "version": 0.4,
    "nodes": [
        {"id": 4, "type": "CheckpointLoaderSimple", "pos": [26, 474], "size": {"0": 315, "1": 98}, "flags": {}, "order": 0, "mode": 0, "properties": {},
         "outputs": [{"name": "MODEL", "type": "MODEL", "links": [1], "slot_index": 0}], "widgets_values": ["v1.safetensors"]},
        {"id": 3, "type": "KSampler", "pos": [863, 186], "inputs": [{"name": "model", "type": "MODEL", "link": 1}], "widgets_values": [156680208700286]},
    ],
    "links": [[1, 4, 0, 3, 0, "MODEL"]],
}  # fmt: skip
COMFY_API = {
    "3": {"class_type": "KSampler", "inputs": {"seed": 8566257, "model": ["4", 0]}, "_meta": {"title": "KSampler"}},
    "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "v1.safetensors"}},
}
N8N: dict[str, Any] = {
    "name": "My workflow", "active": False, "settings": {"executionOrder": "v1"}, "pinData": {}, "versionId": "a", "meta": {"instanceId": "b"}, "tags": [],
    "nodes": [
        {"parameters": {}, "id": "0f5c", "name": "Start", "type": "n8n-nodes-base.manualTrigger", "typeVersion": 1, "position": [820, 380]},
        {"parameters": {"url": "https://example.org"}, "id": "1a2b", "name": "HTTP", "type": "n8n-nodes-base.httpRequest", "typeVersion": 4.2, "position": [1040, 380]},
    ],
    "connections": {"Start": {"main": [[{"node": "HTTP", "type": "main", "index": 0}]]}},
}  # fmt: skip
LANGFLOW: dict[str, Any] = {
    "id": "x",
    "name": "Basic Prompting",
    "last_tested_version": "1.1.1",
    "endpoint_name": None,
    "is_component": False,
    "data": {
        "nodes": [{"id": "ChatInput-1", "type": "genericNode", "data": {"node": {"template": {}}}}],
        "edges": [],
        "viewport": {"x": 0, "y": 0, "zoom": 1},
    },
}
DIFY = "app:\n  icon: 🤖\n  mode: workflow\n  name: Summary\nkind: app\nversion: 0.1.5\nworkflow:\n  features: {}\n  graph:\n    edges: []\n    nodes: []\n"
DIFY_JSON = {"app": {"mode": "workflow"}, "kind": "app", "workflow": {"graph": {"nodes": [], "edges": []}}}
FOREIGN: dict[str, tuple[Any, str]] = {
    # what it is: (its content, what the error calls it)
    "the editor of ComfyUI": (COMFY_EDITOR, "the editor of ComfyUI"),
    "the new editor of ComfyUI": (
        {
            "version": 1,
            "state": {},
            "nodes": COMFY_EDITOR["nodes"],
            "links": [{"id": 1, "origin_id": 4, "target_id": 3}],
        },
        "the editor of ComfyUI",
    ),
    "the API of ComfyUI": (COMFY_API, "the API format of ComfyUI"),
    "a request to ComfyUI": ({"prompt": COMFY_API, "client_id": "x"}, "the API format of ComfyUI"),
    "n8n": (N8N, "exported from n8n"),
    "all of n8n": ([N8N, N8N], "exported from n8n"),
    "Langflow": (LANGFLOW, "exported from Langflow"),
    "all of Langflow": ({"flows": [LANGFLOW]}, "exported from Langflow"),
    "Dify": (DIFY, "exported from Dify"),
    "Dify as JSON": (DIFY_JSON, "exported from Dify"),
}


@pytest.fixture
def flows(tmp_path: Path) -> Flows:
    return Flows(tmp_path)


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, indent=2)


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_file_of_another_product_is_one_error_that_names_it_and_its_place(flows: Flows, mark: str) -> None:
    paths = {what: flows.write(f"theirs-{number}", {}) for number, what in enumerate(FOREIGN)}
    for what, path in paths.items():
        path.write_text(mark + text_of(FOREIGN[what][0]), "utf-8")
    with flows.open() as tavern:
        for what, path in paths.items():
            (content, called), name = FOREIGN[what], path.stem
            for ask in (tavern.workflows.get, tavern.workflows.run_sync, lambda name: tavern.workflows.broken()[name]):
                try:
                    error = ask(name)
                except WorkflowInvalid as raised:
                    error = raised
                assert isinstance(error, WorkflowInvalid), what
                (finding,) = error.findings
                assert called in finding.message and "not a workflow of this host" in finding.message, what
                assert finding.where is not None and (finding.where.file, finding.where.line > 0) == (str(path), True)
                assert "docs/workflows.md" in finding.hint, what
            assert called in str(tavern.tools.why(f"workflow:{name}").reason), what
            if not isinstance(content, str | list):
                with row(what), pytest.raises(WorkflowInvalid, match=called):
                    tavern.workflows.run_sync(content)


def test_the_command_line_names_it(flows: Flows) -> None:
    (flows.root / "flow.json").write_text(json.dumps(N8N))
    done = programs.tavern("workflows", "check", "flow.json", cwd=flows.root, home=flows.root / "home")
    assert done.returncode == 4
    assert done.stderr.count("error[") == 1
    assert "this is a workflow exported from n8n" in done.stderr


OURS: dict[str, Any] = {
    "name": "Ours", "interfaceOutputs": {"t": {"dataFlowType": "STRING"}},
    "nodes": [
        {"id": "box", "type": "core:frame", "position": {"x": 0, "y": 0}, "width": 500, "height": 300, "displayName": "组", "data": {"colour": "#333"}},
        {"id": "note", "type": "core:Note", "position": {"x": 0, "y": 0}, "data": {"text": "read me"}},
        {"id": "a", "type": "core:Text", "position": {"x": 20, "y": 40}, "parentNode": "box", "inputValues": {"text": "said"}},
        {"id": "o", "type": "core:GroupOutput", "position": {"x": 200, "y": 40}},
    ],
    "edges": [{"id": "e", "source": "a", "sourceHandle": "text", "target": "o", "targetHandle": "t"}],
}  # fmt: skip


@each_row(
    "more",
    [
        {},
        {"links": [], "version": "1"},
        {"connections": {}},
        {"prompt": COMFY_API},
        {"data": {"nodes": [], "edges": []}},
        {"app": {}, "workflow": {"graph": {}}},
    ],
)
def test_a_file_of_ours_is_ours_whatever_keys_it_has_besides(plain: Tavern, more: dict[str, Any]) -> None:
    assert plain.workflows.run_sync({**OURS, **more}).outputs == {"t": "said"}


@each_row("more", [{"links": []}, {"links": ["a"]}, {"connections": {}}, {"connections": {"a": 1}}])
def test_a_file_of_ours_may_leave_out_its_edges(plain: Tavern, more: dict[str, Any]) -> None:
    alone = {
        "name": "Alone",
        "nodes": [{"id": "a", "type": "core:Text", "inputValues": {"text": "said"}, "typeVersion": 1}],
        **more,
    }
    assert plain.workflows.run_sync(alone).ok


def test_what_is_only_drawn_is_kept_and_never_run(flows: Flows) -> None:
    path = flows.write("drawn", {})
    path.write_text(json.dumps(OURS, ensure_ascii=False, indent=2), "utf-8")
    with flows.open() as tavern:
        assert not tavern.workflows.check("drawn")
        run = tavern.workflows.run_sync("drawn")
        assert run.outputs == {"t": "said"}
        assert {event.path for event in tavern.workflows.events(run.run_id)} <= {"", "a", "o"}
        assert tavern.invoke_sync("workflow:drawn").value == "said"
        tavern.workflows.save("drawn", tavern.workflows.get("drawn"))
        kept = json.loads(path.read_text("utf-8"))
        assert kept == {**OURS, "rev": 1}
        assert {entry["type"] for entry in tavern.nodes.catalogue() if entry["isUiNode"]} == {"frame", "Note"}


def test_an_edge_to_what_is_only_drawn_is_an_error(plain: Tavern) -> None:
    edge = {"id": "wrong", "source": "box", "sourceHandle": "x", "target": "a", "targetHandle": "text"}
    (problem,) = plain.workflows.check({**OURS, "edges": [*OURS["edges"], edge]})
    assert (problem.code, problem.edge) == ("UNKNOWN_HANDLE", "wrong")
    assert "only drawn (core:frame)" in problem.message


HINTS = {
    "core:OpenAINode": "core:LLM", "core:GenericLlmRequest": "core:LLM", "core:RandomNumber": "core:Random", "core:MathOperation": "core:Expression",
    "core:If": "core:Switch", "core:ForEach": "core:Map", "core:HttpRequest": "core:HttpFetch", "core:MergeNode": "core:Merge", "core:Frame": "core:frame",
    "core:StickyNote": "core:Note", "core:Templat": "core:Template", "core:Concat": "core:Join", "core:Zork": "tavern nodes list core",
}  # fmt: skip


@each_row("type_", HINTS)
def test_an_unknown_node_of_the_host_gets_the_one_that_is_meant(plain: Tavern, type_: str) -> None:
    (problem,) = plain.workflows.check({"nodes": [{"id": "n", "type": type_}], "edges": []})
    assert problem.code == "UNKNOWN_TYPE"
    assert HINTS[type_] in problem.hint
    assert "install" not in problem.hint
