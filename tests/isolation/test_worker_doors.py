"""What a plugin in a worker reaches of the host, and the host of it: services both ways, settings, secrets, its folder, commands."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

import pytest

from tavern_core import Plugin, Service, Tavern, ToolFailed, hookimpl
from tavern_core.__main__ import main

from ..host.workshop import Workshop, reported

pytestmark = pytest.mark.slow

SERVED = '''
import os
from tavern_core import Service, hookimpl, read_only, tool

class Clock:
    """A clock."""
    def __init__(self): self.calls, self.state = 0, []
    @read_only
    def now(self, zone: str = "UTC") -> str:
        self.calls += 1
        return f"{zone} {self.calls}"
    async def later(self, *words, **more): return [list(words), more]
    def fails(self): raise ValueError("no time")
    def raw(self): return object()
    def pid(self): return os.getpid()
    def _secret(self): return "private"
    wound = "an attribute"

CLOCK = Clock()

async def start(): CLOCK.state.append("started")
def stop(): CLOCK.state.append("stopped")

@tool
def state() -> list[str]:
    """State."""
    return CLOCK.state

@hookimpl
def tavern_register_tools(): return [state]

@hookimpl
def tavern_register_services(ctx):
    return [Service("clock", CLOCK, start=start, stop=stop, description="Tells the time")]
'''
SERVES = "services: [clock]\ntools: [{id: state, implementation: {type: python}}]\nisolation: process"

USES = '''
from types import MappingProxyType
from tavern_core import hookimpl, tool
CTX = None

@tool
def use(service: str, method: str, args: list = [], kwargs: dict = {}):
    """Use a service."""
    return getattr(CTX.service(service), method)(*args, **kwargs)

@tool
async def use_later(service: str, method: str, args: list = [], kwargs: dict = {}):
    """Use an async method."""
    return await getattr(CTX.service(service), method)(*args, **kwargs)

@tool
def pass_on(what: str):
    """Pass what is nearly JSON to a service."""
    value = {"tuple": (1, (2,)), "read-only": MappingProxyType({"a": (1,)}), "bytes": {"deep": (b"x",)}}[what]
    return CTX.service("echo").same(value)

@tool
def look(service: str):
    """Look at a view."""
    view = CTX.service(service)
    return [repr(view), sorted(n for n in dir(view) if not n.startswith("__")), type(view).__doc__]

@hookimpl
def tavern_register_tools(ctx):
    global CTX
    CTX = ctx
    return [use, use_later, look, pass_on]
'''
USER = "tools: [{id: use, implementation: {type: python}}, {id: use_later, implementation: {type: python}}, {id: look, implementation: {type: python}}, {id: pass_on, implementation: {type: python}}]"


class Greeter:
    """Greets."""

    def greet(self, name: str) -> str:
        return f"hello {name}"

    async def later(self, name: str) -> str:
        await asyncio.sleep(0)
        return f"later {name}"

    def fails(self) -> None:
        raise KeyError("greet")

    def raw(self) -> object:
        return object()


class InHost:
    """A plugin of the program itself that offers a service."""

    @hookimpl
    def tavern_register_services(self) -> list[Service]:
        return [Service("greeter", Greeter(), description="Greets people"), Service("other", Greeter())]


def value(host: Tavern, tool: str, **arguments: Any) -> Any:
    result = host.invoke_sync(tool, arguments)
    assert result.ok, result.error
    return result.value


def test_a_service_of_a_worker_is_one_of_the_host(workshop: Workshop) -> None:
    workshop.folder("clocks", None, SERVES)
    (workshop.plugins / "clocks" / "__init__.py").write_text(SERVED)
    host = workshop.open()
    assert value(host, "clocks:state") == ["started"]
    clock = host.services["clock"].object
    assert [clock.now(), clock.now("CET"), clock.now(zone="X")] == ["UTC 1", "CET 2", "X 3"]
    assert asyncio.run(clock.later(1, a=[2])) == [[1], {"a": [2]}]
    assert clock.pid() != os.getpid()
    assert not hasattr(clock, "_secret")
    assert not hasattr(clock, "wound")
    with pytest.raises(ValueError, match="no time"):
        clock.fails()
    with pytest.raises(ToolFailed, match="cannot cross"):
        clock.raw()
    with pytest.raises(ToolFailed, match="cannot cross"):
        clock.now(object())


@pytest.mark.slow
def test_a_worker_uses_services_of_the_host_and_of_other_workers(workshop: Workshop) -> None:
    workshop.folder("clocks", None, SERVES)
    (workshop.plugins / "clocks" / "__init__.py").write_text(SERVED)
    workshop.folder(
        "user", None, f"{USER}\nisolation: process\npermissions: {{services: {{use: [clock], write: [greeter]}}}}"
    )
    (workshop.plugins / "user" / "__init__.py").write_text(USES)
    workshop.grant("user")
    host = workshop.open(Plugin(InHost(), name="greeting"))
    assert value(host, "user:use", service="greeter", method="greet", args=["Ann"]) == "hello Ann"
    assert value(host, "user:use_later", service="greeter", method="later", kwargs={"name": "Bob"}) == "later Bob"
    assert value(host, "user:use", service="clock", method="now", args=["CET"]) == "CET 1"
    assert value(host, "user:look", service="greeter") == [
        "<view of service 'greeter'>",
        ["fails", "greet", "later", "raw"],
        "Greets people",
    ]
    refused = {
        ("greeter", "fails"): ("UPSTREAM_ERROR", "KeyError: 'greet'"),
        ("greeter", "raw"): ("TOOL_ERROR", "cannot pass a view"),
        ("greeter", "_x"): ("UPSTREAM_ERROR", "is private"),
        ("greeter", "absent"): ("UPSTREAM_ERROR", "is not published; published: fails, greet, later, raw"),
        ("clock", "later"): ("POLICY_DENIED", "service:write:clock is not declared and granted"),
        ("other", "greet"): ("POLICY_DENIED", "service:use:other is not declared and granted"),
        ("nowhere", "greet"): ("TOOL_ERROR", "there is no service 'nowhere'"),
    }
    for (service, method), (kind, text) in refused.items():
        error = host.invoke_sync("user:use", {"service": service, "method": method}).error
        assert error is not None
        assert error.kind == kind, (service, method, error)
        assert text in error.message


ECHO = '''
from tavern_core import Service, hookimpl

class Echo:
    """Says the same, frozen."""
    def same(self, value): return (value, b"x") if value == "bytes" else (value,)

@hookimpl
def tavern_register_services(): return [Service("echo", Echo())]
'''


@pytest.mark.parametrize("tiers", [("none", "none"), ("process", "none"), ("none", "process"), ("process", "process")])
def test_the_same_values_pass_a_service_in_every_tier(workshop: Workshop, tiers: tuple[str, str]) -> None:
    rights = "permissions: {services: {write: [echo]}}"
    (workshop.folder("user", None, f"{USER}\nisolation: {tiers[0]}\n{rights}") / "__init__.py").write_text(USES)
    (workshop.folder("echo", None, f"services: [echo]\nisolation: {tiers[1]}") / "__init__.py").write_text(ECHO)
    workshop.grant("user")
    host = workshop.open()
    assert "mark them in Echo with @read_only" in reported(host, "SERVICE_UNMARKED")
    assert value(host, "user:pass_on", what="tuple") == [[1, [2]]]
    assert value(host, "user:pass_on", what="read-only") == [{"a": [1]}]
    argument = host.invoke_sync("user:pass_on", {"what": "bytes"}).error
    answer = host.invoke_sync("user:use", {"service": "echo", "method": "same", "args": ["bytes"]}).error
    assert argument is not None
    assert answer is not None
    assert (argument.kind, argument.outcome) == ("TOOL_ERROR", "none")
    assert "/deep/0: bytes is not JSON" in argument.message
    assert (answer.kind, answer.outcome) == ("TOOL_ERROR", "done")
    assert "/1: bytes is not JSON" in answer.message


SETTINGS = '''
import os, tempfile
from tavern_core import hookimpl, tool
CTX, SEEN = None, []

@tool
def config(option: str = ""):
    """Reads a setting, or all."""
    return CTX.get_config(option) if option else dict(CTX.plugin_config)

@tool
def seen() -> list:
    """What was told."""
    return SEEN

@tool
def secret(name: str) -> str:
    """Names the length of a secret."""
    return str(len(CTX.secret(name)))

@tool
def leak(name: str) -> str:
    """Logs and shows a secret."""
    print("printed", CTX.secret(name), flush=True)
    CTX.logger.warning("logged %s", CTX.secret(name))
    return CTX.secret(name)

@tool
def facts():
    """The context."""
    return [CTX.id, CTX.name, CTX.version, CTX.description, CTX.source, dict(CTX.config), CTX.runtime.safe_mode, str(CTX.folder), str(CTX.data_dir)]

@tool
def keep(text: str) -> str:
    """Writes into the own folder."""
    (CTX.data_dir / "kept.txt").write_text(text)
    with tempfile.NamedTemporaryFile("w+") as file:
        file.write("temporary")
    return (CTX.data_dir / "kept.txt").read_text()

@hookimpl
def tavern_register_tools(ctx):
    global CTX
    CTX = ctx
    ctx.on_config_change("number", lambda value: SEEN.append(value))
    ctx.on_config_change("bad", lambda value: 1 / 0)
    return [config, seen, secret, leak, facts, keep]
'''
SET = """
displayName: Set
description: A description
tools: [{id: config, implementation: {type: python}}, {id: seen, implementation: {type: python}}, {id: secret, implementation: {type: python}},
        {id: leak, implementation: {type: python}}, {id: facts, implementation: {type: python}}, {id: keep, implementation: {type: python}}]
