"""Completes pydantic's JSON Schema of workflow files: descriptions, and further members of files.

Unknown keys are allowed everywhere except below `$exec`: editors store their own data in these files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from tavern_core.kernel.manifest.workflow_file_codec import KEYS
from tavern_core.model.workflow import (
    EXEC_KEY,
    FORMAT_VERSION,
    InterfaceSlot,
    NodeExec,
    Retry,
    Workflow,
    WorkflowEdge,
    WorkflowNode,
)

WORKFLOW_TEXTS: Final[Mapping[str, str]] = {
    "Workflow.name": "The name shown to people.",
    "Workflow.description": "What it is for; a model that may call the workflow as a tool reads it.",
    "Workflow.nodes": "The nodes.",
    "Workflow.edges": "The edges.",
    "Workflow.viewport": "Where the editor looks: x, y, zoom.",
    "Workflow.interfaceInputs": "What the workflow takes, by key; core:GroupInput has one output for each.",
    "Workflow.interfaceOutputs": "What the workflow returns, by key; core:GroupOutput has one input for each.",
    "Workflow.version": "The author's version of the workflow.",
    "Workflow.formatVersion": "The version of this format.",
    "Workflow.rev": "Counts saves; an editor that saves names the one it read.",
    "Workflow.requires": 'Plugins it needs: {"text-nodes": ">=1,<2"}.',
    "Workflow.referencedWorkflows": "The workflows that its groups stand for; for editors.",
    "WorkflowNode.id": "Unique in the workflow.",
    "WorkflowNode.type": "The node type: plugin:Type.",
    "WorkflowNode.position": "Where the editor draws it: x, y.",
    "WorkflowNode.data": "What the editor stores with the node; `inputs` and `outputs` are slots of its own for types with dynamic slots.",
    "WorkflowNode.inputValues": "Values of inputs that no edge feeds, by key.",
    "WorkflowNode.configValues": "The configuration; `$exec` says how the node is run.",
    "WorkflowNode.inputConnectionOrders": "The order of the edges of inputs that take several: key to edge ids.",
    "WorkflowNode.parentNode": "The frame that the editor draws it in.",
    "WorkflowNode.displayName": "The name shown to people, instead of the type's.",
    "WorkflowNode.customDescription": "What it is for, instead of the type's description.",
    "WorkflowNode.customSlotDescriptions": "The purpose of its slots: {inputs: {key: text}, outputs: {key: text}}.",
    "WorkflowNode.typeVersion": "The version of the node type for which it was written; older ones are upgraded.",
    "WorkflowEdge.id": "Unique in the workflow.",
    "WorkflowEdge.source": "The node it begins at.",
    "WorkflowEdge.target": "The node it ends at.",
    "WorkflowEdge.sourceHandle": "The output it begins at; may be left out where there is only one.",
    "WorkflowEdge.targetHandle": "The input it ends at; `key__N` for inputs that take several.",
    "InterfaceSlot.key": "The key again.",
    "InterfaceSlot.displayName": "The name shown to people.",
    "InterfaceSlot.description": "Its purpose; a model that calls the workflow reads it.",
    "InterfaceSlot.customDescription": "The same, as editors write it.",
    "InterfaceSlot.dataFlowType": "The type of its values.",
    "InterfaceSlot.required": "It must be given.",
    "InterfaceSlot.config": "default, suggestions [{value, label}], min, max, and what an editor wants.",
    "InterfaceSlot.multi": "Takes a list.",
    "InterfaceSlot.min": "The smallest number.",
    "InterfaceSlot.max": "The largest number.",
    "InterfaceSlot.isStream": "Chunks that come one by one.",
    "InterfaceSlot.matchCategories": "What the values are: Url, Markdown, ComboOption …",
    "NodeExec.retry": "Tries after a failure: a number, or an object.",
    "NodeExec.timeoutMs": "Deadline of one try, in milliseconds.",
    "NodeExec.onError": "After the last try: end the run, skip what depends on it, use `defaults`, or give the error to the output `error`.",
    "NodeExec.defaults": "Output to value, for onError: default.",
    "NodeExec.cache": "Where an answer is cached.",
    "NodeExec.bypassed": "Do not run it; pass values through.",
    "Retry.times": "Tries after the first.",
    "Retry.delayMs": "The first pause, in milliseconds.",
    "Retry.backoff": "The factor by which the pause grows.",
    "Retry.maxDelayMs": "The longest pause, in milliseconds.",
}
_MODELS: Final = (Workflow, WorkflowNode, WorkflowEdge, InterfaceSlot, NodeExec, Retry)
_NEEDED: Final[Mapping[type[BaseModel], Mapping[str, Any]]] = {
    Workflow: {"nodes": []},
    WorkflowNode: {"id": "a", "type": "b"},
    WorkflowEdge: {"id": "a", "source": "b", "target": "c"},
}
_WRITTEN_BY_EDITORS: Final[Mapping[str, tuple[str, ...]]] = {
    "WorkflowNode": ("width", "height", "zIndex", "label"),
    "WorkflowEdge": ("type", "label", "markerEnd", "data"),
    "InterfaceSlot": ("label", "allowDynamicType", "hideHandle"),
}
"""Keys of ComfyTavern that the host keeps and does not read: completed, never refused."""


def complete(schema: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Add sentences, null where the reader takes it, `$exec`, and the keys that editors write."""
    schema.pop("required", None)
    schema["anyOf"] = [{"required": [key]} for key in KEYS]
    schema["properties"]["$schema"] = {"description": "The address of this schema; for editors: stored, not read."}
    schema["properties"]["version"]["type"] = ["string", "number"]
    schema["properties"]["formatVersion"]["maximum"] = FORMAT_VERSION
    for model in _MODELS:
        part = schema if model is Workflow else definitions[model.__name__]
        for field in part["properties"]:
            if _takes_null(model, field):
                _allow_null(part["properties"], field)
        for key in _WRITTEN_BY_EDITORS.get(model.__name__, ()):
            part["properties"][key] = {"description": "For editors: stored, not read."}
    config = definitions["WorkflowNode"]["properties"]["configValues"]
    for branch in config.get("anyOf", [config]):
        if branch.get("type") == "object":
            branch["properties"] = {EXEC_KEY: {"anyOf": [{"$ref": "#/$defs/NodeExec"}, {"type": "null"}]}}
    retry = definitions["NodeExec"]["properties"]["retry"]
    definitions["NodeExec"]["properties"]["retry"] = {
        "description": retry.pop("description"),
        "anyOf": [{"$ref": "#/$defs/Retry"}, {"type": "integer", "minimum": 0, "maximum": 100}],
    }


def _takes_null(model: type[BaseModel], key: str) -> bool:
    try:
        model.model_validate({**_NEEDED.get(model, {}), key: None})
    except ValidationError:
        return False
    return key not in _NEEDED.get(model, {}) or model is Workflow


def _allow_null(properties: dict[str, Any], key: str) -> None:
    field = properties[key]
    branches = field.get("anyOf", [field])
    if any(branch.get("type") == "null" for branch in branches):
        return
    if isinstance(field.get("type"), list):
        field["type"].append("null")
        return
    text, default = field.pop("description", None), field.pop("default", ...)
    properties[key] = {"description": text, "anyOf": [*branches, {"type": "null"}]} | (
        {} if default is ... else {"default": default}
    )
