"""A broken plugin is a row in a table with a reason; it harms no other plugin, not the host, and leaves nothing behind."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest

from tavern_core import Plugin, Tavern, hookimpl, tool

from .workshop import HELLO, TOOL, Workshop, codes, hooks_of, ids, reported, setting_keys

START = f"{HELLO}\nstart: true\n"


@tool
def fine() -> str:
    return "fine"


def check_isolated(host: Tavern, name: str) -> None:
    """Everything else works, and nothing of the broken plugin is there."""
    assert host.invoke_sync("good:fine").value == "fine"
    assert host.invoke_sync("system:get_current_time", {}).ok
    status = host.plugins[name]
    assert status.state == "failed"
    assert status.reason
    assert "hooks" not in status.provides
    result = host.invoke_sync(f"{name}:hello")
    assert result.error is not None
    assert result.error.kind in ("UPSTREAM_ERROR", "TOOL_NOT_FOUND")
    for section in ("services", "commands", "channels", "providers", "executors", "namespaces", "profiles"):
        assert host.contributions(section).keys() <= {
            "n8n",
            "python",
            "script",
            "service",
            "skill",
            "workflow",
            "node",
            "system",
            "jobs",
        }
    assert not hooks_of(host, name)
    assert not any(key.startswith(f"extensions.{name}.late") for key in setting_keys(host))


CODE: dict[str, tuple[str, str, str]] = {
    # what: (code, code of the error, what the reason says)
    "an import error": ("import no_such_module_anywhere", "ACTIVATION_FAILED", "pip install"),
    "an error at import": ("\n\n1 / 0", "ACTIVATION_FAILED", "__init__.py:"),
    "a syntax error": ("def broken(:", "ACTIVATION_FAILED", "SyntaxError"),
    "sys.exit at import": ("import sys; sys.exit(3)", "ACTIVATION_FAILED", "sys.exit"),
    "GeneratorExit at import": ("raise GeneratorExit", "ACTIVATION_FAILED", "GeneratorExit"),
    "an error of its own kind": ("class Odd(BaseException): pass\nraise Odd('x')", "ACTIVATION_FAILED", "Odd: x"),
    "CancelledError at import": ("import asyncio; raise asyncio.CancelledError", "ACTIVATION_FAILED", "CancelledError"),
    "an error that cannot be printed": (
        "class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd", "ACTIVATION_FAILED", "Odd"),
    "deep recursion": ("def f(): f()\nf()", "ACTIVATION_FAILED", "RecursionError"),
    "an unknown hook": ("@hookimpl\ndef tavern_chek_call(call): pass", "HOOK_REFUSED", "tavern_check_call"),
    "a wrong argument name": ("@hookimpl\ndef tavern_start(context): pass", "HOOK_REFUSED", "'context'"),
    "variable arguments": ("@hookimpl\ndef tavern_start(*args): pass", "HOOK_REFUSED", "name the arguments"),
    "a generator": ("@hookimpl\ndef tavern_register_tools():\n    yield hello", "HOOK_REFUSED", "instead of yielding"),
    "a pluggy wrapper": (
        "import pluggy\n@pluggy.HookimplMarker('tavern')(wrapper=True)\ndef tavern_start():\n    yield",
        "HOOK_REFUSED", "wrapper"),
    "an old pluggy wrapper": (
        "import pluggy\n@pluggy.HookimplMarker('tavern')(hookwrapper=True)\ndef tavern_start():\n    yield",
        "HOOK_REFUSED", "wrapper"),
    "an undeclared hook": ("@hookimpl\ndef tavern_check_call(call): pass", "HOOK_REFUSED", '- "hook:server:tool:check"'),
    "an undeclared section": ("@hookimpl\ndef tavern_register_commands(): return []", "HOOK_REFUSED", "`commands: ["),
    "tryfirst that is not declared": (
        "@hookimpl(tryfirst=True)\ndef tavern_start(): pass\n@hookimpl(tryfirst=True)\ndef tavern_on_event(event): pass",
        "HOOK_REFUSED", "hook:server:events"),
    "a KeyboardInterrupt at import": ("raise KeyboardInterrupt", "ACTIVATION_FAILED", "KeyboardInterrupt"),
    "a register that interrupts": (
        "@hookimpl\ndef tavern_register_tools():\n    raise KeyboardInterrupt", "ACTIVATION_FAILED", "KeyboardInterrupt"),
    "an async tavern_start that interrupts": (
        "@hookimpl\nasync def tavern_start(): raise KeyboardInterrupt", "ACTIVATION_FAILED", "KeyboardInterrupt"),
    "a register that raises": (
        "@hookimpl\ndef tavern_register_tools():\n    raise KeyError('no')", "ACTIVATION_FAILED", "KeyError"),
    "a register that exits": ("@hookimpl\ndef tavern_register_tools():\n    raise SystemExit", "ACTIVATION_FAILED", "__init__.py:20: RuntimeError: tavern_register_tools raised SystemExit"),
    "a generator that breaks half-way": (
        "def half():\n    yield hello\n    raise ValueError('half')\n"
        "@hookimpl\ndef tavern_register_tools():\n    return half()", "ACTIVATION_FAILED", "half"),
    "a generator that never ends": (
        "import itertools\n@hookimpl\ndef tavern_register_tools():\n    return (hello for _ in itertools.count())",
        "ACTIVATION_FAILED", "generator"),
    "tavern_start that raises": ("@hookimpl\ndef tavern_start(): raise OSError('disk')", "ACTIVATION_FAILED", "disk"),
    "an async tavern_start that raises": (
        "@hookimpl\nasync def tavern_start(): raise OSError('disk')", "ACTIVATION_FAILED", "disk"),
    "two tools of one name": (
        "@tool(name='Hel-lo')\ndef other() -> int: return 1\n@hookimpl\ndef tavern_register_tools(): return [hello, other]",
        "PLUGIN_FAILED", "two tools are called"),
    "a foreign prefix": (
        "@tool(name='good:hello')\ndef other() -> int: return 1\n@hookimpl\ndef tavern_register_tools(): return [hello, other]",
        "ACTIVATION_FAILED", "prefix of another plugin"),
    "a schema that is wrong": (
        "@tool(parameters={'type': 'objekt'})\ndef hello(): pass\n@hookimpl\ndef tavern_register_tools(): return [hello]",
        "ACTIVATION_FAILED", "object"),
    "a fast tool that is async": (
        "@tool(fast=True)\nasync def hello(): pass\n@hookimpl\ndef tavern_register_tools(): return [hello]",
        "ACTIVATION_FAILED", "fast"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("source", ["folder", "installed"])
def test_broken_code_costs_only_its_own_plugin(workshop: Workshop, source: str) -> None:
    names = {f"bad-{number}": what for number, what in enumerate(CODE)}
    for name, what in names.items():
        code = CODE[what][0]
        whole = TOOL + code if "tavern_register_tools" not in code else TOOL.split("@hookimpl")[0] + code
        getattr(workshop, source)(name, whole, START)
    host = workshop.open(Plugin([fine], name="good"))
    for name, what in names.items():
        _, error, reason = CODE[what]
        status = host.plugins[name]
        assert (status.error_code, status.state) == (error, "failed"), (what, status.reason)
        assert reason in status.reason, what
        check_isolated(host, name)
        assert codes(host, name) >= {error}, what
        host.plugins.disable_sync(name)
        assert host.plugins[name].state == "disabled", what


JUNK = ["5", "object()", "'hello'", "b'x'", "{'id': 'hello'}", "{}", "[None]", "[[hello, 3]]", "[hello, 7]", "type", "[type]",
        "lambda: 1", "[lambda: 1]", "hello.__code__", "[print]", "tavern_core", "iter([3])", "[hello, hello, hello]",
        "{'name': 'x', 'execute': 3, 'parameters': {}}", "{'name': 'x', 'execute': print}", "[Exception('x')]",
        "{'name': 'bad name!', 'execute': print, 'parameters': {}}", "float('nan')", "NotImplemented", "(hello,) * 2"]  # fmt: skip


@pytest.mark.slow
def test_whatever_register_tools_returns_the_plugin_fails_with_a_reason(workshop: Workshop) -> None:
    names = {f"bad-{number}": junk for number, junk in enumerate(JUNK)}
    for name, junk in names.items():
        workshop.folder(name, TOOL.replace("[hello]", junk), START)
    host = workshop.open(Plugin([fine], name="good"))
    for name, junk in names.items():
        check_isolated(host, name)
        assert host.plugins[name].error_code in ("ACTIVATION_FAILED", "TOOL_FILE_INVALID", "PLUGIN_FAILED"), junk


REGISTERS = ["executors", "services", "commands", "channels", "providers", "namespaces", "profiles", "settings"]
OTHER_JUNK = [
    "5",
    "'x'",
    "object()",
    "[5]",
    "{'x': 5}",
    "{3: 4}",
    "[[]]",
    "b'x'",
    "[None]",
    "{'x': None}",
    "print",
    "type",
]


@pytest.mark.slow
@pytest.mark.parametrize("section", REGISTERS)
def test_junk_from_any_register_hook_fails_that_plugin_alone(workshop: Workshop, section: str) -> None:
    for number, junk in enumerate(OTHER_JUNK):
        code = f"{TOOL}\n@hookimpl\ndef tavern_register_{section}():\n    return {junk}\n"
        workshop.folder(f"bad-{number}", code, f"{START}{section}: true\n")
    host = workshop.open(Plugin([fine], name="good"))
    for number in range(len(OTHER_JUNK)):
        check_isolated(host, f"bad-{number}")


NOTHING = ["None", "[]", "()", "iter(())"]


@pytest.mark.parametrize("section", ["services", "commands", "channels", "providers", "settings"])
def test_a_register_hook_may_return_nothing(workshop: Workshop, section: str) -> None:
    for number, nothing in enumerate(NOTHING):
        code = f"{TOOL}\n@hookimpl\ndef tavern_register_{section}():\n    return {nothing}\n"
        workshop.folder(f"p{number}", code, f"{START}{section}: true\n")
    host = workshop.open()
    states = {name: (host.plugins[name].state, host.plugins[name].reason) for name in ("p0", "p1", "p2", "p3")}
    assert {state for state, _ in states.values()} == {"active"}, states


MANIFESTS: dict[str, tuple[str, str]] = {
    "empty": ("", "MANIFEST_INVALID"),
    "no mapping": ("- 1\n", "MANIFEST_INVALID"),
    "no name": ('version: "1"\n', "MANIFEST_INVALID"),
    "no version": ("name: bad\n", "MANIFEST_INVALID"),
    "a bad name": ('name: Bad_Name\nversion: "1"\n', "MANIFEST_INVALID"),
    "not YAML": ("name: [\n", "MANIFEST_INVALID"),
    "a key twice": ('name: bad\nname: bad\nversion: "1"\n', "MANIFEST_INVALID"),
    "a python tag": ("name: !!python/object/apply:os.system [x]\n", "MANIFEST_INVALID"),
    "an unknown hook": ('name: bad\nversion: "1"\npermissions: {hooks: ["hook:server:nothing"]}\n', "MANIFEST_INVALID"),
    "tools outside the plugin": ('name: bad\nversion: "1"\ntools: {entry: ../../etc}\n', ""),
    "nodes outside the plugin": ('name: bad\nversion: "1"\nnodes: {entry: /etc/passwd}\n', ""),
    "a host that is too new": ('name: bad\nversion: "1"\nrequires: {host: ">=99"}\n', "DEPENDENCY_UNMET"),
    "a reserved name": ('name: system\nversion: "1"\n', "MANIFEST_INVALID"),
    "the name of a core tool": ('name: get-current-time\nversion: "1"\n', "NAME_CONFLICT"),
    "NUL": ("name: bad\0\n", "MANIFEST_INVALID"),
    "no text": ("\ufffe\x80", "MANIFEST_INVALID"),
}


@pytest.mark.parametrize("what", MANIFESTS)
def test_a_broken_manifest_is_a_row_and_its_code_is_not_imported(workshop: Workshop, what: str) -> None:
    text, code = MANIFESTS[what]
    folder = workshop.folder("bad", TOOL, START)
    (folder / "plugin.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    host = workshop.open(Plugin([fine], name="good"), activate="all")
    [row] = [p for p in host.plugins.values() if p.source == "folder"]
    assert workshop.notes() == [] or not code
    assert not code or (row.state, row.error_code) == ("failed", code)
    assert not code or row.reason
    assert row.findings or row.state == "failed"
    assert host.invoke_sync("good:fine").ok


def test_a_plugin_folder_that_was_configured_and_is_not_there_is_a_warning(tmp_path: Path) -> None:
    def finding(config: dict[str, Any]) -> str:
        with Tavern.open(config, home=tmp_path / "home") as host:
            return reported(host, "PLUGIN_FAILED")

    assert finding({}) == ""
    missing = f"the plugin folder {tmp_path}/pluginz does not exist | create it, or correct plugins.roots"
    assert finding({"plugins": {"roots": [str(tmp_path / "pluginz"), str(tmp_path)]}}).startswith(missing)


@pytest.mark.parametrize(
    ("config", "message", "hint"),
    [
        ({"plugins": {"disable": ["txt"]}}, "plugins.disable: there is no plugin 'txt'", "did you mean 'text'?"),
        ({"plugins": {"disable": ["core-net"]}}, "plugins.disable: 'core-net' is part of the host", "delete core-net"),
        ({"plugins": {"load": ["text", "Text"]}}, "plugins.load: there is no plugin 'Text'", "did you mean 'text'?"),
        (
            {"plugins": {"onFailure": {"x": "open"}}},
            "plugins.onFailure: there is no plugin 'x'",
            "`tavern plugins list`",
        ),
        (
            {"isolation": {"plugins": ["te-xt"]}},
            "isolation.plugins: there is no plugin 'te-xt'",
            "did you mean 'text'?",
        ),
        (
            {"isolation": {"raise": ["read:f"]}},
            "isolation.raise: 'read:f' is not a permission",
            "did you mean 'read:fs'?",
        ),
        ({"isolation": {"raise": ["hook:*"]}}, "isolation.raise: 'hook:*' is not a permission", "docs/permissions.md"),
        ({"limits": {"plugins": {"txt": {}}}}, "limits.plugins: there is no plugin 'txt'", "did you mean 'text'?"),
        (
            {"limits": {"callers": {"usr:x": {}}}},
            "limits.callers.usr:x: the caller 'usr:x' is a principal",
            "write user:<id>",
        ),
    ],
)
def test_an_entry_that_names_no_plugin_permission_or_caller_is_reported(
    workshop: Workshop, config: dict[str, Any], message: str, hint: str
) -> None:
    workshop.folder("text", TOOL, HELLO)
    host = workshop.open(config=config)
    host.tools.list()
    [line] = reported(host, "CONFIG_INVALID").splitlines()
    assert message in line
    assert hint in line.partition(" | ")[2]


def test_entries_that_name_a_plugin_or_a_permission_are_not_reported(workshop: Workshop) -> None:
    workshop.folder("text", TOOL, HELLO)
    known = {
        "plugins": {"disable": ["text"], "load": ["text"], "onFailure": {"text": "open"}},
        "isolation": {
            "plugins": ["text"],
            "raise": ["read:fs", "workflow:before-execute", "service:use:clock", "secrets:key"],
        },
        "limits": {"plugins": {"Text": {}, "core": {}}, "callers": {"user:x": {}, "*": {}}},
    }
    host = workshop.open(config=known)
    host.tools.list()
    assert reported(host, "CONFIG_INVALID") == ""


def test_an_installed_package_without_plugin_yaml_is_failed_and_not_imported(workshop: Workshop) -> None:
    folder = workshop.installed("bad", TOOL)
    (folder / "plugin.yaml").unlink()
    host = workshop.open(activate="all")
    assert host.plugins["bad"].state == "failed"
    assert "plugin.yaml" in host.plugins["bad"].reason
    assert workshop.notes() == []


def test_unknown_keys_are_warnings_with_the_nearest_name(workshop: Workshop) -> None:
    workshop.folder("one", TOOL, f"{HELLO}\ndescripton: x")
    host = workshop.open()
    assert host.invoke_sync("one:hello").ok
    assert any("description" in str(f) for f in host.plugins["one"].findings)


def test_properties_of_an_object_are_never_evaluated() -> None:
    touched = []

    class Trap:
        @property
        def tavern_start(self) -> Any:
            touched.append("property")
            raise AssertionError

        @property
        def anything(self) -> Any:
            touched.append("property")
            raise AssertionError

        def __getattr__(self, name: str) -> Any:
            touched.append(name)
            raise AttributeError(name)

        @hookimpl
        def tavern_register_tools(self) -> Any:
            return [fine]

    with Tavern.open({"plugins": {"entryPoints": False, "roots": []}}, plugins=[Plugin(Trap(), name="trap")]) as host:
        assert host.invoke_sync("trap:fine").value == "fine"
    assert "property" not in touched


class Called:
    """An object that can be called like a function."""

    def __init__(self, marks: Any = None) -> None:
        if marks is not None:
            self.tavern_impl = marks

    def __call__(self, call: Any) -> None:
        raise AssertionError("never called")


def judged(call: Any, why: str = "") -> None:
    """What a gate does."""


MARKS = hookimpl(lambda call: None).tavern_impl
OBJECTS: dict[str, tuple[str, Any, str]] = {
    # name in the plugin, what is there, state of the plugin
    "a marked object": ("tavern_check_call", Called(MARKS), "failed"),
    "a marked object of another name": ("gate", Called({**MARKS, "specname": "tavern_check_call"}), "failed"),
    "a bound part of a marked function": (
        "tavern_check_call",
        functools.partial(hookimpl(lambda why, call: None), "x"),
        "failed",
    ),
    "an object": ("tavern_check_call", Called(), "active"),
    "a bound part of a function": ("tavern_check_call", functools.partial(judged, why="x"), "active"),
    "a function": ("tavern_check_call", judged, "active"),
    "anything that can be called": ("helper", Called(), "active"),
}


@pytest.mark.parametrize("what", OBJECTS)
def test_a_hook_that_is_no_function_is_not_left_out_in_silence(what: str) -> None:
    name, thing, state = OBJECTS[what]
    plugin = Plugin(SimpleNamespace(**{name: thing}), name="odd", manifest={"name": "odd", "version": "1"})
    with Tavern.open(
        {"plugins": {"entryPoints": False, "roots": []}}, plugins=[plugin, Plugin([fine], name="good")]
    ) as host:
        assert host.plugins["odd"].state == state
        if state == "failed":
            assert "hooks are functions or methods" in host.plugins["odd"].reason
        assert ("no @hookimpl" in reported(host, "HOOK_UNMARKED")) is (state == "active" and name != "helper")
        assert host.invoke_sync("good:fine").ok


class Bomb:
    """Asking it for anything that it has not fails."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_an_object_that_answers_no_question_keeps_no_host_from_opening() -> None:
    plugins = [Plugin(Bomb(), name="bomb"), Plugin([fine], name="good")]
    with Tavern.open({"plugins": {"entryPoints": False, "roots": []}}, plugins=plugins) as host:
        assert host.plugins["bomb"].state == "active"
        assert host.invoke_sync("good:fine").ok


