"""Whatever is not there has a reason that can be seen everywhere, before any code of a plugin has run."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tavern_core import Plugin, Tavern, tool
from tavern_core.errors import PluginError, ToolNotFound
from tests.rows import row

from .conftest import Opened, tools
from .workshop import HELLO, TOOL, Workshop, codes, ids, reported

NOTHING: dict[str, Any] = {"type": "object", "properties": {}}


def tool_file(tool_id: str, **other: Any) -> str:
    """A script tool that is in order, but for what `other` says; None leaves a key out."""
    script = {"type": "script", "command": "python3 run.py", "protocol": "stdio"}
    whole = {"id": tool_id, "parameters": NOTHING, "implementation": script, **other}
    return json.dumps({key: value for key, value in whole.items() if value is not None}, indent=1)


BROKEN: dict[str, tuple[str, str, str]] = {
    # what: (tool file, id that is asked for, part of the reason)
    "no JSON": ('{"id": "bad",', "p:bad", "tools/bad.tool.json:1:"),
    "not an object": ("[]", "p:bad", "one JSON object"),
    "an unknown key": (tool_file("bad", paramters={}), "p:bad", "unknown key 'paramters'"),
    "no parameters": (tool_file("bad", parameters=None), "p:bad", "needs `parameters`"),
    "a shell": (
        tool_file("bad", implementation={"type": "script", "command": "sh -c ls"}),
        "p:bad",
        "may not run scripts",
    ),
    "a foreign prefix": (tool_file("Other:bad"), "Other:bad", "is not this plugin's name"),
    "a foreign prefix, asked for by its own": (tool_file("Another:bad"), "p:bad", "is not this plugin's name"),
    "an undeclared capability": (tool_file("bad", capabilities=["network"]), "p:bad", "does not request"),
    "an id that is written differently": (tool_file("bad-Tool", parameters=None), "p.bad_tool", "needs `parameters`"),
}


def check_visible(host: Tavern, plugin: str, tool_id: str, reason: str) -> None:
    """Status, diagnostics, why, get, call and profile give the reason."""
    assert any(reason in str(f) and f.details["tool"] for f in host.plugins[plugin].findings)
    assert any(reason in d.message and d.severity == "error" for d in host.diagnostics if d.plugin == plugin)
    why = host.tools.why(tool_id)
    assert (why.visible, why.plugin, reason in why.reason) == (False, plugin, True), why
    with pytest.raises(ToolNotFound, match="its declaration in plugin") as caught:
        host.tools[tool_id]
    assert reason in caught.value.message
    result = host.invoke_sync(tool_id)
    assert result.error is not None
    assert result.error.kind == "TOOL_NOT_FOUND"
    assert reason in result.error.message
    assert host.tools.list({"tool_ids_inventory": [tool_id]}) == ()
    said = [d.message for d in host.diagnostics if d.code == "PROFILE_INVALID" and tool_id in d.message]
    assert any(reason in message for message in said), said


def test_a_broken_tool_file_is_reported_everywhere_and_costs_one_tool(workshop: Workshop) -> None:
    plugins = {f"p{number}": broken for number, broken in enumerate(BROKEN.values())}
    for plugin, (text, _, _) in plugins.items():
        files = {"tools__bad.tool.json": text, "tools__good.tool.json": tool_file("good"), "run.py": "print('{}')"}
        workshop.folder(plugin, None, "tools: {entry: tools}", **files)
    for _ in range(2):  # read anew, and from the index
        host = workshop.open()
        assert ids(host) == [f"{plugin}:good" for plugin in plugins]
        for plugin, (_, tool_id, reason) in plugins.items():
            with row((plugin, tool_id, reason)):
                check_visible(host, plugin, re.sub("^p(?=[:.])", plugin, tool_id), reason)
            assert host.plugins[plugin].state == "granted", plugin
            assert host.tools[f"{plugin}:good"].id == f"{plugin}:good"
        workshop.close(host)


INLINE: dict[str, tuple[str, str]] = {
    "a shell": ("{id: bad, parameters: {type: object}, implementation: {type: script, command: sh -c ls}}", "may not run scripts"),
    "a script without parameters": ("{id: bad, implementation: {type: script, command: python3 run.py}}", "parameters"),
    "a service without parameters": (
        "{id: bad, implementation: {type: service, service: s, method: m}}", "needs `parameters`"),
    "no implementation": ("{id: bad, parameters: {type: object}}", "'implementation' is missing"),
}  # fmt: skip


def test_a_broken_inline_tool_is_reported_everywhere_and_costs_one_tool(workshop: Workshop) -> None:
    plugins = {f"p{number}": broken for number, broken in enumerate(INLINE.values())}
    for plugin, (text, _) in plugins.items():
        workshop.folder(plugin, TOOL, f"tools:\n  - {{id: hello, implementation: {{type: python}}}}\n  - {text}")
    host = workshop.open()
    for plugin, (_, reason) in plugins.items():
        with row((plugin, reason)):
            check_visible(host, plugin, f"{plugin}:bad", reason)
    assert workshop.notes() == []
    for plugin, (_, reason) in plugins.items():
        assert host.invoke_sync(f"{plugin}:hello").ok, plugin
        with row((plugin, reason)):
            check_visible(host, plugin, f"{plugin}:bad", reason)


def test_a_broken_declaration_of_an_object_is_reported_as_well(workshop: Workshop) -> None:
    manifest = {"name": "p", "tools": [{"id": "bad", "implementation": {"type": "script", "command": "sh -c ls"}}]}
    host = workshop.open(Plugin(object(), manifest=manifest))
    check_visible(host, "p", "p:bad", "may not run scripts")


def test_a_repaired_tool_file_takes_its_diagnostic_along(workshop: Workshop) -> None:
    folder = workshop.folder("p", None, "tools: {entry: tools}", **{"tools__bad.tool.json": "{", "run.py": ""})
    host = workshop.open()
    assert [d.code for d in host.diagnostics if d.plugin == "p"] == ["TOOL_FILE_INVALID"]
    (folder / "tools" / "bad.tool.json").write_text(tool_file("bad"))
    host.plugins.reload_sync("p")
    assert [d for d in host.diagnostics if d.plugin == "p"] == []
    assert host.plugins["p"].findings == ()
    assert host.tools.why("p:bad").visible


FAILED: dict[str, tuple[str, str, str]] = {
    # what: (manifest, code, part of message or hint)
    "an invalid manifest": ("permissions: 3", "MANIFEST_INVALID", "plugin.yaml:4:"),
    "an unmet dependency": ("dependsOn: {absent: ''}", "DEPENDENCY_UNMET", "absent"),
    "itself": ("dependsOn: {p: ''}", "MANIFEST_INVALID", "depends on itself"),
    "a newer host": ("requires: {host: '>=9'}", "DEPENDENCY_UNMET", "pip install"),
}


@pytest.mark.parametrize("what", FAILED)
def test_a_failed_plugin_is_a_diagnostic(workshop: Workshop, what: str) -> None:
    manifest, code, text = FAILED[what]
    workshop.folder("p", TOOL, f"{HELLO}\n{manifest}")
    host = workshop.open()
    [reported] = [d for d in host.diagnostics if d.plugin == "p"]
    assert (reported.code, reported.severity, text in f"{reported.message} {reported.hint}") == (code, "error", True), (
        reported
    )
    assert workshop.notes() == []


@pytest.mark.parametrize(("name", "code"), [("system", "MANIFEST_INVALID"), ("get-current-time", "NAME_CONFLICT")])
def test_a_plugin_with_a_name_of_the_host_is_a_diagnostic(workshop: Workshop, name: str, code: str) -> None:
    workshop.folder(name, TOOL, HELLO)
    host = workshop.open()
    [reported] = [d for d in host.diagnostics if d.plugin == name]
    assert (reported.code, reported.severity) == (code, "error")


def test_a_warning_about_a_manifest_is_a_diagnostic(workshop: Workshop) -> None:
    workshop.folder("p", TOOL, f"{HELLO}\ndescripton: typing error\n")
    host = workshop.open()
    [reported] = [d for d in host.diagnostics if d.plugin == "p"]
    assert (reported.severity, reported.hint, "plugin.yaml:4" in reported.message) == (
        "warning",
        "did you mean 'description'?",
        True,
    )
    assert host.invoke_sync("p:hello").ok
    assert reported in host.diagnostics


def test_what_is_repaired_is_no_diagnostic_any_more(workshop: Workshop) -> None:
    workshop.folder("p", TOOL, f"{HELLO}\ndependsOn: {{base: ''}}")
    host = workshop.open()
    assert [d.code for d in host.diagnostics if d.plugin == "p"] == ["DEPENDENCY_UNMET"]
    workshop.folder("base")
    host.tools.refresh()
    assert [d for d in host.diagnostics if d.plugin == "p"] == []
    assert host.invoke_sync("p:hello").ok


def test_a_plugin_whose_code_fails_has_the_warnings_about_its_manifest_too(workshop: Workshop) -> None:
    folder = workshop.folder("p", "raise ValueError('late')", f"{HELLO}\ndescripton: typing error\n")
    host = workshop.open()
    assert not host.invoke_sync("p:hello").ok
    host.tools.refresh()
    assert sorted(d.code for d in host.diagnostics if d.plugin == "p") == ["ACTIVATION_FAILED", "MANIFEST_INVALID"]
    (folder / "plugin.yaml").unlink()
    with pytest.raises(PluginError):
        host.plugins.reload_sync("p")
    assert [d.code for d in host.diagnostics if d.plugin == "p"] == ["MANIFEST_INVALID"]
    assert "no plugin.yaml" in reported(host, "MANIFEST_INVALID")


@pytest.mark.parametrize("how", ["disabled", "removed"])
def test_what_was_found_while_a_plugin_was_used_goes_with_it(workshop: Workshop, how: str) -> None:
    profile = '{"name": "a"}'  # without tools, which is a warning once the plugin is active
    folder = workshop.folder("p", TOOL, f"{HELLO}\nprofiles: {{entry: profiles}}", **{"profiles__a.json": profile})
    host = workshop.open()
    assert host.invoke_sync("p:hello").ok
    assert [d.code for d in host.diagnostics if d.plugin == "p"] == ["PROFILE_INVALID"]
    if how == "disabled":
        host.plugins.disable_sync("p")
    else:
        shutil.rmtree(folder)
        host.tools.refresh()
    assert [d for d in host.diagnostics if d.plugin == "p"] == []


# Plugins that are off, and grants ----------------------------------------------------------------------------------------


def off_by_operator(workshop: Workshop) -> Tavern:
    host = workshop.open()
    host.plugins.disable_sync("p", reason="too loud")
    return host


OFF: dict[str, tuple[Any, str, str]] = {
    # what: (opens the host, fix, part of the reason)
    "by the operator": (off_by_operator, "tavern plugins enable p", "too loud"),
    "by configuration": (
        lambda w: w.open(config={"plugins": {"disable": ["p"]}}), "take p out of plugins.disable", "plugins.disable"),
    "not loaded": (lambda w: w.open(config={"plugins": {"load": ["q"]}}), "add p to plugins.load", "does not name it"),
    "no plugins": (lambda w: w.open(overrides={"plugins.load": []}), "leave that out", "no plugins are to be loaded"),
    "safe mode": (lambda w: w.open(safe_mode=True), "open the host without safe mode", "safe mode"),
}  # fmt: skip


@pytest.mark.parametrize("what", OFF)
def test_a_plugin_that_is_off_says_how_to_turn_it_on(workshop: Workshop, what: str) -> None:
    opening, fix, reason = OFF[what]
    workshop.folder("p", TOOL, HELLO)
    host = opening(workshop)
    why = host.tools.why("p:hello")
    assert (why.visible, why.fix, reason in why.reason) == (False, fix, True), why
    error = host.invoke_sync("p:hello").error
    assert error is not None
    assert (error.kind, error.fix, reason in error.message) == ("TOOL_NOT_FOUND", fix, True), error
    assert "TAVERN_LOAD_PLUGINS" not in why.reason
    assert workshop.notes() == []


@pytest.mark.slow
def test_an_active_plugin_says_what_it_was_refused(workshop: Workshop) -> None:
    manifest = f"{HELLO}\nstart: true\npermissions: {{capabilities: [network, 'read:fs']}}"
    workshop.folder("p", TOOL, manifest)
    workshop.grant("p")
    host = workshop.open()
    assert (host.plugins["p"].state, host.plugins["p"].reason) == ("active", "")
    host.plugins.refuse_sync("p", "network")
    status = host.plugins["p"]
    assert (status.state, "network" in status.reason, "read:fs" in status.reason) == ("active", True, False)
    assert "tavern plugins grant p network" in status.reason
    host.plugins.revoke_sync("p")
    status = host.plugins["p"]
    assert "network" in status.reason
    assert "read:fs" in status.reason


# Settings of tools -------------------------------------------------------------------------------------------------------

BILIBILI_YAML = """
displayName: Bilibili 内容获取器
description: 根据 Bilibili 视频 URL 获取其字幕内容
tools:
  entry: ./tools
