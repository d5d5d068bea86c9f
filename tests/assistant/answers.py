"""Answers of scripted models, and hosts in which they are asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tavern_core import LLMAnswer, Out, ScriptedLLM, Tavern, hookimpl, node
from tavern_core.errors import ToolFailed

GROUP_IN = {"op": "add", "path": "/nodes/in", "value": {"type": "core:GroupInput"}}
GROUP_OUT = {"op": "add", "path": "/nodes/out", "value": {"type": "core:GroupOutput"}}
TEXT_IN = {"op": "add", "path": "/interfaceInputs/text", "value": {"dataFlowType": "STRING", "required": True}}
RESULT_OUT = {"op": "add", "path": "/interfaceOutputs/result", "value": {"dataFlowType": "STRING"}}


def node_of(name: str, type_: str, **inputs: Any) -> dict[str, Any]:
    return {"op": "add", "path": f"/nodes/{name}", "value": {"type": type_, "inputValues": inputs}}


def edge(start: str, end: str) -> dict[str, Any]:
    (source, output), (target, given) = start.split("."), end.split(".")
    value = {"source": source, "sourceHandle": output, "target": target, "targetHandle": given}
    return {"op": "add", "path": f"/edges/{source}-{target}", "value": value}


CAPITALS = [
    TEXT_IN, RESULT_OUT, GROUP_IN, node_of("caps", "core:Case", form="upper"), GROUP_OUT,
    edge("in.text", "caps.text"), edge("caps.text", "out.result"),
]  # fmt: skip
"""From nothing: a text in capitals."""


def without(patch: Sequence[Any], *paths: str) -> list[Any]:
    """The patch without the operations on these paths."""
    return [operation for operation in patch if operation["path"] not in paths]


def changed(patch: Sequence[Any], path: str, **value: Any) -> list[Any]:
    """The patch with other members in the value of one operation."""
    return [{**op, "value": {**op["value"], **value}} if op["path"] == path else op for op in patch]


def answer(patch: Sequence[Any], reason: str = "done", **more: Any) -> str:
    return json.dumps({"reason": reason, "patch": list(patch), **more}, ensure_ascii=False)


@node("models:Loud", display_name="Loud", capabilities=["write:fs"])
async def loud(text: str) -> Out(text=str):  # type: ignore[valid-type]
    """Shouts a text, and writes a file."""
    raise AssertionError("a dry run must not run this")


@node("models:Picky")
async def picky(text: str) -> Out(text=str):  # type: ignore[valid-type]
    """Takes no sample text."""
    raise ToolFailed(f"{text!r} is not accepted", hint="give a number as text")


class Scripted:
    """A plugin with a scripted model."""

    def __init__(self, *answers: str | LLMAnswer, **attributes: Any) -> None:
        self.model = ScriptedLLM(list(answers))
        for name, value in attributes.items():
            setattr(self.model, name, value)

    @hookimpl
    def tavern_register_llms(self) -> dict[str, Any]:
        return {"writer": self.model}

    def asked(self, number: int) -> str:
        """The last message of one request."""
        return str(self.model.asked[number][-1]["content"])


class Models(Scripted):
    """The same with two nodes."""

    @hookimpl
    def tavern_register_nodes(self) -> list[Any]:
        return [loud, picky]


def host(home: Path, *plugins: Any, **config: Any) -> Tavern:
    """A host without other plugins than these."""
    closed = {"plugins": {"roots": [], "entryPoints": False}, "workflows": {"roots": [str(home / "flows")]}}
    return Tavern.open({**closed, **config}, plugins=list(plugins), home=home / "home")