def test_a_hook_without_its_decorator_is_pointed_out(workshop: Workshop) -> None:
    workshop.folder("one", TOOL + "\ndef tavern_check_call(call): pass\n", START)
    assert "write @hookimpl above it" in reported(workshop.open(), "HOOK_UNMARKED")


def test_a_reserved_hook_is_a_diagnostic(workshop: Workshop) -> None:
    workshop.folder("one", TOOL + "\n@hookimpl\ndef tavern_register_routes(): return []\n", START)
    host = workshop.open()
    assert host.plugins["one"].state == "active"
    assert "tavern_register_routes" in reported(host, "HOOK_RESERVED")


HANGING: dict[str, str] = {
    "tavern_register_tools": "@hookimpl\ndef tavern_register_tools():\n    release()\n    return [hello]\n",
    "an async register": "@hookimpl\nasync def tavern_register_tools():\n    await never()\n",
    "tavern_start": "@hookimpl\ndef tavern_start():\n    release()\n",
    "an async tavern_start": "@hookimpl\nasync def tavern_start():\n    await never()\n",
    "the start of a service": "@hookimpl\ndef tavern_register_services():\n    return [Service('late', object(), start=release)]\n",
    "the async start of a service": "@hookimpl\ndef tavern_register_services():\n    return [Service('late', object(), start=never)]\n",
}  # fmt: skip
HANG = """
import asyncio, threading
from tavern_core.contract.protocols import Service
gate = threading.Event()
def release(): gate.wait(20)
async def never(): await asyncio.Event().wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", HANGING)
def test_a_plugin_that_hangs_while_it_is_activated_fails_within_the_time_limit(workshop: Workshop, what: str) -> None:
    code = HANGING[what]
    head = TOOL.split("@hookimpl")[0] if "tavern_register_tools" in code else TOOL
    workshop.folder("bad", HANG + head + code, f"{START}services: true\n")
    host = workshop.open(Plugin([fine], name="good"), config={"limits": {"hookTimeoutMs": 100}})
    assert "took longer than 0.1 s" in host.plugins["bad"].reason
    check_isolated(host, "bad")


def test_an_async_register_is_awaited(workshop: Workshop) -> None:
    workshop.folder("one", TOOL.replace("def tavern_register", "async def tavern_register"), START)
    assert ids(workshop.open()) == ["one:hello"]


SERVICES = """
from tavern_core.contract.protocols import Service, Command, Contribution
from tavern_core import SettingItem

