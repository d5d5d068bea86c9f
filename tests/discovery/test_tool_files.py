"""*.tool.json and inline tools: from what an author writes to a ToolSpec."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core.kernel.manifest.manifest_reader import read_manifest
from tavern_core.kernel.manifest.tool_files import SpecReading, read_tool_data, read_tool_file, tool_spec
from tavern_core.kernel.manifest.tool_ids import IdRefusal, canonical_id
from tavern_core.kernel.text.yaml_reader import YamlDocument
from tavern_core.model.manifest import Manifest
from tavern_core.model.tool import ToolSpec
from tests.rows import each_row

BILIBILI = """\
{
  "id": "BilibiliFetch:getSubtitle",
  "displayName": "获取 Bilibili 视频字幕",
  "description": "输入 Bilibili 视频 URL 或 BV 号，获取字幕内容",
  "implementation": {
    "type": "script",
    "command": "python scripts/BilibiliFetch.py",
    "protocol": "stdio",
    "timeout": 30000
  },
  "parameters": {
    "type": "object",
    "properties": {
      "url": {"type": "string", "description": "Bilibili 视频的完整 URL 或 BV 号"}
    },
    "required": ["url"]
  },
  "configSchema": [
    {"key": "bilibiliCookie", "type": "string", "label": "Bilibili Cookie"}
  ]
}
"""


def manifest(name: str = "text", more: str = "") -> Manifest:
    reading = read_manifest(f'name: {name}\nversion: "1.0"\n{more}', "plugin.yaml", strict=True)
    assert reading.manifest is not None, reading.findings
    return reading.manifest


def make(tool: dict[str, Any] | str, of: Manifest | None = None) -> SpecReading:
    reading = read_tool_file(tool if isinstance(tool, str) else json.dumps(tool), "tools/a.tool.json")
    assert reading.definition is not None, reading.findings
    return tool_spec(reading.definition, manifest=of or manifest(), document=reading.document)


def spec(tool: dict[str, Any] | str, of: Manifest | None = None) -> ToolSpec:
    made = make(tool, of)
    assert made.spec is not None, made.findings
    return made.spec


def reported(tool: dict[str, Any] | str, of: Manifest | None = None) -> list[str]:
    reading = read_tool_file(tool if isinstance(tool, str) else json.dumps(tool), "a.tool.json")
    if reading.definition is None:
        return [str(f) for f in reading.findings]
    made = tool_spec(reading.definition, manifest=of or manifest(), document=reading.document)
    errors = [f for f in made.findings if f.severity == "error"]
    assert made.spec is None or all("plugin.yaml does not request" in f.message for f in errors)
    return [str(f) for f in made.findings]


def test_the_first_tool_of_the_design_documents() -> None:
    found = spec(BILIBILI, manifest("bilibili-fetcher", 'aliases: {"BilibiliFetch:getSubtitle": getSubtitle}\n'))
    assert (found.id, found.aliases, found.kind) == (
        "bilibili-fetcher:getSubtitle", ("BilibiliFetch:getSubtitle",), "script",
    )  # fmt: skip
    assert found.display_name == "获取 Bilibili 视频字幕"
    assert (found.timeout_ms, found.version, found.plugin) == (30_000, "1.0", "bilibili-fetcher")
    assert found.implementation["command"] == ["python", "scripts/BilibiliFetch.py"]
    assert found.input_schema["required"] == ["url"]
    assert found.config_schema == ({"key": "bilibiliCookie", "type": "string", "label": "Bilibili Cookie"},)
    assert ToolSpec.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_foreign_prefix_without_an_alias_is_refused_with_both_repairs() -> None:
    assert reported(BILIBILI, manifest("bilibili-fetcher")) == [
        "a.tool.json:2:9: id: the prefix 'BilibiliFetch' of 'BilibiliFetch:getSubtitle' is not this plugin's name "
        "(bilibili-fetcher) (write bilibili-fetcher:getSubtitle, or keep the id with "
        '`aliases: {"BilibiliFetch:getSubtitle": getSubtitle}` in plugin.yaml)'
    ]


IDS = [
    ("getSubtitle", "bilibili-fetcher", {}, ("bilibili-fetcher:getSubtitle", "")),
    (" x ", "text", {}, ("text:x", "")),
    ("text:count", "text", {}, ("text:count", "")),
    (
        "MyAwesomePlugin:doSomething",
        "my-awesome-plugin",
        {},
        ("my-awesome-plugin:doSomething", "MyAwesomePlugin:doSomething"),
    ),
    ("my_awesome_plugin:a", "my-awesome-plugin", {}, ("my-awesome-plugin:a", "my_awesome_plugin:a")),
    ("FileOperator.WriteFile", "file-operator", {}, ("file-operator:WriteFile", "FileOperator.WriteFile")),
    ("file-operator/WriteFile", "file-operator", {}, ("file-operator:WriteFile", "file-operator/WriteFile")),
    ("math.add", "text", {}, ("text:math.add", "")),
    ("Foo:bar", "text", {"Foo:bar": "bar"}, ("text:bar", "Foo:bar")),
    ("奇怪 的名字", "text", {"奇怪 的名字": "odd"}, ("text:odd", "奇怪 的名字")),
    ("a:b", "text", {"a:b": "text:c"}, ("text:c", "a:b")),
]


@each_row(("written", "plugin", "aliases", "expected"), IDS)
def test_ids_become_canonical(written: str, plugin: str, aliases: dict[str, str], expected: tuple[str, str]) -> None:
    found = canonical_id(written, plugin, aliases)
    assert not isinstance(found, IdRefusal)
    assert (found.id, found.alias) == expected


@each_row(
    ("written", "words"),
    [("other:x", "not this plugin's name"), ("system:x", "belongs to the host"), ("kb:x", "belongs to the host"),
     ("text:", "not a tool name"), ("", "not a tool name"), ("a b", "not a tool name"), ("text:a/b", "not a tool name"),
     ("x" * 65, "not a tool name"), ("中文", "not a tool name"), ("text:a:b", "not a tool name"), ("a/b", "not a tool name")],
)  # fmt: skip
def test_other_ids_are_refused(written: str, words: str) -> None:
    found = canonical_id(written, "text", {})
    assert isinstance(found, IdRefusal)
    assert words in found.message
    assert found.hint


def test_the_richer_dialect() -> None:
    found = spec(
        {
            "$schema": "https://example.org/tool.schema.json",
            "id": "count",
            "handler": "tools.text:count",
            "parameters": {"properties": {"n": {"type": "integer", "defaultValue": 3}}},
            "output": {"type": "integer"},
            "securityContext": {
                "capabilities": ["read:fs"],
                "requiresApproval": True,
                "readOnly": True,
                "idempotent": True,
            },
            "capabilities": ["network"],
            "examples": [{"arguments": {"n": 1}, "description": "one", "result": 1}],
            "tags": ["text", "文字"],
            "optional": True,
            "timeout": 500,
            "version": "2.0",
        },
        manifest(more="permissions: {capabilities: [read:fs, network]}\n"),
    )
    assert found.input_schema == {"type": "object", "properties": {"n": {"type": "integer", "default": 3}}}
    assert (found.kind, found.implementation) == ("python", {"type": "python", "handler": "tools.text:count"})
    assert found.capabilities == {"read:fs", "network"}
    assert (found.requires_approval, found.read_only, found.idempotent, found.optional) == (True, True, True, True)
    assert (found.timeout_ms, found.version, found.tags) == (500, "2.0", ("text", "文字"))
    assert found.examples[0].arguments == {"n": 1}
    assert found.output_schema == {"type": "integer"}


def test_python_without_parameters_is_a_draft_that_keeps_what_is_declared() -> None:
    made = make({"id": "count", "implementation": {"type": "python"}, "description": "d"})
    assert (made.id, made.is_draft, made.findings) == ("text:count", True, ())
    assert made.spec is not None
    assert made.spec.description == "d"
    handled = make({"id": "x", "handler": "a:b", "tags": ["t"], "configSchema": [{"key": "k", "type": "string"}]})
    assert handled.spec is not None
    assert (handled.is_draft, handled.spec.tags) == (True, ("t",))
    assert [item["key"] for item in handled.spec.config_schema] == ["k"]
    known = make({"id": "y", "implementation": {"type": "python"}, "parameters": {"type": "object"}})
    assert known.spec is not None
    assert not known.is_draft


SCRIPT = {"type": "script", "command": ["python", "a.py"]}
ANY = {"type": "object"}
WRONG: list[tuple[dict[str, Any] | str, str]] = [
    ({"id": "x", "idd": 1, "handler": "a:b"}, "idd: unknown key 'idd' (did you mean 'id'?)"),
    ({"handler": "a:b"}, "id: the key 'id' is missing"),
    ({"id": 5, "handler": "a:b"}, "id: must be text, got the number 5"),
    ({"id": "x"}, "implementation: the key 'implementation' is missing"),
    ({"id": "x", "implementation": {"type": "Script"}}, "implementation.type: 'Script' must be in lower case (write script)"),
    ({"id": "x", "implementation": {"type": "a b"}}, "implementation.type: 'a b' does not fit the pattern"),
    ({"id": "x", "implementation": SCRIPT}, "parameters: a tool of type script needs `parameters`"),
    ({"id": "x", "implementation": {"type": "service", "service": "s", "method": "m"}}, "parameters: a tool of type service"),
    ({"id": "x", "implementation": {"type": "service", "service": "s", "method": "m"}, "parameters": ANY},
     "parameters: the parameters of a tool of type service need `properties`"),
    ({"id": "x", "implementation": {"type": "service", "method": "m"}, "parameters": ANY}, "implementation.service: a tool"),
    ({"id": "x", "implementation": {"type": "service", "service": "s", "method": "_m"}, "parameters": ANY},
     "implementation.method: '_m' is private"),
    ({"id": "x", "implementation": {"type": "node"}}, "implementation.nodeType: a tool of type node needs `nodeType`"),
    ({"id": "x", "implementation": {"type": "workflow", "workflowId": "../w.json"}}, "implementation.workflowId: '../w.json'"),
    ({"id": "x", "implementation": {**SCRIPT, "comand": "y"}, "parameters": ANY},
     "implementation.comand: unknown key 'comand' (did you mean 'command'?)"),
    ({"id": "x", "inputSchema": ANY, "handler": "a:b"}, "inputSchema: unknown key 'inputSchema' (write parameters)"),
    ({"id": "x", "implementation": {"type": "script"}, "parameters": ANY}, "implementation.command: a script needs a `command`"),
    ({"id": "x", "implementation": {"type": "script", "command": ""}, "parameters": ANY}, "the command is empty"),
    ({"id": "x", "implementation": {"type": "script", "command": "a 'b"}, "parameters": ANY}, "quote in the command"),
    ({"id": "x", "implementation": {"type": "script", "command": "sh -c x"}, "parameters": ANY}, "'sh' may not run scripts"),
    ({"id": "x", "implementation": {"type": "script", "command": ["/bin/sh", "x"]}, "parameters": ANY}, "may not run scripts"),
    ({"id": "x", "implementation": {"type": "script", "command": ["../x"]}, "parameters": ANY}, "'..' leaves"),
    ({"id": "x", "implementation": {**SCRIPT, "cwd": "/tmp"}, "parameters": ANY}, "implementation.cwd: '/tmp'"),
    ({"id": "x", "implementation": {**SCRIPT, "env": ["A=1"]}, "parameters": ANY}, "implementation.env: 'A=1'"),
    ({"id": "x", "implementation": {**SCRIPT, "timeout": 0}, "parameters": ANY}, "timeout: must be greater than 0"),
    ({"id": "x", "implementation": {**SCRIPT, "timeout": "30"}, "parameters": ANY}, "timeout: must be a whole number, got '30'"),
    ({"id": "x", "handler": "a b"}, "handler: 'a b' is not of the form module:function"),
    ({"id": "x", "handler": "a:b", "implementation": SCRIPT}, "handler: `handler` and `implementation` say two things"),
    ({"id": "x", "handler": "a:b", "parameters": {"type": "strin"}}, "parameters.type: 'strin' is not a JSON type"),
    ({"id": "x", "handler": "a:b", "parameters": {"type": "array"}}, "parameters.type: parameters must be of type object"),
    ({"id": "x", "handler": "a:b", "parameters": {"type": "object", "properties": {"a": {"$ref": "http://x/y"}}}},
     "parameters.properties.a.$ref"),
    ({"id": "x", "handler": "a:b", "parameters": {"properties": {"a": {"type": "string", "defaultValue": 5}}}},
     "parameters.properties.a.default: the default does not fit its own schema: must be string, got integer 5"),
    ({"id": "x", "handler": "a:b", "parameters": {"properties": {"a": {"type": "boolean", "enum": [1], "default": True}}}},
     "parameters.properties.a.default: the default does not fit its own schema"),
    ({"id": "x", "handler": "a:b", "parameters": {"properties": {f"p{n}": {"default": 1} for n in range(5_000)}}},
     "parameters: too many combinations"),
    ({"id": "x", "handler": "a:b", "output": {"type": "object", "required": "a"}}, "output.required"),
    ({"id": "x", "handler": "a:b", "capabilities": ["read:fs"]}, "capabilities.0: the tool needs 'read:fs', which plugin.yaml"),
    ({"id": "x", "handler": "a:b", "securityContext": {"capabilities": ["rea:fs"]}},
     "securityContext.capabilities.0: 'rea:fs' is not a capability (did you mean 'read:fs'?)"),
    ({"id": "x", "handler": "a:b", "configSchema": [{"key": "extensions.text.a", "type": "string"}]},
     "configSchema.0.key: the key 'extensions.text.a' of a tool's setting has no dots (write a)"),
    ({"id": "x", "handler": "a:b", "configSchema": [{"key": "a", "type": "number", "defaultValue": "b"}]},
     "configSchema.0.defaultValue: the default must be a number"),
    ('["id"]', "a tool file holds one JSON object"),
    ('{"id": "x",}', "not JSON"),
]  # fmt: skip


@each_row(("tool", "words"), WRONG)
def test_one_mistake_gives_a_located_finding(tool: dict[str, Any] | str, words: str) -> None:
    found = reported(tool)
    assert any(words in f for f in found), found
    assert all(f.startswith("a.tool.json:1:") for f in found)


def test_lines_are_those_of_the_file() -> None:
    text = BILIBILI.replace('"stdio"', '"http"')
    assert reported(text) == ["a.tool.json:8:17: implementation.protocol: 'http' is not one of stdio"]


def test_a_capability_beyond_the_manifest_says_which_line_to_add() -> None:
    tool = {"id": "x", "handler": "a:b", "capabilities": ["write:fs"]}
    assert reported(tool, manifest(more="permissions: {capabilities: [read:fs]}\n")) == [
        "a.tool.json:1:48: capabilities.0: the tool needs 'write:fs', which plugin.yaml does not request "
        "(add `- write:fs` under permissions.capabilities in plugin.yaml)"
    ]
    [finding] = make(tool).findings
    assert finding.details == {"tool": "text:x"}


def test_kinds_of_other_plugins_keep_their_keys() -> None:
    found = spec({"id": "x", "implementation": {"type": "acme", "endpoint": "e", "depth": {"a": 1}}})
    assert found.implementation == {"type": "acme", "endpoint": "e", "depth": {"a": 1}}


@each_row(
    ("kind", "more", "near"),
    [
        ("pythn", "", "python"),
        ("scripts", "", "script"),
        ("acmee", "executors: [acme]\n", "acme"),
        ("acme", "executors: [acme]\n", ""),
        ("pythn", "executors: true\n", ""),
        ("pythn", "dependsOn: {pythn-runner: ''}\n", ""),
        ("rocket", "", ""),
    ],
)
def test_an_unknown_kind_is_a_typing_error_if_one_is_near(kind: str, more: str, near: str) -> None:
    tool = {"id": "x", "implementation": {"type": kind}, "parameters": ANY}
    wanted = [
        f"a.tool.json:1:40: implementation.type: there is no kind of tool {kind!r} "
        f"(did you mean {near!r}? A kind of another plugin needs `dependsOn` in plugin.yaml)"
    ]
    assert reported(tool, manifest(more=more)) == (wanted if near else [])


def test_byte_order_mark_and_windows_line_ends_are_fine() -> None:
    reading = read_tool_file(b"\xef\xbb\xbf" + BILIBILI.replace("\n", "\r\n").encode(), "a.tool.json")
    assert reading.definition is not None


def test_data_that_code_returned_is_read_alike() -> None:
    document = YamlDocument("returned", "", None)
    definition, findings = read_tool_data({"id": "x", "handler": "a:b"}, document)
    assert (definition is not None, findings) == (True, ())
    definition, findings = read_tool_data({"id": "x", "tagz": []}, document)
    assert definition is None
    assert [str(f) for f in findings] == ["returned: tagz: unknown key 'tagz' (did you mean 'tags'?)"]


VALUES = [None, True, -1, 10**30, 0.5, "", "x", "../y", "\x00", [], {}, ["a", 1], {"type": 5}, {"$ref": "#"}, [[[[]]]]]


def _mutated(value: Any, rng: random.Random) -> Any:
    if rng.random() < 0.12:
        return rng.choice(VALUES)
    if isinstance(value, dict):
        copy = {k: _mutated(v, rng) for k, v in value.items() if rng.random() > 0.05}
        if rng.random() < 0.1:
            copy[rng.choice(["x", "type", "handler", "default", "pattern", "中"])] = rng.choice(VALUES)
        return copy
    if isinstance(value, list):
        return [_mutated(v, rng) for v in value]
    return value


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_a_mutated_tool_file_is_answered_with_located_findings(seed: int) -> None:
    rng = random.Random(seed)
    text = json.dumps(_mutated(json.loads(BILIBILI), rng), indent=rng.choice([None, 2]))
    if rng.random() < 0.3:
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(['"', "}", "NaN", "\\", "\ud800", ""]) + text[at + rng.randrange(3) :]
    reading = read_tool_file(text, "a.tool.json")
    findings = list(reading.findings)
    if reading.definition is not None:
        made = tool_spec(reading.definition, manifest=manifest(), document=reading.document)
        findings += made.findings
        assert made.spec is not None or findings
    assert all(f.message and f.where is not None and f.where.file == "a.tool.json" for f in findings)