"""
BILIBILI_TOOL = """{
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
    "properties": {"url": {"type": "string", "description": "Bilibili 视频的完整 URL 或 BV 号"}},
    "required": ["url"]
  },
  "configSchema": [
    {
      "key": "bilibiliCookie",
      "type": "string",
      "label": "Bilibili Cookie",
      "description": "用于访问 Bilibili API 的用户 Cookie"
    }
  ]
}"""
ALIASES = "aliases: {'BilibiliFetch:getSubtitle': getSubtitle}\n"
SCRIPT = "import json, sys\nprint(json.dumps({'status': 'success', 'result': json.load(sys.stdin)['config']}))\n"
COOKIE = "extensions.bilibili-fetcher.getSubtitle.bilibiliCookie"


def bilibili(workshop: Workshop, more: str = ALIASES) -> Path:
    files = {"tools__bilibili.tool.json": BILIBILI_TOOL, "scripts__BilibiliFetch.py": SCRIPT}
    return workshop.folder("bilibili-fetcher", None, BILIBILI_YAML + more, **files)


def test_an_id_with_a_foreign_prefix_and_no_alias_says_how_to_keep_it(workshop: Workshop) -> None:
    bilibili(workshop, more="")
    host = workshop.open()
    for tool_id in ("BilibiliFetch:getSubtitle", "bilibili-fetcher:getSubtitle"):
        check_visible(host, "bilibili-fetcher", tool_id, "tools/bilibili.tool.json:2:")
        assert 'aliases: {"BilibiliFetch:getSubtitle": getSubtitle}' in host.tools.why(tool_id).fix


LOOKS: dict[str, Any] = {
    "save": lambda host: host.settings.save({COOKIE: "x"}),
    "get": lambda host: host.settings.get(COOKIE),
    "parse": lambda host: host.settings.parse(COOKIE, "x"),
    "describe": lambda host: next(s for s in host.describe_settings("bilibili-fetcher") if s.key == COOKIE),
    "describe all": lambda host: next(s for s in host.settings.describe() if s.key == COOKIE),
    "keys": lambda host: host.settings.keys().index(COOKIE),
    "watch": lambda host: host.settings.on_change(COOKIE, print),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", LOOKS)
def test_settings_of_tools_are_there_before_the_plugin_is_active(workshop: Workshop, what: str) -> None:
    bilibili(workshop)
    host = workshop.open()
    LOOKS[what](host)
    assert host.plugins["bilibili-fetcher"].state == "granted"
    host.settings.save({COOKIE: "SESSDATA=1"})
    assert host.invoke_sync("BilibiliFetch:getSubtitle", {"url": "BV1"}).ok
    assert host.settings.get(COOKIE) == "SESSDATA=1"
    workshop.close(host)
    again = workshop.open()
    assert again.settings.findings() == ()
    assert again.settings.get(COOKIE) == "SESSDATA=1"


def test_a_stored_setting_of_a_tool_is_not_called_unknown(workshop: Workshop) -> None:
    bilibili(workshop, f"{ALIASES}configOptions: [{{key: extensions.bilibili-fetcher.lang, type: string}}]\n")
    config = {"settings": {COOKIE: "x", "extensions.bilibili-fetcher.lnag": "zh"}}
    host = workshop.open(config=config, activate="all")
    said = [d.message for d in host.diagnostics if d.code == "SETTINGS_INVALID"]
    assert [("lnag" in text, "Cookie" in text) for text in said] == [(True, False)]


def test_settings_of_a_plugin_that_failed_can_still_repair_it(workshop: Workshop) -> None:
    options = "configOptions: [{key: extensions.p.port, type: number, defaultValue: 0}]"
    code = "@hookimpl\ndef tavern_start(ctx):\n    1 / ctx.get_config('port')\n"
    workshop.folder("p", TOOL + code, f"{HELLO}\nstart: true\n{options}")
    host = workshop.open()
    assert host.plugins["p"].state == "failed"
    host.settings.save({"extensions.p.port": 1})
    assert host.plugins.enable_sync("p").state == "active"


# Declared tools that code completes --------------------------------------------------------------------------------------

DECLARED = """
tools:
  - id: hello
    displayName: Hello
    description: declared
    tags: [greeting]
    timeout: 5000
    examples: [{arguments: {name: Ann}, description: one}]
    securityContext: {idempotent: true, requiresApproval: false}
    configSchema: [{key: token, type: string, required: true, secret: true}]
    implementation: {type: python}
