"""Whether a changed workflow has what its request needs: inputs, outputs, node types, and no node without effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tavern_core.assistant.answers import Needs
from tavern_core.graph.patch_problems import PatchProblem
from tavern_core.model.nearest import did_you_mean, nearest
from tavern_core.model.workflow import Workflow

_INPUT: Final = "core:GroupInput"
_OUTPUT: Final = "core:GroupOutput"
_OPENERS: Final = frozenset({_INPUT, _OUTPUT, "core:Note", "core:frame"})


def missing(before: Workflow, after: Workflow, needs: Needs) -> list[PatchProblem]:
    """What is missing, all as warnings: the model stated the needs, and it may have been wrong.

    Args:
        before: the workflow without the patch; what was incomplete in it already is not reported again.
        after: the patched workflow, under the names of the patch.
    """
    read, given = _read_inputs(after), _given_outputs(after)
    return [
        *_inputs(before, after, needs, read),
        *_outputs(before, after, needs, given),
        *_types(after, needs),
        *_without_effect(before, after),
    ]


def _read_inputs(workflow: Workflow) -> set[str]:
    """The inputs of the workflow that an edge reads."""
    starts = {node.id for node in workflow.nodes if node.type == _INPUT}
    only = next(iter(workflow.interface_inputs)) if len(workflow.interface_inputs) == 1 else ""
    return {edge.source_handle or only for edge in workflow.edges if edge.source in starts}


def _given_outputs(workflow: Workflow) -> set[str]:
    """The outputs of the workflow that an edge or a value gives."""
    ends = {node.id: node for node in workflow.nodes if node.type == _OUTPUT}
    only = next(iter(workflow.interface_outputs)) if len(workflow.interface_outputs) == 1 else ""
    given = {edge.target_handle or only for edge in workflow.edges if edge.target in ends}
    return given | {key for node in ends.values() for key in node.input_values}


def _inputs(before: Workflow, after: Workflow, needs: Needs, read: set[str]) -> Iterator[PatchProblem]:
    for key in needs.inputs:
        if key not in after.interface_inputs:
            yield _absent("NEED_INPUT", "interfaceInputs", key, after.interface_inputs, needs.inputs)
    for key in after.interface_inputs:
        if key not in read and (key in needs.inputs or key not in before.interface_inputs):
            text = f"nothing reads input {key!r} of the workflow"
            fix = f"add an edge from output {key!r} of a {_INPUT} node to the node that needs it, or remove the input"
            yield _warning("NEED_INPUT", text, fix, f"/interfaceInputs/{key}")


def _outputs(before: Workflow, after: Workflow, needs: Needs, given: set[str]) -> Iterator[PatchProblem]:
    for key in needs.outputs:
        if key not in after.interface_outputs:
            yield _absent("NEED_OUTPUT", "interfaceOutputs", key, after.interface_outputs, needs.outputs)
    for key in after.interface_outputs:
        if key not in given and (key in needs.outputs or key not in before.interface_outputs):
            text = f"nothing gives output {key!r} of the workflow"
            fix = f"add an edge from the node that computes it to input {key!r} of a {_OUTPUT} node"
            yield _warning("NEED_OUTPUT", text, fix, f"/interfaceOutputs/{key}")


def _absent(code: str, section: str, key: str, known: Mapping[str, Any], needed: Sequence[str]) -> PatchProblem:
    type_ = _INPUT if section == "interfaceInputs" else _OUTPUT
    side = "input" if section == "interfaceInputs" else "output"
    near = did_you_mean(key, [name for name in known if name not in needed])
    fix = f'add it: {{"op": "add", "path": "/{section}/{key}", "value": {{"dataFlowType": "STRING"}}}}, and connect it at a {type_} node'
    return _warning(
        code, f"the request needs {side} {key!r}, which is not in {section}", near or fix, f"/{section}/{key}"
    )


def _types(after: Workflow, needs: Needs) -> Iterator[PatchProblem]:
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
        if node.id not in known and node.id not in sources and node.type not in _OPENERS and _computes(node.type):
            text = f"no edge leads from the new node {node.id!r} ({node.type}), so its result is not used"
            yield _warning("UNUSED_NODE", text, "connect one of its outputs, or leave it out", f"/nodes/{node.id}")


def _computes(type_: str) -> bool:
    """Whether a node is there for its result; a tool may be called for its effect."""
    return type_ not in ("core:CallTool", "core:HttpFetch", "core:Ask")


def _warning(code: str, message: str, fix: str, pointer: str, near: tuple[str, ...] = ()) -> PatchProblem:
    return PatchProblem(code, message, pointer=pointer, fix=fix, nearest=near, severity="warning")
