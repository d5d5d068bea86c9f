"""The six tools. Each returns plain JSON that a model can read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from tavern_core import tool
from tavern_core.errors import ToolFailed

WorkflowId = Annotated[str, "Id of a workflow of the host. 工作流的 id。"]
Operations = Annotated[
    list[dict[str, Any]],
    "JSON Patch (RFC 6902) on what ShowWorkflow returns. 针对 ShowWorkflow 返回内容的 JSON Patch。",
]
_EMPTY: dict[str, Any] = {"nodes": [], "edges": []}
_INSTRUCTIONS = """\
You change a workflow. Answer with one JSON object: {"reason": "...", "operations": [...]}.
`operations` is a JSON Patch (RFC 6902) for the workflow. New nodes: {"op": "add", "path": "/nodes/NAME", "value": {"type": "...",
"inputValues": {}}}. New edges: {"op": "add", "path": "/edges/NAME", "value": {"source", "sourceHandle", "target", "targetHandle"}}.
Use only the node types below, and write neither ids nor positions."""


class WorkflowTools:
    """What an agent needs to build workflows.

    Args:
        workflows, nodes, models: the services `workflowManager`, `nodeManager` and `llms`.
    """

    def __init__(self, workflows: Any, nodes: Any, models: Any) -> None:
        self._workflows, self._nodes, self._models = workflows, nodes, models

    @tool(name="FindNodes", display_name="查找节点", read_only=True, tags=["workflow", "工作流"])
    async def find_nodes(
        self,
        request: Annotated[str, "What the nodes should do, in any language. 节点要做什么。"],
        limit: Annotated[int, "How many node types at most. 最多返回多少个。"] = 10,
    ) -> list[dict[str, Any]]:
        """Find node types for a request, best first, with their inputs and outputs. 为请求查找节点类型。"""
        found = await self._nodes.retrieve(request, limit=max(1, min(limit, 50)))
        return [_brief(spec) for match in found if (spec := self._nodes.get(match["type"])) is not None]

    @tool(name="ShowWorkflow", display_name="查看工作流", read_only=True, tags=["workflow", "工作流"])
    async def show_workflow(self, workflow: WorkflowId) -> dict[str, Any]:
        """Show a workflow with its nodes and edges by id, as patches address them. 查看工作流，其形式与补丁一致。"""
        found = self._workflows.project(workflow)
        if found is None:
            raise ToolFailed(f"there is no workflow {workflow!r}", hint="create it with CreateWorkflow")
        return dict(found)

    @tool(name="CheckWorkflow", display_name="检查工作流", read_only=True, tags=["workflow", "工作流"])
    async def check_workflow(self, workflow: WorkflowId) -> list[dict[str, Any]]:
        """List all problems of a workflow; nothing is run. 列出工作流的所有问题。"""
        return [dict(problem) for problem in await self._workflows.check(workflow)]

    @tool(name="CreateWorkflow", display_name="新建工作流", tags=["workflow", "工作流"])
    async def create_workflow(
        self,
        workflow: Annotated[str, "Id of the new workflow. 新工作流的 id。"],
        description: Annotated[str, "What it is for. 它的用途。"] = "",
    ) -> dict[str, Any]:
        """Create an empty workflow; an existing one is never replaced. 新建一个空的工作流。"""
        if any(known["id"] == workflow for known in self._workflows.list()):
            raise ToolFailed(f"there is a workflow {workflow!r} already", hint="change it with PatchWorkflow")
        self._workflows.save(workflow, {"name": workflow, "description": description, **_EMPTY})
        return dict(self._workflows.project(workflow))

    @tool(name="PatchWorkflow", display_name="修改工作流", tags=["workflow", "工作流"])
    async def patch_workflow(
        self,
        workflow: WorkflowId,
        operations: Operations,
        rev: Annotated[int | None, "The `rev` that ShowWorkflow returned. ShowWorkflow 返回的 rev。"] = None,
    ) -> dict[str, Any]:
        """Change a workflow, completely or not at all; `problems` say what to correct. 修改工作流，要么全部生效，要么都不生效。"""
        outcome = await self._workflows.patch(workflow, operations, rev)
        return {key: value for key, value in outcome.items() if key != "content"}

    @tool(
        name="DraftPatch",
        display_name="起草修改",
        capabilities=["network"],
        read_only=True,
        tags=["workflow", "工作流"],
    )
    async def draft_patch(
        self,
        workflow: WorkflowId,
        request: Annotated[str, "What is to be changed. 要修改什么。"],
        model: Annotated[str, "A language model; empty: the only one. 语言模型，留空则使用唯一的一个。"] = "",
    ) -> dict[str, Any]:
        """Let a language model write the operations for a request; nothing is changed. 让语言模型起草补丁，不作任何修改。"""
        nodes = await self.find_nodes(request, 15)
        shown = self._workflows.project(workflow)
        task = {"request": request, "workflow": shown, "nodeTypes": nodes}
        messages = [
            {"role": "system", "content": _INSTRUCTIONS},
            {"role": "user", "content": json.dumps(task, ensure_ascii=False)},
        ]
        answer = await self._models.complete(messages, model)
        return {"reason": "", **_draft(answer["text"]), "rev": shown["rev"]}


def _draft(text: str) -> dict[str, Any]:
    """The JSON object of an answer. Raises ToolFailed (TOOL_ERROR)."""
    start, end = text.find("{"), text.rfind("}")
    try:
        found = json.loads(text[start : end + 1])
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, Mapping) or not isinstance(found.get("operations"), list):
        raise ToolFailed(
            f"the model wrote no operations: {text[:200]!r}", hint="ask in other words, or write them yourself"
        )
    return {"reason": str(found.get("reason", "")), "operations": found["operations"]}


def _brief(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What a model needs to know of a node type."""
    slots = {
        side: {key: _slot(slot) for key, slot in spec[side].items()} for side in ("inputs", "outputs") if spec.get(side)
    }
    return {"type": spec["id"], "name": spec["displayName"], "description": spec["description"], **slots}


def _slot(slot: Mapping[str, Any]) -> dict[str, Any]:
    config = slot.get("config") or {}
    choices = [item["value"] if isinstance(item, Mapping) else item for item in config.get("suggestions") or ()]
    data = {
        "type": slot["dataFlowType"], "required": slot.get("required") or None, "multi": slot.get("multi") or None,
        "default": config.get("default"), "choices": choices or None, "description": slot.get("description") or None,
    }  # fmt: skip
    return {key: value for key, value in data.items() if value is not None}
