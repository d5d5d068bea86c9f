"""Nodes for control flow: switches, merges, delays, chance, questions."""

from __future__ import annotations

import asyncio
import math
import random
from typing import Annotated, Any

from tavern_core.contract.hookspecs import hookimpl
from tavern_core.contract.nodes import Node, NodeContext, Out, Port, Skip, node
from tavern_core.errors import ToolFailed

_LONGEST_PAUSE_MS = 86_400_000


@hookimpl(fast=True)
def tavern_register_nodes() -> list[Any]:
    return [switch, merge, Choose, delay, chance, ask]


@node("core:Switch", display_name="分支", category="flow", fast=True, cache=True)
def switch(condition: bool, value: Any = None) -> Out(yes=Any, no=Any):  # type: ignore[valid-type]
    """Sends a value to `yes` or to `no`; nodes after the other one are skipped. 按条件把值送到“是”或“否”分支。

    Args:
        condition: the direction.
        value: the value to send; without one, the condition itself.
    """
    given = condition if value is None else value
    return {"yes": given, "no": Skip} if condition else {"yes": Skip, "no": given}


@node("core:Merge", display_name="合并", category="flow", fast=True, cache=True)
def merge(values: Annotated[list[Any], Port(multi=True)] = ()) -> Out(value=Any, all=list):  # type: ignore[valid-type, assignment]
    """Merges branches: the first value that arrived, and all of them, without skipped branches. 合并多个分支的值，组成列表。

    Args:
        values: the branches.
    """
    came = list(values)
    return {"value": came[0] if came else Skip, "all": came}


class Choose(Node):
    """Takes one of two values; only the chosen branch runs. 按条件从两个值中选一个。"""

    type = "core:Choose"
    display_name = "二选一"
    category = "flow"
    cache = True

    def needs(self, ctx: NodeContext, *, condition: bool, **_: Any) -> list[str]:
        return ["yes" if condition else "no"]

    async def run(
        self,
        condition: bool,
        yes: Annotated[Any, Port(lazy=True)] = None,
        no: Annotated[Any, Port(lazy=True)] = None,
    ) -> Out(value=Any):  # type: ignore[valid-type]
        return {"value": yes if condition else no}


@node("core:Delay", display_name="延时", category="flow")
async def delay(value: Any = None, ms: Annotated[int, Port(min=0, max=_LONGEST_PAUSE_MS)] = 1000) -> Out(value=Any):  # type: ignore[valid-type]
    """Passes a value on after a delay. 等待一段时间后传递值。

    Args:
        value: the value to pass on.
        ms: the delay in milliseconds.
    """
    await asyncio.sleep(ms / 1000)
    return {"value": value}


@node("core:Random", display_name="随机数", category="flow", fast=True)
def chance(seed: int | None = None, low: float = 0.0, high: float = 1.0, choices: list[Any] | None = None) -> Out(  # type: ignore[valid-type]
    number=float, choice=Any
):
    """A random number, and one of a list of choices; equal for an equal seed. 生成随机数，或从选项中随机选择。

    Args:
        seed: makes it repeatable; without one, it differs each time.
        low: the number is at least this.
        high: and at most this.
        choices: the values to choose from.
    """
    if low > high:
        raise ToolFailed(f"low is {low} and high is {high}", hint="let low be the smaller one")
    if not math.isfinite(high - low):
        raise ToolFailed("low and high are too far apart", hint="move them closer to zero")
    source = random.Random(seed)
    number = source.uniform(low, high)
    return {"number": number, "choice": source.choice(choices) if choices else Skip}


@node("core:Ask", display_name="询问", category="flow")
async def ask(ctx: NodeContext, prompt: str, options: list[str] | None = None) -> Out(answer=str):  # type: ignore[valid-type]
    """Asks a person; other branches continue meanwhile. 向用户提问并等待回答。

    Args:
        prompt: the question.
        options: the allowed answers; without them, any text is allowed.
    """
    schema: dict[str, Any] = {"type": "string"}
    if options:
        schema["enum"] = options
    return {"answer": await ctx.ask(prompt, schema)}