"""
GREETS = """
@tool
def hello(name: str = "World") -> str:
    return "hello " + name + " " + CTX.get_config("hello.token")

@hookimpl
def tavern_start(ctx):
    global CTX
    CTX = ctx

@hookimpl
def tavern_register_tools():
    return [hello]
"""


PARAMETERS = "    parameters: {type: object, properties: {name: {type: string, default: Ann}}}\n"


@pytest.mark.parametrize("parameters", ["", PARAMETERS], ids=["no parameters", "parameters"])
def test_code_completes_a_declaration_and_takes_nothing_from_it(workshop: Workshop, parameters: str) -> None:
    workshop.folder("p", GREETS, DECLARED + parameters)
    host = workshop.open()
    before, after = host.tools.known("p:hello"), host.tools["p:hello"]
    for spec in (before, after):
        assert (spec.description, spec.display_name, spec.tags) == ("declared", "Hello", ("greeting",))
        assert (spec.timeout_ms, spec.idempotent, spec.examples[0].description) == (5000, True, "one")
        assert [item["key"] for item in spec.config_schema] == ["token"]
    assert after.input_schema["properties"]["name"]["type"] == "string"
    refused = host.invoke_sync("p:hello")
    assert refused.error is not None
    assert (refused.error.kind, "extensions.p.hello.token" in refused.error.message) == ("TOOL_ERROR", True)
    host.settings.save({"extensions.p.hello.token": "t0"})
    assert host.invoke_sync("p:hello", {"name": "Ann"}).ok


FACTORY = """
@hookimpl
def tavern_register_tools():
    return [factory(lambda ctx: Tool("hello", lambda name="World": "hello " + name), names=["hello"])]
