"""Tools behind a namespace that a plugin resolves: lists and reviews hold for them as for any other."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tavern_core import CallContext, Plugin, Tavern, TavernError, ToolSpec, deny, factory, hookimpl, tool

from .workshop import HELLO, TOOL, Workshop


class Shelf:
    """Resolves leniently, as people write."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def resolve(self, local: str) -> ToolSpec | None:
        def page() -> str:
            self.read.append(local)
            return "page"

        return ToolSpec("shelf:page", impl=page) if local.strip().casefold() == "page" else None

    def names(self) -> list[str]:
        return ["page"]

    @hookimpl
    def tavern_register_namespaces(self) -> Any:
        return {"shelf": self}


class Review:
    @hookimpl
    def tavern_before_register_tool(self, tool: Any, owner: str) -> Any:
        return deny("nobody reads") if owner == "books" else None


SPELLINGS = ["shelf:page", "shelf: page", " shelf:page", "shelf:page ", "shelf:\u3000page", "shelf:PAGE"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["free", "denied", "reviewed"])
def test_no_spelling_parts_a_tool_of_a_namespace_from_its_lists_and_reviews(tmp_path: Path, how: str) -> None:
    config = {"plugins": {"entryPoints": False}} | ({"tools": {"deny": ["shelf:page"]}} if how == "denied" else {})
    for number, written in enumerate(SPELLINGS):  # each is the first that its host sees
        plugins = [
            Plugin(shelf := Shelf(), name="books"),
            *([Plugin(Review(), name="review")] if how == "reviewed" else []),
        ]
        with Tavern.open(config, plugins=plugins, home=tmp_path / str(number), activate="all") as tavern:
            result = tavern.invoke_sync(written)
        assert (result.ok, len(shelf.read)) == (how == "free", how == "free"), written
        assert result.ok or (result.error is not None and result.error.kind == "POLICY_DENIED"), written


# Plugins that are not active yet, and broken ones ------------------------------------------------------------------------------

SHELF = """
class Pages:
    def resolve(self, local):
        return ToolSpec("shelf:" + local, "A page.", impl=lambda: local) if local.startswith("p") else None
    def names(self):
        return ["page"]

@hookimpl
def tavern_register_namespaces(ctx):
    return {"shelf": Pages()}
"""
TEAM = """
@hookimpl
def tavern_register_profiles(ctx):
    return [{"name": "reader", "tool_ids_inventory": ["shelf:page", "greeter:hello", "odd:x"]}]
"""
ODD = """
import threading, time
class Odd:
    def resolve(self, local):
        {resolve}
    def names(self):
        {names}

@hookimpl
def tavern_register_namespaces(ctx):
    {register}
"""
HANGS = "threading.Event().wait(30)"
BROKEN: dict[str, tuple[str, str]] = {
    "is not there": ("", ""),
    "does not import": ("raise RuntimeError('no')", "namespaces: [odd]"),
    "raises when it is activated": (
        ODD.format(resolve="return None", names="return []", register="raise SystemExit(3)"),
        "namespaces: [odd]",
    ),
    "offers no resolver": (
        ODD.format(resolve="return None", names="return []", register="return {'odd': 5}"),
        "namespaces: [odd]",
    ),
    "raises": (
        ODD.format(resolve="raise ValueError(local)", names="raise ValueError()", register="return {'odd': Odd()}"),
        "namespaces: [odd]",
    ),
    "exits": (
        ODD.format(resolve="raise SystemExit(3)", names="return []", register="return {'odd': Odd()}"),
        "namespaces: true",
    ),
    "answers a number": (
        ODD.format(resolve="return 5", names="return 7", register="return {'odd': Odd()}"),
        "namespaces: [odd]",
    ),
    "answers another's tool": (
        ODD.format(resolve="return ToolSpec('greeter:hello')", names="return [1]", register="return {'odd': Odd()}"),
        "namespaces: [odd]",
    ),
    "answers a bad schema": (
        ODD.format(
            resolve="return ToolSpec('odd:x', input_schema={'type': 'nonsense'}, impl=print)",
            names="return []",
            register="return {'odd': Odd()}",
        ),
        "namespaces: [odd]",
    ),
    "hangs": (ODD.format(resolve=HANGS, names=HANGS, register="return {'odd': Odd()}"), "namespaces: [odd]"),
    "has names without end": (
        ODD.format(resolve="return None", names="return iter(lambda: 'n', 0)", register="return {'odd': Odd()}"),
        "namespaces: [odd]",
    ),
}
READER = CallContext(profile="reader")
BLOCK = "<|[REQUEST_TOOL]|>\ncommand:「始」{}「末」\n<|[END_TOOL]|>\n"
WAYS: dict[str, Callable[[Tavern], object]] = {
    "invoke_sync": lambda host: [host.invoke_sync(i, context=READER).value for i in ("greeter:hello", "shelf:page")],
    "run_text_sync": lambda host: [
        r.value
        for r in host.run_text_sync(BLOCK.format("greeter:hello") + BLOCK.format("shelf:page"), context=READER).results
    ],
    "run_text": lambda host: [
        r.value
        for r in asyncio.run(
            host.run_text(BLOCK.format("greeter:hello") + BLOCK.format("shelf:page"), context=READER)
        ).results
    ],
    "workflow": lambda host: [
        host.workflows.run_sync(
            {"nodes": [{"id": "a", "type": "core:CallTool", "inputValues": {"tool": tool}}], "edges": []},
            context=READER,
        ).outputs["a"]["value"]
        for tool in ("greeter:hello", "shelf:page")
    ],
    "in a thread": lambda host: _in_thread(
        lambda: [host.invoke_sync(i, context=READER).value for i in ("greeter:hello", "shelf:page")]
    ),
}
LISTINGS: dict[str, Callable[[Tavern], object]] = {
    "list": lambda host: [spec.id for spec in host.tools.list("reader")],
    "list of a caller": lambda host: [spec.id for spec in host.tools.list(context=READER)],
    "search": lambda host: sorted(spec.id for spec in host.tools.search("", profile="reader")),
    "schemas": lambda host: sorted(
        host.tool_id(tool["function"]["name"]) for tool in host.tool_schemas("reader", dialect="openai")
    ),
    "manual": lambda host: sorted(re.findall(r"Tool ID: (\S+)", host.manual("reader"))),
    "in a loop": lambda host: [spec.id for spec in asyncio.run(_listed(host))],
}


