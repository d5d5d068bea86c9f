"""A patch of a workflow: RFC 6902 on its projection (`patch_view.py`), with rules for ids.

    read every operation → name each node and edge by id → apply → remove the edges of removed nodes → build the workflow

While a patch is applied and its result is checked, new nodes and edges have their localIds as ids, so that every message
uses the names of the patch's author. `patch_ids.py` gives them their final ids afterwards.

Nothing is changed in place but copies of the touched nodes and edges, so the cost depends on the patch; building the lists
is linear.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final

from pydantic import ValidationError

from tavern_core.frozen_dataclass import dataclass
from tavern_core.graph.json_patch import Operation, PatchCopyBudget, apply_operation, read_operations
from tavern_core.graph.patch_paths import PatchLocalIds, resolve_local_ids
from tavern_core.graph.patch_problems import PatchProblem, PatchRefused
from tavern_core.graph.patch_view import by_id, merge_projection, show
from tavern_core.model.json_pointer import exact_pointer
from tavern_core.model.pydantic_errors import explain
from tavern_core.model.workflow import InterfaceSlot, Workflow, WorkflowEdge, WorkflowNode

MODELS: Final = {"nodes": WorkflowNode, "edges": WorkflowEdge}


@dataclass(frozen=True, slots=True)
class RemovedEdge:
    """An edge that was removed because a node at its end was."""

    id: str
    source: str
    target: str
    source_handle: str | None
    target_handle: str | None
    node: str
    """The removed node."""

    def to_json(self) -> dict[str, Any]:
        data = {
            "id": self.id, "source": self.source, "sourceHandle": self.source_handle, "target": self.target,
            "targetHandle": self.target_handle, "node": self.node,
        }  # fmt: skip
        return {key: value for key, value in data.items() if value is not None}


@dataclass(frozen=True, slots=True)
class PatchedWorkflow:
    """A patched workflow, whose new nodes and edges still have their localIds as ids."""

    workflow: Workflow
    names: PatchLocalIds
    removed_edges: tuple[RemovedEdge, ...] = ()
    touched: Mapping[tuple[str, str], list[Operation]] = field(default_factory=dict)
    """(section, id) → the operations on it, in order."""


def apply_patch(workflow: Workflow, patch: Any) -> PatchedWorkflow:
    """Apply a patch, which must be JSON already; the workflow does not change. The result is not compiled yet.

    Raises:
        PatchRefused: nothing is applied.
    """
    written = read_operations(patch)
    names, operations = resolve_local_ids(workflow, written)
    shown, allowance = by_id(workflow), PatchCopyBudget()
    copied: set[tuple[str, str]] = set()
    touched: dict[tuple[str, str], list[Operation]] = {}
    removed: dict[str, int] = {}
    for operation in operations:
        for parts in (operation.path, operation.source or operation.path):
            show(shown, parts, copied)
        try:
            shown = apply_operation(shown, operation, allowance)
        except PatchRefused as refused:
            raise PatchRefused(*(_on_rev(problem, workflow) for problem in refused.problems)) from None
        if operation.op != "test":
            _note(operation, touched, removed)
    shown, removed_edges = _without_edges_of(shown, removed, touched, names)
    raw = _cleaned(merge_projection(workflow, shown, copied), workflow, shown, removed)
    return PatchedWorkflow(_built(workflow, raw, touched), names, removed_edges, touched)


def _note(operation: Operation, touched: dict[tuple[str, str], list[Operation]], removed: dict[str, int]) -> None:
    for parts in (operation.path, operation.source or ()):
        if not parts or (operation.op == "copy" and parts is operation.source):
            continue
        key = (parts[0], parts[1] if len(parts) > 1 else "")
        touched.setdefault(key, []).append(operation)
        if len(parts) == 2 and parts[0] == "nodes" and operation.op == "remove":
            removed[parts[1]] = operation.at


def _on_rev(problem: PatchProblem, workflow: Workflow) -> PatchProblem:
    if problem.pointer != "/rev" or problem.code != "TEST_FAILED":
        return problem
    return conflict(workflow.rev, problem.op)


def conflict(now: int, op: int | None = None, wanted: int | None = None) -> PatchProblem:
    """The workflow has another revision than the patch was written for."""
    text = f"the workflow is at rev {now}" + (f", the patch was written for rev {wanted}" if wanted is not None else "")
    return PatchProblem(
        "REV_CONFLICT",
        text,
        op=op,
        pointer="/rev",
        hint="read the workflow again, and write the patch for what it is now",
    )


def _without_edges_of(
    shown: dict[str, Any],
    removed: Mapping[str, int],
    touched: Mapping[tuple[str, str], list[Operation]],
    names: PatchLocalIds,
) -> tuple[dict[str, Any], tuple[RemovedEdge, ...]]:
    """The projection without edges that end at removed nodes, except those whose ends the patch wrote afterwards."""
    if not removed:
        return shown, ()
    edges = shown["edges"]
    odd = {id_ for at, id_ in touched if at == "edges" and not _has_ends(edges.get(id_))}
    hit = [
        (id_, edge)
        for id_, edge in edges.items()
        if id_ not in odd and (edge["source"] in removed or edge["target"] in removed)
    ]
    removed_edges: list[RemovedEdge] = []
    for id_, edge in hit:
        node = edge["source"] if edge["source"] in removed else edge["target"]
        last = touched.get(("edges", id_))
        if last and last[-1].at > removed[node]:
            continue  # a dangling edge, which the check reports
        removed_edges.append(
            RemovedEdge(id_, edge["source"], edge["target"], edge.get("sourceHandle"), edge.get("targetHandle"), node)
        )
        del edges[id_]
    return shown, tuple(edge for edge in removed_edges if edge.id not in names.edges)


def _has_ends(edge: Any) -> bool:
    return isinstance(edge, dict) and isinstance(edge.get("source"), str) and isinstance(edge.get("target"), str)


def _cleaned(
    raw: dict[str, Any], workflow: Workflow, shown: Mapping[str, Any], removed: Mapping[str, int]
) -> dict[str, Any]:
    """The document without references to removed edges and nodes; a node without its parent keeps its place on the canvas."""
    lost = [edge.id for edge in workflow.edges if edge.id not in shown["edges"]]
    if not lost and not removed:
        return raw
    removed_ids = set(lost)
    places = {node.id: node.position or {} for node in workflow.nodes if node.id in removed}
    raw["nodes"] = [
        _without(node, removed_ids, removed, places)
        if "parentNode" in node or "inputConnectionOrders" in node
        else node
        for node in raw["nodes"]
    ]
    return raw


def _without(
    node: dict[str, Any], removed_ids: set[str], removed: Mapping[str, int], places: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    orders, parent = node.get("inputConnectionOrders"), node.get("parentNode")
    if isinstance(orders, dict) and any(edge in removed_ids for ids in orders.values() for edge in ids):
        node = {
            **node,
            "inputConnectionOrders": {key: [e for e in ids if e not in removed_ids] for key, ids in orders.items()},
        }
    if isinstance(parent, str) and parent in removed:
        node = {key: value for key, value in node.items() if key != "parentNode"}
        at, origin = node.get("position"), places.get(parent, {})
        if isinstance(at, dict) and all(
            isinstance(each.get(axis), int | float) for each in (at, origin) for axis in "xy"
        ):
            node["position"] = {**at, **{axis: at[axis] + origin[axis] for axis in "xy"}}
    return node


# The workflow of a document ----------------------------------------------------------------------------------------------


def _built(workflow: Workflow, raw: dict[str, Any], touched: Mapping[tuple[str, str], list[Operation]]) -> Workflow:
    """The workflow of a changed document; only changed parts are read again. Raises PatchRefused (BAD_SHAPE)."""
    problems: list[PatchProblem] = []
    changed: dict[str, Any] = {"raw": raw}
    for section, model in MODELS.items():
        old = {
            id(item): made
            for item, made in zip(workflow.raw.get(section) or (), getattr(workflow, section), strict=True)
        }
        items: list[Any] = []
        for item in raw[section]:
            made = old.get(id(item))
            if made is None:
                made = _read(model, item, f"/{section}/{item['id']}", touched.get((section, item["id"])), problems)
            items.append(made)
        changed[section] = tuple(items)
    for key, name in (("interfaceInputs", "interface_inputs"), ("interfaceOutputs", "interface_outputs")):
        if any(at == key for at, _ in touched):
            changed[name] = _interface(key, raw.get(key), touched, problems)
    for key in ("name", "description"):
        if (key, "") in touched:
            if not isinstance(raw.get(key), str):
                problems.append(_misshapen(touched[key, ""], f"/{key}", f"{key} is text"))
            changed[key] = raw.get(key)
    if problems:
        raise PatchRefused(*problems)
    return workflow.model_copy(update=changed)


def _interface(
    key: str, slots: Any, touched: Mapping[tuple[str, str], list[Operation]], problems: list[PatchProblem]
) -> Any:
    every = [operation for (at, _), done in touched.items() if at == key for operation in done]
    if not isinstance(slots, dict):
        problems.append(_misshapen(every, f"/{key}", f"{key} is an object: key → slot"))
        return {}
    found = {}
    for name, slot in slots.items():
        operations = touched.get((key, name)) or every
        if not 1 <= len(name) <= 200:
            problems.append(_misshapen(operations, f"/{key}/{name[:20]}", "a key has 1 to 200 characters"))
        found[name] = _read(InterfaceSlot, slot, exact_pointer((key, name)), operations, problems)
    return found


def _read(model: Any, item: Any, place: str, done: list[Operation] | None, problems: list[PatchProblem]) -> Any:
    try:
        return model.model_validate(item)
    except ValidationError as error:
        for each in explain(error, item, model)[:20]:
            where = place + exact_pointer([str(part) for part in each.path])
            problems.append(_misshapen(done, where, f"{where}: {each.message}", each.hint, each.allowed))
    return None


def _misshapen(
    done: list[Operation] | None, place: str, text: str, hint: str = "", allowed: tuple[str, ...] = ()
) -> PatchProblem:
    at = done[-1].at if done else None
    return PatchProblem(
        "BAD_SHAPE",
        text,
        op=at,
        pointer=place,
        hint=hint or "write the value in the workflow's format",
        allowed=allowed,
    )


def with_revision(workflow: Workflow, rev: int) -> Workflow:
    """The same workflow with another revision."""
    return workflow.model_copy(update={"rev": rev, "raw": {**workflow.raw, "rev": rev}})
