"""Nodes of a plugin in a worker: the same answers, never imported by the host, and refused where they cannot cross; classes and streams: test_worker_streams.py."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest

from tavern_core import Tavern, ToolResult

from ..host.workshop import Workshop

pytestmark = pytest.mark.slow

NODES = '''
import os
from typing import Annotated, Literal
from pydantic import BaseModel
from tavern_core import hookimpl, tool
from tavern_core.contract.nodes import Final, NodeContext, Out, Port, Skip, node

class Point(BaseModel):
    x: int
    y: int = 0

@node("p:Add", display_name="Add", category="Numbers", cache=True)
def add(a: int, b: Annotated[int, Port(min=0, max=9)] = 1) -> Out(sum=int, text=str):
    """Add.

    Args:
        a: The one.
    """
    return Out(sum=a + b, text=str(a + b))

@node("p:Later")
async def later(ctx: NodeContext, word: Literal["a", "b"] = "a", point: Point | None = None) -> str:
    """Later."""
    ctx.progress(1, 2, "half")
    called = await ctx.invoke("p:where", {}, idempotency_key=ctx.run_id)
    again = await ctx.invoke("p:where", purpose="again", idempotency_key=ctx.run_id)
    assert again.meta["idempotency"] == "replayed" and again.value == called.value
    assert not ctx.is_cancelled and ctx.type == "p:Later" and ctx.attempt == 1
    return f"{word} {point.x if point else None} {called.ok}"

@node("p:Fails")
def fails(n: int = 0) -> int:
    """Fails."""
    raise ValueError("no")

@tool
def where() -> int:
    """Where."""
    return os.getpid()

@hookimpl
def tavern_register_nodes(ctx):
    return [add, [later, fails]]

@hookimpl
def tavern_register_tools(ctx):
    return [where]

@hookimpl
def tavern_register_workflows(ctx):
    return {"flow": {"nodes": [], "edges": []}}
'''
MORE = """
import os
from tavern_core.contract.nodes import node

@node('p:Pid')
def pid() -> int:
    'Process.'
    return os.getpid()
"""
TYPES = ("Add", "Later", "Fails", "Pid")
MANIFEST = "\n".join(
    [
        "nodes: {entry: more.py}",
        "tools:",
        "  - {id: where, implementation: {type: python}}",
        *(f"  - {{id: t{t}, description: x, implementation: {{type: node, nodeType: 'p:{t}'}}}}" for t in TYPES),
    ]
)
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("tAdd", {"a": 2}),
    ("tAdd", {"a": 2, "b": 3}),
    ("tAdd", {"a": "x"}),
    ("tAdd", {}),
    ("tLater", {"word": "b", "point": {"x": 4}}),
    ("tLater", {"word": "c"}),
    ("tLater", {"point": {"x": "no"}}),
    ("tFails", {}),
]


def plain(result: ToolResult) -> Any:
    reported = {"ok": result.ok, "value": result.value, "error": result.error and result.error.to_json()}
    return json.loads(re.sub(r"run-\w+", "RUN", json.dumps(reported)))


@pytest.mark.slow
def test_nodes_answer_the_same(workshop: Workshop) -> None:
    def look(host: Tavern) -> Any:
        found = [plain(host.invoke_sync(f"p:{name}", arguments)) for name, arguments in CALLS]
        types = (
            [{**spec.to_json(), "source": ""} for spec in host.nodes.list() if spec.plugin == "p"]
            if hasattr(host.nodes, "list")
            else []
        )
        return found, types

    seen = []
    for isolation in ("none", "process"):
        workshop.home = workshop.root / isolation
        folder = workshop.folder("p", None, f"{MANIFEST}\nworkflows: true\nisolation: {isolation}")
        (folder / "__init__.py").write_text(NODES)
        (folder / "more.py").write_text(MORE)
        host = workshop.open()
        seen.append(look(host))
        pid = host.invoke_sync("p:tPid", {})
        assert pid.ok, pid.error
        assert (pid.value == os.getpid() or pid.value == {"result": os.getpid()}) == (isolation == "none")
        workshop.close(host)
    assert sum(r["ok"] for r in seen[0][0]) >= 3
    for one, other in zip(seen[0][0], seen[1][0], strict=True):
        assert other == one
    assert seen[1][1] == seen[0][1]


CANNOT = {
    "a function in a slot": "@node('p:R')\ndef r(a: Annotated[int, Port(required=lambda config: True)] = 1) -> int: return a\nOFFER = r",
}


@pytest.mark.parametrize("what", CANNOT)
def test_nodes_that_cannot_cross_fail_the_plugin(workshop: Workshop, what: str) -> None:
    folder = workshop.folder("p", None, "nodes: {entry: more.py}\nstart: true\nisolation: process")
    head = "from typing import Annotated, AsyncIterator\nfrom tavern_core import hookimpl\nfrom tavern_core.contract.nodes import Node, Port, node\n"
    (folder / "__init__.py").write_text("")
    (folder / "more.py").write_text(f"{head}{CANNOT[what]}\n")
    status = workshop.open().plugins["p"]
    assert (status.state, "nodes: an isolated plugin cannot offer p:" in status.reason) == ("failed", True), (
        status.reason
    )


def test_files_below_nodes_entry_are_never_imported_by_the_host(workshop: Workshop) -> None:
    folder = workshop.folder("p", None, "nodes: {entry: more.py}\nstart: true\nisolation: process")
    (folder / "__init__.py").write_text("")
    (folder / "more.py").write_text("import os\nos.environ['BREACH'] = str(os.getpid())\nimport os; os._exit(3)\n")
    status = workshop.open().plugins["p"]
    assert (status.state, "exited with code 3" in status.reason) == ("failed", True), status.reason
    assert "BREACH" not in os.environ


LAZY = """
from typing import Annotated
from tavern_core.contract.nodes import NodeContext, Out, Port, Skip, node

