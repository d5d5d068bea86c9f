"""What is known of plugins whose code nobody has imported, and when it is imported."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tavern_core import Plugin, Tavern, tool
from tavern_core.schema.schema_check import check_schema

from .workshop import HELLO, TOOL, Workshop, codes, ids, reported, setting_keys


def edited(file: Path, text: str) -> None:
    """Change a file so that its times differ, whatever the clock of the file system."""
    before = file.stat()
    file.write_text(text)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 5_000_000_000))


@pytest.mark.slow
def test_two_hundred_plugins_are_listed_without_importing_one_and_the_first_call_imports_one(
    workshop: Workshop,
) -> None:
    for number in range(200):
        workshop.folder(f"p{number}", TOOL, HELLO)
    host = workshop.open()
    assert len(ids(host)) == 200
    assert host.tools.search("hello") is not None
    assert host.tools.why("p7:hello").visible
    assert len(host.tools.snapshot()) > 200
    assert workshop.notes() == []
    assert host.invoke_sync("p7:hello", {"name": "Ada"}).value == "hello Ada"
    assert host.invoke_sync("p7:hello").value == "hello World"
    assert workshop.notes() == ["import p7"]
    assert host.plugins["p7"].state == "active"
    assert host.plugins["p8"].state == "granted"


@pytest.mark.parametrize("source", ["folder", "installed", "object"])
def test_three_sources_live_one_life(workshop: Workshop, source: str) -> None:
    given = []
    if source == "object":

        @tool
        def hello(name: str = "World") -> str:
            return "hello " + name

        manifest = {"name": "one", "version": "1.0", "tools": [{"id": "hello", "implementation": {"type": "python"}}]}
        given = [Plugin([hello], manifest=manifest)]
    else:
        getattr(workshop, source)("one", TOOL, HELLO)
    host = workshop.open(*given)
    status = host.plugins["one"]
    assert (status.state, status.version, status.source) == (
        "granted",
        "1.0",
        source.replace("installed", "entry_point"),
    )
    assert status.provides["tools"] == ("one:hello",)
    assert host.invoke_sync("one:hello").value == "hello World"
    assert host.plugins["one"].state == "active"
    assert host.plugins.disable_sync("one").state == "disabled"
    assert host.invoke_sync("one:hello").error.kind == "TOOL_NOT_FOUND"
    assert "one:hello" not in ids(host)
    assert host.plugins.enable_sync("one").state == "granted"
    assert host.invoke_sync("one:hello").value == "hello World"
    workshop.close(host)


def test_specs_of_the_last_activation_are_listed_by_the_next_host(workshop: Workshop) -> None:
    workshop.folder("one", TOOL, HELLO)
    first = workshop.open()
    assert first.tools.known("one:hello").description == ""
    first.invoke_sync("one:hello")
    workshop.close(first)
    second = workshop.open()
    assert [s.description for s in second.tools.list() if s.id == "one:hello"] == ["Greet somebody."]
    assert second.tools.known("one:hello").input_schema["properties"]["name"]["default"] == "World"
    assert workshop.notes() == ["import one"]


@pytest.mark.parametrize("what", ["code", "submodule", "manifest", "upgrade"])
def test_cached_specs_are_forgotten_when_the_plugin_changes(workshop: Workshop, what: str) -> None:
    if what == "upgrade":
        folder = workshop.installed("one", TOOL, HELLO)
    else:
        folder = workshop.folder("one", TOOL, HELLO, part__py="", other_py="")
        (folder / "other.py").write_text("")
    first = workshop.open()
    first.invoke_sync("one:hello")
    workshop.close(first)
    if what == "code":
        edited(folder / "__init__.py", workshop.module(TOOL.replace("Greet somebody.", "Greet all.")))
    elif what == "submodule":
        edited(folder / "other.py", "x = 1\n")
    elif what == "manifest":
        edited(folder / "plugin.yaml", (folder / "plugin.yaml").read_text() + "description: other\n")
    else:
        (workshop.site / "tavern_plugin_one-1.0.dist-info").rename(workshop.site / "tavern_plugin_one-1.1.dist-info")
        meta = workshop.site / "tavern_plugin_one-1.1.dist-info" / "METADATA"
        meta.write_text("Metadata-Version: 2.1\nName: tavern-plugin-one\nVersion: 1.1\n\n")
        edited(folder / "plugin.yaml", (folder / "plugin.yaml").read_text().replace("1.0", "1.1"))
        edited(folder / "__init__.py", workshop.module(TOOL.replace("Greet somebody.", "Greet all.")))
    second = workshop.open()
    assert second.tools.known("one:hello").description == ""
    assert workshop.notes() == ["import one" if what != "upgrade" else "import tavern_plugin_one"]


def test_a_plugin_that_declares_no_ids_is_activated_at_open_with_a_hint(workshop: Workshop) -> None:
    workshop.folder("one", TOOL)
    host = workshop.open()
    assert ids(host) == ["one:hello"]
    assert host.plugins["one"].state == "active"
    assert "plugins check one --write" in reported(host, "TOOLS_UNDECLARED")


def test_tools_registered_by_a_submodule_are_known_too(workshop: Workshop) -> None:
    workshop.folder("one", "from .parts.tools import tavern_register_tools", parts__tools_="")
    parts = workshop.plugins / "one" / "parts"
    parts.mkdir(exist_ok=True)
    (parts / "__init__.py").write_text("")
    (parts / "tools.py").write_text(workshop.module(TOOL))
    assert ids(workshop.open()) == ["one:hello"]


def test_a_returned_tool_that_is_not_declared_is_left_out_with_the_line_to_add(workshop: Workshop) -> None:
    workshop.folder("one", TOOL.replace("[hello]", "[hello, extra]") + "\n@tool\ndef extra() -> int: return 1\n", HELLO)
    host = workshop.open()
    assert host.invoke_sync("one:hello").ok
    assert ids(host) == ["one:hello"]
    assert host.invoke_sync("one:extra").error.kind == "TOOL_NOT_FOUND"
    assert "- {id: extra, implementation: {type: python}}" in reported(host, "TOOL_UNDECLARED")
    assert "not declared" in host.tools.why("one:extra").reason


def test_a_declared_tool_that_is_not_returned_fails_the_plugin(workshop: Workshop) -> None:
    workshop.folder("one", TOOL, HELLO.replace("]", ", {id: bye, implementation: {type: python}}]"))
    host = workshop.open()
    assert "one:bye" in host.invoke_sync("one:hello").error.message
    status = host.plugins["one"]
    assert (status.state, status.error_code) == ("failed", "ACTIVATION_FAILED")
    assert "one:bye" in status.reason
    assert "tavern_register_tools" in status.reason


AT_OPEN: dict[str, tuple[str, str, bool]] = {
    "nothing": ("", "", False),
    "start: true": ("", "start: true", True),
    "services": (
        "@hookimpl\ndef tavern_register_services():\n    return []",
        "services: [clock]",
        True,
    ),
    "a granted gate": (
        "@hookimpl\ndef tavern_check_call(call): pass",
        'permissions: {hooks: ["hook:server:tool:check"]}',
        True,
    ),
    "a granted modify hook": (
        "@hookimpl\ndef tavern_before_execute(call): pass",
        'permissions: {hooks: ["hook:server:tool:before-execute"]}',
        True,
    ),
    "a granted observer": (
        "@hookimpl\ndef tavern_after_execute(call): pass",
        'permissions: {hooks: ["hook:server:tool:after-execute"]}',
        True,
    ),
    "commands": ("", "commands: [greet]", False),
    "settings": ("", "configOptions: [{key: extensions.one.a, type: string}]", False),
    "a capability": ("", "permissions: {capabilities: [read:fs]}", False),
}


def test_when_a_plugin_is_activated(workshop: Workshop) -> None:
    plugins = {f"p{number}": what for number, what in enumerate(AT_OPEN)}
    for name, what in plugins.items():
        code, manifest, _ = AT_OPEN[what]
        workshop.folder(name, TOOL + code, f"{HELLO}\n{manifest.replace('extensions.one', f'extensions.{name}')}\n")
    workshop.grant(*plugins)
    assert workshop.notes() == []
    host = workshop.open()
    at_once = [name for name, what in plugins.items() if AT_OPEN[what][2]]
    assert [name for name in plugins if host.plugins[name].state == "active"] == at_once
    assert workshop.notes() == [f"import {name}" for name in at_once]
    for name, what in plugins.items():
        assert host.invoke_sync(f"{name}:hello").ok, what
    assert sorted(workshop.notes()) == [f"import {name}" for name in plugins]


def test_a_hook_that_is_not_granted_does_not_start_the_plugin(workshop: Workshop) -> None:
    code, manifest, _ = AT_OPEN["a granted gate"]
    workshop.folder("one", TOOL + code, f"{HELLO}\n{manifest}\n")
    host = workshop.open()
    assert workshop.notes() == []
    assert host.plugins["one"].state == "pending_consent"
    assert "tavern plugins grant one" in host.plugins["one"].reason


def test_a_pending_plugin_that_is_refused_a_service_is_repaired_by_one_grant(workshop: Workshop) -> None:
    needs = "permissions: {services: {write: [workflowManager], use: [nodeManager]}}"
    code = "@hookimpl\ndef tavern_start(ctx):\n    ctx.service('workflowManager')\n    ctx.service('nodeManager')\n"
    workshop.folder("one", TOOL + code, f"{HELLO}\n{needs}\n")
    error = workshop.open().invoke_sync("one:hello").error
    assert error is not None
    assert ("not declared and granted" in error.message, error.fix) == (True, "tavern plugins grant one")


def test_a_pending_plugin_that_is_refused_what_it_does_not_request_keeps_the_hint_about_that(
    workshop: Workshop,
) -> None:
    needs = "permissions: {services: {use: [nodeManager]}}"
    code = "@hookimpl\ndef tavern_start(ctx):\n    ctx.service('workflowManager')\n"
    workshop.folder("one", TOOL + code, f"{HELLO}\n{needs}\n")
    error = workshop.open().invoke_sync("one:hello").error
    assert error is not None
    assert error.fix.startswith("plugin.yaml: permissions: {services: {use: [workflowManager]}}, then ")


@pytest.mark.slow
def test_everything_is_activated_at_once_on_demand(workshop: Workshop) -> None:
    for name in ("one", "two"):
        workshop.folder(name, TOOL, HELLO)
    workshop.folder("bad", "1 / 0", HELLO)
    host = workshop.open(activate="all")
    assert [host.plugins[n].state for n in ("bad", "one", "two")] == ["failed", "active", "active"]
    workshop.close(host)
    host = workshop.open()
    host.wait(host.plugins.activate_all())
    assert [host.plugins[n].state for n in ("bad", "one", "two")] == ["failed", "active", "active"]


def test_a_plugin_without_any_python_works(workshop: Workshop) -> None:
    text = '{"id": "hi", "description": "Hi.", "parameters": {"type": "object", "properties": {}}, "implementation": {"type": "script", "command": ["python", "run.py"]}}'
    folder = workshop.folder("one", None, "tools: {entry: tools}", tools__hi="")
    (folder / "tools" / "hi.tool.json").write_text(text)
    (folder / "run.py").write_text("print('{\"n\": 1}')\n")
    host = workshop.open()
    assert ids(host) == ["one:hi"]
    assert host.tools.get("one:hi").description == "Hi."
    assert host.plugins["one"].state in ("granted", "active")


def test_an_empty_plugin_is_legal(workshop: Workshop) -> None:
    workshop.folder("one")
    host = workshop.open(activate="all")
    assert host.plugins["one"].state == "active"
    assert host.plugins["one"].reason == ""


@pytest.mark.slow
def test_two_hosts_of_one_process_share_no_modules_of_a_folder_plugin(workshop: Workshop) -> None:
    late = "@hookimpl\ndef tavern_register_tools():\n    from .late import hello\n    return [hello]\nstate = []\n"
    folder = workshop.folder("one", late, HELLO)
    (folder / "late.py").write_text(
        "from tavern_core import tool\n@tool\ndef hello() -> int:\n"
        "    from . import state\n    from .later import x\n    state.append(x)\n    return len(state)\n"
    )
    (folder / "later.py").write_text("x = 1\n")
    first, second = workshop.open(), workshop.open(home=workshop.root / "other")
    assert [first.invoke_sync("one:hello").value, first.invoke_sync("one:hello").value] == [1, 2]
    assert second.invoke_sync("one:hello").value == 1
    first.plugins.reload_sync("one")
    assert second.invoke_sync("one:hello").value == 2
    assert first.invoke_sync("one:hello").value == 1
    workshop.close(first)
    assert second.invoke_sync("one:hello").value == 3


def test_listing_does_not_leave_modules_behind(workshop: Workshop) -> None:
    workshop.installed("one", TOOL, HELLO)
    host = workshop.open()
    assert "one:hello" in ids(host)
    assert "tavern_plugin_one" not in sys.modules


def test_refresh_finds_new_plugins_changed_ones_and_removed_ones(workshop: Workshop) -> None:
    one = workshop.folder("one", TOOL, HELLO)
    host = workshop.open()
    host.invoke_sync("one:hello")
    workshop.folder("two", TOOL, HELLO)
    assert host.wait(host.refresh()).added == ("two:hello",)
    edited(one / "__init__.py", workshop.module(TOOL.replace("hello ", "bye ")))
    edited(one / "plugin.yaml", (one / "plugin.yaml").read_text() + "description: new\n")
    assert host.wait(host.refresh()).changed == ("one:hello",)
    assert host.invoke_sync("one:hello").value == "bye World"
    one.rename(workshop.root / "gone")
    assert host.wait(host.refresh()).removed == ("one:hello",)
    assert host.invoke_sync("one:hello").error.kind == "TOOL_NOT_FOUND"
    assert "one" not in host.plugins


def test_refresh_reads_what_has_changed_beside_plugin_yaml(workshop: Workshop) -> None:
    def tool_file(id_: str, description: str = "Says hi.") -> str:
        parameters = {"type": "object", "properties": {}}
        return json.dumps({"id": id_, "description": description, "handler": "code:f", "parameters": parameters})

    folder = workshop.folder("one", None, "tools: {entry: ./tools}", **{"tools__a.tool.json": tool_file("a")})
    host = workshop.open()
    assert host.invoke_sync("one:a").error.message == "one has no package in which 'code:f' could be"
    (folder / "__init__.py").write_text("")
    (folder / "code.py").write_text("def f():\n    return 'hi'\n")
    host.wait(host.refresh())
    assert host.invoke_sync("one:a").value == "hi"
    (folder / "tools/b.tool.json").write_text(tool_file("b"))
    assert host.wait(host.refresh()).added == ("one:b",)
    assert host.invoke_sync("one:b").value == "hi"
    edited(folder / "tools/a.tool.json", tool_file("a", "Says more."))
    assert host.wait(host.refresh()).changed == ("one:a",)
    edited(folder / "tools/b.tool.json", tool_file("c"))
    diff = host.wait(host.refresh())
    assert (diff.added, diff.removed) == (("one:c",), ("one:b",))


def test_plugins_are_in_the_same_order_after_a_refresh_as_after_a_start(workshop: Workshop) -> None:
    workshop.folder("two")
    host = workshop.open()
    workshop.folder("one")
    host.wait(host.refresh())
    assert list(host.plugins) == list(workshop.open().plugins)


def test_a_plugin_that_was_removed_has_no_settings(workshop: Workshop) -> None:
    option = "{key: extensions.one.most, type: number, label: Most, defaultValue: 1}"
    folder = workshop.folder("one", manifest=f"configOptions: [{option}]")
    host = workshop.open()
    assert setting_keys(host) == {"extensions.one.most"}
    folder.rename(workshop.root / "gone")
    host.wait(host.refresh())
    assert setting_keys(host) == set()


@pytest.mark.slow
def test_refresh_starts_a_changed_gate_again(workshop: Workshop) -> None:
    gate = "@hookimpl\ndef tavern_check_call(call):\n    return deny('one')\n"
    folder = workshop.folder("one", gate, 'permissions: {hooks: ["hook:server:tool:check"]}')
    workshop.folder("two", TOOL, HELLO)
    workshop.grant("one")
    host = workshop.open()
    assert "one" in host.invoke_sync("two:hello").error.message
    edited(folder / "plugin.yaml", (folder / "plugin.yaml").read_text() + "description: new\n")
    edited(folder / "__init__.py", workshop.module(gate.replace("'one'", "'changed'")))
    host.wait(host.refresh())
    assert "changed" in host.invoke_sync("two:hello").error.message


@pytest.mark.parametrize("name", [".hidden", "off.disabled", "__pycache__"])
def test_folders_that_are_switched_off_are_no_plugins(workshop: Workshop, name: str) -> None:
    folder = workshop.folder("one", TOOL, HELLO)
    folder.rename(folder.with_name(name))
    assert ids(workshop.open()) == []


def test_safe_mode_runs_no_found_plugin(workshop: Workshop) -> None:
    workshop.folder("one", TOOL)
    host = workshop.open(safe_mode=True)
    assert ids(host) == []
    assert host.plugins["one"].state == "disabled"
    assert "safe mode" in host.plugins["one"].reason
    assert workshop.notes() == []
    assert codes(host, "one") == set()


@pytest.mark.parametrize(
    ("config", "off"),
    [({"disable": ["one"]}, "one"), ({"load": ["two"]}, "one"), ({"load": []}, "one")],
)
def test_the_configuration_keeps_plugins_off(workshop: Workshop, config: dict[str, object], off: str) -> None:
    for name in ("one", "two"):
        workshop.folder(name, TOOL, HELLO)
    host = workshop.open(config={"plugins": config})
    assert host.plugins[off].state == "disabled"
    assert f"{off}:hello" not in ids(host)


def test_a_host_that_only_looks_runs_nothing(workshop: Workshop) -> None:
    workshop.folder("one", TOOL, "start: true")
    host = workshop.open(activate="none")
    assert workshop.notes() == []
    assert host.plugins["one"].state == "granted"


def test_the_schemas_of_the_hosts_own_tools_are_sound(tmp_path: Path) -> None:
    """An activation checks the schemas of all other plugins."""
    with Tavern.open({"tools": {"allow": ["CodeInterpreter:execute"]}}, home=tmp_path) as host:
        own = host.tools.list()
    assert [spec.plugin for spec in own] == ["core-code", "core-system"]
    for spec in own:
        assert check_schema(spec.input_schema, spec.id) == []
        assert spec.output_schema is not None and check_schema(spec.output_schema, spec.id, output=True) == []
