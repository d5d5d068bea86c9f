"""Editing a workflow as a program or a person would: add, connect, set, remove, rename. Each edit gives a new workflow.

Only what is edited changes; keys that nobody here knows stay. What an edit would break is refused before anything changes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from tavern_core.errors import UsageError, sayable
from tavern_core.graph.layout import COLUMN, layout
from tavern_core.graph.problems import Problem
from tavern_core.model.ids import split_id
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.workflow import Workflow

Check = Callable[[Workflow], list[Problem]]
"""All problems of a workflow; what judges whether an edit is allowed."""


class WorkflowEditor:
    """A workflow that is being edited.

    Args:
        workflow: where it begins.
        check: an edit that would add an error to what this finds is refused; None: anything well-formed goes.
    """

    def __init__(self, workflow: Workflow, check: Check | None = None) -> None:
        self.workflow = workflow
        self._check = check
        self._known = _errors(check(workflow)) if check is not None else set()

    def add(
        self,
        type_: str,
        *,
        node_id: str = "",
        inputs: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        position: tuple[float, float] | None = None,
        display_name: str = "",
    ) -> str:
        """Add a node and return its id, made from its type when none is given.

        A node whose required inputs are not given yet is allowed; `check` tells of it.

        Raises:
            UsageError: the id is taken, or the edit adds an error (USAGE).
        """
        if not isinstance(type_, str) or not isinstance(node_id, str):
            raise UsageError(f"a node's type and id are text, got {type_!r:.100} and {node_id!r:.100}", hint='add("core:Text", node_id="a")')
        taken = {node.id for node in self.workflow.nodes}
        if node_id in taken:
            raise UsageError(f"there is a node {node_id!r} already", hint="choose another id")
        name = node_id or _free(split_id(type_)[1].lower() or "node", taken)
        node: dict[str, Any] = {"id": name, "type": type_, "position": self._place(position)}
        if display_name:
            node["displayName"] = display_name
        if inputs:
            node["inputValues"] = dict(inputs)
        if config:
            node["configValues"] = dict(config)
        self._change(lambda data: data.setdefault("nodes", []).append(node), f"add {name!r}", may_lack=name)
        return name

    def connect(self, source: str, source_handle: str, target: str, target_handle: str) -> str:
        """Add an edge and return its id.

        Raises:
            UsageError: a node or handle does not exist, or the types do not fit (USAGE).
        """
        for node in (source, target):
            self._node(node)
        name = _free(f"{source}-{target}", {edge.id for edge in self.workflow.edges})
        edge = {"id": name, "source": source, "sourceHandle": source_handle, "target": target, "targetHandle": target_handle}
        self._change(lambda data: data.setdefault("edges", []).append(edge), f"connect {source}.{source_handle} to {target}.{target_handle}")
        return name

    def disconnect(self, edge: str) -> None:
        """Remove an edge. Raises UsageError when there is none (USAGE)."""
        known = [e.id for e in self.workflow.edges]
        if edge not in known:
            raise UsageError(f"there is no edge {edge!r}", hint=did_you_mean(edge, known))
        target = next(e.target for e in self.workflow.edges if e.id == edge)
        self._change(lambda data: _drop_edges(data, lambda e: e.get("id") == edge), f"remove edge {edge!r}", may_lack=target)

    def set_input(self, node: str, key: str, value: Any) -> None:
        """Give an input a value. Raises UsageError: no such node, or the value does not fit (USAGE)."""
        self._set(node, "inputValues", key, value)

    def set_config(self, node: str, key: str, value: Any) -> None:
        """Set one key of a node's configuration. Raises as `set_input`."""
        self._set(node, "configValues", key, value)

    def remove(self, node: str) -> None:
        """Remove a node with all its edges. Raises UsageError when there is none (USAGE)."""
        self._node(node)
        behind = {edge.target for edge in self.workflow.edges if edge.source == node}

        def change(data: dict[str, Any]) -> None:
            data["nodes"] = [n for n in data["nodes"] if n.get("id") != node]
            _drop_edges(data, lambda e: node in (e.get("source"), e.get("target")))
            for other in data["nodes"]:
                if other.get("parentNode") == node:
                    del other["parentNode"]

        self._change(change, f"remove {node!r}", may_lack=behind)

    def rename(self, node: str, new: str) -> None:
        """Give a node another id; edges follow. Raises UsageError: no such node, or the id is taken (USAGE)."""
        self._node(node)
        if new != node and any(n.id == new for n in self.workflow.nodes):
            raise UsageError(f"there is a node {new!r} already", hint="choose another id")
        if not new:
            raise UsageError("a node's id cannot be empty")

        def change(data: dict[str, Any]) -> None:
            for other in data["nodes"]:
                for key in ("id", "parentNode"):
                    if other.get(key) == node:
                        other[key] = new
            for edge in data.get("edges") or ():
                for key in ("source", "target"):
                    if edge.get(key) == node:
                        edge[key] = new

        self._change(change, f"rename {node!r}")

    def arrange(self) -> None:
        """Lay all nodes out anew."""
        places = layout(self.workflow, keep=False)

        def change(data: dict[str, Any]) -> None:
            for node in data["nodes"]:
                if (at := places.get(node.get("id"))) is not None:
                    node["position"] = {"x": at[0], "y": at[1]}

        self._change(change, "arrange")

    def _set(self, node: str, section: str, key: str, value: Any) -> None:
        self._node(node)

        def change(data: dict[str, Any]) -> None:
            for each in data["nodes"]:
                if each.get("id") == node:
                    each[section] = {**(each.get(section) or {}), key: value}

        self._change(change, f"set {key!r} of {node!r}")

    def _node(self, node: str) -> None:
        known = [n.id for n in self.workflow.nodes]
        if node not in known:
            raise UsageError(f"there is no node {node!r}", hint=did_you_mean(node, known) or f"nodes: {', '.join(known[:20])}")

    def _place(self, position: tuple[float, float] | None) -> dict[str, float]:
        if position is None:
            places = layout(self.workflow)
            position = max((x for x, _ in places.values()), default=-float(COLUMN)) + COLUMN, 0.0
        return {"x": position[0], "y": position[1]}

    def _change(self, change: Callable[[dict[str, Any]], None], what: str, may_lack: str | set[str] = "") -> None:
        data = copy.deepcopy(dict(self.workflow.raw))
        change(data)
        try:
            changed = Workflow.model_validate(data).model_copy(update={"id": self.workflow.id, "raw": data})
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise UsageError(sayable(f"cannot {what}: {place}: {first['msg']}"), hint="give text of 1 to 200 characters") from None
        if self._check is not None:
            lacking = {may_lack} if isinstance(may_lack, str) else may_lack
            found = self._check(changed)
            new = [p for p in found if p.severity == "error" and _name(p) not in self._known]
            wrong = [p for p in new if not (p.code == "MISSING_INPUT" and p.node in lacking)]
            if wrong:
                raise UsageError(f"cannot {what}: {wrong[0].message}", hint=wrong[0].hint, problems=[p.to_json() for p in wrong])
            self._known = _errors(found)
        self.workflow = changed


def _errors(problems: list[Problem]) -> set[tuple[str, str, str, str]]:
    return {_name(problem) for problem in problems if problem.severity == "error"}


def _name(problem: Problem) -> tuple[str, str, str, str]:
    return problem.code, problem.node, problem.slot, problem.edge


def _drop_edges(data: dict[str, Any], drop: Callable[[Mapping[str, Any]], bool]) -> None:
    gone = {edge.get("id") for edge in data.get("edges") or () if drop(edge)}
    data["edges"] = [edge for edge in data.get("edges") or () if not drop(edge)]
    for node in data.get("nodes") or ():
        orders = node.get("inputConnectionOrders")
        if isinstance(orders, dict):
            node["inputConnectionOrders"] = {key: [e for e in ids if e not in gone] for key, ids in orders.items()}


def _free(wanted: str, taken: set[str]) -> str:
    if wanted not in taken:
        return wanted
    return next(name for at in range(2, len(taken) + 3) if (name := f"{wanted}-{at}") not in taken)
