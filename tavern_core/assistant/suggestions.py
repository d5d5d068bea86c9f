"""Operations that a report suggests, as the model would write them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from tavern_core.assistant.draft_graph import DraftGraph, End
from tavern_core.model.naming_rules import split_id
from tavern_core.model.nearest import fold
from tavern_core.model.node import Slot

_MOST_SHOWN: Final = 5


def connect(graph: DraftGraph, node: str, slot: Slot) -> str:
    """How an input gets a value; empty if no output fits."""
    found = graph.fitting(node, slot)
    return f"connect an output that fits ({listed(found)}): {add_edge(found[0], (node, slot.key))}" if found else ""


def listed(ends: Sequence[End]) -> str:
    """A few ends: ``a.text, b.text``."""
    return ", ".join(f"{node}.{key}" for node, key in ends[:_MOST_SHOWN])


def add_node(name: str, type_: str) -> str:
    """The operation that adds a node."""
    return _json({"op": "add", "path": f"/nodes/{name}", "value": {"type": type_}})


def add_slot(section: str, key: str, other: Slot | None) -> str:
    """The operation that adds an input or output of the workflow, of the type at the other end."""
    type_ = "STRING" if other is None or other.type in ("CONVERTIBLE_ANY", "WILDCARD") else other.type
    return _json({"op": "add", "path": f"/{section}/{key}", "value": {"dataFlowType": type_}})


def add_edge(source: End, target: End, name: str = "") -> str:
    """The operation that adds an edge, or writes an edge of the patch anew."""
    value = {"source": source[0], "sourceHandle": source[1], "target": target[0], "targetHandle": target[1]}
    return _json({"op": "add", "path": f"/edges/{name or '-'.join((*source, *target))}", "value": value})


def free_names(types: Iterable[str], taken: Collection[str]) -> dict[str, str]:
    """New names for nodes: name → type."""
    found: dict[str, str] = {}
    for type_ in types:
        stem = fold(split_id(type_)[1]) or "node"
        names = (stem, *(f"{stem}{number}" for number in range(2, 1_000)))
        found[next(name for name in names if name not in taken and name not in found)] = type_
    return found


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
