"""Positions for nodes without one: columns by depth, rows by order. Without recursion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from tavern_core.graph.order import topological
from tavern_core.model.workflow import Workflow

COLUMN: Final = 280
ROW: Final = 120
_FARTHEST: Final = 1e9
"""Pixels from the origin; nodes farther away are laid out again."""


def layout(workflow: Workflow, *, keep: bool = True) -> Mapping[str, tuple[float, float]]:
    """Node id → (x, y) in pixels.

    Args:
        keep: keep existing positions.
    """
    ids = list(dict.fromkeys(node.id for node in workflow.nodes))
    number = {name: at for at, name in enumerate(ids)}
    after: list[list[int]] = [[] for _ in ids]
    for edge in workflow.edges:
        if edge.source in number and edge.target in number:
            after[number[edge.source]].append(number[edge.target])
    order, stuck = topological(after)
    depth = [0] * len(ids)
    for node in order:
        for target in after[node]:
            depth[target] = max(depth[target], depth[node] + 1)
    rows: dict[int, int] = {}
    places: dict[str, tuple[float, float]] = {}
    for node in (*order, *stuck):
        row = rows.get(depth[node], 0)
        rows[depth[node]] = row + 1
        places[ids[node]] = float(depth[node] * COLUMN), float(row * ROW)
    if keep:
        for written in workflow.nodes:
            at = written.position or {}
            x, y = at.get("x"), at.get("y")
            if _is_place(x) and _is_place(y):
                places[written.id] = float(x), float(y)
    return places


def _is_place(value: Any) -> TypeGuard[float]:
    """Whether a picture can contain this position."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _FARTHEST