configOptions:
  - {key: extensions.p.number, type: number, defaultValue: 1}
  - {key: extensions.p.bad, type: string, defaultValue: a}
permissions: {capabilities: ["secrets:token"]}
isolation: process
"""


def a_host_with_settings(workshop: Workshop) -> Tavern:
    folder = workshop.folder("p", None, SET)
    (folder / "__init__.py").write_text(SETTINGS)
    workshop.grant("p")
    secrets = {"token": "canary-3141592653", "other": "canary-2718281828"}
    return workshop.open(config={"secrets": secrets, "config": {"free": [1]}})


@pytest.mark.slow
def test_settings_secrets_and_the_folder_are_the_plugins_own(
    workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    host = a_host_with_settings(workshop)
    assert value(host, "p:config", option="number") == 1
    assert value(host, "p:config") == {"extensions.p.number": 1, "extensions.p.bad": "a"} or value(
        host, "p:config"
    ) == {"number": 1, "bad": "a"}
    host.settings.save({"extensions.p.number": 5, "extensions.p.bad": "b"})
    assert value(host, "p:seen") == [5]
    assert value(host, "p:config", option="extensions.p.number") == 5
    assert "ZeroDivisionError" in " ".join(d.message for d in host.diagnostics)
    assert value(host, "p:secret", name="token") == "17"
    refused = host.invoke_sync("p:secret", {"name": "other"}).error
    assert refused is not None
    assert (refused.kind, "secrets:other is not declared and granted" in refused.message) == ("POLICY_DENIED", True)
    wrong = host.invoke_sync("p:config", {"option": "extensions.q.number"}).error
    assert wrong is not None
    assert "its own settings only" in wrong.message
    assert value(host, "p:leak", name="token") == "***"
    facts = value(host, "p:facts")
    assert facts == [
        "p", "Set", "1.0", "A description", "folder", {"free": [1]}, False, str(workshop.plugins / "p"), str(workshop.home / "data" / "p"),
    ]  # fmt: skip
    assert value(host, "p:keep", text="中") == "中"
    assert (workshop.home / "data" / "p" / "kept.txt").read_text() == "中"
    workshop.close(host)
    assert "canary" not in caplog.text
    assert "logged ***" in caplog.text
    for file in workshop.home.rglob("*"):
        assert not file.is_file() or "canary" not in file.read_text(errors="replace"), file


COMMANDS = '''
import sys
import click
from tavern_core import Command, hookimpl

def build():
    @click.command()
    @click.argument("name")
    @click.option("--times", default=1)
    def greet(name, times):
        """Greet somebody."""
        for _ in range(times):
            click.echo(f"hello {name}")
        print("to stderr", file=sys.stderr)
        if name == "nobody":
            sys.exit(3)
    return greet

@hookimpl
def tavern_register_commands(ctx):
    return [Command("greet", build, "Greets"), Command("broken", lambda: 3)]
'''


@pytest.mark.parametrize(
    ("arguments", "code", "out"),
    [
        (["greet", "Ann", "--times", "2"], 0, "hello Ann\nhello Ann\n"),
        (["greet", "nobody"], 3, "hello nobody\n"),
        (["greet", "--help"], 0, "Usage: tavern greet [OPTIONS] NAME"),
        (["greet"], 2, "Missing argument 'NAME'"),
        (["broken"], 4, "not a click command"),
    ],
)
def test_commands_run_in_the_worker(
    workshop: Workshop,
    arguments: list[str],
    code: int,
    out: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = workshop.folder("p", None, "commands: [greet, broken]\nisolation: process")
    (folder / "__init__.py").write_text(COMMANDS)
    (workshop.root / "tavern.yaml").write_text("plugins: {entryPoints: false}\n")
    monkeypatch.chdir(workshop.root)
    came_to = main(["--home", str(workshop.home), *arguments])
    printed = "".join(capfd.readouterr())
    assert (came_to, out in printed) == (code, True), printed


CANNOT = {
    "executors": (
        "executors: [x]",
        "class E:\n    def bind(self, tool, home): pass\n@hookimpl\ndef tavern_register_executors(ctx): return {'x': E()}",
    ),
    "namespaces": (
        "namespaces: [shop]",
        "class R:\n    def resolve(self, local): pass\n    def names(self): return []\n@hookimpl\ndef tavern_register_namespaces(ctx): return {'shop': R()}",
    ),
    "channels": ("channels: [c]", "@hookimpl\ndef tavern_register_channels(ctx): return [Contribution('c', print)]"),
    "providers": ("providers: [q]", "@hookimpl\ndef tavern_register_providers(ctx): return {'q': object()}"),
}


@pytest.mark.slow
def test_what_cannot_cross_fails_the_plugin_and_names_the_section(workshop: Workshop) -> None:
    for section, (manifest, code) in CANNOT.items():
        folder = workshop.folder(section, None, f"{manifest}\nstart: true\nisolation: process")
        (folder / "__init__.py").write_text(f"from tavern_core import Contribution, hookimpl\n{code}\n")
    host = workshop.open()
    for section in CANNOT:
        status = host.plugins[section]
        assert (status.state, status.error_code) == ("failed", "ACTIVATION_FAILED"), section
        assert f"{section}: an isolated plugin cannot offer" in status.reason


def test_data_that_can_cross_does(workshop: Workshop) -> None:
    folder = workshop.folder(
        "p", None, "channels: [c]\nprofiles: [writer]\nsettings: [x]\nstart: true\nisolation: process"
    )
    (folder / "__init__.py").write_text("""
