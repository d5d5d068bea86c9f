"""Nodes that are the structure of a workflow: its interface, groups, maps, loops, notes. The engine itself runs them."""

from __future__ import annotations

from typing import Any

from tavern_core.contract.hookspecs import hookimpl
from tavern_core.model.node import NodeSpec, Slot

_CATEGORY = "flow"
_WORKFLOW = {"type": ["string", "null"], "description": "The id of the workflow."}


@hookimpl(fast=True)
def tavern_register_nodes() -> list[Any]:
    return [
        NodeSpec(
            "core:GroupInput", display_name="工作流输入", category=_CATEGORY,
            description="Provides the inputs of the workflow: one output for each of its interfaceInputs. 工作流的输入。",
        ),
        NodeSpec(
            "core:GroupOutput", display_name="工作流输出", category=_CATEGORY,
            description="Takes the outputs of the workflow: one input for each of its interfaceOutputs. 工作流的输出。",
        ),
        NodeSpec(
            "core:NodeGroup", display_name="节点组", category=_CATEGORY,
            description="Runs another workflow (configValues.referencedWorkflowId), with its interface as inputs and outputs. 运行另一个工作流。",
            config_schema=_config(referencedWorkflowId=_WORKFLOW),
        ),
        NodeSpec(
            "core:Map", _slots(Slot("items", "ARRAY", "列表", "one run of the workflow for each of them", required=True)),
            _slots(Slot("results", "ARRAY", "结果", "their answers, in order"), Slot("count", "INTEGER", "数量")),
            display_name="逐项执行", category=_CATEGORY,
            description="Runs a workflow for each item of a list, several at the same time (configValues.concurrency). 对列表的每一项运行工作流。",
            config_schema=_config(
                referencedWorkflowId=_WORKFLOW,
                concurrency={"type": ["integer", "null"], "minimum": 1, "description": "How many items at the same time; by default 16."},
                itemInput={"type": ["string", "null"], "description": "The input that gets the item; by default `item`, or the first."},
                indexInput={"type": ["string", "null"], "description": "The input that gets its number; by default `index`, if there is one."},
            ),
        ),
        NodeSpec(
            "core:Loop", outputs=_slots(Slot("iterations", "INTEGER", "次数")), display_name="循环", category=_CATEGORY,
            description="Runs a workflow repeatedly; its outputs become the inputs of the same name, until its output `done` is true. 重复运行工作流，直到输出 done 为真。",
            config_schema=_config(
                referencedWorkflowId=_WORKFLOW,
                maxIterations={"type": ["integer", "null"], "minimum": 1, "description": "Rounds at most; by default 100."},
                until={"type": ["string", "null"], "description": "The output that ends it; by default `done`."},
            ),
        ),
        NodeSpec(
            "core:frame", display_name="分组框", category=_CATEGORY, is_ui_node=True, description="A frame that editors draw around nodes; never run. 编辑器中的分组框，不会运行。",
        ),
        NodeSpec(
            "core:Note", display_name="注释", category=_CATEGORY, is_ui_node=True, description="A text for readers; never run. 给读者的注释，不会运行。",
        ),
    ]  # fmt: skip


def _config(**properties: Any) -> dict[str, Any]:
    """JSON Schema of `configValues`; further keys, which belong to editors, are allowed."""
    return {"type": "object", "properties": properties, "additionalProperties": True}


def _slots(*slots: Slot) -> dict[str, Slot]:
    return {slot.key: slot for slot in slots}