async def _listed(host: Tavern) -> Any:
    return host.tools.list("reader")


def _in_thread(work: Callable[[], object]) -> object:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def library(workshop: Workshop, broken: str) -> Tavern:
    """A host with a shelf, a plugin that brings a profile, and one that is broken; none is active."""
    workshop.folder("greeter", TOOL, HELLO)
    workshop.folder("books", SHELF, "namespaces: [shelf]")
    workshop.folder("team", TEAM, "profiles: [reader]")
    code, manifest = BROKEN[broken]
    if code:
        workshop.folder("odd-ones", code, manifest)
    return workshop.open(config={"limits": {"hookTimeoutMs": 500}})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "broken"),
    [
        *((way, "does not import") for way in WAYS),
        *(("invoke_sync", broken) for broken in ("is not there", "raises", "answers a number", "hangs")),
    ],
)
def test_a_profile_of_a_plugin_that_is_not_active_yet_serves_each_way_to_call(
    workshop: Workshop, way: str, broken: str
) -> None:
    assert WAYS[way](library(workshop, broken)) == ["hello World", "page"]


@pytest.mark.slow
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_namespace_costs_no_listing_more_than_its_own_tools(workshop: Workshop, broken: str) -> None:
    host = library(workshop, broken)
    assert {name: listed(host) for name, listed in LISTINGS.items()} == {
        name: ["greeter:hello", "shelf:page"] for name in LISTINGS
    }


@pytest.mark.parametrize("broken", [name for name in BROKEN if name not in ("is not there", "has names without end")])
def test_what_is_wrong_with_a_namespace_is_said_by_call_and_why_and_noticed(workshop: Workshop, broken: str) -> None:
    host = library(workshop, broken)
    result, why = host.invoke_sync("odd:x"), host.tools.why("odd:x")
    assert result.error is not None
    assert "odd-ones" in result.error.message
    assert (why.visible, why.plugin) == (False, "odd-ones")
    assert "odd-ones" in why.reason
    assert (
        any(d.plugin == "odd-ones" and d.severity == "error" for d in host.diagnostics)
        or host.plugins["odd-ones"].state == "failed"
    )
    with pytest.raises(TavernError):
        host.tool_schema("odd:x")


@pytest.mark.parametrize("tool", ["shelf:page", " shelf:page", "greeter:hello"])
def test_whatever_can_be_called_can_be_got_described_and_explained(workshop: Workshop, tool: str) -> None:
    host = library(workshop, "is not there")
    spec = host.tools.get(tool)
    assert spec is not None
    assert host.tools[tool].id == spec.id == tool.strip()
    assert host.tool_schema(tool)["name"] == spec.id
    assert host.tools.why(tool).visible
    assert host.tools.why(tool, profile="reader").visible
    assert host.invoke_sync(tool).ok
    none = {"name": "nobody", "tool_ids_inventory": []}
    assert not host.tools.why(tool, profile=none).visible


def test_a_tool_that_a_factory_makes_for_its_caller_can_be_got_and_described(tmp_path: Path) -> None:
    class Maker:
        @hookimpl
        def tavern_register_tools(self) -> Any:
            return [
                factory(lambda context: ToolSpec("p:mine", impl=lambda: 1) if context.agent_id else None),
                factory(lambda context: ToolSpec("p:all", impl=lambda: 2)),
            ]

    with Tavern.open({"plugins": {"entryPoints": False}}, plugins=[Plugin(Maker(), name="p")], home=tmp_path) as host:
        for tool in ("p:all", "p:mine"):
            called, got = host.invoke_sync(tool).ok, host.tools.get(tool)
            assert called is (got is not None) is host.tools.why(tool).visible


def test_a_call_in_sync_code_survives_tools_that_come_while_it_waits_for_approval(tmp_path: Path) -> None:
    class Review:
        @hookimpl
        def tavern_before_register_tool(self, tool: Any) -> None:
            return None

    @tool(requires_approval=True)
    def wipe() -> str:
        return "wiped"

    def approve(request: Any) -> bool:
        host.tools.register({"name": "late", "impl": print})
        return True

    host = Tavern.open(
        {"plugins": {"entryPoints": False}},
        plugins=[Plugin([wipe], name="p"), Plugin(Review(), name="review")],
        home=tmp_path,
        approve=approve,
    )
    with host:
        assert host.invoke_sync("p:wipe").value == "wiped"
