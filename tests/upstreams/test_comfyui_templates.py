"""What a folder of workflows comes to: tools, parameters, files that go along, and why something is not a tool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tavern_core import CallContext
from tavern_core.errors import UpstreamError
from tests.upstreams.comfyui_stub import ComfyStub
from tests.upstreams.opening import failure
from tests.upstreams.test_comfyui import ANN, ARGUMENTS, GRAPH, served, write

pytestmark = pytest.mark.anyio

SAMPLER = {
    "input": {
        "required": {
            "seed": ["INT", {"default": 0, "min": 0, "max": 18446744073709551615, "control_after_generate": True}],
            "steps": ["INT", {"default": 20, "min": 1, "max": 10000}],
            "cfg": ["FLOAT", {"default": 8.0, "min": 0.0, "max": 100.0, "step": 0.1, "tooltip": "How strictly the prompt is followed."}],
            "sampler_name": [["euler", "ddim"]],
            "scheduler": ["COMBO", {"options": ["normal", "karras"], "default": "karras"}],
            "text": ["STRING", {"multiline": True}],
            "model": ["MODEL"],
            "none": [[], {}],
        },
        "optional": {
            "tiled": ["BOOLEAN", {"default": False}],
            "odd": ["INT", {"default": "many", "min": "few", "max": [1]}],
            "beyond": ["INT", {"default": 900, "min": 0, "max": 10}],
            "numbers": [[1, 2.5, "auto", {"a": 1}]],
        },
    }
}  # fmt: skip


def sampler(**inputs: Any) -> dict[str, Any]:
    return {**GRAPH, "4": {"class_type": "Sampler", "inputs": inputs, "_meta": {"title": "the sampler"}}}


def marked(*names: str) -> dict[str, Any]:
    return sampler(**{name: f"{{{{{name}}}}}" for name in names})


async def test_types_bounds_choices_and_defaults_come_from_the_server(tmp_path: Path) -> None:
    names = ("seed", "steps", "cfg", "sampler_name", "scheduler", "text", "none", "tiled", "odd", "beyond", "numbers")
    write(tmp_path, graph=marked(*names), description="Draw.", displayName="Drawing", tags=["picture"])
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:
        comfy.object_info["Sampler"] = SAMPLER
        await host.upstreams.refresh("comfy")
        tool = host.tools.get("comfy:invert")
        assert (
            tool is not None
            and "Draw." in tool.description
            and (tool.display_name, tool.tags) == ("Drawing", ("picture",))
        )
        found = tool.input_schema["properties"]
        assert found["steps"] == {"type": "integer", "minimum": 1, "maximum": 10000, "default": 20}
        assert (
            found["cfg"]["description"] == "How strictly the prompt is followed." and found["cfg"]["type"] == "number"
        )
        assert found["sampler_name"] == {"enum": ["euler", "ddim"]}
        assert found["scheduler"] == {"enum": ["normal", "karras"], "default": "karras"}
        assert found["tiled"] == {"type": "boolean", "default": False}
        assert found["odd"] == {"type": "integer"}
        assert found["beyond"] == {"type": "integer", "minimum": 0, "maximum": 10}
        assert found["numbers"] == {"enum": [1, 2.5, "auto"]}
        assert found["none"] == {"type": "string"}
        assert found["seed"]["maximum"] == 2**64 - 1 and "default" not in found["seed"]
        assert sorted(tool.input_schema["required"]) == [
            "beyond",
            "name",
            "none",
            "numbers",
            "odd",
            "sampler_name",
            "text",
        ]


async def test_the_file_beside_a_template_adds_parameters_and_narrows_them(tmp_path: Path) -> None:
    inputs = {
        "steps": {"node": "the sampler", "input": "steps", "maximum": 40, "description": "How long."},
        "width": {"description": "Of the picture.", "default": 512},
        "prompt": {"node": "4", "input": "text"},
    }
    write(tmp_path, graph=sampler(steps=12, text="a cat", seed=1), inputs=inputs, outputs=["out"])
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:
        comfy.object_info["Sampler"] = SAMPLER
        result = await host.invoke("comfy:invert", {"color": 1, "name": "x", "prompt": "a dog"})
        assert result.ok, result.error
        assert comfy.graphs[0]["4"]["inputs"] == {"steps": 12, "text": "a dog", "seed": 1}
        assert comfy.graphs[0]["1"]["inputs"]["width"] == 512
        tool = host.tools.get("comfy:invert")
        assert tool is not None and tool.input_schema["properties"]["steps"]["maximum"] == 40
        too_many = await host.invoke("comfy:invert", {"color": 1, "name": "x", "steps": 41})
        assert failure(too_many)[0] == "INPUT_SCHEMA_INVALID"


DEFAULTS: list[tuple[dict[str, Any], dict[str, Any], Any]] = [
    ({"cfg": 3.5}, {}, 3.5),
    ({"cfg": 3.5}, {"maximum": 5}, 3.5),
    ({"cfg": 3.5}, {"default": 4}, 4),
    ({"cfg": 7.5}, {"maximum": 5}, None),
    ({}, {}, 8.0),
    ({}, {"maximum": 5}, None),
    ({"cfg": "{{value}}"}, {}, 8.0),
    ({"cfg": "{{value}}"}, {"maximum": 5}, None),
    ({"cfg": "{{value}}"}, {"enum": [1, 2]}, None),
]


@pytest.mark.parametrize(("inputs", "written", "default"), DEFAULTS)
async def test_the_default_is_what_the_workflow_has_else_what_the_server_says_where_that_is_allowed(
    tmp_path: Path, inputs: dict[str, Any], written: dict[str, Any], default: Any
) -> None:
    write(tmp_path, graph=sampler(**inputs), inputs={"value": {"node": "4", "input": "cfg", **written}})
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:
        comfy.object_info["Sampler"] = SAMPLER
        await host.upstreams.refresh("comfy")
        tool = host.tools.get("comfy:invert")
        assert tool is not None, host.upstreams["comfy"].left_out
        schema = tool.input_schema
        has_own_value = inputs.get("cfg", "{{value}}") != "{{value}}"
        assert schema["properties"]["value"].get("default") == default
        assert ("value" in schema["required"]) is (default is None and not has_own_value)


@pytest.mark.slow
@pytest.mark.parametrize("most", [0, 9, 2**32 - 1])
async def test_a_seed_that_is_drawn_is_one_that_the_node_takes(tmp_path: Path, most: int) -> None:
    write(tmp_path, graph=marked("seed"))
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:
        comfy.object_info["Sampler"] = {"input": {"required": {"seed": ["INT", {"min": -1, "max": most}]}}}
        seeds = [(await host.invoke("comfy:invert", ARGUMENTS)).value["seeds"]["seed"] for _ in range(4)]
        assert all(0 <= seed <= most for seed in seeds), seeds


async def test_a_seed_that_is_left_out_is_drawn_and_told(tmp_path: Path) -> None:
    write(tmp_path, graph=marked("seed"))
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:
        comfy.object_info["Sampler"] = SAMPLER
        results = [await host.invoke("comfy:invert", {**ARGUMENTS, **more}) for more in ({}, {}, {"seed": 7})]
        seeds = [result.value["seeds"]["seed"] for result in results]
        assert seeds == [graph["4"]["inputs"]["seed"] for graph in comfy.graphs]
        assert len(set(seeds)) == 3 and seeds[2] == 7
        assert f"seed={seeds[0]}" in str(results[0].evidence)


async def test_texts_are_filled_in_once_and_never_read_again(tmp_path: Path) -> None:
    write(tmp_path, graph=sampler(text="{{name}}, {{ color }} and {{name}}", prompt="{a|b}"))
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:
        comfy.object_info["Sampler"] = {"input": {"required": {"text": ["STRING", {}]}}}
        result = await host.invoke("comfy:invert", {**ARGUMENTS, "name": "{{color}}\\1"})
        assert result.ok, result.error
        assert comfy.graphs[0]["4"]["inputs"] == {"text": "{{color}}\\1, 77 and {{color}}\\1", "prompt": "{a|b}"}


async def test_marks_and_parameters_have_names_of_any_script(tmp_path: Path) -> None:
    inputs = {"种子": {"node": "4", "input": "seed"}}
    open_mark = "{{" + " " * 100_000  # never closed
    write(tmp_path, "人像", sampler(text="画 {{主题}}，风格 {{ style_2 }}" + open_mark, seed=1), inputs=inputs)
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:
        comfy.object_info["Sampler"] = SAMPLER
        await host.upstreams.refresh("comfy")
        tool = host.tools.get(host.tools.search("人像")[0].id)
        assert tool is not None and (tool.display_name, tool.resource_id) == ("人像", "人像")
        assert tool.id in host.manual() and "Description: 人像" in host.manual()
        given = {"主题": "山水", "style_2": "水墨", "种子": 7}
        result = await host.invoke("comfy:人像", {**ARGUMENTS, **given})
        assert result.ok, result.error
        assert comfy.graphs[0]["4"]["inputs"] == {"text": "画 山水，风格 水墨" + open_mark, "seed": 7}
        assert failure(await host.invoke(tool.id, {**ARGUMENTS, "style_2": "水墨"}))[0] == "INPUT_SCHEMA_INVALID"


UI = {"nodes": [], "links": [], "version": 0.4}
LEFT_OUT: dict[str, tuple[Any, dict[str, Any], str]] = {
    "ui": (UI, {}, "Export (API)"),
    "empty": ({}, {}, "not a workflow in API format"),
    "list": ([], {}, "not a workflow in API format"),
    "number": ({"1": 5}, {}, "API format"),
    "linked": (marked("model"), {}, "takes a MODEL"),
    "unknown-node": ({"1": {"class_type": "Nowhere", "inputs": {"x": "{{x}}"}}}, {}, "no node type 'Nowhere'"),
    "unknown-input": (marked("colour"), {}, "no input 'colour'"),
    "typo": (GRAPH, {"descripton": "x"}, "descripton"),
    "no-place": (GRAPH, {"inputs": {"x": {"description": "y"}}}, "names no node and input"),
    "no-such-node": (GRAPH, {"inputs": {"x": {"node": "9", "input": "y"}}}, "no node has the id or title '9'"),
    "wired": (GRAPH, {"inputs": {"x": {"node": "2", "input": "image"}}}, "comes from another node"),
    "nested": (sampler(lora={"on": True, "name": ["{{lora}}"]}), {}, "{{lora}} is inside a list or an object"),
    "phrase": (sampler(text="a {{big cat}}"), {}, "node 4, text: {{big cat}} holds no name of a parameter"),
    "blank": (sampler(text="{{}}"), {}, "node 4, text: {{}} holds no name of a parameter"),
    "digit": (sampler(text="{{1st}}"), {}, "node 4, text: {{1st}} holds no name of a parameter"),
    "long": (sampler(text=f"{{{{{'n' * 65}}}}}"), {}, "holds no name of a parameter"),
    "input-name": (sampler(), {"inputs": {"a b": {"node": "4"}}}, "input-name.tool.json/inputs: 'a b' is no name"),
    "pattern": (
        sampler(text="{{word}}"),
        {"inputs": {"word": {"pattern": "^(?!x)"}}},
        "word: its schema is refused: /pattern: the pattern cannot be tried: look-around",
    ),
    "outputs": (GRAPH, {"outputs": ["nothing"]}, "no node has the id or title 'nothing'"),
}


async def test_a_template_that_cannot_be_a_tool_is_left_out_with_the_reason(tmp_path: Path) -> None:
    write(tmp_path)
    for name, (graph, sidecar, _) in LEFT_OUT.items():
        write(tmp_path, name, graph, **sidecar)
    folder = tmp_path / "comfyui"
    (folder / "broken.json").write_text("{")
    (folder / "twice.json").write_text('{"1": 1, "1": 2}')
    (folder / "binary.json").write_bytes(b"\xff\xfe\x00")
    (folder / "huge.json").write_text(json.dumps({"1": "x" * 1_100_000}))
    (folder / "link.json").symlink_to(folder / "invert.json")
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:
        comfy.object_info["Sampler"] = SAMPLER
        await host.upstreams.refresh("comfy")
        status = host.upstreams["comfy"]
        assert status.tools == ("comfy:invert",)
        reasons = {name.removesuffix(".json"): why for name, why in status.left_out.items()}
        assert set(reasons) == {*LEFT_OUT, "broken", "twice", "binary", "huge", "link"}
        assert {name: why for name, why in reasons.items() if name in LEFT_OUT and LEFT_OUT[name][2] not in why} == {}
        assert "link" in reasons["link"] and "more than" in reasons["huge"]


async def test_a_folder_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:
        with pytest.raises(Exception, match="comfyui does not exist"):
            await host.upstreams.refresh("comfy")


IMAGE = {**GRAPH, "4": {"class_type": "LoadImage", "inputs": {"image": "{{photo}}"}}}


@pytest.mark.slow
@pytest.mark.parametrize("api", ["v1", "v2"])
async def test_images_of_the_caller_go_up_and_those_of_others_do_not(tmp_path: Path, api: str) -> None:
    write(tmp_path, graph=IMAGE)
    workspace = tmp_path / "workspace"
    (workspace / "in").mkdir(parents=True)
    (workspace / "in" / "cat.PNG").write_bytes(b"a cat")
    (tmp_path / "secret.png").write_bytes(b"secret")
    (workspace / "out.png").symlink_to(tmp_path / "secret.png")
    ann = CallContext(principal="user:ann", permissions=ANN.permissions, workspace_dir=str(workspace))
    async with ComfyStub() as comfy, served(tmp_path, comfy, api) as host:
        mine = host.artifacts.put(b"mine", "image/png", context=ann)
        his = host.artifacts.put(b"his", "image/png", context=CallContext(principal="user:bob"))
        for photo in (mine.uri, "in/cat.PNG", str(workspace / "in" / "cat.PNG")):
            result = await host.invoke("comfy:invert", {**ARGUMENTS, "photo": photo}, context=ann)
            assert result.ok, result.error
        names = [graph["4"]["inputs"]["image"] for graph in comfy.graphs]
        assert [comfy.uploads[name] for name in names] == [b"mine", b"a cat", b"a cat"]
        assert names[1] == names[2] and all(name.endswith(".png") for name in names)
        for photo in (
            his.uri,
            "artifact:art-0",
            "../secret.png",
            "out.png",
            str(tmp_path / "secret.png"),
            "in",
            "nothing.png",
            "http://x/y",
        ):
            refused = await host.invoke("comfy:invert", {**ARGUMENTS, "photo": photo}, context=ann)
            kind = "ARTIFACT_NOT_FOUND" if photo.startswith("artifact:") else "TOOL_ERROR"
            assert failure(refused)[:2] == (kind, "none"), photo
        nowhere = await host.invoke("comfy:invert", {**ARGUMENTS, "photo": "in/cat.PNG"}, context=ANN)
        assert "has no workspace" in str(nowhere.error)
        assert b"secret" not in comfy.uploads.values() and b"his" not in comfy.uploads.values()


async def test_choices_are_listed_again_when_the_server_has_others(tmp_path: Path) -> None:
    write(tmp_path, graph=marked("sampler_name"))
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:
        comfy.object_info["Sampler"] = SAMPLER
        await host.upstreams.refresh("comfy")
        assert not (await host.upstreams.refresh("comfy"))["comfy"]
        comfy.object_info["Sampler"] = {"input": {"required": {"sampler_name": [["euler", "new"]]}}}
        await host.upstreams.refresh("comfy")
        tool = host.tools.get("comfy:invert")
        assert tool is not None and tool.input_schema["properties"]["sampler_name"] == {"enum": ["euler", "new"]}


JUNK: list[Any] = [
    None, 5, "text", [], {}, [[]], {"a": "b"}, {"input": 5}, {"Sampler": 5}, {"Sampler": {"input": {"required": {"text": 5}}}},
    {"Sampler": {"input": {"required": {"text": [{"a": 1}]}}}}, {"Sampler": {"input": {"required": {"text": ["COMBO"]}}}},
    {"Sampler": {"input": {"required": {"text": ["COMBO", {"options": {"a": 1}}]}}}},
    {"Sampler": {"input": {"required": {"text": ["STRING", {"default": ["x"], "tooltip": {}}]}}}},
]  # fmt: skip


@pytest.mark.slow
async def test_node_types_that_make_no_sense_leave_one_template_out_or_none(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, "odd", marked("text"))
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:
        for junk in JUNK:
            comfy.flaws = [("GET /object_info/Sampler", lambda request, junk=junk: _answer(junk))]
            await host.upstreams.refresh("comfy")
            status = host.upstreams["comfy"]
            assert "comfy:invert" in status.tools
            assert ("comfy:odd" in status.tools) is ("odd" not in status.left_out), junk


async def _answer(data: Any) -> web.StreamResponse:
    return web.json_response(data)


@pytest.mark.parametrize(("status", "fix"), [(401, "headers"), (403, "headers"), (404, "`url`"), (502, "`url`")])
async def test_a_server_that_refuses_to_describe_its_nodes_keeps_the_tools_that_were_listed(
    status: int, fix: str, tmp_path: Path
) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status)

    write(tmp_path)
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:
        await host.upstreams.refresh("comfy")
        comfy.flaws = [("GET /object_info", refuse)]
        with pytest.raises(UpstreamError, match=str(status)) as refused:
            await host.upstreams.refresh("comfy")
        assert fix in refused.value.hint
        assert host.upstreams["comfy"].tools == ("comfy:invert",)


@pytest.mark.parametrize("status", [400, 404, 414, 500])
async def test_a_node_type_that_the_server_cannot_describe_leaves_out_its_templates_alone(
    status: int, tmp_path: Path
) -> None:
    async def fail(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status)

    write(tmp_path)
    write(tmp_path, "odd", marked("text"))
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:
        comfy.flaws = [("GET /object_info/Sampler", fail)]
        await host.upstreams.refresh("comfy")
        assert host.upstreams["comfy"].tools == ("comfy:invert",)
        assert "cannot describe it" in host.upstreams["comfy"].left_out["odd"]
        comfy.flaws = [("GET /object_info", fail)]
        with pytest.raises(UpstreamError, match=str(status)):
            await host.upstreams.refresh("comfy")
