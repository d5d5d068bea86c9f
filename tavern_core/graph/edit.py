"""Editing a workflow as a program or a person would: add, connect, set, remove, rename. Each edit returns a new workflow.

Only the edited part changes; unknown keys stay. An edit that would break something is refused before anything changes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from tavern_core.errors import UsageError, WorkflowInvalid, sayable
from tavern_core.graph.layout import COLUMN, is_laid_out, layout
from tavern_core.graph.problems import FlowProblem, Identity
from tavern_core.model.naming_rules import split_id
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.pydantic_errors import explain
from tavern_core.model.workflow import Workflow

FindProblems = Callable[[Workflow], list[FlowProblem]]
"""The function that returns all problems of a workflow; it decides whether an edit is allowed."""
ReadWorkflow = Callable[[Mapping[str, Any], str], Workflow]
"""Builds a workflow from a document and its id; raises WorkflowInvalid for an invalid document."""


class WorkflowEditor:
    """A workflow while it is edited.

    Args:
        workflow: the initial state.
        check: an edit that would add an error to its findings is refused; None: every well-formed edit is allowed.
        read: builds the workflow from the edited document, sharing nothing with the inserted values.
    """

    def __init__(self, workflow: Workflow, check: FindProblems | None = None, read: ReadWorkflow | None = None) -> None:
        self.workflow = workflow
        self._check = check
        self._read = read or _plain_read
        self._known = _errors(check(workflow)) if check is not None else set()
        self._batch: _WorkflowDraft | None = None

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Make several edits with one copy and one check, at the end of the block; `workflow` changes then.

        All edits are applied or, if one is refused or the block fails, none. New nodes without a position get one at the end.

        Raises:
            UsageError: as a single edit does; together, the edits add an error (USAGE).
        """
        if self._batch is not None:
            yield  # part of the outer one
            return
        draft = self._batch = _WorkflowDraft(self.workflow, self._known)
        try:
            yield
        finally:
            self._batch = None
        self._take(draft, "make these edits")
        self.workflow = _positioned(self.workflow, self._read)

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
        """Add a node and return its id, derived from its type if none is given.

        A node may lack required inputs at first; `check` reports it.

        Raises:
            UsageError: the id is taken or invalid, an input does not exist, or the edit adds an error (USAGE).
        """
        if not isinstance(type_, str):
            raise UsageError(f"a node's type is text, got {type_!r:.100}", hint='add("core:Text")')
        _judge_id(node_id, may_be_empty=True)
        draft = self._begin()
        if node_id in draft.nodes:
            raise UsageError(f"there is a node {node_id!r} already", hint="choose another id")
        name = node_id or _free(split_id(type_)[1].lower() or "node", draft.nodes)
        node: dict[str, Any] = {"id": name, "type": type_}
        if position is not None or self._batch is None:
            node["position"] = self._place(position)
        if display_name:
            node["displayName"] = display_name
        if inputs:
            node["inputValues"] = dict(inputs)
        if config:
            node["configValues"] = dict(config)
        draft.given |= {(name, key) for key in inputs or ()}  # first: it fails for keys that are none
        draft.data["nodes"].append(node)
        draft.nodes[name] = None
        draft.lacking.add(name)
        self._end(draft, f"add {name!r}")
        return name

    def connect(self, source: str, source_handle: str, target: str, target_handle: str) -> str:
        """Add an edge and return its id.

        Raises:
            UsageError: a node or handle does not exist, or the types do not fit (USAGE).
        """
        draft = self._begin(source, target)
        name = _free(f"{source}-{target}", draft.edges)
        draft.data["edges"].append({
            "id": name, "source": source, "sourceHandle": source_handle, "target": target, "targetHandle": target_handle,
        })  # fmt: skip
        draft.edges[name] = source, target
        self._end(draft, f"connect {source}.{source_handle} to {target}.{target_handle}")
        return name

    def disconnect(self, edge: str) -> None:
        """Remove an edge. Raises UsageError if there is none (USAGE)."""
        draft = self._begin()
        if edge not in draft.edges:
            raise UsageError(f"there is no edge {edge!r}", hint=did_you_mean(edge, draft.edges))
        draft.lacking.add(draft.edges[edge][1])
        draft.drop_edges(lambda e: e.get("id") == edge)
        self._end(draft, f"remove edge {edge!r}")

    def set_input(self, node: str, key: str, value: Any) -> None:
        """Set the value of an input. Raises UsageError: no such node or input, or the value does not fit (USAGE)."""
        draft = self._begin(node)
        draft.given.add((node, key))
        draft.set(node, "inputValues", key, value)
        self._end(draft, f"set {key!r:.100} of {node!r}")

    def set_config(self, node: str, key: str, value: Any) -> None:
        """Set one key of a node's configuration; inputs that it makes required may be given later. Raises as `set_input`."""
        draft = self._begin(node)
        draft.set(node, "configValues", key, value)
        draft.lacking.add(node)
        self._end(draft, f"set {key!r:.100} of {node!r}")

    def remove(self, node: str) -> None:
        """Remove a node with all its edges. Raises UsageError if there is none (USAGE)."""
        draft = self._begin(node)
        draft.lacking.update(target for source, target in draft.edges.values() if source == node)
        draft.data["nodes"] = [each for each in draft.data["nodes"] if each.get("id") != node]
        for other in draft.data["nodes"]:
            if other.get("parentNode") == node:
                del other["parentNode"]
        del draft.nodes[node]
        draft.drop_edges(lambda e: node in (e.get("source"), e.get("target")))
        self._end(draft, f"remove {node!r}")

    def rename(self, node: str, new: str) -> None:
        """Give a node another id; edges follow. Raises UsageError: no such node, or the id is taken (USAGE)."""
        draft = self._begin(node)
        _judge_id(new)
        if new != node and new in draft.nodes:
            raise UsageError(f"there is a node {new!r} already", hint="choose another id")
        draft.rename(node, new)
        self._end(draft, f"rename {node!r}")

    def arrange(self) -> None:
        """Lay out all nodes again."""
        places, draft = layout(self.workflow, keep=False), self._begin()
        for node in draft.data["nodes"]:
            if (at := places.get(node.get("id"))) is not None:
                node["position"] = {"x": at[0], "y": at[1]}
        self._end(draft, "arrange")

    def _begin(self, *nodes: str) -> _WorkflowDraft:
        """The draft of the batch, or a new one. Raises UsageError: one of `nodes` does not exist (USAGE)."""
        draft = self._batch or _WorkflowDraft(self.workflow, self._known)
        for node in nodes:
            if node not in draft.nodes:
                listed = list(draft.nodes)
                hint = did_you_mean(node, listed) or f"nodes: {', '.join(listed[:20])}"
                raise UsageError(f"there is no node {node!r}", hint=hint)
        return draft

    def _end(self, draft: _WorkflowDraft, what: str) -> None:
        """Finish an edit; those of a batch are checked together at its end. Raises as `_take`."""
        if draft is not self._batch:
            self._take(draft, what)

    def _place(self, position: tuple[float, float] | None) -> dict[str, float]:
        if position is None:
            places = layout(self.workflow)
            position = max((x for x, _ in places.values()), default=-float(COLUMN)) + COLUMN, 0.0
        try:
            x, y = (float(value) for value in position)
        except (TypeError, ValueError, OverflowError):
            raise UsageError(f"a position is two numbers, got {position!r:.100}", hint="position=(0, 0)") from None
        return {"x": x, "y": y}

    def _take(self, draft: _WorkflowDraft, what: str) -> None:
        """Make a draft the workflow. Raises UsageError: it is not well-formed, or has new errors (USAGE)."""
        try:
            changed = self._read(draft.data, self.workflow.id)
        except WorkflowInvalid as error:
            problems = error.details.get("problems") or ({"message": error.message},)
            raise UsageError(
                f"cannot {what}: {problems[0]['message']}", hint=error.hint or "give text of 1 to 200 characters"
            ) from None
        if self._check is not None:
            found = self._check(changed)
            new = [p for p in found if p.severity == "error" and p.identity not in draft.known]
            wrong = [p for p in new if not (p.code == "MISSING_INPUT" and p.node in draft.lacking)]
            wrong += [p for p in found if p.code == "UNKNOWN_INPUT" and (p.node, p.slot) in draft.given]
            if wrong:
                raise UsageError(
                    f"cannot {what}: {wrong[0].message}", hint=wrong[0].hint, problems=[p.to_json() for p in wrong]
                )
            self._known = _errors(found)
        self.workflow = changed


