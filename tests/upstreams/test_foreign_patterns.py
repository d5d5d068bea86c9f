"""Patterns of other systems' schemas that the host cannot try: all else is validated, and they are reported."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Plugin, Tavern, ToolSpec, hookimpl
from tavern_core.__main__ import main
from tavern_core.contract.adapters import UpstreamTool
from tavern_core.errors import InputInvalid
from tests.rows import each_row

from .opening import opened as opened_with
from .toy import System, opened

LOOKS_AHEAD = "^(?!x)"
REPEATS = "(a)\\1"
INPUT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": LOOKS_AHEAD, "minLength": 2},
        "code": {"type": "string", "pattern": "^[A-Z]+$"},
        "more": {
            "type": "object",
            "properties": {"n": {"type": "integer"}},
            "patternProperties": {REPEATS: {"type": "integer"}, "^n_": {"type": "integer"}},
            "additionalProperties": False,
        },
    },
    "required": ["name"],
}
FORM = {
    "type": "object",
    "properties": {name: INPUT["properties"][name] for name in ("name", "code")},
    "required": ["name"],
}
OUTPUT = {
    "type": "object",
    "properties": {"said": {"type": "string", "pattern": LOOKS_AHEAD}, "n": {"type": "integer"}},
    "required": ["said"],
}
TOOL = UpstreamTool("greet", "Greets.", INPUT, OUTPUT)
UNCHECKED = [
    ("/inputSchema/properties/more/patternProperties/(a)\\1", REPEATS, "backreferences"),
    ("/inputSchema/properties/name/pattern", LOOKS_AHEAD, "look-around"),
    ("/outputSchema/properties/said/pattern", LOOKS_AHEAD, "look-around"),
]


def answer(tool: UpstreamTool, arguments: Mapping[str, Any], call: Any) -> Any:
    return {"said": "x", **({"n": arguments["name"]} if arguments["name"] == "bad" else {})}


def greets() -> System:
    return System(tools=(TOOL,), answer=answer)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another type": ({"name": 1}, "/name"),
    "too short": ({"name": "x"}, "/name"),
    "a pattern that can be tried": ({"name": "xx", "code": "a"}, "/code"),
    "nothing that is required": ({}, ""),
    "an unknown argument": ({"name": "xx", "nam": "x"}, "/nam"),
    "a name under a pattern that can be tried": ({"name": "xx", "more": {"n_": "x"}}, "/more/n_"),
    "a declared name": ({"name": "xx", "more": {"n": "x"}}, "/more/n"),
}


@pytest.mark.slow
def test_everything_but_such_a_pattern_is_validated(tmp_path: Path) -> None:
    with opened(greets(), tmp_path) as host:
        for what, (arguments, pointer) in REFUSED.items():
            refused = host.invoke_sync("toy:greet", arguments).error
            assert refused is not None, what
            assert (refused.kind, pointer in str(refused.details)) == ("INPUT_SCHEMA_INVALID", True), what
        for accepted in ({"name": "xx"}, {"name": "bb", "more": {"aa": "any", "n_1": 1}}):
            result = host.invoke_sync("toy:greet", accepted)
            assert result.value == {"said": "x"}, result.error
        wrong = host.invoke_sync("toy:greet", {"name": "bad"}).error
        assert wrong is not None and wrong.kind == "OUTPUT_SCHEMA_INVALID"


@pytest.mark.slow
def test_each_such_pattern_is_reported_with_its_place_and_reason(tmp_path: Path) -> None:
    def seen(rows: Any) -> list[tuple[str, str, str]]:
        return sorted((row["pointer"], row["pattern"], row["tool"]) for row in rows)

    expected = sorted((pointer, pattern, "toy:greet") for pointer, pattern, _ in UNCHECKED)
    for start in ("listed", "read from the catalogue"):
        with opened(greets(), tmp_path) as host:
            if start == "listed":
                host.upstreams.connect_sync("toy")
            status = host.upstreams.status("toy")
            assert (status.tools, status.left_out) == (("toy:greet",), {})
            rows = status.to_json()["unchecked"]
            assert seen(rows) == expected, start
            for pointer, _, why in UNCHECKED:
                assert [why in row["reason"] for row in rows if row["pointer"] == pointer] == [True]
            host.tools.list()
            found = [d for d in host.diagnostics if d.code == "PATTERN_UNCHECKED"]
            assert seen(d.details for d in found) == expected, start
            assert {(d.plugin, d.severity) for d in found} == {("toy", "info")}
            assert all("is not validated: the pattern cannot be tried" in d.message for d in found)
            assert host.invoke_sync("toy:greet", {"name": "xx"}).ok
            found = [d for d in host.diagnostics if d.code == "PATTERN_UNCHECKED"]
            assert seen(d.details for d in found) == expected, start


def test_a_tool_without_such_patterns_has_none_reported(tmp_path: Path) -> None:
    with opened(System(), tmp_path) as host:
        host.upstreams.connect_sync("toy")
        assert host.upstreams.status("toy").to_json()["unchecked"] == []
        assert not [d for d in host.diagnostics if d.code == "PATTERN_UNCHECKED"]


@pytest.mark.slow
def test_a_list_of_an_earlier_version_is_asked_for_whole(tmp_path: Path) -> None:
    system = greets()
    system.etag = "1"
    with opened(system, tmp_path) as host:
        host.upstreams.connect_sync("toy")
    file = tmp_path / "cache" / "upstreams" / "toy.json"
    data = json.loads(file.read_text("utf-8"))
    del data["unchecked"]
    data["leftOut"] = {"other": "the schema of its parameters is refused"}
    file.write_text(json.dumps(data), "utf-8")
    with opened(system, tmp_path) as host:
        host.upstreams.refresh_sync("toy")
        assert host.upstreams.status("toy").left_out == {}


def test_the_tool_of_one_of_our_authors_is_refused_as_before(tmp_path: Path) -> None:
    def call(name: str) -> str:
        return name

    class Registers:
        @hookimpl
        def tavern_register_tools(self) -> list[Any]:
            return [ToolSpec("own:greet", "Greets.", input_schema=INPUT, impl=call)]

    with Tavern.open(home=tmp_path, plugins=[Plugin(Registers(), name="own")]) as host:
        error = host.invoke_sync("own:greet", {"name": "bb"}).error
    assert error is not None
    assert "backreferences" in error.message or "look-around" in error.message


MEANS: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "under not": ({"not": {"pattern": LOOKS_AHEAD}}, ["x", "y"], []),
    "under not, behind a reference": (
        {"$defs": {"a": {"pattern": LOOKS_AHEAD}}, "not": {"$ref": "#/$defs/a"}, "type": "string"},
        ["x", "y"],
        [1],
    ),
    "one of several": (
        {"oneOf": [{"type": "string", "pattern": LOOKS_AHEAD}, {"enum": ["y", 5]}], "minLength": 1},
        ["x", "y", 5],
        ["", 6],
    ),
    "the condition": (
        {"if": {"pattern": LOOKS_AHEAD}, "then": {"minLength": 9}, "else": {"maxLength": 1}, "type": "string"},
        ["x", "yyy"],
        [1],
    ),
    "counted": (
        {"type": "array", "contains": {"type": "string", "pattern": LOOKS_AHEAD}, "maxContains": 1},
        [["y"], ["x", "x", "y"]],
        [[1]],
    ),
    "names that nothing else declares": (
        {"type": "object", "allOf": [{"patternProperties": {LOOKS_AHEAD: {}}}], "unevaluatedProperties": False},
        [{}, {"any": 1}],
        [[]],
    ),
    "what nothing else declares, under not": (
        {"patternProperties": {REPEATS: {}}, "type": "object", "not": {"unevaluatedProperties": {"type": "string"}}},
        [{"any": 1}, {"any": "x"}],
        [1],
    ),
    "what nothing else declares, in the condition": (
        {"if": {"unevaluatedItems": {"type": "string"}}, "then": False, "contains": {"not": {"pattern": LOOKS_AHEAD}}},
        [[1], ["x"]],
        [[]],
    ),
    "what a condition declares": (
        {
            "type": "object",
            "properties": {"kind": {"type": "string"}},
            "if": {"properties": {"kind": {"pattern": LOOKS_AHEAD}, "size": {}}},
            "then": {"properties": {"more": {"type": "integer"}}},
        },
        [{"kind": "x", "size": 1, "more": 1}],
        [{"kind": 1}],
    ),
    "names of names": ({"type": "object", "propertyNames": {"pattern": LOOKS_AHEAD, "maxLength": 2}}, [{"x": 1}], [{"xxx": 1}]),
    "too long": ({"type": "string", "pattern": "a" * 5_000}, ["b"], [1]),
    "too large": ({"type": "string", "pattern": "((a{1000}){1000}){1000}"}, ["b"], [1]),
}  # fmt: skip


@pytest.mark.slow
@each_row("where", MEANS)
def test_no_value_is_refused_that_the_upstream_could_accept(tmp_path: Path, where: str) -> None:
    schema, accepted, refused = MEANS[where]
    whole = {"type": "object", "properties": {"v": schema}, "$defs": schema.get("$defs", {})}
    system = System(tools=(UpstreamTool("t", "", whole),), answer=lambda tool, arguments, call: "done")
    with opened(system, tmp_path) as host:
        for value in accepted:
            result = host.invoke_sync("toy:t", {"v": value})
            assert result.value == "done", (value, result.error)
        for value in refused:
            error = host.invoke_sync("toy:t", {"v": value}).error
            assert error is not None and error.kind == "INPUT_SCHEMA_INVALID", value
        assert host.upstreams.status("toy").unchecked


def test_a_schema_that_means_nothing_without_its_pattern_is_left_out_with_the_reason(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"v": {"$ref": "#/properties/w/patternProperties/(a)\\1"}, "w": {"patternProperties": {REPEATS: {}}}},
    }  # fmt: skip
    with opened(System(tools=(UpstreamTool("t", "", schema),)), tmp_path) as host:
        host.upstreams.connect_sync("toy")
        status = host.upstreams.status("toy")
    assert status.tools == ()
    assert "the schema of its parameters is refused" in status.left_out["t"]


SECRET = "hunter2-of-ann"
MARKS: dict[str, dict[str, Any]] = {
    "on the value": {"properties": {"k": {"type": "string", "pattern": LOOKS_AHEAD, "writeOnly": True}}},
    "on the value, by a pattern of names": {"patternProperties": {LOOKS_AHEAD: {"type": "string", "writeOnly": True}}},
    "on the value, which is declared, by a pattern of names": {
        "properties": {"k": {"type": "string"}},
        "patternProperties": {REPEATS: {"writeOnly": True}},
    },
    "on the value, which is declared, by a pattern that can be tried": {
        "properties": {"k": {"type": "string"}},
        "patternProperties": {"^k": {"writeOnly": True}},
    },
    "deeper, by a pattern of names": {
        "properties": {"k": {}},
        "patternProperties": {REPEATS: {"properties": {"deep": {"format": "password"}}}},
    },
    "on the value, with very many names and patterns": {
        "properties": {"k": {}, **{f"p{n}": {} for n in range(1_000)}},
        "patternProperties": {"^k$": {"writeOnly": True}, **{f"^q{n}$": {} for n in range(1_000)}},
    },
    "under not": {"properties": {"k": {"not": {"pattern": LOOKS_AHEAD}, "x-tavern": {"secret": True}}}},
}


@pytest.mark.slow
@pytest.mark.parametrize("where", MARKS)
def test_what_is_marked_as_a_secret_stays_one(tmp_path: Path, where: str) -> None:
    tool = UpstreamTool("keep", "Keeps.", {"type": "object", **MARKS[where]})
    given = {"k": {"deep": SECRET}} if "deeper" in where else {"k": SECRET}
    with opened(
        System(tools=(tool,), answer=lambda *call: "kept"), tmp_path, config={"audit": {"enabled": True}}
    ) as host:
        assert host.invoke_sync("toy:keep", given).value == "kept"
        events = json.dumps([record.data for record in host.logs.records("TOOL_CALLED", "TOOL_RESULT")])
    assert "toy:keep" in events
    assert SECRET not in events
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file


def test_a_marked_path_below_such_a_pattern_is_checked(tmp_path: Path) -> None:
    schema = {"type": "object", "patternProperties": {LOOKS_AHEAD: {"x-tavern": {"guard": "url"}, "type": "string"}}}
    with opened(System(tools=(UpstreamTool("get", "", schema),)), tmp_path) as host:
        refused = host.invoke_sync("toy:get", {"address": "http://169.254.169.254/"}).error
    assert refused is not None and refused.kind == "POLICY_DENIED"


@pytest.mark.slow
def test_texts_models_and_plugins_take_such_a_tool(tmp_path: Path) -> None:
    class Describes:
        @hookimpl
        def tavern_before_register_tool(self, tool: ToolSpec) -> ToolSpec | None:
            from dataclasses import replace

            return replace(tool, description="Says hello.") if tool.id == "toy:greet" else None

    manifest = {"version": "1", "permissions": {"hooks": ["hook:server:tools:before-register"]}}
    plugin = Plugin(Describes(), name="describes", manifest=manifest)
    with opened(greets(), tmp_path, plugins=[plugin]) as host:
        host.upstreams.connect_sync("toy")
        assert host.tools["toy:greet"].description == "Says hello."
        assert LOOKS_AHEAD in json.dumps(host.openai_tools())  # it helps the model
        assert "toy:greet" in host.manual()
        assert len(host.tool_schemas(dialect="gemini")) == len(host.tool_schemas(dialect="anthropic"))
        assert host.tools.search("hello")
        text = '<|[REQUEST_TOOL]|>\ncommand:「始」toy:greet「末」\nname:「始」xx「末」\nmore:「始」{"aa": "any"}「末」\n<|[END_TOOL]|>'
        answered = host.run_text_sync(text)
        assert [result.value for result in answered.results] == [{"said": "x"}], answered.results


SERVER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    method, params = asked.get("method"), asked.get("params", {})
    if "id" not in asked:
        continue
    if method == "initialize":
        info = {"name": "s", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    elif method == "tools/list":
        result = {"tools": [{"name": "greet", "inputSchema": INPUT, "outputSchema": OUTPUT}]}
        result["tools"].append({"name": "asks", "inputSchema": {"type": "object"}})
    elif method == "tools/call" and params["name"] == "asks":
        question = {"id": "q1", "method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": FORM}}
        print(json.dumps({"jsonrpc": "2.0", **question}), flush=True)
        while (answered := json.loads(sys.stdin.readline())).get("id") != "q1":
            pass
        result = {"content": [{"type": "text", "text": json.dumps(answered["result"]["content"])}]}
    elif method == "tools/call":
        said = {"said": "x"}
        result = {"content": [{"type": "text", "text": json.dumps(said)}], "structuredContent": said}
    else:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "no"}}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


def served(tmp_path: Path) -> dict[str, Any]:
    """The entry of the server."""
    server = tmp_path / "server.py"
    server.write_text(
        SERVER.replace("INPUT", repr(INPUT)).replace("OUTPUT", repr(OUTPUT)).replace("FORM", repr(FORM)), "utf-8"
    )
    return {"kind": "mcp", "command": [sys.executable, str(server)]}


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_tool_of_an_mcp_server_is_listed_called_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with opened_with(tmp_path, {"s": served(tmp_path)}) as host:
        result = await host.invoke("s:greet", {"name": "xx"})
        assert result.error is None, result.error
        refused = await host.invoke("s:greet", {"name": 5})
        assert refused.error is not None and refused.error.kind == "INPUT_SCHEMA_INVALID"
    words = ["--config", str(tmp_path / "tavern.yaml"), "--home", str(tmp_path / "home")]
    for command in ("show", "check"):
        assert main([*words, "upstreams", command, "s"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "not validated: s:greet" in shown
        assert (
            f'"{LOOKS_AHEAD}" at /inputSchema/properties/name/pattern: the pattern cannot be tried: look-around'
            in shown
        )
        assert main([*words, "upstreams", command, "s", "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["unchecked"]
        assert {row["pointer"] for row in rows} == {pointer for pointer, _, _ in UNCHECKED}


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_form_of_an_mcp_server_is_answered_and_all_else_of_it_validated(tmp_path: Path) -> None:
    async with opened_with(tmp_path, {"s": served(tmp_path)}) as host:
        job = str((await host.invoke("s:asks", {}, job=True)).job)
        await asyncio.to_thread(until_asked, host, job)
        for wrong in ({"name": 5}, {"name": "x"}, {"name": "xx", "code": "a"}):
            with pytest.raises(InputInvalid):
                host.jobs.answer(job, wrong)
        assert host.jobs.answer(job, {"name": "xx"})
        assert (await host.jobs.wait(job, 30)).status == "completed", host.jobs[job].error
        assert json.loads(str(host.jobs.result(job).value)) == {"name": "xx"}


def until_asked(host: Tavern, job: str) -> None:
    while host.jobs[job].status != "input_required":
        assert not host.jobs[job].is_over, host.jobs[job].error
        host.wait(host.jobs.wait(job, 0.01))