class Clock:
    def __init__(self, name): self.name = name
    def start(self):
        note("start " + self.name)
        if self.name == BAD: raise OSError("no clock")
    def stop(self): note("stop " + self.name)

def service(name):
    clock = Clock(name)
    return Service(name, clock, start=clock.start, stop=clock.stop)

@hookimpl
def tavern_register_services(): return [service("a"), service("b"), service("c")]

@hookimpl
def tavern_register_channels(): return [Contribution("channel")]

@hookimpl
def tavern_register_commands(): return [Command("greet", lambda: None)]

@hookimpl
def tavern_register_settings(): return [SettingItem(key="extensions.bad.late", type="string")]

@hookimpl
def tavern_on_event(event): pass

@hookimpl
def tavern_stop(): note("tavern_stop")
"""
EVERYTHING = """
start: true
services: true
channels: true
commands: true
settings: true
permissions: {hooks: ["hook:server:events"]}
"""


@pytest.mark.slow
def test_a_service_that_does_not_start_takes_everything_back(workshop: Workshop) -> None:
    workshop.folder("bad", TOOL + "BAD = 'b'\n" + SERVICES, HELLO + EVERYTHING)
    workshop.grant("bad")
    host = workshop.open(Plugin([fine], name="good"))
    assert workshop.notes() == ["import bad", "start a", "start b", "stop b", "stop a"]
    assert "no clock" in host.plugins["bad"].reason
    check_isolated(host, "bad")


@pytest.mark.slow
def test_tavern_start_that_fails_stops_the_services_again(workshop: Workshop) -> None:
    code = "BAD = ''\n" + SERVICES + "\n@hookimpl\ndef tavern_start(): raise OSError('late')\n"
    workshop.folder("bad", TOOL + code, HELLO + EVERYTHING)
    workshop.grant("bad")
    host = workshop.open(Plugin([fine], name="good"))
    assert workshop.notes()[-3:] == ["stop c", "stop b", "stop a"]
    check_isolated(host, "bad")


def test_a_failed_plugin_stays_failed_until_an_explicit_change(workshop: Workshop) -> None:
    folder = workshop.folder("bad", TOOL + "1 / 0", HELLO)
    host = workshop.open()
    for _ in range(3):
        assert "division" in host.invoke_sync("bad:hello").error.message
    assert workshop.notes() == ["import bad"]
    workshop.folder("other", TOOL, HELLO)
    host.plugins.disable_sync("bad")
    host.plugins.enable_sync("bad")  # judged again: it may try once more
    assert host.plugins["bad"].state == "granted"
    assert "division" in host.invoke_sync("bad:hello").error.message
    (folder / "__init__.py").write_text(workshop.module(TOOL))
    assert host.plugins.reload_sync("bad").state in ("granted", "active")
    assert host.invoke_sync("bad:hello").value == "hello World"
    assert "ACTIVATION_FAILED" not in codes(host, "bad")


def test_a_failed_plugin_is_still_failed_after_others_change(workshop: Workshop) -> None:
    workshop.folder("bad", TOOL + "1 / 0", START)
    workshop.folder("other", TOOL, HELLO)
    host = workshop.open()
    assert host.plugins["bad"].state == "failed"
    host.plugins.disable_sync("other")
    host.plugins.enable_sync("other")
    host.wait(host.refresh())
    assert host.plugins["bad"].state == "failed"
    assert "division" in host.plugins["bad"].reason


def test_a_plugin_that_fails_with_the_host_open_in_a_running_loop_is_isolated_too(workshop: Workshop) -> None:
    import asyncio

    workshop.folder("bad", "raise SystemExit", START)
    workshop.folder("one", TOOL, HELLO)

    async def go() -> None:
        async with workshop.made() as host:
            assert host.plugins["bad"].state == "failed"
            assert (await host.invoke("one:hello")).value == "hello World"

    asyncio.run(go())


def test_a_broken_tool_file_hides_no_other(workshop: Workshop) -> None:
    folder = workshop.folder("one", None, "tools: {entry: tools}", tools__a="")
    good = '{"id": "%s", "parameters": {"type": "object"}, "implementation": {"type": "script", "command": ["python", "run.py"]}}'
    (folder / "tools" / "a.tool.json").write_text("{")
    (folder / "tools" / "b.tool.json").write_text(good % "b")
    (folder / "run.py").write_text("print('{}')")
    host = workshop.open(activate="all")
    assert ids(host) == ["one:b"]
    assert host.plugins["one"].state == "active"
    assert any("a.tool.json" in str(f) for f in host.plugins["one"].findings)


@pytest.mark.slow
def test_sixty_plugins_with_six_broken_leave_fifty_four(workshop: Workshop) -> None:
    kinds = list(CODE)
    for number in range(60):
        broken = number % 10 == 3
        code = CODE[kinds[number % len(kinds)]][0]
        text = (TOOL if "tavern_register_tools" not in code else TOOL.split("@hookimpl")[0]) + code if broken else TOOL
        workshop.folder(f"p{number}", dedent(text), START)
    host = workshop.open()
    states = [host.plugins[f"p{n}"].state for n in range(60)]
    assert (states.count("active"), states.count("failed")) == (54, 6)
    assert all(host.plugins[f"p{n}"].reason for n in range(3, 60, 10))
    assert threading.active_count() < 50