def _plain_read(data: Mapping[str, Any], id_: str) -> Workflow:
    try:
        return Workflow.model_validate(data).model_copy(update={"id": id_, "raw": data})
    except ValidationError as error:
        first = explain(error, data, Workflow)[0]
        raise WorkflowInvalid(sayable(f"{first.place}: {first.message}"), hint=sayable(first.hint)) from None


def _judge_id(id_: Any, *, may_be_empty: bool = False) -> None:
    """Refuse an invalid node id. Raises UsageError (USAGE)."""
    if not isinstance(id_, str):
        raise UsageError(f"a node's id is text, got {id_!r:.100}", hint='for example "a"')
    if not id_ and not may_be_empty:
        raise UsageError("a node's id cannot be empty", hint='for example "a"')
    if "/" in id_:
        raise UsageError(
            sayable(f"a node's id cannot hold a /, got {id_!r:.100}"),
            hint="paths of nodes inside of groups are parted by it",
        )


def _errors(problems: list[FlowProblem]) -> set[Identity]:
    return {problem.identity for problem in problems if problem.severity == "error"}


def _free(wanted: str, taken: Collection[str]) -> str:
    if wanted not in taken:
        return wanted
    return next(name for at in range(2, len(taken) + 3) if (name := f"{wanted}-{at}") not in taken)


