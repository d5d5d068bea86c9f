"""Whose a tool or plugin is: a fact that the host keeps, and never a matter of how something is spelt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tavern_core import Plugin, ToolSpec, hookimpl, tool
from tavern_core.errors import NameConflict, TavernError
from tests.rows import row

from .conftest import Opened, tools
from .workshop import HELLO, TOOL, Workshop

CODE, CLOCK, FLOW = "CodeInterpreter:execute", "system:get_current_time", "workflow:echo"
PLUGIN, DOTTED = "p:hello", "p:core.x"
OWN = {CODE, CLOCK, FLOW}


@tool(fast=True)
def hello() -> str:
    return "hello"


@tool(name="core.x", fast=True)
def dotted() -> str:
    return "dotted"


@pytest.fixture
def flows(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "echo.json").write_text('{"name": "Echo", "description": "Nothing.", "nodes": [], "edges": []}')
    return {"workflows": {"roots": [str(tmp_path)]}}


USABLE: list[tuple[dict[str, Any], set[str]]] = [
    ({}, {CLOCK, FLOW, PLUGIN, DOTTED}),
    ({"allow": ["group:plugins"]}, {CLOCK, FLOW, PLUGIN, DOTTED}),
    ({"allow": ["core"]}, {CODE, CLOCK, FLOW, PLUGIN, DOTTED}),
    ({"only": ["group:plugins"]}, {PLUGIN, DOTTED}),
    ({"only": ["core"]}, {CLOCK, FLOW}),
    ({"deny": ["group:plugins"]}, {CLOCK, FLOW}),
    ({"deny": ["core"]}, {PLUGIN, DOTTED}),
    ({"deny": ["core-*"]}, {CLOCK, FLOW, PLUGIN, DOTTED}),
    ({"allow": ["group:mine"], "groups": {"mine": ["group:plugins"]}}, {CLOCK, FLOW, PLUGIN, DOTTED}),
    ({"callers": {"host": {"allow": ["group:plugins"]}}}, {PLUGIN, DOTTED}),
    ({"callers": {"host": {"allow": ["core"]}}}, {CLOCK, FLOW}),
    ({"callers": {"host": {"deny": ["group:plugins"]}}}, {CLOCK, FLOW}),
    ({"callers": {"host": {"deny": ["core"]}}}, {PLUGIN, DOTTED}),
]


@pytest.mark.parametrize(("lists", "usable"), USABLE)
def test_lists_of_plugins_say_nothing_about_the_hosts_own_tools(
    opened: Opened, flows: dict[str, Any], lists: dict[str, Any], usable: set[str]
) -> None:
    config = {**flows, **({"tools": lists} if "callers" not in lists else lists)}
    host = opened(tools(hello, dotted, name="p"), config=config)
    known = OWN | {PLUGIN, DOTTED}
    assert {spec.id for spec in host.tools.list()} == usable
    assert {id_ for id_ in known if host.tools.why(id_).visible} == usable
    refused = {i for i in known if (e := host.invoke_sync(i).error) is not None and e.kind == "POLICY_DENIED"}
    assert refused == known - usable


def test_approval_of_plugins_says_nothing_about_the_hosts_own_tools(opened: Opened) -> None:
    host = opened(tools(hello, name="p"), config={"approval": {"ask": ["group:plugins"]}})
    assert host.invoke_sync(CLOCK).ok
    refused = host.invoke_sync(PLUGIN).error
    assert refused is not None and refused.kind == "APPROVAL_REQUIRED"


def test_the_groups_of_lists_can_be_asked_for(opened: Opened, flows: dict[str, Any]) -> None:
    groups = {"clocks": ["system"], "all": ["group:clocks", "group:plugins"], "none": ["nothing"]}
    host = opened(tools(hello, dotted, name="p"), config={**flows, "tools": {"groups": groups}})
    found = host.tool_groups()
    assert found == host.tools.tool_groups()
    assert found.all == ("p:core.x", "p:hello")
    assert found.by_plugin == {"p": ("p:core.x", "p:hello")}
    assert found.named == {"clocks": (CLOCK,), "all": ("p:core.x", "p:hello", CLOCK), "none": ()}
    assert found.to_json()["byPlugin"] == {"p": ["p:core.x", "p:hello"]}


RESERVED = [
    "core",
    "system",
    "kb",
    "workflow",
    "jobs",
    "skill",
    "code-interpreter",
    "core-evil",
    "core-system",
]


@pytest.mark.parametrize("names", [RESERVED, ["codeinterpreter"]], ids=["most", "one that reads like another"])
def test_no_plugin_has_a_name_of_the_host(workshop: Workshop, names: list[str]) -> None:
    for name in names:
        workshop.folder(name, TOOL, HELLO)
    host = workshop.open(*(Plugin([hello], name=f"{name}-2") for name in names))
    for name in names:
        if name == "core-system":  # there is one of this name, and it is the host's
            assert host.plugins[name].source == "builtin"
        else:
            status = host.plugins[name]
            assert (status.state, "reserved" in status.reason) == ("failed", True), name
        assert (host.plugins[f"{name}-2"].state == "failed") is name.startswith("core"), name
    assert workshop.notes() == []
    with pytest.raises(NameConflict, match="reserved"):
        host.tools.register(hello, plugin="core-other")


class Pages:
    """Resolves every name of a namespace."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def resolve(self, local: str) -> ToolSpec:
        return ToolSpec(f"{self.prefix}:{local}", impl=lambda: local)

    def names(self) -> list[str]:
        return ["page"]

    @hookimpl
    def tavern_register_namespaces(self) -> Any:
        return {self.prefix: self}


NAMESPACE = """
class Pages:
    def resolve(self, local):
        return ToolSpec("{0}:" + local, impl=lambda: local)
    def names(self):
        return ["page"]

@hookimpl
def tavern_register_namespaces(ctx):
    return {{"{0}": Pages()}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_declared", [True, False])
def test_a_namespace_of_the_host_is_provided_by_no_plugin_that_was_found(workshop: Workshop, is_declared: bool) -> None:
    prefixes = ["kb", "skill", "CodeInterpreter", "core", "system", "jobs", "KB", "code_interpreter"]
    for n, prefix in enumerate(prefixes):
        workshop.folder(f"books-{n}", NAMESPACE.format(prefix), f"namespaces: [{prefix if is_declared else ''}]")
    host = workshop.open()
    for n, prefix in enumerate(prefixes):
        result = host.invoke_sync(f"{prefix}:page")
        assert result.error is not None and result.error.kind == "TOOL_NOT_FOUND", prefix
        with row(prefix), pytest.raises(TavernError) as refused:
            host.wait(host.plugins.activate(f"books-{n}"))
        assert f"namespace {prefix!r} is reserved" in refused.value.message
        assert "reserved" in host.plugins[f"books-{n}"].reason, prefix


@pytest.mark.parametrize("manifest", [None, {"namespaces": ["kb"]}])
def test_an_object_of_the_program_provides_knowledge(opened: Opened, manifest: Any) -> None:
    host = opened(Plugin(Pages("kb"), name="books", manifest=manifest))
    assert host.invoke_sync("kb:page").value == "page"
    profile = {"name": "reader", "tool_ids_inventory": ["kb:page"]}
    assert [spec.id for spec in host.tools.list(profile)] == ["kb:page"]
