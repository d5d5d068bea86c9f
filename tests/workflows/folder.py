"""A folder with workflow files, and hosts that use it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from tavern_core import Node, NodeContext, Out, Plugin, Port, Tavern, hookimpl, node
from tests.engine.workbench import flow

CALLS: list[str] = []
"""The nodes of the test plugin that really ran, in order."""


@node("t:Inc", cache=True)
async def inc(x: int = 0) -> Out(y=int):
    CALLS.append("inc")
    return x + 1


@node("t:Plain")
async def plain(x: int = 0) -> Out(y=int):
    CALLS.append("plain")
    return x + 1


@node("t:Wait")
async def wait(ms: int = 60_000, x: int = 0) -> Out(y=int):
    await asyncio.sleep(ms / 1000)
    return x


@node("t:Ask")
async def ask(ctx: NodeContext, prompt: str = "?") -> Out(answer=str):
    return await ctx.ask({"type": "string"}, prompt)


@node("t:Tool")
async def tool_caller(ctx: NodeContext, tool: str, arguments: dict | None = None) -> Out(value=Any, error=str):
    result = await ctx.invoke(tool, arguments)
    return {"value": result.value, "error": result.error.kind if result.error else ""}


@node("t:Danger", capabilities=["write:fs"])
async def danger() -> Out(y=int):
    return 1


class Old(Node):
    """Its second version has another input."""

    type = "t:Old"
    version = 2

    @classmethod
    def upgrade(cls, node: Mapping[str, Any], version: int) -> Mapping[str, Any]:
        return {**node, "inputValues": {"number": node["inputValues"]["num"]}}

    @classmethod
    def validate(cls, inputs: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
        return ["number must not be 13"] if inputs.get("number") == 13 else []

    async def run(self, number: int) -> Out(y=int):
        return number


class File(Node):
    """Reads a file; its fingerprint is the file's text."""

    type = "t:File"
    cache = True

    def fingerprint(self, ctx: NodeContext, *, path: str) -> str:
        return Path(path).read_text("utf-8")

    async def run(self, path: str) -> Out(text=str):
        CALLS.append("file")
        return Path(path).read_text("utf-8")


@node("t:New", replaces=["gone:Old"])
async def new(x: Annotated[int, Port(min=0, max=9)] = 1) -> Out(y=int):
    return x


NODES = [inc, plain, wait, ask, tool_caller, danger, Old, File, new]


class NodePlugin:
    @hookimpl
    def tavern_register_nodes(self) -> list[Any]:
        return NODES


class Flows:
    """One folder of workflows and one state folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "workflows"
        self.folder.mkdir()
        CALLS.clear()

    def write(self, name: str, nodes: Mapping[str, Any], edges: str = "", **rest: Any) -> Path:
        """A workflow file, in the short form of the engine's tests."""
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(dict(flow(nodes, edges, **rest).raw), ensure_ascii=False), "utf-8")
        return path

    def open(self, *plugins: Any, **config: Any) -> Tavern:
        """A host without the plugins of the machine, unless `config` says otherwise."""
        found = {"entryPoints": False, **config.pop("plugins", {})}
        settings = {"plugins": found, "workflows": {"roots": [str(self.folder)]}, **config}
        return Tavern.open(settings, plugins=[Plugin(NodePlugin(), name="t"), *plugins], home=self.root / "home")
