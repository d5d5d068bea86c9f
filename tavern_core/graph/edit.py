"""Editing a workflow as a program or a person would: add, connect, set, remove, rename. Each edit returns a new workflow.

Only the edited part changes; unknown keys stay. An edit that would break something is refused before anything changes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from tavern_core.errors import UsageError, WorkflowInvalid, sayable
from tavern_core.graph.layout import COLUMN, layout
from tavern_core.graph.problems import FlowProblem, Identity
from tavern_core.model.naming_rules import split_id
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.pydantic_errors import explain
from tavern_core.model.workflow import Workflow

Check = Callable[[Workflow], list[FlowProblem]]
"""The function that returns all problems of a workflow; it decides whether an edit is allowed."""
Read = Callable[[Mapping[str, Any], str], Workflow]
"""Builds a workflow from a document and its id; raises WorkflowInvalid for an invalid document."""


class WorkflowEditor:
    """A workflow while it is edited.

    Args:
        workflow: the initial state.
        check: an edit that would add an error to its findings is refused; None: every well-formed edit is allowed.
        read: builds the workflow from the edited document, sharing nothing with the inserted values.
    """

    def __init__(self, workflow: Workflow, check: Check | None = None, read: Read | None = None) -> None:
        self.workflow = workflow
        self._check = check
        self._read = read or _plain_read
        self._known = _errors(check(workflow)) if check is not None else set()
        self._batch: _Batch | None = None

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
        known, self._batch = self._known, _Batch(self.workflow)
        try:
            yield
            batch = self._batch
            self._take(batch.data, "make these edits", batch.lacking, batch.given)
            self.workflow = _positioned(self.workflow, self._read)
        except BaseException:
            self._known = known
            raise
        finally:
            self._batch = None

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
        taken = self._nodes()
        if node_id in taken:
            raise UsageError(f"there is a node {node_id!r} already", hint="choose another id")
        name = node_id or _free(split_id(type_)[1].lower() or "node", taken)
        node: dict[str, Any] = {"id": name, "type": type_}
        if position is not None or self._batch is None:
            node["position"] = self._place(position)
        if display_name:
            node["displayName"] = display_name
        if inputs:
            node["inputValues"] = dict(inputs)
        if config:
            node["configValues"] = dict(config)
        self._change(
            lambda data: data["nodes"].append(node),
            f"add {name!r}",
            may_lack=name,
            given={(name, key) for key in inputs or ()},
        )
        return name

    def connect(self, source: str, source_handle: str, target: str, target_handle: str) -> str:
        """Add an edge and return its id.

        Raises:
            UsageError: a node or handle does not exist, or the types do not fit (USAGE).
        """
        for node in (source, target):
            self._node(node)
        name = _free(f"{source}-{target}", self._edges())
        edge = {
            "id": name,
            "source": source,
            "sourceHandle": source_handle,
            "target": target,
            "targetHandle": target_handle,
        }
        self._change(
            lambda data: data["edges"].append(edge), f"connect {source}.{source_handle} to {target}.{target_handle}"
        )
        return name

    def disconnect(self, edge: str) -> None:
        """Remove an edge. Raises UsageError if there is none (USAGE)."""
        known = self._edges()
        if edge not in known:
            raise UsageError(f"there is no edge {edge!r}", hint=did_you_mean(edge, known))
        target = known[edge][1]
        self._change(
            lambda data: _drop_edges(data, lambda e: e.get("id") == edge), f"remove edge {edge!r}", may_lack=target
        )

    def set_input(self, node: str, key: str, value: Any) -> None:
        """Set the value of an input. Raises UsageError: no such node or input, or the value does not fit (USAGE)."""
        self._set(node, "inputValues", key, value, given={(node, key)})

    def set_config(self, node: str, key: str, value: Any) -> None:
        """Set one key of a node's configuration; inputs that it makes required may be given later. Raises as `set_input`."""
        self._set(node, "configValues", key, value, may_lack=node)

    def remove(self, node: str) -> None:
        """Remove a node with all its edges. Raises UsageError if there is none (USAGE)."""
        self._node(node)
        behind = {target for source, target in self._edges().values() if source == node}

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
        _judge_id(new)
        if new != node and new in self._nodes():
            raise UsageError(f"there is a node {new!r} already", hint="choose another id")

        def change(data: dict[str, Any]) -> None:
            for other in data["nodes"]:
                for key in ("id", "parentNode"):
                    if other.get(key) == node:
                        other[key] = new
            for edge in data["edges"]:
                for key in ("source", "target"):
                    if edge.get(key) == node:
                        edge[key] = new

        def moved(path: str) -> str:
            first, slash, rest = path.partition("/")
            return f"{new}{slash}{rest}" if first == node else path

        if self._batch is not None:
            self._batch.rename(node, new)
        # Existing problems of the node stay under its new name.
        self._change(
            change,
            f"rename {node!r}",
            known={(code, moved(path), slot, edge) for code, path, slot, edge in self._known},
        )

    def arrange(self) -> None:
        """Lay out all nodes again."""
        places = layout(self.workflow, keep=False)

        def change(data: dict[str, Any]) -> None:
            for node in data["nodes"]:
                if (at := places.get(node.get("id"))) is not None:
                    node["position"] = {"x": at[0], "y": at[1]}

        self._change(change, "arrange")

    def _set(self, node: str, section: str, key: str, value: Any, **options: Any) -> None:
        self._node(node)

        def change(data: dict[str, Any]) -> None:
            for each in data["nodes"]:
                if each.get("id") == node:
                    each[section] = {**(each.get(section) or {}), key: value}

        self._change(change, f"set {key!r:.100} of {node!r}", **options)

    def _node(self, node: str) -> None:
        known = self._nodes()
        if node not in known:
            listed = list(known)
            raise UsageError(
                f"there is no node {node!r}", hint=did_you_mean(node, listed) or f"nodes: {', '.join(listed[:20])}"
            )

    def _nodes(self) -> dict[str, None]:
        """The ids of the nodes, with the edits of a batch."""
        return dict.fromkeys(node.id for node in self.workflow.nodes) if self._batch is None else self._batch.nodes

    def _edges(self) -> dict[str, tuple[str, str]]:
        """Id → (source, target) of the edges, with the edits of a batch."""
        if self._batch is not None:
            return self._batch.edges
        return {edge.id: (edge.source, edge.target) for edge in self.workflow.edges}

    def _place(self, position: tuple[float, float] | None) -> dict[str, float]:
        if position is None:
            places = layout(self.workflow)
            position = max((x for x, _ in places.values()), default=-float(COLUMN)) + COLUMN, 0.0
        try:
            x, y = (float(value) for value in position)
        except (TypeError, ValueError, OverflowError):
            raise UsageError(f"a position is two numbers, got {position!r:.100}", hint="position=(0, 0)") from None
        return {"x": x, "y": y}

    def _change(
        self,
        change: Callable[[dict[str, Any]], None],
        what: str,
        *,
        may_lack: str | set[str] = "",
        given: Collection[tuple[str, str]] = (),
        known: set[Identity] | None = None,
    ) -> None:
        """Apply an edit, unless it adds an error.

        Args:
            change: edits the document.
            what: the edit in words, for the error.
            may_lack: nodes that may lack inputs.
            given: (node, input) pairs that get values.
            known: the existing errors, if the edit renames them.
        """
        lacking = {may_lack} if isinstance(may_lack, str) else may_lack
        if known is not None:
            before, self._known = self._known, known
        if self._batch is not None:
            self._batch.edit(change, lacking, given, is_renaming=known is not None)
            return
        data = _document_to_edit(self.workflow)
        change(data)
        try:
            self._take(data, what, lacking, given)
        except BaseException:
            if known is not None:
                self._known = before
            raise

    def _take(
        self, data: dict[str, Any], what: str, lacking: Collection[str], given: Collection[tuple[str, str]]
    ) -> None:
        """Make a document the workflow. Raises UsageError: it is not well-formed, or has new errors (USAGE)."""
        try:
            changed = self._read(data, self.workflow.id)
        except WorkflowInvalid as error:
            said = error.details.get("problems") or ({"message": error.message},)
            raise UsageError(
                f"cannot {what}: {said[0]['message']}", hint=error.hint or "give text of 1 to 200 characters"
            ) from None
        if self._check is not None:
            found = self._check(changed)
            new = [p for p in found if p.severity == "error" and p.identity not in self._known]
            wrong = [p for p in new if not (p.code == "MISSING_INPUT" and p.node in lacking)]
            wrong += [p for p in found if p.code == "UNKNOWN_INPUT" and (p.node, p.slot) in given]
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


