"""Warnings about a valid workflow that lacks something, with the operations that complete it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tavern_core.assistant.answers import Needs
from tavern_core.assistant.draft_graph import GROUP_INPUT, GROUP_OUTPUT, DraftGraph, End
from tavern_core.assistant.suggested import add_edge, add_node, add_slot, connect, free_names, listed
from tavern_core.graph.patch_problems import PatchProblem
from tavern_core.model.node import NodeSpec, Slot
from tavern_core.model.workflow import Workflow


def completed(
    problems: Sequence[PatchProblem], workflow: Workflow, needs: Needs, spec: Callable[[str], NodeSpec | None]
) -> list[PatchProblem]:
    """The warnings, each with what to add; those that follow from others are left out.

    Args:
        spec: finds a node type.
    """
    return _Completing(problems, workflow, needs, spec).all()


class _Completing:
    def __init__(
        self,
        problems: Sequence[PatchProblem],
        workflow: Workflow,
        needs: Needs,
        spec: Callable[[str], NodeSpec | None],
    ) -> None:
        self._problems, self._needs = problems, needs
        types = {node.type for node in workflow.nodes}
        absent = [type_ for type_ in needs.nodes if type_ not in types and spec(type_) is not None]
        self._new = free_names(absent, {node.id for node in workflow.nodes})
        self._graph = DraftGraph(workflow, spec, self._new)
        self._ungiven = {p.pointer for p in problems if p.code == "NEED_OUTPUT"}
        self._taken: set[End] = set()
        """Outputs that a suggestion uses."""

    def all(self) -> list[PatchProblem]:
        found = [self._one(problem) for problem in self._problems]
        used = {node for node, _ in self._taken}
        return [
            problem
            for problem in found
            if not (problem.code == "INTERFACE" and problem.pointer in self._ungiven)
            and not (problem.code == "UNUSED_NODE" and _last(problem.pointer) in used)
        ]

    def _one(self, problem: PatchProblem) -> PatchProblem:
        match problem.code:
            case "NEED_OUTPUT":
                return self._output(problem)
            case "NEED_INPUT":
                return self._input(problem)
            case "NEED_NODE":
                return self._node(problem)
            case "UNUSED_NODE":
                return self._unused(problem)
        return problem

    def _output(self, problem: PatchProblem) -> PatchProblem:
        key, end = _last(problem.pointer), self._named(GROUP_OUTPUT)
        slot = self._graph.workflow.outputs().get(key)
        wanted = slot or Slot(key, "WILDCARD")
        source = next(iter(self._graph.fitting(end, wanted)), None) if end else None
        other = self._graph.outputs(source[0]).get(source[1]) if source is not None else None
        fixes = [] if slot is not None else [f"add it: {add_slot('interfaceOutputs', key, other)}"]
        if source is not None:
            self._taken.add(source)
            fixes.append(connect(self._graph, end, wanted))
        return _fixed(problem, fixes)

    def _input(self, problem: PatchProblem) -> PatchProblem:
        key, start = _last(problem.pointer), self._named(GROUP_INPUT)
        slot = self._graph.workflow.inputs().get(key)
        fixes = [] if slot is not None else [f"add it: {add_slot('interfaceInputs', key, None)}"]
        takers = self._graph.taking(start, slot or Slot(key, "STRING"), key) if start else []
        if takers:
            fixes.append(f"connect it to an input that fits ({listed(takers)}): {add_edge((start, key), takers[0])}")
        return _fixed(problem, fixes)

    def _node(self, problem: PatchProblem) -> PatchProblem:
        name = next((name for name, type_ in self._new.items() if f"{type_!r}" in problem.message), "")
        if not name:
            return problem
        fixes = [f"add it: {add_node(name, self._new[name])}"]
        for slot in self._graph.open_inputs(name):
            if found := self._graph.fitting(name, slot):
                fixes.append(f"connect its input: {add_edge(found[0], (name, slot.key))}")
        return _fixed(problem, fixes)

    def _unused(self, problem: PatchProblem) -> PatchProblem:
        name = _last(problem.pointer)
        if self._graph.types.get(name) not in self._needs.nodes:
            return replace(problem, fix="leave it and its edges out, or connect one of its outputs")
        for output in self._graph.outputs(name).values():
            if takers := self._graph.taking(name, output):
                edge = add_edge((name, output.key), takers[0])
                return replace(problem, fix=f"connect it to an input that fits ({listed(takers)}): {edge}")
        return replace(problem, fix=self._inserted(name) or problem.fix)

    def _inserted(self, name: str) -> str:
        """An edge that may begin at the node instead: one with the same source as the node has."""
        for edge in self._graph.beside(name):
            slot = self._graph.inputs(edge.target).get((edge.target_handle or "").partition("__")[0])
            for output in self._graph.outputs(name).values():
                if slot is not None and (name, output.key) in self._graph.fitting(edge.target, slot, edge.id):
                    moved = add_edge((name, output.key), (edge.target, edge.target_handle or slot.key), edge.id)
                    return f"put it between {edge.source} and {edge.target}: {moved}"
        return ""

    def _named(self, type_: str) -> str:
        return next((name for name, known in self._graph.types.items() if known == type_), "")


def _fixed(problem: PatchProblem, fixes: Sequence[str]) -> PatchProblem:
    text = "; ".join(fix for fix in fixes if fix)
    return replace(problem, fix=text, nearest=()) if text else problem


def _last(pointer: str) -> str:
    return pointer.rpartition("/")[2]