"""
CAUTIONS = """
permissions: {capabilities: [network, 'danger:destructive']}
tools:
  - id: hello
    implementation: {type: python}
    optional: true
    securityContext: {requiresApproval: true, destructive: true, untrusted: true, capabilities: [network]}
"""


def assert_all_cautions_hold(host: Tavern) -> None:
    assert host.invoke_sync("p:hello").error.kind == "POLICY_DENIED"  # type: ignore[union-attr]
    spec = host.tools["p:hello"]
    assert (spec.optional, spec.requires_approval, spec.destructive, spec.untrusted) == (True, True, True, True)
    assert spec.capabilities == {"network", "danger:destructive"}


@pytest.mark.parametrize("code", [GREETS, FACTORY], ids=["tool", "factory"])
@pytest.mark.parametrize("parameters", ["", PARAMETERS], ids=["no parameters", "parameters"])
def test_cautions_of_a_declaration_hold_for_what_the_code_returns(
    workshop: Workshop, code: str, parameters: str
) -> None:
    workshop.folder("p", code, CAUTIONS + parameters)
    assert_all_cautions_hold(workshop.open())


@pytest.mark.parametrize(
    ("implementation", "reason"),
    [
        ("{type: script, command: [python, run.py]}", "plugin.yaml: tools.0 declares the tool 'p:hello' as a script"),
        ("{type: service, service: clock, method: now}", "as a service"),
        ("{type: node, nodeType: 'core:Case'}", "as a node"),
    ],
)
def test_code_cannot_put_a_function_in_the_place_of_a_tool_of_another_kind(
    workshop: Workshop, implementation: str, reason: str
) -> None:
    workshop.folder("p", GREETS, f"tools: [{{id: hello, implementation: {implementation}, parameters: {NOTHING}}}]")
    error = workshop.open().invoke_sync("p:hello").error
    assert error is not None
    assert reason in error.message
    assert error.fix == "rename one of them, or declare it with implementation: {type: python}"


def test_code_cannot_name_another_program_for_a_declared_script(workshop: Workshop) -> None:
    script = "implementation: {{type: script, command: 'python {}'}}, parameters: {}"
    code = "@hookimpl\ndef tavern_register_tools(): return [{{'id': 'hello', 'description': 'x', {}}}]"
    returned = "'parameters': {'type': 'object'}, 'implementation': {'type': 'script', 'command': 'python b.py'}"
    workshop.folder("p", code.format(returned), f"tools: [{{id: hello, {script.format('a.py', NOTHING)}}}]")
    error = workshop.open().invoke_sync("p:hello").error
    assert error is not None
    assert "declares the tool 'p:hello' as a script, and the code of the plugin returns another" in error.message


WRONG = {
    "schema": "parameters: {type: objekt}, securityContext: {requiresApproval: true}",
    "capability": "securityContext: {capabilities: [netwrok], requiresApproval: true}",
}
OPEN_FACTORY = FACTORY.replace(', names=["hello"]', "")


def test_code_does_not_offer_a_tool_whose_declaration_is_wrong(workshop: Workshop) -> None:
    bye = "  - {id: bye, implementation: {type: node, nodeType: 'core:Case'}}\n"
    rows = list(itertools.product(WRONG, (TOOL, FACTORY, OPEN_FACTORY), ("", bye)))
    for number, (wrong, code, beside) in enumerate(rows):
        one = f"  - {{id: hello, implementation: {{type: python}}, {WRONG[wrong]}}}\n"
        workshop.folder(f"p{number}", code, f"start: true\ntools:\n{one}{beside}")
    host = workshop.open()
    shown = ids(host)
    for number, what in enumerate(rows):
        assert host.plugins[f"p{number}"].state == "active", what
        assert f"p{number}:hello" not in shown, what
        error = host.invoke_sync(f"p{number}:hello").error
        assert error is not None, what
        assert f"its declaration in plugin p{number} is wrong" in error.message, what
        assert not what[2] or host.tools[f"p{number}:bye"].kind == "node", what


def test_cautions_hold_for_a_tool_that_needs_what_its_plugin_does_not_request(workshop: Workshop) -> None:
    one = "{id: hello, implementation: {type: python}, capabilities: [network], securityContext: {requiresApproval: true}}"
    workshop.folder("p", TOOL, f"tools: [{one}]")
    host = workshop.open()
    assert host.tools["p:hello"].requires_approval
    error = host.invoke_sync("p:hello").error
    assert error is not None
    assert error.kind == "POLICY_DENIED"
    assert "then tavern plugins grant p network" in str(error.fix)
    assert "does not request" in reported(host, "TOOL_FILE_INVALID")


def test_undeclared_tools_are_ignored_also_beside_a_wrong_declaration(workshop: Workshop) -> None:
    code = TOOL.replace("[hello]", "[hello, Tool('other', lambda: 1)]")
    workshop.folder("p", code, f"tools: [{{id: hello, implementation: {{type: python}}, {WRONG['schema']}}}]")
    host = workshop.open()
    assert ids(host) == []
    assert "TOOL_UNDECLARED" in codes(host, "p")


def test_a_second_declaration_of_a_tool_does_not_take_the_first_away(workshop: Workshop) -> None:
    one = '{"id": "hello", "implementation": {"type": "python"}}'
    workshop.folder("p", TOOL, "tools: {entry: .}", **{"a.tool.json": one, "b.tool.json": one})
    host = workshop.open()
    assert host.invoke_sync("p:hello").ok
    assert "a.tool.json and again in b.tool.json" in reported(host, "TOOL_FILE_INVALID")


@pytest.mark.parametrize("parameters", ["", PARAMETERS], ids=["no parameters", "parameters"])
def test_the_cautions_of_a_handler_hold_beside_its_declaration(workshop: Workshop, parameters: str) -> None:
    code = """
        from tavern_core import tool

        @tool(optional=True, requires_approval=True, destructive=True, untrusted=True, capabilities=["network"])
        def hello(name="World"): return "hello " + name
    """
    one = "tools:\n  - id: hello\n    implementation: {type: python, handler: 'work:hello'}\n"
    workshop.folder("p", "", one + parameters, **{"work.py": dedent(code)})
    assert_all_cautions_hold(workshop.open())


@pytest.mark.parametrize(
    ("code", "is_ok"),
    [("def hello(: pass", False), ("raise SystemExit(3)", False), ("", False), ("hello = 3", False), ("def hello(*name): return name", False),
     ("def hello(name): return name", True)],
)  # fmt: skip
def test_a_handler_without_cautions_is_the_tool_that_was_declared(workshop: Workshop, code: str, is_ok: bool) -> None:
    one = "tools:\n  - id: hello\n    implementation: {type: python, handler: 'work:hello'}\n"
    workshop.folder("p", "", one + PARAMETERS, **{"work.py": code})
    host = workshop.open()
    assert host.invoke_sync("p:hello").ok is is_ok
    assert host.plugins["p"].state == "active"
    assert host.tools["p:hello"].input_schema["properties"] == {"name": {"type": "string", "default": "Ann"}}


DESTROYS = "securityContext: {destructive: true}"


@pytest.mark.parametrize(
    "implementation",
    ["{type: python}", "{type: python, handler: 'work:hello'}", "{type: script, command: 'python a.py'}"],
)
def test_what_is_declared_destructive_is_refused_unless_it_is_granted(workshop: Workshop, implementation: str) -> None:
    one = f"{{id: hello, {DESTROYS}, parameters: {NOTHING}, implementation: {implementation}}}"
    code = TOOL if implementation == "{type: python}" else ""
    workshop.folder("p", code, f"tools: [{one}]", **{"a.py": "print(1)", "work.py": "def hello(): return 1"})
    error = workshop.open().invoke_sync("p:hello").error
    assert error is not None
    assert "plugin p was not granted danger:destructive" in error.message


MARKED = [
    ("{type: string, format: password}", "str", {"type": "string", "format": "password"}),
    ("{type: string, writeOnly: true}", "str", {"type": "string", "writeOnly": True}),
    ("{type: string, x-tavern: {secret: true}}", "str", {"type": "string", "x-tavern": {"secret": True}}),
    ("{type: string, format: password}", "date", {"type": "string", "format": "date", "writeOnly": True}),
    ("{type: string, x-tavern: {guard: url}}", "str", {"type": "string", "x-tavern": {"guard": "url"}}),
    ("{type: string, x-tavern: {guard: path, root: data}}", "Annotated[str, Guard.path(root='project', mode='read')]",
     {"type": "string", "x-tavern": {"guard": "path", "root": "data", "mode": "read"}}),
    ("{type: string, maxLength: 3}", "str", {"type": "string"}),
]  # fmt: skip


def test_declared_marks_of_a_parameter_hold_for_the_function(workshop: Workshop) -> None:
    for number, (declared, annotation, _) in enumerate(MARKED):
        code = f"""
            from datetime import date
            from typing import Annotated
            @tool
            def hello(name: {annotation}) -> int: return 1
            @hookimpl
            def tavern_register_tools(): return [hello]
        """
        parameters = f"{{type: object, properties: {{name: {declared}, other: {{format: password}}}}}}"
        one = f"{{id: hello, implementation: {{type: python}}, parameters: {parameters}}}"
        workshop.folder(f"p{number}", code, f"tools: [{one}]")
    host = workshop.open()
    for number, (declared, annotation, together) in enumerate(MARKED):
        host.plugins.activate_sync(f"p{number}")
        found = host.tools[f"p{number}:hello"].input_schema["properties"]
        assert found == {"name": together}, (declared, annotation)


@pytest.mark.parametrize("code", [GREETS, None])
def test_a_declared_function_that_the_code_does_not_return_fails_the_plugin(
    workshop: Workshop, code: str | None
) -> None:
    bye = "  - {id: bye, implementation: {type: python}, parameters: {type: object, properties: {}}}\n"
    workshop.folder("p", code, (DECLARED + PARAMETERS if code else "tools:\n") + bye)
    error = workshop.open().invoke_sync("p:bye").error
    assert error is not None
    assert "declares the tool 'p:bye' but does not offer it" in error.message
    assert ("the plugin has no __init__.py; add one" in str(error.fix)) == (code is None)


KINDS = {
    "service": "{type: service, service: store, method: all}",
    "node": "{type: node, nodeType: 'core:Case'}",
    "workflow": "{type: workflow, workflowId: flow.json}",
}
STORE = """
class Store:
    @read_only
    def all(self): return []

