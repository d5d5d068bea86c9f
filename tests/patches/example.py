"""A small workflow with everything that a patch must keep: unknown keys, positions, orders, an interface, numbers as ids."""

from __future__ import annotations

import copy
from typing import Any

_FLOW: dict[str, Any] = {
    "name": "Greeting",
    "zoom": {"theirs": True},
    "rev": 3,
    "nodes": [
        {"id": "in", "type": "core:GroupInput", "position": {"x": 0, "y": 0}},
        {"id": "text", "type": "core:Text", "position": {"x": 0, "y": 200}, "inputValues": {"text": "hello"}, "zIndex": 3, "typeVersion": 1},
        {"id": "case", "type": "core:Case", "position": {"x": 280, "y": 0}, "inputValues": {"form": "upper"}, "displayName": "Shout"},
        {"id": "join", "type": "core:Join", "position": {"x": 560, "y": 0}, "inputConnectionOrders": {"parts": ["e3", "e2"]}},
        {"id": "out", "type": "core:GroupOutput", "position": {"x": 840, "y": 0}},
    ],
    "edges": [
        {"id": "e1", "source": "in", "sourceHandle": "topic", "target": "case", "targetHandle": "text", "label": "theirs"},
        {"id": "e2", "source": "case", "sourceHandle": "text", "target": "join", "targetHandle": "parts__0"},
        {"id": "e3", "source": "text", "sourceHandle": "text", "target": "join", "targetHandle": "parts__1"},
        {"id": "e4", "source": "join", "sourceHandle": "text", "target": "out", "targetHandle": "said"},
    ],
    "interfaceInputs": {"topic": {"dataFlowType": "STRING", "required": True, "theirs": 1}},
    "interfaceOutputs": {"said": {"dataFlowType": "STRING"}},
}  # fmt: skip


def flow() -> dict[str, Any]:
    """The workflow's document, anew."""
    return copy.deepcopy(_FLOW)


def op(kind: str, path: str, value: Any = ..., source: str | None = None) -> dict[str, Any]:
    """One operation."""
    found = {"op": kind, "path": path} | ({"from": source} if source is not None else {})
    return found if value is ... else {**found, "value": value}


def edge(source: str, target: str) -> dict[str, Any]:
    """An edge from ``node.handle`` to ``node.handle``."""
    (one, out), (other, into) = source.split("."), target.split(".")
    return {"source": one, "sourceHandle": out, "target": other, "targetHandle": into}


TEMPLATE = {"type": "core:Template", "inputValues": {"template": "!"}, "displayName": "Ending"}
BY_ID: list[dict[str, Any]] = [
    op("test", "/rev", 3),
    op("add", "/nodes/ending", TEMPLATE),
    op("add", "/edges/ending-join", edge("ending.text", "join.parts")),
    op("replace", "/nodes/text/inputValues/text", "bye"),
    op("remove", "/nodes/case"),
    op("add", "/edges/topic", edge("in.topic", "join.parts")),
]
"""A valid patch in the form by id."""
BY_PLACE: list[dict[str, Any]] = [
    op("add", "/nodes/-", {**TEMPLATE, "localId": "ending", "id": "x", "position": {"x": 1, "y": 1}}),
    op(
        "add",
        "/edges/-",
        {"sourceLocalId": "ending", "sourceHandle": "text", "target": "join", "targetHandle": "parts"},
    ),
    op("replace", "/nodes/1/inputValues/text", "bye"),
    op("remove", "/nodes/2"),
    op("add", "/edges/-", edge("in.topic", "join.parts")),
]
"""The same patch in the form by place."""
