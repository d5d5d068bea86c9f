"""`check`: plugin.yaml against the source, without running it."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core.contract.hookspecs import HOOKS
from tavern_core.kernel.manifest.tool_files import read_tool_file, tool_spec
from tavern_core.model.manifest import Manifest
from tavern_core.review.hookimpl_scan import scan_sources
from tavern_core.review.plugin_check import CheckReport, check_plugin
from tests.rows import each_row

from .places import BOOBY_TRAP, Places, script_tool


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def check(places: Places, source: str, manifest: str = "", **files: str) -> CheckReport:
    """Check a plugin `text` with this source (behind a line that would end the process) and manifest."""
    named = {name.replace("__", "/").replace("_py", ".py"): text for name, text in files.items()}
    folder = places.folder_plugin("text", manifest, files={"__init__.py": BOOBY_TRAP + source, **named})
    return check_plugin(folder, host_version="1.0.0.dev0")


def reported(report: CheckReport) -> list[str]:
    return [f"{f.severity} {f}" for f in report.findings]


IMPORTS = """\
import pluggy
import tavern_core
import tavern_core as tc
import tavern_core.contract.hookspecs as specs
from tavern_core import hookimpl, hookimpl as h, tool, factory, offer, Tool
from tavern_core.contract.hookspecs import hookimpl as deep
from .marks import hookimpl as own
from somewhere import hookimpl as foreign
marker = pluggy.HookimplMarker("tavern")
other = pluggy.HookimplMarker("pytest")
alias = hookimpl
"""


@each_row(
    "mark",
    ["@hookimpl", "@hookimpl()", "@h", "@deep", "@own", "@marker", "@alias", "@tavern_core.hookimpl", "@tc.hookimpl",
     "@specs.hookimpl", "@tc.hookimpl(trylast=True)"],
)  # fmt: skip
def test_a_hookimpl_is_recognised_however_it_is_imported(mark: str) -> None:
    scan = scan_sources([("a.py", f"{IMPORTS}\n{mark}\ndef tavern_on_event(event): ...\n".encode())])
    assert [(hook.name, hook.required) for hook in scan.hooks] == [("tavern_on_event", ("event",))]


@each_row("mark", ["@foreign", "@other", "@unknown", "@tc.other", "@(lambda f: f)"])
def test_other_marks_are_not_ours(mark: str) -> None:
    scan = scan_sources([("a.py", f"{IMPORTS}\n{mark}\ndef tavern_on_event(event): ...\n".encode())])
    assert scan.hooks == []


def test_hookimpls_in_classes_submodules_branches_and_under_another_name_are_found(places: Places) -> None:
    report = check(
        places,
        "from tavern_core import hookimpl\nif True:\n    class Box:\n        @hookimpl\n"
        "        async def tavern_start(self, ctx): ...\n        @staticmethod\n        @hookimpl\n"
        "        def tavern_stop(ctx): ...\n",
        "permissions: {hooks: ['hook:server:events']}\n",
        inner__deep_py="from tavern_core import hookimpl\n@hookimpl(specname='tavern_on_event')\ndef seen(event): ...\n",
    )
    assert reported(report) == []
    assert [(h.name, h.file) for h in report.hooks_found] == [
        ("tavern_start", "__init__.py"), ("tavern_stop", "__init__.py"), ("tavern_on_event", "inner/deep.py"),
    ]  # fmt: skip


H = "from tavern_core import hookimpl\n"
WRONG = [
    ("@hookimpl\ndef tavern_chek_call(call): ...\n", "",
     "error __init__.py:4:1: there is no hook 'tavern_chek_call' (did you mean 'tavern_check_call'?)"),
    ("@hookimpl\ndef tavern_on_event(evnt): ...\n", "permissions: {hooks: ['hook:server:events']}\n",
     "error __init__.py:4:1: tavern_on_event has no argument 'evnt' (did you mean 'event'?)"),
    ("@hookimpl\ndef tavern_on_event(*args): ...\n", "permissions: {hooks: ['hook:server:events']}\n",
     "error __init__.py:4:1: tavern_on_event cannot take *args (name what you want: event, ctx)"),
    ("@hookimpl\ndef tavern_on_event(event):\n    yield\n", "permissions: {hooks: ['hook:server:events']}\n",
     "error __init__.py:4:1: tavern_on_event is a generator (return a value instead of yielding)"),
    ("@hookimpl(wrapper=True)\ndef tavern_on_event(event):\n    yield\n", "permissions: {hooks: ['hook:server:events']}\n",
     "error __init__.py:4:1: tavern_on_event is a pluggy wrapper; wrappers are not allowed "
     "(write a plain function; a modify-hook returns a changed copy)"),
    ("@hookimpl\ndef tavern_check_call(call, tool): ...\n", "",
     "error __init__.py:4:1: tavern_check_call is implemented, but plugin.yaml does not request it "
     '(add to permissions.hooks in plugin.yaml the line `- "hook:server:tool:check"`)'),
    ("@hookimpl(tryfirst=True)\ndef tavern_on_event(event): ...\n", "permissions: {hooks: ['hook:server:events']}\n",
     "error __init__.py:4:1: tavern_on_event requests tryfirst, but plugin.yaml does not "
     "(add to permissions in plugin.yaml the line `tryfirst: true`)"),
    ("@hookimpl\ndef tavern_register_services(ctx): ...\n", "",
     "error __init__.py:4:1: tavern_register_services is implemented, but plugin.yaml has no section 'services' "
     "(add to plugin.yaml the line `services: [<names>]`)"),
    ("@hookimpl\ndef tavern_register_services(ctx): return {'clock': 1, 'watch': 2}\n", "services: [clock]\n",
     "error __init__.py:4:1: the service 'watch' is offered, but plugin.yaml does not declare it "
     "(add it: services: [clock, watch])"),
    ("def tavern_on_event(event): ...\n", "",
     "warning __init__.py:3:1: tavern_on_event has the name of a hook but no @hookimpl: it is never called "
     "(write @hookimpl above it)"),
    ("x = 1\n", "permissions: {hooks: ['hook:server:events']}\n",
     "info plugin.yaml:3:23: permissions.hooks.0: plugin.yaml requests 'hook:server:events', but no tavern_on_event is "
     "implemented (delete the line, or implement the hook)"),
    ("x = 1\n", "permissions: {capabilities: [network]}\n",
     "info plugin.yaml:3:30: permissions.capabilities.0: plugin.yaml requests 'network', but no tool says that it needs "
     "it (delete the line, or name it at the tool)"),
    ("def broken(:\n", "", "error __init__.py:3:12: not Python: invalid syntax"),
    ("x = 1\n", "nodes: {entry: ./nodes}\n",
     "error plugin.yaml:3:16: nodes.entry: there is no './nodes' in the plugin's folder (create it, or correct the path)"),
    ("x = 1\n", "frontend: {build: {entry: dist/index.js}}\n",
     "warning plugin.yaml:3:27: frontend.build.entry: there is no 'dist/index.js' in the plugin's folder "
     "(build it, or correct the path)"),
    ("x = 1\n", "frontend: {type: vanilla, vanilla: {entry: index.js}}\n",
     "warning plugin.yaml:3:44: frontend.vanilla.entry: there is no 'web/index.js' in the plugin's folder "
     "(build it, or correct the path)"),
    ("x = 1\n", "nodes: {entry: '__init__.py'}\ntools: [{id: x, implementation: {type: node, nodeType: 'other:Add'}}]\n",
     "error plugin.yaml:4:9: tools.0: the node other:Add belongs to plugin other, which text does not depend on "
     '(add to plugin.yaml: `dependsOn: {other: ""}`)'),
    ("x = 1\n", "zukunft: 1\n", "error plugin.yaml:3:1: zukunft: unknown key 'zukunft' (delete it)"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "manifest", "expected"), WRONG)
def test_one_mistake_gives_one_finding(places: Places, source: str, manifest: str, expected: str) -> None:
    assert reported(check(places, H + source if "@" in source else "\n" + source, manifest)) == [expected]


@each_row(
    ("files", "expected"),
    [
        ({"plugin.yml": "name: text"}, "there is no plugin.yaml, but plugin.yml (rename plugin.yml to plugin.yaml)"),
        ({"plugin.yaml/x": ""}, "plugin.yaml cannot be read (it must be a regular, readable file)"),
        ({"one/plugin.yaml": "name: one"}, "the folder holds no plugin.yaml (check a folder in it, such as one)"),
        ({"__init__.py": ""}, "the folder holds no plugin.yaml (put plugin.yaml next to __init__.py)"),
    ],
)
def test_a_folder_without_plugin_yaml_is_told_what_it_has_instead(
    tmp_path: Path, files: dict[str, str], expected: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    assert reported(check_plugin(tmp_path)) == [f"error plugin.yaml: {expected}"]


def test_a_workflow_file_whose_edges_go_nowhere_or_round_is_found(places: Places) -> None:
    nodes = '[{"id": "a", "type": "text:A"}, {"id": "b", "type": "text:B"}]'
    ends = '"sourceHandle": "out", "targetHandle": "in"'
    edges = ", ".join(
        f'{{"id": "{number}", "source": "{source}", "target": "{target}", {ends}}}'
        for number, (source, target) in enumerate(["ab", "ba", "bc"], 1)
    )
    manifest = "tools: [{id: x, description: Runs, implementation: {type: workflow, workflowId: flow.json}}]\n"
    files = {"__init__.py": "", "flow.json": f'{{"nodes": {nodes}, "edges": [{edges}]}}'}
    report = check_plugin(places.folder_plugin("text", manifest, files=files), host_version="1.0.0.dev0")
    assert sorted(reported(report)) == [
        "error flow.json: the tool 'x': edge '3' ends at 'c', which does not exist (remove the edge)",
        "error flow.json: the tool 'x': these nodes wait for each other: a → b → a (remove one of these edges)",
    ]


@pytest.mark.parametrize(
    ("manifest", "unread"),
    [
        ("tools: {entry: tools}\n", ["tools/B.TOOL.JSON", "tools/more/c.tool.json"]),
        ("tools: {entry: ./tools/}\n", ["tools/B.TOOL.JSON", "tools/more/c.tool.json"]),
        ("tools: {entry: tools/more}\n", ["tools/B.TOOL.JSON", "tools/a.tool.json"]),
        ("tools: {entry: tools/a.tool.json}\n", ["tools/B.TOOL.JSON", "tools/more/c.tool.json"]),
        ("", ["tools/B.TOOL.JSON", "tools/a.tool.json", "tools/more/c.tool.json"]),
    ],
)
def test_tool_files_that_are_not_read_are_warnings(places: Places, manifest: str, unread: list[str]) -> None:
    names = {"a": "a.tool.json", "b": "B.TOOL.JSON", "c": "more/c.tool.json"}
    files = {f"tools/{file}": script_tool(name, description="d") for name, file in names.items()} | {"run.py": ""}
    report = check_plugin(places.folder_plugin("text", manifest, files=files))
    assert [(f.where.file, f.message, f.severity) for f in report.findings] == [
        (name, "this tool file is not read", "warning") for name in unread
    ]
    assert all("tools" in f.hint for f in report.findings)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"propertys": {}}, ["parameters.propertys: the keyword 'propertys' means nothing in JSON Schema (did you mean 'properties'?)"]),
        ({"properties": {"a": {"type": "string", "maxLenght": 3}}}, ["parameters.properties.a.maxLenght: the keyword 'maxLenght' means nothing in JSON Schema (did you mean 'maxLength'?)"]),
        ({"properties": {"names": {}}, "required": ["name"]}, ["parameters.required: 'name' is required but not declared (did you mean 'names'?)"]),
        ({"properties": {"a": {}, "b": {}}, "dependencies": {"a": ["b"]}}, ["parameters.dependencies: `dependencies` is draft 7 (write `dependentRequired` or `dependentSchemas`)"]),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {}, "b": {}}, "dependencies": {"a": ["b"]}}, []),
        ({"properties": {"a": {"enum": []}}}, ["parameters.properties.a.enum: no value fits an empty `enum` (list its values)"]),
        ({"properties": {"propertys": {}, "enumeration": {"x-order": 1, "example": 2, "enumNames": [], "unit": "km"}}}, []),
    ],
)  # fmt: skip
def test_likely_slips_in_a_schema_are_warnings_with_their_place(
    places: Places, parameters: dict[str, Any], said: list[str]
) -> None:
    tool = script_tool("a", description="d", parameters={"type": "object", **parameters})
    files = {"tools/a.tool.json": tool, "run.py": ""}
    report = check_plugin(places.folder_plugin("text", "tools: {entry: tools}\n", files=files))
    assert [str(f).partition(": ")[2].replace("the tool 'a': ", "") for f in report.findings] == said
    assert all((f.severity, f.where.line) == ("warning", 1) and f.where.column > 1 for f in report.findings)


INTERFACE = """{"nodes": [], "edges": [], "interfaceInputs": {
  "text": {"dataFlowType": "STRING", "required": true},
  "style": {"dataFlowType": "STRING", "required": true, "config": {"default": "short"}},
  "more": {"dataFlowType": "STRING"}}}"""


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("", []),
        ("text: {type: string}", []),
        ("text: {type: string}, more: {type: string}, style: {type: string}", []),
        (
            "text: {type: string}, mroe: {type: string}",
            [
                "tools.0.parameters.properties.mroe: the tool 'run': flow.json has no input 'mroe' (did you mean 'more'?)"
            ],
        ),
        (
            "more: {type: string}",
            [
                "tools.0.parameters.properties: the tool 'run': flow.json requires the input 'text', which is not a parameter "
                "(add it to the parameters, or leave `parameters` out: the interface of the file is used then)"
            ],
        ),
    ],
)
def test_parameters_of_a_workflow_tool_are_inputs_of_its_file(
    places: Places, parameters: str, expected: list[str]
) -> None:
    schema = f", parameters: {{type: object, properties: {{{parameters}}}}}" if parameters else ""
    one = f"{{id: run, description: d, implementation: {{type: workflow, workflowId: flow.json}}{schema}}}"
    folder = places.folder_plugin("text", f"tools:\n- {one}\n", files={"flow.json": INTERFACE})
    found = [f for f in check_plugin(folder).findings if f.where.file == "plugin.yaml"]
    assert [str(f).partition(": ")[2] for f in found] == expected
    assert all((f.where.line, f.where.column > 1) == (4, True) for f in found)


def test_a_sensitive_argument_needs_its_right(places: Places) -> None:
    source = H + "@hookimpl\ndef tavern_before_prompt(prompt, conversation): ...\n"
    report = check(places, source, "permissions: {hooks: ['hook:server:agent:before-prompt']}\n")
    assert [f.message for f in report.findings if f.where and f.where.file == "__init__.py"] == [
        "tavern_before_prompt takes 'conversation', which needs the right 'data:conversation'"
    ]


def test_a_reserved_hook_is_distinguished(places: Places) -> None:
    source = H + "@hookimpl\ndef tavern_before_install(candidate): ...\n"
    report = check(places, source, "permissions: {hooks: ['hook:server:plugin:before-install']}\n")
    assert [f.message for f in report.findings if f.where and f.where.file == "__init__.py"] == [
        "tavern_before_install is reserved: this host does not call it yet"
    ]


TOOLS = """\
from tavern_core import Tool, factory, hookimpl, offer, tool

