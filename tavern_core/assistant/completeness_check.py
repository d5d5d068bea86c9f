"""Whether a changed workflow has what its request needs: inputs, outputs, node types, and no node without effect.

`missing` finds what it lacks, and `completeness_warnings` adds to each warning the operations that complete the workflow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tavern_core.assistant.draft_graph_queries import DraftGraph, PortRef
from tavern_core.assistant.model_answers import RequestNeeds
from tavern_core.graph.patch_problems import PatchProblem
from tavern_core.graph.plan import GROUP_INPUT, GROUP_OUTPUT
from tavern_core.model.naming_rules import split_id
from tavern_core.model.nearest import did_you_mean, fold, nearest
from tavern_core.model.node import NodeSpec, Slot
from tavern_core.model.workflow import Workflow

_NO_RESULT: Final = frozenset({GROUP_INPUT, GROUP_OUTPUT, "core:Note", "core:frame"})


def missing(before: Workflow, after: Workflow, needs: RequestNeeds) -> list[PatchProblem]:
    """The missing parts, all as warnings, because the model stated the needs and may have been wrong.

    Args:
        before: the workflow without the patch; what was incomplete in it already is not reported again.
        after: the patched workflow, under the names of the patch.
    """
    read, provided = _read_inputs(after), _provided_outputs(after)
    return [
        *_inputs(before, after, needs, read),
        *_outputs(before, after, needs, provided),
        *_types(after, needs),
        *_without_effect(before, after),
    ]


def _read_inputs(workflow: Workflow) -> set[str]:
    """The inputs of the workflow that an edge reads."""
    starts = {node.id for node in workflow.nodes if node.type == GROUP_INPUT}
    only = next(iter(workflow.interface_inputs)) if len(workflow.interface_inputs) == 1 else ""
    return {edge.source_handle or only for edge in workflow.edges if edge.source in starts}


def _provided_outputs(workflow: Workflow) -> set[str]:
    """The outputs of the workflow that an edge or a value gives."""
    ends = {node.id: node for node in workflow.nodes if node.type == GROUP_OUTPUT}
    only = next(iter(workflow.interface_outputs)) if len(workflow.interface_outputs) == 1 else ""
    provided = {edge.target_handle or only for edge in workflow.edges if edge.target in ends}
    return provided | {key for node in ends.values() for key in node.input_values}


def _inputs(before: Workflow, after: Workflow, needs: RequestNeeds, read: set[str]) -> Iterator[PatchProblem]:
    yield from _absent("NEED_INPUT", "interfaceInputs", after.interface_inputs, needs.inputs)
    for key in after.interface_inputs:
        if key not in read and (key in needs.inputs or key not in before.interface_inputs):
            text = f"nothing reads input {key!r} of the workflow"
            fix = f"add an edge from output {key!r} of a {GROUP_INPUT} node to the node that needs it, or remove the input"
            yield _warning("NEED_INPUT", text, fix, f"/interfaceInputs/{key}")


def _outputs(before: Workflow, after: Workflow, needs: RequestNeeds, provided: set[str]) -> Iterator[PatchProblem]:
    yield from _absent("NEED_OUTPUT", "interfaceOutputs", after.interface_outputs, needs.outputs)
    for key in after.interface_outputs:
        if key not in provided and (key in needs.outputs or key not in before.interface_outputs):
            text = f"nothing gives output {key!r} of the workflow"
            fix = f"add an edge from the node that computes it to input {key!r} of a {GROUP_OUTPUT} node"
            yield _warning("NEED_OUTPUT", text, fix, f"/interfaceOutputs/{key}")


def _absent(code: str, section: str, known: Mapping[str, Any], needed: Sequence[str]) -> Iterator[PatchProblem]:
    type_, side = (GROUP_INPUT, "input") if section == "interfaceInputs" else (GROUP_OUTPUT, "output")
    for key in needed:
        if key not in known:
            near = did_you_mean(key, [name for name in known if name not in needed])
            fix = f"add it: {add_slot(section, key, None)}, and connect it at a {type_} node"
            text = f"the request needs {side} {key!r}, which is not in {section}"
            yield _warning(code, text, near or fix, f"/{section}/{key}")


def _types(after: Workflow, needs: RequestNeeds) -> Iterator[PatchProblem]:
    types = {node.type for node in after.nodes}
    for type_ in needs.nodes:
        if type_ not in types:
            near = tuple(nearest(type_, types))
            text = f"the request needs a node of type {type_!r}, and there is none"
            yield _warning("NEED_NODE", text, "add it and connect it, or leave it out of `needs`", "/nodes", near)


def _without_effect(before: Workflow, after: Workflow) -> Iterator[PatchProblem]:
    """New nodes from which no edge leads anywhere, in a workflow with outputs."""
    if not after.interface_outputs:
        return
    sources = {edge.source for edge in after.edges}
    known = {node.id for node in before.nodes}
    for node in after.nodes:
        if node.id not in known and node.id not in sources and node.type not in _NO_RESULT and _computes(node.type):
            text = f"no edge leads from the new node {node.id!r} ({node.type}), so its result is not used"
            yield _warning("UNUSED_NODE", text, "connect one of its outputs, or leave it out", f"/nodes/{node.id}")


def _computes(type_: str) -> bool:
    """Whether a node is there for its result; a tool may be called for its effect."""
    return type_ not in ("core:CallTool", "core:HttpFetch", "core:Ask")


def completeness_warnings(
    problems: Sequence[PatchProblem], workflow: Workflow, needs: RequestNeeds, spec: Callable[[str], NodeSpec | None]
) -> list[PatchProblem]:
    """The warnings, each with the operations to add; those that follow from others are left out."""
    return _CompletenessCheck(problems, workflow, needs, spec).all()


class _CompletenessCheck:
    def __init__(
        self,
        problems: Sequence[PatchProblem],
        workflow: Workflow,
        needs: RequestNeeds,
        spec: Callable[[str], NodeSpec | None],
    ) -> None:
        self._problems, self._needs = problems, needs
        types = {node.type for node in workflow.nodes}
        absent = [type_ for type_ in needs.nodes if type_ not in types and spec(type_) is not None]
        self._new = free_names(absent, {node.id for node in workflow.nodes})
        self._graph = DraftGraph(workflow, spec, self._new)
        self._ungiven = {p.pointer for p in problems if p.code == "NEED_OUTPUT"}
        self._taken: set[PortRef] = set()
        """Outputs that a suggestion uses."""

    def all(self) -> list[PatchProblem]:
        found = [self._with_fix(problem) for problem in self._problems]
        used = {node for node, _ in self._taken}
        return [
            problem
            for problem in found
            if not (problem.code == "INTERFACE" and problem.pointer in self._ungiven)
            and not (problem.code == "UNUSED_NODE" and _last(problem.pointer) in used)
        ]

    def _with_fix(self, problem: PatchProblem) -> PatchProblem:
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
            return replace(problem, hint="leave it and its edges out, or connect one of its outputs")
        for output in self._graph.outputs(name).values():
            if takers := self._graph.taking(name, output):
                edge = add_edge((name, output.key), takers[0])
                return replace(problem, hint=f"connect it to an input that fits ({listed(takers)}): {edge}")
        return replace(problem, hint=self._inserted(name) or problem.hint)

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
    return replace(problem, hint=text, nearest=()) if text else problem


def _last(pointer: str) -> str:
    return pointer.rpartition("/")[2]


def _warning(code: str, message: str, fix: str, pointer: str, near: tuple[str, ...] = ()) -> PatchProblem:
    return PatchProblem(code, message, pointer=pointer, hint=fix, nearest=near, severity="warning")


# Suggestions ----------------------------------------------------------------------------------------------------------
# Operations that a report suggests, as the model would write them.

_MOST_SHOWN: Final = 5


def connect(graph: DraftGraph, node: str, slot: Slot) -> str:
    """Suggest an edge that gives an input its value; empty if no output fits."""
    found = graph.fitting(node, slot)
    return f"connect an output that fits ({listed(found)}): {add_edge(found[0], (node, slot.key))}" if found else ""


def listed(ends: Sequence[PortRef]) -> str:
    """A few ends: ``a.text, b.text``."""
    return ", ".join(f"{node}.{key}" for node, key in ends[:_MOST_SHOWN])


def add_node(name: str, type_: str) -> str:
    """The operation that adds a node."""
    return _json({"op": "add", "path": f"/nodes/{name}", "value": {"type": type_}})


def add_slot(section: str, key: str, other: Slot | None) -> str:
    """The operation that adds an input or output of the workflow, of the type at the other end."""
    type_ = "STRING" if other is None or other.type in ("CONVERTIBLE_ANY", "WILDCARD") else other.type
    return _json({"op": "add", "path": f"/{section}/{key}", "value": {"dataFlowType": type_}})


def add_edge(source: PortRef, target: PortRef, name: str = "") -> str:
    """The operation that adds an edge, or writes an edge of the patch anew."""
    value = {"source": source[0], "sourceHandle": source[1], "target": target[0], "targetHandle": target[1]}
    return _json({"op": "add", "path": f"/edges/{name or '-'.join((*source, *target))}", "value": value})


def free_names(types: Iterable[str], taken: Collection[str]) -> dict[str, str]:
    """New names for nodes: name → type."""
    found: dict[str, str] = {}
    for type_ in types:
        stem = fold(split_id(type_)[1]) or "node"
        names = (stem, *(f"{stem}{number}" for number in range(2, 1_000)))
        found[next(name for name in names if name not in taken and name not in found)] = type_
    return found


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
