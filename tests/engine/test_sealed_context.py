"""What a running node is given does its work and leads to nothing behind it: not to the host, not to a service, not to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tavern_core import NodeContext, Out, Plugin, Stream, Tavern, hookimpl, node, read_only, tool
from tavern_core.contract.llm import LLMAnswer
from tavern_core.contract.protocols import Service
from tests.views.crawl import reachable

pytestmark = pytest.mark.slow


class Model:
    """A language model with a key of its own."""

    api_key = "planted-key"

    async def complete(self, messages: Any, /, **options: Any) -> LLMAnswer:
        if not messages:
            raise ValueError(self)
        return LLMAnswer(messages[-1]["content"].upper())

    async def stream(self, messages: Any, /, **options: Any) -> Any:
        for word in messages[-1]["content"].split():
            yield word


class Store:
    @read_only
    def fetch(self) -> str:
        return "kept"


class Owner:
    @hookimpl
    def tavern_register_llms(self) -> Any:
        return {"model": Model()}

    @hookimpl
    def tavern_register_services(self) -> Any:
        return [Service("store", Store())]

    @hookimpl
    def tavern_register_tools(self) -> Any:
        @tool
        def add(a: int, b: int) -> int:
            """Add."""
            return a + b

        return [add]


def _behind(*starts: Any) -> list[str]:
    """What of the host, of a service or of the model can be reached."""
    found = [type(thing) for thing in reachable(*starts, most=3_000)]
    ours = [
        kind
        for kind in found
        if kind in (Model, Store, Owner, Tavern) or kind.__module__.startswith("tavern_core.kernel")
    ]
    shown = {"RunningNode", "ReadStream", "Awaited", "_Sealed", "_SealedStreamingModel"}
    return sorted({kind.__qualname__ for kind in ours} - shown)


def test_a_node_does_its_work_and_finds_no_way_behind_its_context(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    @node
    async def Look(ctx: NodeContext) -> str:
        """Look around."""
        ctx.progress(0.5, text="half")
        model = ctx.llm()
        seen["answer"] = (await model.complete([{"role": "user", "content": "hello"}])).text
        seen["pieces"] = [piece async for piece in model.stream([{"role": "user", "content": "a b"}])]  # type: ignore[attr-defined]
        seen["tool"] = (await ctx.invoke("owner:add", {"a": 1, "b": 2})).value
        seen["service"] = ctx.service("store").fetch()
        work, stream = model.complete([]), model.stream([{"content": "a"}])  # type: ignore[attr-defined]
        call = ctx.invoke("owner:add")
        try:
            await work
        except Exception as error:
            seen["behind"] = _behind(ctx, model, work, stream, error, call, ctx.service("store"))
        call.close()  # type: ignore[attr-defined]
        return ctx.path

    class Looker:
        @hookimpl
        def tavern_register_nodes(self) -> Any:
            return [Look]

    manifest = {"nodes": [{"name": "Look"}], "permissions": {"services": {"use": ["llm", "store"]}}}
    plugins = [Plugin(Owner(), name="owner"), Plugin(Looker(), name="looker", manifest=manifest)]
    with Tavern.open({"plugins": {"entryPoints": False}}, plugins=plugins, home=tmp_path, activate="all") as host:
        result = host.workflows.run_sync({"nodes": [{"id": "a", "type": "looker:Look"}], "edges": []})
    assert result.errors == ()
    assert result.outputs == {"a": {"result": "a"}}
    assert seen == {"answer": "HELLO", "pieces": ["a", "b"], "tool": 3, "service": "kept", "behind": []}


def test_a_stream_gives_its_chunks_and_leads_nowhere(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    @node
    async def Write(text: str) -> Out(letters=Stream[str]):  # type: ignore[valid-type]
        """Write letters."""
        for letter in text:
            yield letter
        raise LookupError(text)

    @node
    async def Read(ctx: NodeContext, letters: Stream[str]) -> str:
        """Read letters, and look behind their stream."""
        stream: Any = letters
        work = stream.__anext__()
        found = [await work]
        waiting = stream.__anext__()
        seen["behind"] = _behind(stream, work, waiting, stream._ask)
        found.append(await waiting)
        seen["names"] = sorted(name for name in dir(stream) if not name.startswith(("__", "_abc")))
        try:
            found += [letter async for letter in stream]
        except LookupError as error:
            seen["error"] = (str(error), _behind(error))
        await stream.aclose()
        found += [letter async for letter in stream]
        return "".join(found)

    class Letters:
        @hookimpl
        def tavern_register_nodes(self) -> Any:
            return [Write, Read]

    flow = {
        "nodes": [
            {"id": "w", "type": "letters:Write", "inputValues": {"text": "abc"}},
            {"id": "r", "type": "letters:Read"},
        ],
        "edges": [{"id": "e", "source": "w", "sourceHandle": "letters", "target": "r", "targetHandle": "letters"}],
    }
    with Tavern.open(
        {"plugins": {"entryPoints": False}}, plugins=[Plugin(Letters(), name="letters")], home=tmp_path, activate="all"
    ) as host:
        host.workflows.run_sync(flow)
    assert seen == {"behind": [], "names": ["_ask", "aclose"], "error": ("abc", [])}
