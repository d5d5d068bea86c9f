"""Nodes that work on text, and workflows made of them.

The nodes are in `nodes/`, the workflows in `workflows/`. This module registers only the language model: it gives scripted answers,
so that the workflow with a model runs anywhere. To use a real one, register it with `tavern_register_llms` in a plugin of your own,
and name it in the node's input `model`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tavern_core import ScriptedLLM, hookimpl


def summarize(messages: Sequence[Mapping[str, Any]]) -> str:
    """The answer of the scripted model: the first line of what it was given, and how much there was."""
    lines = [line for line in str(messages[-1]["content"]).splitlines()[1:] if line.strip()]
    return f"摘要：{lines[0] if lines else '（空）'}……（共 {len(lines)} 行）"


@hookimpl
def tavern_register_llms() -> dict[str, Any]:
    return {"scripted": ScriptedLLM(summarize)}
