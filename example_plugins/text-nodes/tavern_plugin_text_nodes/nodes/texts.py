"""Nodes as functions: the signature gives the slots, the docstring their words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated, Literal

from tavern_core import Final, Out, Port, Stream, node

_WORD = re.compile(r"[\u3400-\u9fff]|[^\W_]+")


@node("text-nodes:Statistics", display_name="文本统计", category="text", cache=True, fast=True)
def statistics(text: Annotated[str, Port(multiline=True)], top: Annotated[int, Port(min=0, max=50)] = 3) -> Out(  # type: ignore[valid-type]
    words=int, characters=int, frequent=list
):
    """Counts words and characters of a text; each Chinese character is a word.

    Args:
        text: what is counted.
        top: how many of the most frequent words are named.
    """
    words = _WORD.findall(text.casefold())
    return {
        "words": len(words),
        "characters": len(text),
        "frequent": [word for word, _ in Counter(words).most_common(top)],
    }


@node("text-nodes:Difference", display_name="文本比较", category="text", cache=True, fast=True)
def difference(
    texts: Annotated[list[str], Port("文本", multi=True, description="Two texts or more.")],
    unit: Literal["words", "lines"] = "words",
) -> Out(common=list, rest=list):  # type: ignore[valid-type]
    """Says what texts share, and what only some of them have.

    Args:
        unit: what is compared.
    """
    parts = [text.splitlines() if unit == "lines" else _WORD.findall(text.casefold()) for text in texts]
    everything = list(dict.fromkeys(part for each in parts for part in each))
    common = [part for part in everything if all(part in each for each in parts)]
    return {"common": common, "rest": [part for part in everything if part not in common]}


@node("text-nodes:Lines", display_name="逐行输出", category="text")
async def lines(text: str) -> Out(lines=Stream[str], count=int):  # type: ignore[valid-type]
    """Gives a text line by line: those who read the stream begin before it is over."""
    async for each in _lines(text):
        yield each
    yield Final(count=len(text.splitlines()))


async def _lines(text: str) -> AsyncIterator[str]:
    for line in text.splitlines():
        yield line
