"""Several edits of a workflow at once: on one copy of its document."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from typing import Any

from tavern_core.graph.layout import layout
from tavern_core.model.workflow import Workflow


class Batch:
    """The edits of one batch so far."""

    def __init__(self, workflow: Workflow) -> None:
        self.data = document_to_edit(workflow)
        self.lacking: set[str] = set()
        self.given: set[tuple[str, str]] = set()
        self.nodes: dict[str, None] = {}
        self.edges: dict[str, tuple[str, str]] = {}
        self._index(0, 0)

    def edit(
        self,
        change: Callable[[dict[str, Any]], None],
        lacking: Collection[str],
        given: Collection[tuple[str, str]],
        *,
        is_renaming: bool,
    ) -> None:
        """Apply one edit.

        Args:
            change: edits the document.
            lacking: nodes that may lack inputs.
            given: (node, input) pairs that get values.
            is_renaming: whether a node has another id afterwards.
        """
        nodes, edges = len(self.data["nodes"]), len(self.data["edges"])
        change(self.data)
        self.lacking.update(lacking)
        self.given.update(given)
        if is_renaming or len(self.data["nodes"]) < nodes or len(self.data["edges"]) < edges:
            nodes = edges = 0
            self.nodes.clear()
            self.edges.clear()
        self._index(nodes, edges)

    def rename(self, node: str, new: str) -> None:
        """Remember what a node may lack and was given, under its new id."""
        if node in self.lacking:
            self.lacking.add(new)
        self.given.update([(new, key) for name, key in self.given if name == node])

    def _index(self, nodes: int, edges: int) -> None:
        """Read the ids from these places on."""
        self.nodes.update(dict.fromkeys(node["id"] for node in self.data["nodes"][nodes:]))
        self.edges.update({edge["id"]: (edge["source"], edge["target"]) for edge in self.data["edges"][edges:]})


def document_to_edit(workflow: Workflow) -> dict[str, Any]:
    """A copy of the document, for edits."""
    data = copy.deepcopy(dict(workflow.raw))
    for section in ("nodes", "edges"):
        data[section] = data.get(section) or []
    return data


def positioned(workflow: Workflow, read: Callable[[Mapping[str, Any], str], Workflow]) -> Workflow:
    """The workflow with a position for each node; the same object if all have one."""
    if all(node.position for node in workflow.nodes):
        return workflow
    places = layout(workflow)
    nodes = [
        {**node, "position": {"x": places[node["id"]][0], "y": places[node["id"]][1]}} for node in workflow.raw["nodes"]
    ]
    return read({**workflow.raw, "nodes": nodes}, workflow.id)
