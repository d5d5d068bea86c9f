"""Nodes that work on text, and workflows made of them.

The nodes stand in `nodes/`, the workflows in `workflows/`. Only the language model is registered here: one that says what it was
told to say, so that the workflow that asks it runs anywhere. Put a real one in its place with `tavern_register_llms` of a plugin
of your own, and name it in the node's input `model`.
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
