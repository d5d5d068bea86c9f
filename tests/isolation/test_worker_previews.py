"""Dry runs of an isolated plugin's tools: a preview runs in the worker, and says what it would in the host."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from tavern_core import CallContext, Tavern, ToolResult

from ..host.workshop import Workshop
from .test_worker_same import both
from .waiting import until

pytestmark = pytest.mark.slow

TOOLS = '''
import asyncio, os
from tavern_core import CallContext, ToolResult, factory, hookimpl, tool

ran = []

def shown(n: int, words: list[str] | None = None) -> dict:
    (words or []).append("changed")
    return {"would": n, "ran": list(ran)}

async def shown_later(n: int) -> int:
    await asyncio.sleep(0)
    return n + 1

def shown_to(who: CallContext, n: int) -> list:
    return [who.principal, sorted(who.permissions)]

def where(n: int) -> int:
    return os.getpid()

def fails(n: int) -> int:
    raise ValueError("no such row")

def refuses(n: int) -> ToolResult:
    return ToolResult(False)

def large(n: int) -> str:
    return "x" * 5_000_000

def odd(n: int) -> object:
    return object()

async def endless(n: int) -> int:
    await asyncio.sleep(60)

def ends(n: int) -> int:
    os._exit(3)

def made(name, preview, **more):
    def run(n: int) -> int:
        ran.append(n)
        return n
    return tool(name=name, preview=preview, **more)(run)

@tool(preview=shown)
def plain(n: int, words: list[str] | None = None) -> dict:
    """Says what it got."""
    ran.append(n)
    return {"n": n, "words": words}

@tool(preview=shown_to)
def caller_of(who: CallContext, n: int) -> int:
    """Knows its caller."""
    return n

@tool
def without(n: int) -> int:
    """Has no preview."""
    return n

@hookimpl
def tavern_register_tools():
    return [plain, caller_of, without, made("later", shown_later), made("where", where), made("failing", fails), made("refusing", refuses),
            made("large", large), made("odd", odd), made("endless", endless, timeout_ms=400), made("ending", ends),
            factory(lambda ctx: made("special", shown_later), names=["special"])]
'''
NAMES = [
    "plain",
    "caller_of",
    "without",
    "later",
    "where",
    "failing",
    "refusing",
    "large",
    "odd",
    "endless",
    "ending",
    "special",
]
MANIFEST = "tools:\n" + "".join(f"  - {{id: {name}, implementation: {{type: python}}}}\n" for name in NAMES)
ANN = CallContext(principal="user:ann", permissions=["read:fs"])
SHOWN = {
    "plain": {"would": 3, "ran": []},
    "caller_of": ["user:ann", ["read:fs"]],
    "later": 4,
    "special": 4,
    "without": None,
}
FAILING = {
    "failing": "UPSTREAM_ERROR",
    "refusing": "TOOL_ERROR",
    "large": "OUTPUT_TOO_LARGE",
    "odd": "OUTPUT_SCHEMA_INVALID",
    "endless": "TIMEOUT",
}
CONFIG = {"limits": {"outputBytes": 1_000_000}}


def dry(host: Tavern, name: str, arguments: Any = None, context: CallContext = ANN) -> ToolResult:
    return host.invoke_sync(f"p:{name}", arguments or {"n": 3}, context=context, dry_run=True)


def pair(workshop: Workshop, look: Any) -> Any:
    """What `look` sees of the plugin in the host, which is what it sees of the same one in a worker."""
    inside, outside = both(workshop, TOOLS, MANIFEST, look, config=CONFIG)
    assert outside == inside
    return outside


def test_previews_run_where_their_tools_do_and_change_nothing(workshop: Workshop) -> None:
    places: list[int] = []

    def look(host: Tavern) -> Any:
        found = {name: dry(host, name) for name in SHOWN}
        assert dry(host, "plain", {"n": 1, "words": ["a"]}).value["arguments"] == {"n": 1, "words": ["a"]}
        committed = host.commit_sync(found["plain"].value["planToken"], context=ANN)

        async def under_a_loop() -> Any:
            return await host.invoke("p:special", {"n": 7}, context=ANN, dry_run=True)

        previews = {name: result.value.get("preview") for name, result in found.items()}
        places.append(dry(host, "where").value["preview"])
        return previews, committed.value, asyncio.run(under_a_loop()).value["preview"]

    previews, committed, later = pair(workshop, look)
    assert previews == SHOWN
    assert committed == {"n": 3, "words": None}
    assert later == 8
    assert places[0] == os.getpid() != places[1]


def test_plans_and_dry_runs_say_that_a_tool_runs_in_the_worker_process(workshop: Workshop) -> None:
    def look(host: Tavern) -> Any:
        planned = [step.does for step in host.tool_plan("p:plain") if step.name == "execute"]
        return [*planned, *(step["does"] for step in dry(host, "plain").value["steps"] if "runs the" in step["does"])]

    inside, outside = both(workshop, TOOLS, MANIFEST, look, config=CONFIG)
    assert inside == ["runs the python tool in a worker thread"] * 2
    assert outside == ["runs the python tool in the worker process of its plugin"] * 2


def test_a_preview_that_fails_is_one_error_and_leaves_no_token(workshop: Workshop) -> None:
    def look(host: Tavern) -> Any:
        said = {}
        for name in FAILING:
            result = dry(host, name)
            assert result.error is not None and "planToken" not in str(result.to_json()), name
            said[name] = result.error.kind, result.error.details.get("stage")
            assert not host.records.list("plan"), name
        return said

    assert pair(workshop, look) == {name: (kind, "preview") for name, kind in FAILING.items()}


def test_a_worker_that_dies_of_a_preview_is_replaced(workshop: Workshop) -> None:
    folder = workshop.folder("p", None, f"{MANIFEST}\nisolation: process")
    (folder / "__init__.py").write_text(TOOLS)
    workshop.grant("p")
    host = workshop.open()
    died = dry(host, "ending")
    assert died.error is not None and died.error.kind == "UPSTREAM_ERROR"
    assert not host.records.list("plan")
    until(lambda: dry(host, "later").ok)
    assert dry(host, "later").value["preview"] == 4
    assert dry(host, "special").value["preview"] == 4


def test_a_preview_is_refused_as_the_call_would_be(workshop: Workshop) -> None:
    """Capabilities, lists and arguments are judged before any code of the plugin runs."""

    def look(host: Tavern) -> Any:
        refused = dry(host, "plain", {"n": "x"})
        denied = host.invoke_sync("p:later", {"n": 1}, context=ANN, dry_run=True)
        return [result.error and result.error.kind for result in (refused, denied)]

    inside, outside = both(workshop, TOOLS, MANIFEST, look, config={"tools": {"deny": ["p:later"]}})
    assert inside == outside == ["INPUT_SCHEMA_INVALID", "POLICY_DENIED"]
