"""The final ids of new nodes and edges, and every reference to them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tavern_core.graph.patch import MODELS, PatchedWorkflow
from tavern_core.model.naming_rules import split_id
from tavern_core.model.workflow import Workflow, WorkflowNode

_LETTERS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


def with_ids(done: PatchedWorkflow, seed: int | None = None) -> tuple[Workflow, dict[str, str]]:
    """The patched workflow with the final ids of new nodes and edges, and localId → id.

    Args:
        seed: the same seed gives the same ids; None: random ids.
    """
    drawn = random.Random(seed)
    nodes = _ids(done.workflow.nodes, done.names.nodes, drawn)
    edges = _ids(done.workflow.edges, done.names.edges, drawn)
    if not nodes and not edges:
        return done.workflow, {}
    raw = dict(done.workflow.raw)
    changed: dict[str, Any] = {"raw": raw}
    for section, model in MODELS.items():
        ids = nodes if section == "nodes" else edges
        pairs = [
            _renamed(item, made, model, ids, nodes, edges) if (section, made.id) in done.touched else (item, made)
            for item, made in zip(raw[section], getattr(done.workflow, section), strict=True)
        ]
        raw[section] = [item for item, _ in pairs]
        changed[section] = tuple(made for _, made in pairs)
    new_ids = {local: id_ for local, id_ in (*nodes.items(), *edges.items()) if local in done.names.written}
    return done.workflow.model_copy(update=changed), new_ids


def _ids(items: Iterable[Any], new: Iterable[str], drawn: random.Random) -> dict[str, str]:
    made = {item.id: item for item in items}
    found: dict[str, str] = {}
    used_ids = set(made)
    for key in new:
        if (item := made.get(key)) is None:
            continue  # it was removed again
        stem = (split_id(item.type)[1].lower() or "node")[:40] if isinstance(item, WorkflowNode) else "edge"
        while (name := f"{stem}-{''.join(drawn.choices(_LETTERS, k=8))}") in used_ids:
            pass
        used_ids.add(name)
        found[key] = name
    return found


def _renamed(
    item: dict[str, Any],
    made: Any,
    model: Any,
    final_ids: Mapping[str, str],
    nodes: Mapping[str, str],
    edges: Mapping[str, str],
) -> tuple[dict[str, Any], Any]:
    """An element with its final id, and with those of the elements that it names; only a patch can have written the others."""
    new: dict[str, Any] = {}
    for key, table in (("id", final_ids), *((name, nodes) for name in ("source", "target", "parentNode"))):
        value = item.get(key)
        if isinstance(value, str) and value in table:
            new[key] = table[value]
    orders = item.get("inputConnectionOrders")
    if isinstance(orders, dict) and any(edge in edges for listed in orders.values() for edge in listed):
        new["inputConnectionOrders"] = {
            key: [edges.get(edge, edge) for edge in listed] for key, listed in orders.items()
        }
    if not new:
        return item, made
    item = {**item, **new}
    return item, model.model_validate(item)
