"""The problems of a patched workflow, each with the operation that probably caused it and a place in the projection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tavern_core.graph.json_patch import Operation, PointerParts
from tavern_core.graph.order import circles, topological
from tavern_core.graph.patch import PatchedWorkflow
from tavern_core.graph.patch_problems import PatchProblem
from tavern_core.graph.patch_view import INTERFACE
from tavern_core.graph.problems import FlowProblem
from tavern_core.model.json_pointer import exact_pointer
from tavern_core.model.workflow import Workflow


def problems_of_patch(problems: Iterable[FlowProblem], done: PatchedWorkflow) -> Iterator[PatchProblem]:
    """Problems of the compiled result in the words of the patch: its localIds are the ids of the result."""
    by_target = _by_target(done)
    sources = {edge.id: edge.source for edge in done.workflow.edges}
    for each in problems:
        if each.code == "CYCLE" and (edge := _newest_edge(done.workflow, each.node)):
            each = replace(each, edge=edge, hint=f"{each.hint}, such as {edge!r}")
        place, operation = _place(each, done, by_target, sources)
        fix = done.names.advice(each.node) if each.code == "DANGLING_EDGE" else ""
        yield PatchProblem(
            each.code, each.message, each.node, each.slot, each.edge, fix or each.hint, each.nearest, each.severity,
            each.allowed, operation.at if operation is not None else None, exact_pointer(place),
        )  # fmt: skip


def _newest_edge(workflow: Workflow, node: str) -> str:
    """The last edge of the file on a cycle through a node; empty if there is none."""
    ids = [each.id for each in workflow.nodes]
    number = {name: at for at, name in enumerate(ids)}
    after: list[list[int]] = [[] for _ in ids]
    for edge in workflow.edges:
        if edge.source in number and edge.target in number:
            after[number[edge.source]].append(number[edge.target])
    found = next((circle for circle in circles(after, topological(after)[1]) if number.get(node) in circle), [])
    pairs = {(ids[one], ids[other]) for one, other in zip(found, (*found[1:], *found[:1]), strict=True)}
    return next((edge.id for edge in reversed(workflow.edges) if (edge.source, edge.target) in pairs), "")


def _by_target(done: PatchedWorkflow) -> dict[str, list[Operation]]:
    """Node → the operations that gave it an edge or took one away."""
    found: dict[str, list[Operation]] = {}
    for edge in done.workflow.edges:
        found.setdefault(edge.target, []).extend(done.touched.get(("edges", edge.id), ()))
    for lost in done.removed_edges:
        found.setdefault(lost.target, []).extend(done.touched.get(("nodes", lost.node), ()))
    return found


def _place(
    each: FlowProblem, done: PatchedWorkflow, by_target: Mapping[str, Sequence[Operation]], sources: Mapping[str, str]
) -> tuple[PointerParts, Operation | None]:
    touched = done.touched
    if each.edge:
        side = "source" if each.node == sources.get(each.edge) else "target"
        key = {"DANGLING_EDGE": side, "CYCLE": ""}.get(each.code, f"{side}Handle")
        parts: PointerParts = ("edges", each.edge, key) if key else ("edges", each.edge)
        return parts, _last(parts, touched.get(("edges", each.edge)) or touched.get(("nodes", each.node)) or ())
    if not each.node:
        section = next((key for key in INTERFACE if (key, each.slot) in touched), "")
        every = [operation for (at, _), done_ in touched.items() if at in INTERFACE for operation in done_]
        return ((section, each.slot) if section else ()), _last((), every)
    node = each.node.partition("/")[0]
    parts = ("nodes", node, "inputValues", each.slot) if each.slot else ("nodes", node)
    if each.code in ("UNKNOWN_TYPE", "DEPRECATED"):
        parts = ("nodes", node, "type")
    elif each.code in ("BAD_CONFIG", "BAD_EXEC"):
        parts = ("nodes", node, "configValues")
    return parts, _last(parts, touched.get(("nodes", node)) or by_target.get(node) or ())


def _last(parts: PointerParts, operations: Sequence[Operation]) -> Operation | None:
    """The last operation at or below a place, else the last one."""
    exact = [operation for operation in operations if parts and operation.path[: len(parts)] == parts]
    every = exact or operations
    return every[-1] if every else None