@tool
def count(text: str) -> int: ...

@tool(name="upper-case", capabilities=["read:fs"])
def upper(text: str) -> str: ...

@hookimpl
def tavern_register_tools(ctx):
    return [count, offer(upper), Tool("third", print), factory(lambda c: None, names=["fourth", "fifth"]),
            offer(count, name="sixth"), {"id": "text:seventh"}, None]
"""
NAMES = ["count", "upper-case", "third", "fourth", "fifth", "sixth", "seventh"]


def declared(*names: str) -> str:
    return "tools:\n" + "".join(f"  - {{id: {name}, implementation: {{type: python}}}}\n" for name in names)


def test_returned_tools_are_seen_and_compared(places: Places) -> None:
    rights = "permissions: {capabilities: [read:fs]}\n"
    assert reported(check(places, TOOLS, declared(*NAMES) + rights)) == []
    report = check(places, TOOLS, declared(*NAMES[1:], "gone") + rights)
    assert [f.message for f in report.findings] == [
        "the tool 'count' is returned, but plugin.yaml does not declare it: it is left out",
        "plugin.yaml declares the tool 'gone', but tavern_register_tools does not return it",
    ]
    assert report.undeclared_tools == ("count",)
    assert str(report.findings[1].where) == "plugin.yaml:10:10: tools.6.id"


def test_a_function_in_the_place_of_a_tool_of_another_kind_is_an_error(places: Places) -> None:
    kind = "implementation: {type: n8n, endpoint: 'https://example.org/a'}, parameters: {type: object}"
    manifest = declared(*NAMES[1:]) + f"  - {{id: count, description: d, {kind}}}\n"
    (said,) = check(places, TOOLS.replace(', capabilities=["read:fs"]', ""), manifest).findings
    assert (said.severity, "declared as a n8n" in said.message, said.where.pointer) == (
        "error", True, "tools.6.implementation"
    )  # fmt: skip


def test_undeclared_ids_are_only_a_warning_when_nothing_is_declared(places: Places) -> None:
    report = check(places, TOOLS.replace(', capabilities=["read:fs"]', ""))
    assert [f.severity for f in report.findings] == ["warning"] * 7
    assert report.is_ok
    assert report.undeclared_tools == tuple(NAMES)


@pytest.mark.parametrize("wrong", ["parameters: {type: objekt}", "capabilities: [netwrok]"])
def test_a_tool_whose_declaration_is_wrong_is_not_called_undeclared(places: Places, wrong: str) -> None:
    manifest = f"tools:\n  - {{id: count, implementation: {{type: python}}, {wrong}}}\n"
    report = check(places, TOOLS, manifest)
    texts = reported(report)
    assert [text for text in texts if "'third' is returned, but plugin.yaml does not declare it" in text]
    assert not [text for text in texts if "'count'" in text]
    assert report.undeclared_tools == tuple(NAMES[1:])


def test_nothing_is_concluded_from_what_is_computed(places: Places) -> None:
    source = "from tavern_core import hookimpl\n@hookimpl\ndef tavern_register_tools(ctx):\n    return make_tools()\n"
    (said,) = check(places, source, declared("a", "b")).findings
    assert (said.code, said.severity, str(said.where)) == ("CODE_UNSEEN", "info", "__init__.py:5:1")


def test_a_capability_in_the_code_must_be_asked_for(places: Places) -> None:
    report = check(places, TOOLS, declared(*NAMES))
    assert reported(report) == [
        "error __init__.py:8:1: the tool 'upper-case' needs 'read:fs', which plugin.yaml does not request "
        "(add to permissions.capabilities in plugin.yaml the line `- read:fs`)"
    ]


def test_tool_files_are_checked_to_the_end(places: Places) -> None:
    files = {
        "tools/a.tool.json": script_tool("a", description="d"),
        "tools/b.tool.json": json.dumps({"id": "b", "description": "d", "parameters": {"type": "object", "required": 5},
                                         "implementation": {"type": "script", "command": "python run.py"}}),
        "tools/c.tool.json": script_tool("c", description="d", examples=[{"arguments": {"zz": 1}}]),
        "tools/d.tool.json": json.dumps({"id": "d", "description": "d", "parameters": {"type": "object"},
                                         "implementation": {"type": "script", "command": "node gone.js"}}),
        "tools/e.tool.json": json.dumps({"id": "e", "description": "d",
                                         "implementation": {"type": "workflow", "workflowId": "flows/e.json"}}),
        "tools/f.tool.json": script_tool("f"),
        "run.py": "",
    }  # fmt: skip
    report = check_plugin(places.folder_plugin("text", "tools: {entry: tools}\n", files=files))
    assert [str(f).split(" (")[0] for f in report.findings] == [
        "tools/b.tool.json:1:78: parameters.required: must be array, got integer 5",
        "tools/c.tool.json:1:172: examples.0.arguments.zz: example 0 of 'c' is refused by its own parameters: /zz: unknown argument 'zz'",
        "tools/d.tool.json:1:115: implementation.command: the tool 'd': there is no 'gone.js' in the plugin's folder",
        "tools/e.tool.json:1:86: implementation.workflowId: the tool 'e': there is no 'flows/e.json' in the plugin's folder",
        "tools/f.tool.json:1:1: description: the tool 'f' has no description",
    ]


@pytest.mark.parametrize(
    ("implementation", "said"),
    [
        ({"command": "python -c print(1)"}, "error command: option '-c' of python is not allowed"),
        ({"command": "python3 -m json.tool"}, "error command: option '-m' of python is not allowed"),
        ({"command": "node --eval 1"}, "error command: option '--eval' of node is not allowed"),
        ({"command": "python -u"}, "error command: python is given no file to run"),
        ({"command": "deno run.ts"}, "error command: deno needs `run` before the file"),
        ({"command": "deno run -A run.py"}, ""),
        ({"command": "bun run run.py"}, ""),
        ({"command": "python -u gone.py"}, "error command: the tool 'a': there is no 'gone.py' in the plugin's folder"),
        ({"env": ["API_KEY"]}, "error env: API_KEY may hold a secret and is not passed on"),
        ({"env": ["DB_PASS"]}, "error env: DB_PASS may hold a secret and is not passed on"),
        (
            {"env": ["GIT_DIR"]},
            "error env: GIT_DIR is never passed on: it makes programs load code, or is the host's own",
        ),
        ({"env": ["EDITOR"]}, ""),
        (
            {"env": ["EDITOR", "SHELL"]},
            "warning env.1: the tool needs 'env:SHELL', which plugin.yaml does not request",
        ),
        ({"cwd": "gone"}, "error cwd: the tool 'a': 'gone' is not a folder of the plugin"),
        ({"cwd": "tools"}, ""),
    ],
)
def test_what_no_call_of_a_script_would_pass_is_reported_with_its_place(
    places: Places, implementation: dict[str, Any], said: str
) -> None:
    tool = {"type": "script", "command": "python -u run.py", **implementation}
    files = {"tools/a.tool.json": script_tool("a", description="d", implementation=tool), "run.py": ""}
    manifest = 'tools: {entry: tools}\npermissions: {capabilities: ["env:EDITOR"]}\n'
    report = check_plugin(places.folder_plugin("text", manifest, files=files))
    findings = [f for f in report.findings if f.severity != "info"]
    found = [f"{f.severity} {f.where.pointer.removeprefix('implementation.')}: {f.message}" for f in findings]
    assert found == [said] * bool(said)
    assert all(f.where.line == 1 and f.where.column > 1 and f.hint for f in findings)


@pytest.mark.parametrize(("own", "of_script", "ms"), [(1000, 60000, 1000), (60000, 500, 500), (700, None, 700)])
def test_of_two_time_outs_the_shorter_holds(places: Places, own: int, of_script: int | None, ms: int) -> None:
    script = {"type": "script", "command": "python run.py"} | ({"timeout": of_script} if of_script else {})
    text = script_tool("a", description="d", timeout=own, implementation=script)
    reading = read_tool_file(text, "a.tool.json")
    assert reading.definition is not None
    manifest = Manifest(name="text", version="1")
    spec = tool_spec(reading.definition, manifest=manifest, document=reading.document).spec
    assert spec is not None
    assert (spec.timeout_ms, spec.implementation.get("timeout", ms)) == (ms, ms)


COMMANDS: dict[str, str | None] = {
    '"python run.py | sort > out.txt"': "| >",
    '"python run.py && python run.py"': "&&",
    '"python run.py; rm x"': None,
    '"python run.py x; rm x 2>&1 &"': "x; 2>&1 &",
    '"python run.py >out.txt"': ">out.txt",
    "\"python run.py '|' --sep='a>b' https://example.org/?a=1&b=2\"": "",
    '["python", "run.py", "|", "&&"]': "",
}
"""Command → the words that a shell would understand; empty: there are none; None: an error says that there is no such file."""


@pytest.mark.parametrize("command", COMMANDS)
def test_operators_of_a_shell_in_a_command_are_a_warning_with_its_repair(places: Places, command: str) -> None:
    tool = (
        f"{{id: a, description: d, parameters: {{type: object}}, implementation: {{type: script, command: {command}}}}}"
    )
    report = check(places, "", f"tools: [{tool}]\n", run_py="")
    if (signs := COMMANDS[command]) is None:
        assert not report.is_ok
        return
    said = [f"no shell runs the command: {signs} and what follows are arguments of the script"] if signs else []
    assert report.is_ok and [f.message for f in report.findings] == said
    assert all("plugin.yaml:3:" in str(f) and "as a list of words" in f.hint for f in report.findings)


def test_what_is_said_of_an_inline_tool_points_at_its_line(places: Places) -> None:
    report = check(places, "", "tools:\n  - {id: a, description: d, implementation: {type: rocket}, parameters: {type: object}}\n"
                   "  - {id: b, implementation: {type: rocket}, parameters: {type: object}}\n")  # fmt: skip
    assert [str(f) for f in report.findings] == [
        "plugin.yaml:5:5: tools.1.description: the tool 'b' has no description (say what it does and when to use it; models choose by this)"
    ]


# What is checked ---------------------------------------------------------------------------------------------------------


def test_a_folder_a_project_a_plugin_name_and_a_distribution_name_are_understood(places: Places) -> None:
    package = places.installed_plugin("text")
    places.folder_plugin("local")
    places.write("project/pyproject.toml")
    places.write("project/src/tavern_plugin_inner/plugin.yaml", 'name: inner\nversion: "1.0"\n')
    options = {"roots": [places.plugins], "sys_path": [str(places.site)]}
    for target in (package, "text", "tavern-plugin-text", "Tavern_Plugin_Text"):
        report = check_plugin(target, **options)  # type: ignore[arg-type]
        assert (report.name, report.findings, report.location) == ("text", (), str(package.resolve()))
    assert check_plugin("local", **options).name == "local"  # type: ignore[arg-type]
    assert check_plugin(places.root / "project").name == "inner"
    assert "tavern_plugin_text" not in sys.modules


def test_a_target_that_is_nowhere_gets_the_nearest_name(places: Places) -> None:
    places.folder_plugin("local")
    [finding] = check_plugin("locl", roots=[places.plugins], sys_path=[]).findings
    assert (finding.code, finding.hint) == ("PLUGIN_NOT_FOUND", "did you mean 'local'?")
    assert not check_plugin(places.root / "nothing", sys_path=[]).is_ok
    assert not check_plugin(places.plugins, sys_path=[]).is_ok


@each_row("target", ["x" * 100_000, "x/" * 5_000, "a\0b", "\ud800"])
def test_a_target_that_no_file_can_be_called_is_nowhere_too(target: str) -> None:
    report = check_plugin(target, sys_path=[])
    assert not report.is_ok
    assert len(report.findings) == 1


def test_an_installed_plugin_keeps_its_packaging_findings(places: Places) -> None:
    places.installed_plugin("text", version="1.0")
    places.write("site/tavern_plugin_text/plugin.yaml", 'name: text\nversion: "2.0"\nzz: 1\n')
    found = [f.message for f in check_plugin("text", sys_path=[str(places.site)]).findings]
    assert found == ["plugin.yaml says version 2.0, the distribution tavern-plugin-text 1.0", "unknown key 'zz'"]


def test_the_findings_of_a_broken_manifest_and_of_the_source_come_together(places: Places) -> None:
    places.write("plugins/text/plugin.yaml", "name: text\nversion: 1\n")
    places.write("plugins/text/a.py", "def (")
    report = check_plugin(places.plugins / "text")
    assert [f.where.file for f in report.findings if f.where] == ["plugin.yaml", "a.py"]
    assert report.reading is not None
    assert report.reading.document.line(2) == "version: 1"


def test_every_hook_can_be_implemented_without_a_finding(places: Places) -> None:
    sections = {hook.section for hook in HOOKS.values() if hook.section} - {"tools", "nodes"}
    manifest = "".join(f"{section}: true\n" for section in sorted(sections)) + "nodes: {entry: ./n.py}\npermissions:\n"
    manifest += "  data: [data:conversation]\n  hooks:\n"
    manifest += "".join(f"    - {hook.permissions[0]!r}\n" for hook in HOOKS.values() if hook.permissions)
    source = "from tavern_core import hookimpl\n" + "".join(
        f"@hookimpl\ndef {hook.name}({', '.join(hook.arguments)}): return []\n" for hook in HOOKS.values()
    )
    report = check(places, source, manifest, n_py="")
    assert [f for f in report.findings if f.severity == "error"] == []
    assert {h.name for h in report.hooks_found} == set(HOOKS)


SOURCE = TOOLS + IMPORTS + H + "@hookimpl(specname='tavern_stop')\ndef x(ctx, *, a=1): yield\n"


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_source_of_any_kind_is_answered(seed: int) -> None:
    rng = random.Random(seed)
    lines = SOURCE.splitlines()
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(lines))
        pieces = ["", "(", "@", "\x00", "    ", "lambda: (yield)", "return [*a, **b]", "\ud800", "'''", "*" * 50]
        lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)] + rng.choice(pieces)
    scan = scan_sources([("a.py", "\n".join(lines).encode("utf-8", "surrogatepass")), ("b.py", b"\xff\xfe")])
    assert not scan.is_complete
    assert all(f.where is not None for f in scan.findings)


def test_deeply_nested_source_is_answered() -> None:
    scan = scan_sources([("a.py", b"x = " + b"(" * 5000), ("b.py", b"x = " + b"-" * 100_000 + b"1")])
    assert [f.where.file for f in scan.findings if f.where] == ["a.py", "b.py"]


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        ("tools:\n- {id: 'a b', description: d, implementation: {type: python}}\n",
         "error plugin.yaml:4:8: tools.0.id: 'a b' is not a tool name"),
        ("tools:\n- {id: 'q:ab', description: d, implementation: {type: python}}\n",
         "error plugin.yaml:4:8: tools.0.id: the prefix 'q' of 'q:ab' is not this plugin's name (text)"),
        ("tools: {entry: ../tools}\n", "error plugin.yaml:3:16: tools.entry: '../tools': '..' leaves the plugin's folder"),
        ("requires: {host: '>=99'}\n", "warning plugin.yaml:3:18: requires.host: the plugin needs tavern-core >=99;"),
        ("aliases: {'Old:sya': sya}\ntools:\n- {id: say, description: d, parameters: {type: object},"
         " implementation: {type: script, command: python a.py}}\n",
         "warning plugin.yaml:3:22: aliases.Old:sya: the plugin has no tool 'sya' (did you mean 'say'?)"),
        ("permissions: {services: {override: [workflowManagr]}}\n",
         "warning plugin.yaml:3:37: permissions.services.override.0: the host has no service 'workflowManagr'"
         " (did you mean 'workflowManager'?)"),
        ("configOptions: [{key: extensions.text.say.most, type: number}]\n"
         "tools:\n- {id: say, description: d, parameters: {type: object}, configSchema: [{key: most, type: number}],"
         " implementation: {type: script, command: python a.py}}\n",
         "error plugin.yaml:5:78: tools.0.configSchema.0.key: the tool 'say': the setting 'extensions.text.say.most' is declared in `configOptions`, too"),
        ("tools:\n- {id: say, description: d, parameters: {type: object}, limits: {cacheMs: 9, retries: 1},"
         " implementation: {type: script, command: python a.py}}\n",
         "warning plugin.yaml:4:75: tools.0.limits.cacheMs: the tool 'say': `cacheMs` has no effect,"),
    ],
)  # fmt: skip
def test_one_mistake_of_the_manifest_gives_one_finding(places: Places, manifest: str, expected: str) -> None:
    report = check(places, "", manifest, a_py="")
    (found,) = [line for line in reported(report) if not line.startswith("info")]
    assert found.startswith(expected)


def test_two_tools_of_one_name_are_one_finding_at_the_second(places: Places) -> None:
    tool = "description: d, parameters: {type: object}, implementation: {type: script, command: python a.py}"
    report = check(places, "", f"tools:\n- {{id: say, {tool}}}\n- {{id: SAY, {tool}}}\n", a_py="")
    (found,) = reported(report)
    assert found.startswith("error plugin.yaml:5:8: tools.1.id: 'SAY' is the same tool as 'say' above")


def test_the_files_of_workflows_and_profiles_are_read(places: Places) -> None:
    nodes = '[{"id": "a", "type": "text:A"}]'
    manifest = "workflows: {entry: ./flows}\nprofiles: {entry: agents/}\n"
    files = {
        "flows/cut.json": "{",
        "flows/loose.json": f'{{"nodes": {nodes}, "edges": [{{"id": "1", "source": "a", "target": "b"}}]}}',
        "flows/fine.json": f'{{"nodes": {nodes}}}',
        "flows/.hidden.json": "{",
        "flows/notes.txt": "{",
        "agents/cut.json": "{",
        "agents/writer/agent_profile.json": '{"tool_ids_inventory": "text:count"}',
        "agents/fine.json": '{"tool_ids_inventory": ["text:count"]}',
    }
    found = reported(check_plugin(places.folder_plugin("text", manifest, files=files)))
    assert [line.partition(" (")[0] for line in found] == [
        "error flows/cut.json:1:2: not JSON: expecting property name enclosed in double quotes",
        "error flows/loose.json: edge '1' ends at 'b', which does not exist",
        "error agents/cut.json:1:2: not JSON: expecting property name enclosed in double quotes",
        "error agents/writer/agent_profile.json:1:24: tool_ids_inventory: must be a list, got 'text:count'",
    ]


@pytest.mark.parametrize(
    ("manifest", "files", "expected"),
    [
        ("workflows: {entry: ./}", {"cut.json": "{"}, ["error cut.json:1:2"]),
        ("workflows: {entry: .}", {"cut.json": "{"}, ["error cut.json:1:2"]),
        ("workflows: {entry: ././flows//}", {"flows/cut.json": "{"}, ["error flows/cut.json:1:2"]),
        ("workflows: {entry: ./cut.json}", {"cut.json": "{"}, ["error cut.json:1:2"]),
        ("workflows: {entry: flows}", {"flows/x.json/notes.txt": "{"}, []),
        ("workflows: {entry: flows}", {"flows/large.json": '{"nodes": []' + " " * 1_000_000 + "}"}, []),
        ("profiles: {entry: agents}", {"agents/x.json/notes.txt": "{"}, []),
        (
            "workflows: {entry: ./flows}\n"
            "tools: [{id: x, description: d, implementation: {type: workflow, workflowId: ./flows/cut.json}}]",
            {"flows/cut.json": "{"},
            ["error ./flows/cut.json:1:2"],
        ),
    ],
)
def test_a_file_in_an_entry_is_checked_once_if_it_can_be_read(
    places: Places, manifest: str, files: dict[str, str], expected: list[str]
) -> None:
    found = reported(check_plugin(places.folder_plugin("text", f"{manifest}\n", files=files)))
    assert [line.partition(": ")[0] for line in found] == expected


@pytest.mark.parametrize(
    ("written", "file", "content", "expected"),
    [
        ("flow.json", "flow.json", '{"nodes": [], "edges": []}', []),
        ("flow", "flow.json", '{"nodes": [], "edges": []}', []),
        ("flow", "workflows/flow.json", '{"nodes": [], "edges": []}', []),
        (
            "flow",
            "flow.txt",
            "",
            [
                "error plugin.yaml:4:74: tools.0.implementation.workflowId: the tool 'run': there is no 'flow.json' in the plugin's folder"
            ],
        ),
        ("flow", "flow.json", "[1]", ["error flow.json:1:1: this is not a workflow"]),
        (
            "flow",
            "flow.json",
            '{"nodes": [{"type": "a:B"}]}',
            ["error flow.json:1:12: nodes.0.id: the key 'id' is missing"],
        ),
    ],
)
def test_the_file_of_a_workflow_tool_is_read(
    places: Places, written: str, file: str, content: str, expected: list[str]
) -> None:
    manifest = f"tools:\n- {{id: run, description: d, implementation: {{type: workflow, workflowId: {written}}}}}\n"
    folder = places.folder_plugin("text", manifest, files={file: content})
    found = reported(check_plugin(folder))
    assert [line.partition(" (")[0] for line in found] == expected
