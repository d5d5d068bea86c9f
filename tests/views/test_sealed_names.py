"""What is handed to plugins answers to its own names only: no other name, and none that says two things, leads behind it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tavern_core import NodeContext, Plugin, Tavern, ToolSpec, hookimpl, node, read_only
from tavern_core.contract.protocols import BoundTool, Service
from tavern_core.errors import PolicyDenied


class Forked(str):
    """Text that is one name to whoever asks it, and another to whoever looks something up by it."""

    said: str

    def __new__(cls, said: str, meant: str) -> Forked:
        self = super().__new__(cls, meant)
        self.said = said
        return self

    def __eq__(self, other: object) -> bool:
        return other in (self.said, str.__str__(self))

    def __hash__(self) -> int:
        return hash(self.said)

    def __str__(self) -> str:
        return self.said

    def __format__(self, spec: str) -> str:
        return self.said

    def startswith(self, *_: Any) -> bool:  # type: ignore[override]
        return False


class Store:
    @read_only
    def fetch(self) -> str:
        return "kept"


class Vault(Store):
    """Nobody was granted this one."""


STORE, VAULT = Store(), Vault()


class Owner:
    @hookimpl
    def tavern_register_services(self) -> Any:
        return [Service("store", STORE), Service("vault", VAULT)]


NAMES: dict[str, tuple[Any, ...]] = {
    "a slot": ("run",),
    "a private method": ("_ask", 1, {}, ""),
    "a slot by its look-up": ("__getattribute__", "run"),
    "its state": ("__getstate__",),
    "its reduction": ("__reduce_ex__", 2),
    "its older reduction": ("__reduce_ex__", 0),
    "its class": ("__class__", 1, 2, 3, 4),
    "its attributes": ("__dir__",),
    "a name that says two things": (Forked("path", "__dir__"),),
    "another name that says two things": (Forked("path", "__getattribute__"), "run"),
    "an assignment": ("__setattr__", "number", 0),
    "no text": (object(),),
}


@pytest.mark.parametrize("what", NAMES)
def test_a_node_reaches_nothing_behind_its_context_by_any_name(tmp_path: Path, what: str) -> None:
    found: list[Any] = []

    @node
    def Look(ctx: NodeContext) -> str:
        """Look behind."""
        try:
            found.append(ctx._behind(*NAMES[what]))  # type: ignore[attr-defined]
        except (AttributeError, TypeError) as error:
            found.append(error)
        return ctx.path

    class Looker:
        @hookimpl
        def tavern_register_nodes(self) -> Any:
            return [Look]

    with Tavern.open(
        {"plugins": {"entryPoints": False}}, plugins=[Plugin(Looker(), name="looker")], home=tmp_path, activate="all"
    ) as host:
        result = host.workflows.run_sync({"nodes": [{"id": "a", "type": "looker:Look"}], "edges": []})
        assert result.outputs == {"a": {"result": "a"}}
    assert isinstance(found[0], AttributeError | TypeError | str), found
    assert found[0] == "a" or not isinstance(found[0], str)


HOMES: dict[str, Callable[[Any], Any]] = {
    # what an executor of somebody else tries with what it is told of a tool
    "a private part of the box": lambda home: home.sandbox._look("_policy"),
    "a private part by a name that says two things": lambda home: home.sandbox._look(Forked("level", "__class__")),
    "the class of the engine": lambda home: home.engine.__getattr__("__class__"),
    "a part that says two things": lambda home: home.engine._look(Forked("run_node", "__getattribute__")),
    "a service that was not granted": lambda home: home.service("vault"),
    "a service by a name that says two things": lambda home: home.service(Forked("store", "vault")),
    "the settings of another tool": lambda home: home.settings(tool="other"),
    "the settings of a tool in place of those of the plugin": lambda home: home.plugin_settings("other"),
    "a service by its other name": lambda home: home.service(Forked("vault", "store")).fetch() == "kept" and None,
}


@pytest.mark.parametrize("what", HOMES)
def test_an_executor_reaches_nothing_that_the_plugin_of_its_tool_was_not_granted(tmp_path: Path, what: str) -> None:
    tried: list[Any] = []

    class Runner:
        def bind(self, tool: Any, home: Any) -> Any:
            def run(arguments: Any, call: Any) -> Any:
                try:
                    tried.append(HOMES[what](home))
                except (PolicyDenied, AttributeError, TypeError) as error:
                    tried.append(error)
                return home.service("store").fetch()

            return BoundTool(run, is_async=False)

        @hookimpl
        def tavern_register_executors(self) -> Any:
            return {"odd": self}

        @hookimpl
        def tavern_register_tools(self) -> Any:
            return [ToolSpec("runner:go", kind="odd")]

    manifest = {"name": "runner", "version": "1", "executors": ["odd"], "permissions": {"services": {"use": ["store"]}}}
    tools = [{"id": "go", "implementation": {"type": "odd"}}]
    with Tavern.open(
        {"plugins": {"entryPoints": False}},
        plugins=[Plugin(Owner(), name="owner"), Plugin(Runner(), manifest={**manifest, "tools": tools})],
        home=tmp_path,
    ) as host:
        assert host.invoke_sync("runner:go").value == "kept"
        assert tried[0] is None or isinstance(tried[0], PolicyDenied | AttributeError | TypeError), tried


class Named:
    """A service whose parameters are called like those of the host's own functions."""

    @read_only
    def told(self, view: str, call: str = "", function: str = "", behind: str = "", name: str = "") -> list[str]:
        return [view, call, function, behind, name]


def test_parameters_of_a_service_may_have_any_name(tmp_path: Path) -> None:
    class Brings:
        @hookimpl
        def tavern_register_services(self) -> Any:
            return [Service("named", Named())]

    class Uses:
        ctx: Any = None

        @hookimpl
        def tavern_start(self, ctx: Any) -> None:
            self.ctx = ctx

    uses = Uses()
    manifest = {"name": "user", "version": "1", "start": True, "permissions": {"services": {"use": ["named"]}}}
    with Tavern.open(
        {"plugins": {"entryPoints": False}},
        plugins=[Plugin(Brings(), name="owner"), Plugin(uses, manifest=manifest)],
        home=tmp_path,
    ):
        told = uses.ctx.service("named").told(view="a", call="b", function="c", behind="d", name="e")
    assert told == ["a", "b", "c", "d", "e"]