@node("p:Nothing")
async def nothing() -> Out(y=int):
    return Skip

@node("p:Asks")
async def asks(ctx: NodeContext, a: Annotated[int, Port(lazy=True)]) -> Out(y=int):
    return await ctx.need("a")

@node("p:AsksWrongly")
async def asks_wrongly(ctx: NodeContext, a: Annotated[int, Port(lazy=True)] = 1) -> Out(y=int):
    return await ctx.need("aa")

@node("p:Bytes")
def data(b: bytes = b"\\x00\\xff") -> Out(n=int):
    return len(b)
"""


def test_a_node_that_asks_for_what_never_comes_is_skipped_and_bytes_may_be_a_default(workshop: Workshop) -> None:
    folder = workshop.folder("p", None, "nodes: {entry: more.py}\nisolation: process")
    (folder / "__init__.py").write_text("")
    (folder / "more.py").write_text(LAZY)
    flow = {
        "nodes": [{"id": name, "type": f"p:{name}"} for name in ("Nothing", "Asks", "Bytes")],
        "edges": [{"id": "e", "source": "Nothing", "sourceHandle": "y", "target": "Asks", "targetHandle": "a"}],
    }
    result = workshop.open().workflows.run_sync(flow)
    assert (result.errors, result.states["Asks"], result.outputs["Bytes"]) == ((), "skipped", {"n": 2})


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_a_node_that_asks_for_an_input_that_it_does_not_have_is_wrong_by_its_input(
    workshop: Workshop, isolation: str
) -> None:
    folder = workshop.folder("p", None, f"nodes: {{entry: more.py}}\nisolation: {isolation}")
    (folder / "__init__.py").write_text("")
    (folder / "more.py").write_text(LAZY)
    (error,) = workshop.open().workflows.run_sync({"nodes": [{"id": "x", "type": "p:AsksWrongly"}]}).errors
    assert (error.kind, error.slot, error.hint) == ("INPUT_SCHEMA_INVALID", "aa", "did you mean 'a'?")


MORTAL = """
import os, signal
from tavern_core.contract.nodes import NodeContext, node

@node("p:Dies", capabilities=CAPABILITIES)
def dies(ctx: NodeContext) -> int:
    'Ends its process in the first attempt.'
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return ctx.attempt
"""


@pytest.mark.parametrize(("capability", "attempts"), [(None, 2), ("read:fs", 2), ("write:fs", 1)])
def test_a_node_whose_worker_died_is_tried_again_if_it_changes_nothing(
    workshop: Workshop, capability: str | None, attempts: int
) -> None:
    listed = json.dumps([capability] if capability else [])
    manifest = f"nodes: {{entry: more.py}}\nisolation: process\npermissions: {{capabilities: {listed}}}"
    folder = workshop.folder("p", None, manifest)
    (folder / "__init__.py").write_text("")
    (folder / "more.py").write_text(MORTAL.replace("CAPABILITIES", listed))
    workshop.grant("p")
    node = {"id": "a", "type": "p:Dies", "configValues": {"$exec": {"retry": 1}}}
    run = workshop.open().workflows.run_sync({"nodes": [node], "edges": []}, {})
    if attempts == 2:
        assert (run.state, run.outputs) == ("complete", {"a": {"result": 2}})
    else:
        [error] = run.errors
        assert (run.state, error.kind, error.attempts) == ("error", "UPSTREAM_ERROR", 1)
