"""Whatever is not there has a reason that can be seen everywhere, before any code of a plugin has run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Plugin, Tavern, tool
from tavern_core.errors import ToolNotFound

from .workshop import HELLO, TOOL, Workshop, ids

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
    "a shell": (tool_file("bad", implementation={"type": "script", "command": "sh -c ls"}), "p:bad", "may not run scripts"),
    "a foreign prefix": (tool_file("Other:bad"), "Other:bad", "is not this plugin's name"),
    "a foreign prefix, asked for by its own": (tool_file("Other:bad"), "p:bad", "is not this plugin's name"),
    "an undeclared capability": (tool_file("bad", capabilities=["network"]), "p:bad", "does not ask for"),
    "an id that is written differently": (tool_file("bad-Tool", parameters=None), "p.bad_tool", "needs `parameters`"),
}


def check_visible(host: Tavern, plugin: str, tool_id: str, reason: str) -> None:
    """The reason is told by status, diagnostics, why, get and call."""
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


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_tool_file_is_told_everywhere_and_costs_one_tool(workshop: Workshop, what: str) -> None:
    text, tool_id, reason = BROKEN[what]
    files = {"tools__bad.tool.json": text, "tools__good.tool.json": tool_file("good"), "run.py": "print('{}')"}
    workshop.folder("p", None, "tools: {entry: tools}", **files)
    for _ in range(2):  # read anew, and from the index
        host = workshop.open()
        assert ids(host) == ["p:good"]
        check_visible(host, "p", tool_id, reason)
        assert host.plugins["p"].state == "granted"
        assert host.tools["p:good"].id == "p:good"
        workshop.close(host)


INLINE: dict[str, tuple[str, str]] = {
    "a shell": ("{id: bad, parameters: {type: object}, implementation: {type: script, command: sh -c ls}}", "may not run scripts"),
    "a script without parameters": ("{id: bad, implementation: {type: script, command: python3 run.py}}", "parameters"),
    "a service without parameters": (
        "{id: bad, implementation: {type: service, service: s, method: m}}", "needs `parameters`"),
    "no implementation": ("{id: bad, parameters: {type: object}}", "'implementation' is missing"),
}  # fmt: skip


@pytest.mark.parametrize("what", INLINE)
def test_a_broken_inline_tool_is_told_everywhere_and_costs_one_tool(workshop: Workshop, what: str) -> None:
    text, reason = INLINE[what]
    workshop.folder("p", TOOL, f"tools:\n  - {{id: hello, implementation: {{type: python}}}}\n  - {text}")
    host = workshop.open()
    check_visible(host, "p", "p:bad", reason)
    assert workshop.notes() == []
    assert host.invoke_sync("p:hello").ok
    check_visible(host, "p", "p:bad", reason)


def test_a_broken_declaration_of_an_object_is_told_as_well(workshop: Workshop) -> None:
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
    "isolation": ("isolation: process", "PLUGIN_FAILED", "isolation"),
}


@pytest.mark.parametrize("what", FAILED)
def test_a_failed_plugin_is_a_diagnostic(workshop: Workshop, what: str) -> None:
    manifest, code, text = FAILED[what]
    workshop.folder("p", TOOL, f"{HELLO}\n{manifest}")
    host = workshop.open()
    [told] = [d for d in host.diagnostics if d.plugin == "p"]
    assert (told.code, told.severity, text in f"{told.message} {told.hint}") == (code, "error", True), told
    assert workshop.notes() == []


@pytest.mark.parametrize(("name", "code"), [("system", "MANIFEST_INVALID"), ("get-current-time", "NAME_CONFLICT")])
def test_a_plugin_with_a_name_of_the_host_is_a_diagnostic(workshop: Workshop, name: str, code: str) -> None:
    workshop.folder(name, TOOL, HELLO)
    host = workshop.open()
    [told] = [d for d in host.diagnostics if d.plugin == name]
    assert (told.code, told.severity) == (code, "error")


def test_a_warning_about_a_manifest_is_a_diagnostic(workshop: Workshop) -> None:
    workshop.folder("p", TOOL, f"{HELLO}\ndescripton: typing error\n")
    host = workshop.open()
    [told] = [d for d in host.diagnostics if d.plugin == "p"]
    assert (told.severity, told.hint, "plugin.yaml:4" in told.message) == ("warning", "did you mean 'description'?", True)
    assert host.invoke_sync("p:hello").ok
    assert told in host.diagnostics


def test_what_is_repaired_is_no_diagnostic_any_more(workshop: Workshop) -> None:
    workshop.folder("p", TOOL, f"{HELLO}\ndependsOn: {{base: ''}}")
    host = workshop.open()
    assert [d.code for d in host.diagnostics if d.plugin == "p"] == ["DEPENDENCY_UNMET"]
    workshop.folder("base")
    host.tools.refresh()
    assert [d for d in host.diagnostics if d.plugin == "p"] == []
    assert host.invoke_sync("p:hello").ok