def _drop_edges(data: dict[str, Any], drop: Callable[[Mapping[str, Any]], bool]) -> None:
    gone = {edge.get("id") for edge in data["edges"] if drop(edge)}
    data["edges"] = [edge for edge in data["edges"] if not drop(edge)]
    for node in data["nodes"]:
        orders = node.get("inputConnectionOrders")
        if isinstance(orders, dict):
            node["inputConnectionOrders"] = {key: [e for e in ids if e not in gone] for key, ids in orders.items()}


def _free(wanted: str, taken: Collection[str]) -> str:
    if wanted not in taken:
        return wanted
    return next(name for at in range(2, len(taken) + 3) if (name := f"{wanted}-{at}") not in taken)


class _Batch:
    """Several edits at once, on one copy of the document."""

    def __init__(self, workflow: Workflow) -> None:
        self.data = _document_to_edit(workflow)
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


def _document_to_edit(workflow: Workflow) -> dict[str, Any]:
    """A copy of the document, for edits."""
    data = copy.deepcopy(dict(workflow.raw))
    for section in ("nodes", "edges"):
        data[section] = data.get(section) or []
    return data


def _positioned(workflow: Workflow, read: Read) -> Workflow:
    """The workflow with a position for each node; the same object if all have one."""
    if all(node.position for node in workflow.nodes):
        return workflow
    places = layout(workflow)
    nodes = [
        {**node, "position": {"x": places[node["id"]][0], "y": places[node["id"]][1]}} for node in workflow.raw["nodes"]
    ]
    return read({**workflow.raw, "nodes": nodes}, workflow.id)