@hookimpl
def tavern_register_services(ctx): return [Service("store", Store())]
"""
FLOW = '{"description": "Nothing.", "nodes": [], "edges": []}'


@pytest.mark.parametrize("kind", KINDS)
def test_a_tool_of_any_kind_waits_for_its_required_settings(workshop: Workshop, kind: str) -> None:
    settings = "configSchema: [{key: need, type: string, required: true}]"
    one = f"{{id: t, implementation: {KINDS[kind]}, {settings}, parameters: {NOTHING}}}"
    workshop.folder("p", STORE, f"services: [store]\ntools: [{one}]", **{"flow.json": FLOW})
    host = workshop.open()
    error = host.invoke_sync("p:t").error
    assert error is not None
    assert (error.kind, error.fix) == ("TOOL_ERROR", "tavern config set extensions.p.t.need VALUE")
    host.settings.save({"extensions.p.t.need": "x"})
    after = host.invoke_sync("p:t").error
    assert after is None or "is not set up" not in after.message


HANDLER = """
def hello(name: str, times: int = 1) -> str:
    "Greet somebody."
    return f"hello {name}" * times

class Not: pass
"""


def handler_file(handler: str, **other: Any) -> str:
    return json.dumps({"id": "hello", "tags": ["t"], "handler": handler, **other})


def test_a_handler_without_parameters_has_those_of_its_signature(workshop: Workshop) -> None:
    workshop.folder(
        "p", "", "tools: {entry: tools}", **{"tools__h.tool.json": handler_file("work:hello"), "work.py": HANDLER}
    )
    host = workshop.open()
    assert workshop.notes() == []
    assert host.invoke_sync("p:hello", {"name": "Ann", "times": 2}).value == "hello Annhello Ann"
    spec = host.tools["p:hello"]
    assert (spec.description, spec.tags, spec.input_schema["required"]) == ("Greet somebody.", ("t",), ["name"])
    assert host.invoke_sync("p:hello", {"nmae": "Ann"}).error.kind == "INPUT_SCHEMA_INVALID"  # type: ignore[union-attr]


@pytest.mark.parametrize(("handler", "reason"), [("work:helo", "cannot be found"), ("work:Not", "is not a function")])
def test_a_handler_that_is_none_fails_its_plugin_with_the_reason(workshop: Workshop, handler: str, reason: str) -> None:
    workshop.folder(
        "p", "", "tools: {entry: tools}", **{"tools__h.tool.json": handler_file(handler), "work.py": HANDLER}
    )
    host = workshop.open()
    error = host.invoke_sync("p:hello", {"name": "Ann"}).error
    assert error is not None
    assert reason in error.message
    assert host.plugins["p"].state == "failed"


def test_a_reason_is_shown_once_after_the_name_and_with_the_fix(opened: Opened) -> None:
    def take() -> None:
        """No tool: it is not marked."""

    host = opened(tools(take, name="u"))
    error = host.invoke_sync("u:take").error
    assert error is not None
    assert error.message == "there is no tool 'u:take': plugin u is failed: function take is not a tool"
    assert error.fix == "mark it: @tool above def take"
    assert host.plugins["u"].reason == f"function take is not a tool ({error.fix})"


def test_a_function_without_a_name_is_to_be_given_one(opened: Opened) -> None:
    error = opened(tools(lambda text: text, name="u")).invoke_sync("u:x").error
    assert error is not None
    assert error.fix == "give it a name: Tool('name', lambda ...)"


def test_a_profile_says_why_a_tool_is_missing_now(workshop: Workshop) -> None:
    workshop.folder("one", manifest="tools: 5")
    files = {"profiles/a.json": '{"tool_ids_inventory": ["one:a", "workflow:flow"]}', "flows/flow.json": "{"}
    for name, text in files.items():
        (workshop.root / name).parent.mkdir()
        (workshop.root / name).write_text(text)
    folders = {"profiles": [str(workshop.root / "profiles")], "workflows": {"roots": [str(workshop.root / "flows")]}}
    host = workshop.open(config=folders)

    def reasons() -> str:
        return "\n".join(finding.message for finding in host.profile("a").findings)

    assert "plugin one is failed" in reasons()
    assert "flow.json:1:2" in reasons()
    host.plugins.disable_sync("one")
    assert "plugin one is disabled" in reasons()
    (workshop.root / "flows/flow.json").write_text('{"nodes": 5}')
    assert "nodes: must be a list" in reasons()
    (workshop.root / "flows/flow.json").write_text('{"nodes": [], "edges": []}')
    assert host.profile("a").tools == ("workflow:flow",)


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ({}, "the given profile: the profile has no tool_ids_inventory: its agent may use no tool"),
        ({"toolIdsInventory": ["t:x"]}, "the key 'toolIdsInventory' is not read | did you mean 'tool_ids_inventory'?"),
        (
            {"tool_ids_inventory": [], "notes": "theirs"},
            "the key 'notes' is not read | remove it, or move it into `config`",
        ),
    ],
)
def test_a_profile_given_as_a_mapping_is_read_like_a_file(opened: Opened, profile: dict[str, Any], said: str) -> None:
    host = opened(tools(tool(name="x")(lambda: 1)))
    assert host.tools.list(profile) == ()
    assert said in reported(host, "PROFILE_INVALID")