class _WorkflowDraft:
    """A workflow in one or several edits.

    Args:
        known: its errors before them.
    """

    def __init__(self, workflow: Workflow, known: set[Identity]) -> None:
        self._workflow = workflow
        self.known = known
        self.lacking: set[str] = set()
        """Nodes that may lack inputs."""
        self.given: set[tuple[str, str]] = set()
        """(node, input) pairs that get values."""
        self.nodes = dict.fromkeys(node.id for node in workflow.nodes)
        self.edges = {edge.id: (edge.source, edge.target) for edge in workflow.edges}
        """Id → (source, target)."""

    @cached_property
    def data(self) -> dict[str, Any]:
        """A copy of the document, which the edits change."""
        data = copy.deepcopy(dict(self._workflow.raw))
        return data | {section: data.get(section) or [] for section in ("nodes", "edges")}

    def set(self, node: str, section: str, key: str, value: Any) -> None:
        """Set one key of a section of a node."""
        for each in self.data["nodes"]:
            if each.get("id") == node:
                each[section] = {**(each.get(section) or {}), key: value}

    def drop_edges(self, drop: Callable[[Mapping[str, Any]], bool]) -> None:
        """Remove edges, also from the `inputConnectionOrders` of nodes."""
        dropped = {edge.get("id") for edge in self.data["edges"] if drop(edge)}
        self.data["edges"] = [edge for edge in self.data["edges"] if not drop(edge)]
        for node in self.data["nodes"]:
            orders = node.get("inputConnectionOrders")
            if isinstance(orders, dict):
                node["inputConnectionOrders"] = {
                    key: [e for e in ids if e not in dropped] for key, ids in orders.items()
                }
        self._read_edges()

    def rename(self, node: str, new: str) -> None:
        """Give a node another id. What it may lack, was given and had of errors stays under its new name."""
        for items, keys in ((self.data["nodes"], ("id", "parentNode")), (self.data["edges"], ("source", "target"))):
            for item in items:
                item.update({key: new for key in keys if item.get(key) == node})
        self.nodes = dict.fromkeys(each["id"] for each in self.data["nodes"])
        self._read_edges()

        def moved(path: str) -> str:
            first, slash, rest = path.partition("/")
            return f"{new}{slash}{rest}" if first == node else path

        self.known = {(code, moved(path), slot, edge) for code, path, slot, edge in self.known}
        self.lacking |= {new for name in self.lacking if name == node}
        self.given |= {(new, key) for name, key in self.given if name == node}

    def _read_edges(self) -> None:
        self.edges = {edge["id"]: (edge["source"], edge["target"]) for edge in self.data["edges"]}


def _positioned(workflow: Workflow, read: ReadWorkflow) -> Workflow:
    """The workflow with a position for each node; the same object if all have one."""
    if is_laid_out(workflow):
        return workflow
    places = layout(workflow)
    nodes = [
        {**node, "position": {"x": places[node["id"]][0], "y": places[node["id"]][1]}} for node in workflow.raw["nodes"]
    ]
    return read({**workflow.raw, "nodes": nodes}, workflow.id)