from tavern_core import Contribution, hookimpl
@hookimpl
def tavern_register_channels(ctx): return [Contribution("c", {"url": "x"}, "A channel", {"n": 1})]
@hookimpl
def tavern_register_profiles(ctx): return [{"name": "writer", "tool_ids_inventory": ["p:x"]}]
@hookimpl
def tavern_register_settings(ctx): return [{"key": "extensions.p.x", "type": "number", "defaultValue": 7}]
""")
    host = workshop.open()
    assert host.plugins["p"].state == "active", host.plugins["p"].reason
    assert host.settings.get("extensions.p.x") == 7
    found = host.contribution("channels", "c") if hasattr(host, "contribution") else None
    assert found is None or (found.object, dict(found.data)) == ({"url": "x"}, {"n": 1})


def test_an_object_of_the_program_cannot_be_isolated(workshop: Workshop) -> None:
    host = workshop.open(
        Plugin(InHost(), manifest={"name": "inside", "isolation": "process", "services": ["greeter", "other"]})
    )
    status = host.plugins["inside"]
    assert (status.state, "an object of this program" in status.reason) == ("failed", True)


MARKS = [("now", "use", True), ("later", "use", False), ("now", "write", True), ("later", "write", True)]


@pytest.mark.slow
@pytest.mark.parametrize("isolated", [False, True])
def test_service_tools_follow_the_marks_on_both_sides_of_a_process(workshop: Workshop, isolated: bool) -> None:
    workshop.folder("clocks", None, SERVES)
    (workshop.plugins / "clocks" / "__init__.py").write_text(SERVED)
    own = "\nisolation: process" if isolated else ""
    for method, right, _ in MARKS:
        user = f"{right}-{method}"
        tool_ = f"{{id: ask, description: Ask., implementation: {{type: service, service: clock, method: {method}}}, parameters: {{type: object, properties: {{}}}}}}"
        workshop.folder(user, None, f"tools: [{tool_}]\npermissions: {{services: {{{right}: [clock]}}}}{own}")
        (workshop.plugins / user / "__init__.py").write_text("")
        workshop.grant(user)
    host = workshop.open()
    for method, right, may in MARKS:
        result = host.invoke_sync(f"{right}-{method}:ask", {})
        if may:
            assert result.ok, result.error
        else:
            assert result.error is not None
            assert (result.error.kind, result.error.details["missing"]) == ("POLICY_DENIED", ["service:write:clock"])
            assert "clocks writes @read_only above it" in result.error.fix
