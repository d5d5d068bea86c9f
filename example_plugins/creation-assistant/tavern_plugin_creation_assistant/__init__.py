"""creation-assistant: tools with which an agent builds and changes workflows.

Everything goes through three services of the host that any plugin can use: `workflowManager`, `nodeManager` and `llms`. The host's
own assistant (`tavern.assistant`) does more in one call; this one shows how to make your own.
"""

from __future__ import annotations

from tavern_core import PluginContext, hookimpl

from .tools import WorkflowTools


@hookimpl
def tavern_register_tools(ctx: PluginContext) -> list[WorkflowTools]:
    return [WorkflowTools(ctx.service("workflowManager"), ctx.service("nodeManager"), ctx.service("llms"))]
