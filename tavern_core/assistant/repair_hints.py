"""Rewrites the problems of a patch for a model: each gets the operation that would correct it, and problems that only follow
from others are left out.

The host's own messages are for people who edit files. A model needs the next operation to write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from tavern_core.assistant.completeness_check import add_edge, add_node, add_slot, connect, free_names, listed
from tavern_core.assistant.draft_graph_queries import DraftGraph
from tavern_core.assistant.model_answers import RequestNeeds
from tavern_core.graph.patch import apply_patch
from tavern_core.graph.patch_problems import PatchProblem, PatchRefused
from tavern_core.graph.plan import GROUP_INPUT, GROUP_OUTPUT
from tavern_core.model.naming_rules import split_id
from tavern_core.model.nearest import fold
from tavern_core.model.node import NodeSpec, Slot
from tavern_core.model.workflow import Workflow, WorkflowEdge

_MOST_SHOWN: Final = 5
QUOTED: Final = re.compile("'([^']*)'")
_NUMBER: Final = re.compile(r"\d+")
_OF_EDGES: Final = frozenset({"DANGLING_EDGE", "UNKNOWN_HANDLE", "TYPE_MISMATCH", "STREAM_MISMATCH"})
Advised = PatchProblem | None
"""None: it follows from other problems, or was reported already."""


def with_repair_operations(
    problems: Sequence[PatchProblem],
    before: Workflow,
    patch: Sequence[Any],
    needs: RequestNeeds,
    spec: Callable[[str], NodeSpec | None],
) -> list[PatchProblem]:
    """The problems of a refused patch, with operations to copy; needed node types that do not occur are added."""
    try:
        draft = apply_patch(before, list(patch)).workflow
    except PatchRefused:
        return [_of_operation(problem, before, patch, needs) for problem in problems]
    return _Advice(problems, draft, needs, spec).all()


class _Advice:
    def __init__(
        self,
        problems: Sequence[PatchProblem],
        draft: Workflow,
        needs: RequestNeeds,
        spec: Callable[[str], NodeSpec | None],
    ) -> None:
        self._problems, self._draft, self._needs, self._spec = problems, draft, needs, spec
        meant = {name for problem in problems if problem.code == "UNKNOWN_TYPE" for name in problem.nearest}
        present = {node.type for node in draft.nodes} | meant
        self._absent = [type_ for type_ in needs.nodes if type_ not in present and spec(type_) is not None]
        self._edges = {edge.id: edge for edge in draft.edges}
        self._lost = self._named_by_edges()
        missing = [type_ for type_ in self._absent if type_ not in self._lost.values()]
        self._new = free_names(missing, {node.id for node in draft.nodes} | self._lost.keys())
        self._graph = DraftGraph(draft, spec, {**self._lost, **self._new})
        self._wrong = {self._edges[p.edge].target for p in problems if p.code in _OF_EDGES and p.edge in self._edges}
        self._reported: set[str] = set()

    def all(self) -> list[PatchProblem]:
        found = [self._with_operation(problem) for problem in self._problems]
        return [problem for problem in found if problem is not None] + list(self._needed())

    def _named_by_edges(self) -> dict[str, str]:
        """Nodes that edges name and no operation adds, each with the needed type that it probably has."""
        names = [
            name
            for problem in self._problems
            if problem.code == "DANGLING_EDGE"
            and (name := _second_name(problem.message))
            and not self._is_slip(name, problem)
        ]
        found: dict[str, str] = {}
        for name in dict.fromkeys(names):
            if type_ := next((t for t in self._absent if fold(name).startswith(fold(split_id(t)[1]))), ""):
                found[name] = type_
                continue
            used = self._used(name)
            free = [type_ for type_ in self._absent if type_ not in found.values()]
            if type_ := next((t for t in free if _has_handles(t, used, self._spec)), ""):
                found[name] = type_
        return found

    def _used(self, name: str) -> list[tuple[WorkflowEdge, bool]]:
        """The edges that name a node, each with whether it begins there."""
        return [(edge, edge.source == name) for edge in self._edges.values() if name in (edge.source, edge.target)]

    def _is_slip(self, name: str, problem: PatchProblem) -> bool:
        """Whether a similar name is meant: not if only the number differs (step1, step2), or if that node has other slots."""
        near = problem.nearest[0] if problem.nearest else ""
        type_ = next((node.type for node in self._draft.nodes if node.id == near), "")
        return bool(near) and not _is_numbered_as(name, near) and _has_handles(type_, self._used(name), self._spec)

    def _with_operation(self, problem: PatchProblem) -> Advised:
        match problem.code:
            case "DANGLING_EDGE":
                return self._dangling(problem)
            case "MISSING_INPUT":
                return self._missing_input(problem)
            case "UNKNOWN_HANDLE":
                return self._handle(problem)
            case "TYPE_MISMATCH" | "STREAM_MISMATCH":
                return self._mismatch(problem)
            case "CYCLE":
                return self._cycle(problem)
            case "INTERFACE" if GROUP_OUTPUT in problem.message and not problem.slot:
                return (
                    None
                    if GROUP_OUTPUT in self._lost.values()
                    else replace(problem, hint=add_node("out", GROUP_OUTPUT))
                )
        return problem

    def _dangling(self, problem: PatchProblem) -> Advised:
        name = _second_name(problem.message)
        if (type_ := self._lost.get(name)) is None:
            if not problem.nearest or not _is_numbered_as(name, problem.nearest[0]):
                return problem
            return replace(problem, hint="add this node, name another one, or remove the edge", nearest=())
        if name in self._reported:
            return None
        self._reported.add(name)
        return replace(problem, hint=f"{self._added('add the node', name, type_)}; or remove the edge")

    def _added(self, words: str, name: str, type_: str) -> str:
        """The operations that add a node, with edges to its open inputs."""
        fed = (
            (slot.key, found[0]) for slot in self._graph.open_inputs(name) if (found := self._graph.fitting(name, slot))
        )
        edges = [f"and connect it: {add_edge(source, (name, key))}" for key, source in fed]
        return "; ".join([f"{words}: {add_node(name, type_)}", *edges])

    def _missing_input(self, problem: PatchProblem) -> Advised:
        if problem.node in self._wrong:
            return None
        slot = self._graph.inputs(problem.node).get(problem.slot)
        fix = connect(self._graph, problem.node, slot) if slot is not None else ""
        return replace(problem, hint=f"{fix}; or set it in inputValues") if fix else problem

    def _handle(self, problem: PatchProblem) -> Advised:
        edge = self._edges.get(problem.edge)
        if edge is None:
            return problem
        is_output = problem.pointer.endswith("/sourceHandle")
        node, handle = (edge.source, edge.source_handle) if is_output else (edge.target, edge.target_handle)
        other = self._other_slot(edge, is_output=is_output)
        section = {GROUP_INPUT: "interfaceInputs", GROUP_OUTPUT: "interfaceOutputs"}.get(
            self._graph.types.get(node, "")
        )
        if section is not None and handle:
            needed = self._needs.inputs if is_output else self._needs.outputs
            add = add_slot(section, handle, other)
            if handle in needed or not problem.nearest:
                return replace(problem, hint=f"add it to {section}: {add}", nearest=(), allowed=())
            return replace(problem, hint=f"{problem.hint} or add it to {section}: {add}")
        fitting = tuple(self._graph.handles(node, other, is_output=is_output))
        near = tuple(name for name in problem.nearest if name in fitting or not fitting)
        if not fitting or near:
            return problem
        return replace(
            problem,
            hint=f"{'outputs' if is_output else 'inputs'} that fit: {', '.join(map(repr, fitting))}",
            nearest=(),
            allowed=fitting,
        )

    def _other_slot(self, edge: WorkflowEdge, *, is_output: bool) -> Slot | None:
        if is_output:
            return self._graph.inputs(edge.target).get((edge.target_handle or "").partition("__")[0])
        return self._graph.outputs(edge.source).get(edge.source_handle or "")

    def _mismatch(self, problem: PatchProblem) -> Advised:
        edge = self._edges.get(problem.edge)
        slot = self._other_slot(edge, is_output=True) if edge is not None else None
        if edge is None or slot is None:
            return problem
        return self._elsewhere(problem, edge, slot)

    def _cycle(self, problem: PatchProblem) -> Advised:
        names = [name.strip() for name in problem.message.rpartition(":")[2].split("→")]
        edges = self._graph.circle(names)
        movable = [
            (self._loss(edge), -at, edge, slot) for at, edge in enumerate(edges) if (slot := self._input_of(edge))
        ]
        if not movable:
            return problem
        *_, edge, slot = min(movable, key=lambda each: each[:2])
        circle = ", ".join(f"{e.id} ({e.source} → {e.target})" for e in edges[:_MOST_SHOWN])
        found = self._elsewhere(problem, edge, slot)
        return replace(found, hint=f"the edges are {circle}; {found.hint}")

    def _input_of(self, edge: WorkflowEdge) -> Slot | None:
        """The input at the end of an edge, if another output fits it."""
        slot = self._other_slot(edge, is_output=True)
        return slot if slot is not None and self._graph.fitting(edge.target, slot, edge.id) else None

    def _loss(self, edge: WorkflowEdge) -> int:
        """The cost of moving the start of an edge: 1 if its source loses its only reader, 1 if the new one has any."""
        slot = self._other_slot(edge, is_output=True)
        first = self._graph.fitting(edge.target, slot, edge.id)[0] if slot is not None else ("", "")
        return (self._graph.uses(edge.source) < 2) + (first in self._graph.used)

    def _elsewhere(self, problem: PatchProblem, edge: WorkflowEdge, slot: Slot) -> PatchProblem:
        """Let an edge begin at another output."""
        found = self._graph.fitting(edge.target, slot, edge.id)
        if not found:
            return problem
        edge_operation = add_edge(found[0], (edge.target, edge.target_handle or slot.key), edge.id)
        return replace(problem, hint=f"let an edge begin at an output that fits ({listed(found)}): {edge_operation}")

    def _needed(self) -> Iterator[PatchProblem]:
        for name, type_ in self._new.items():
            fix = self._added("add it", name, type_)
            yield PatchProblem(
                "NEED_NODE", f"the request needs a node of type {type_!r}, and there is none", pointer="/nodes",
                hint=f"{fix}; or leave it out of `needs`", severity="warning",
            )  # fmt: skip


def _of_operation(problem: PatchProblem, before: Workflow, patch: Sequence[Any], needs: RequestNeeds) -> PatchProblem:
    """A problem of a single operation."""
    operation = patch[problem.op] if problem.op is not None and problem.op < len(patch) else None
    if problem.code == "REV_CONFLICT":
        return replace(problem, hint=f"leave the operation out, or test for {before.rev}")
    if problem.code == "PATH_MISSING" and isinstance(operation, dict) and operation.get("op") == "replace":
        return replace(
            problem, hint='write "op": "add" for what is new' + (f"; {problem.hint}" if problem.hint else "")
        )
    if problem.code in ("DUPLICATE_LOCAL_ID", "LOCAL_ID_TAKEN") and sum(each == operation for each in patch) > 1:
        return replace(problem, hint=f"leave operation {problem.op} out: it is there twice")
    if problem.code == "MISSING_TYPE":
        written = {
            each["value"].get("type")
            for each in patch
            if isinstance(each, dict) and isinstance(each.get("value"), dict)
        }
        absent = tuple(type_ for type_ in needs.nodes if type_ not in written)
        return (
            replace(problem, hint=f"needed types that do not occur: {', '.join(absent)}", allowed=absent)
            if absent
            else problem
        )
    return problem


def _has_handles(type_: str, used: Sequence[tuple[WorkflowEdge, bool]], spec: Callable[[str], NodeSpec | None]) -> bool:
    """Whether a node type has the slots that edges use; the ends of a workflow have any."""
    if type_ in (GROUP_INPUT, GROUP_OUTPUT):
        return all(is_source == (type_ == GROUP_INPUT) for _, is_source in used)
    found = spec(type_)
    return found is not None and all(
        (edge.source_handle in found.outputs)
        if is_source
        else ((edge.target_handle or "").partition("__")[0] in found.inputs)
        for edge, is_source in used
    )


def _is_numbered_as(name: str, other: str) -> bool:
    """Whether two names differ in their numbers alone."""
    return _NUMBER.sub("", name) == _NUMBER.sub("", other)


def _second_name(message: str) -> str:
    """The node in ``edge 'e' begins at 'node', which does not exist``."""
    return str([*QUOTED.findall(message), "", ""][1])
