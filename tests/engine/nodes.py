"""Node types that the tests of the engine use."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from tavern_core.contract.nodes import Final, Node, NodeContext, Out, Port, Skip, Stream, node


@node("t:Inc", cache=True)
async def inc(x: int = 0) -> Out(y=int):
    return x + 1


@node("t:Sum")
async def total(xs: Annotated[list[int], Port(multi=True)] = ()) -> Out(y=int):
    return sum(xs)


@node("t:List")
async def listed(xs: Annotated[list[Any], Port(multi=True)] = ()) -> Out(all=list):
    return xs


@node("t:Sync")
def sync_inc(x: int = 0) -> Out(y=int):
    return x + 1


@node("t:Fast", fast=True)
def fast_inc(x: int = 0) -> Out(y=int):
    return x + 1


@node("t:Wait")
async def wait(x: int = 0, ms: int = 1) -> Out(y=int):
    await asyncio.sleep(ms / 1000)
    return x


@node("t:Bad")
async def bad(x: int = 0) -> Out(y=int):
    raise ValueError(f"no {x}")


@node("t:Text")
async def text(value: str = "") -> Out(text=str):
    return value


@node("t:Need")
async def need(x: int) -> Out(y=int):
    return x


@node("t:Pick")
async def pick(yes: bool, value: Any) -> Out(yes=Any, no=Any):
    return {"yes": value if yes else Skip, "no": Skip if yes else value}


@node("t:Merge")
async def merge(a: Any = None, b: Any = None) -> Out(value=Any):
    return a if a is not None else b


@node("t:Count")
async def count(n: int = 3) -> Out(chunks=Stream[str], text=str):
    said = ""
    for at in range(n):
        yield str(at)
        said += str(at)
    yield Final(text=said)


@node("t:SyncCount")
def sync_count(n: int = 3) -> Out(chunks=Stream[str], text=str):
    for at in range(n):
        yield str(at)
    yield Final(text="done")


@node("t:Read")
async def read(chunks: Stream[str]) -> Out(all=list):
    return [chunk async for chunk in chunks]


@node("t:ReadBoth")
async def read_both(chunks: Stream[str], text: str) -> Out(all=list):
    return [*[chunk async for chunk in chunks], text]


@node("t:First")
async def first(chunks: Stream[str]) -> Out(one=str):
    async for chunk in chunks:
        return chunk
    return ""


@node("t:Lazy")
async def lazy(ctx: NodeContext, take: bool = False, a: Annotated[int | None, Port(lazy=True)] = None) -> Out(y=int):
    return await ctx.need("a") if take else -1


@node("t:LazyDefault")
async def lazy_default(ctx: NodeContext, a: Annotated[int, Port(lazy=True)] = 5) -> Out(y=int):
    return await ctx.need("a")


class Choose(Node):
    """The class form: says which lazy input it needs."""

    type = "t:Choose"

    def needs(self, ctx: NodeContext, *, which: str, **_: Any) -> list[str]:
        return [which]

    async def run(
        self,
        which: Literal["a", "b"] = "a",
        a: Annotated[int | None, Port(lazy=True)] = None,
        b: Annotated[int | None, Port(lazy=True)] = None,
    ) -> Out(y=int):
        return a if which == "a" else b


@node("t:Ask")
async def ask(ctx: NodeContext, prompt: str = "?") -> Out(answer=str):
    return await ctx.ask({"type": "string"}, prompt)


@node("t:Two")
async def two() -> Out(a=int, b=str):
    return 1, "one"


@node("t:Open", dynamic_slots=True)
async def opened(**inputs: Any) -> Out(all=dict):
    return inputs


ALL = [
    inc, total, listed, sync_inc, fast_inc, wait, bad, text, need, pick, merge, count, sync_count, read, read_both, first,
    lazy, lazy_default, Choose, ask, two, opened,
]  # fmt: skip
