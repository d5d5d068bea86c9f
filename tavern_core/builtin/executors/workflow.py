"""Tools of kind `workflow` and `node`: a workflow file, or one node, run by the host's engine.

A single node is run as a workflow of one node, so hooks, permissions, limits and events are the same for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from tavern_core.contract.context import PluginContext
from tavern_core.contract.hookspecs import hookimpl
from tavern_core.contract.protocols import BoundTool, Executor, FlowEngine, ToolHome
from tavern_core.contract.tool_settings import when_set_up
from tavern_core.errors import ToolFileInvalid
from tavern_core.model.call import ToolCall
from tavern_core.model.naming_rules import split_id
from tavern_core.model.tool import ToolSpec

_PLACE: Final = "in the workflow engine"


@hookimpl(fast=True)
def tavern_register_executors(ctx: PluginContext) -> Mapping[str, Executor]:
    return {"workflow": WorkflowExecutor(), "node": NodeExecutor()}


class WorkflowExecutor:
    """Runs ``workflow:<id>`` and ``implementation: {type: workflow, workflowId: file}``."""

    def bind(self, tool: ToolSpec, home: ToolHome, /) -> BoundTool:
        """Find the file; it is compiled at the first call.

        Raises:
            ToolFileInvalid: the file is not inside of the plugin (TOOL_FILE_INVALID).
        """
        engine, workflow, named = _engine(tool, home), _workflow(tool, home), tool.output_names

        async def run(arguments: Mapping[str, Any], call: ToolCall | None) -> Any:
            return await engine.run_workflow(workflow, arguments, call, home.plugin, named)

        return when_set_up(BoundTool(run, is_async=True, wants_call=True, place=_PLACE), tool, home)


class NodeExecutor:
    """Runs ``implementation: {type: node, nodeType: plugin:Type}``."""

    def bind(self, tool: ToolSpec, home: ToolHome, /) -> BoundTool:
        """Check the type's name; the node itself is found at the first call.

        A plugin can make tools from its own nodes, the host's, and those of plugins in its `dependsOn`: these are active
        before it, and a reviewer sees whose code its tools run.

        Raises:
            ToolFileInvalid: no type is named, or one of a plugin that this one does not depend on (TOOL_FILE_INVALID).
        """
        node_type = tool.implementation.get("nodeType")
        if not isinstance(node_type, str) or not node_type:
            raise ToolFileInvalid(
                f"tool {tool.name}: implementation.nodeType names no node", hint='write "nodeType": "my-plugin:MyNode"'
            )
        owner = split_id(node_type)[0]
        type_ = node_type if owner else f"{home.plugin}:{node_type}"
        if owner and owner not in (home.plugin, "core") and owner not in home.depends_on:
            raise ToolFileInvalid(
                f"tool {tool.name}: node type {node_type!r} belongs to plugin {owner}, which {home.plugin} does not depend on",
                hint=f'plugin.yaml: dependsOn: {{{owner}: ""}}',
            )
        engine, named = _engine(tool, home), tool.output_names

        async def run(arguments: Mapping[str, Any], call: ToolCall | None) -> Any:
            return await engine.run_node(type_, arguments, call, named)

        return when_set_up(BoundTool(run, is_async=True, wants_call=True, place=_PLACE), tool, home)


def _engine(tool: ToolSpec, home: ToolHome) -> FlowEngine:
    if home.engine is None:
        raise ToolFileInvalid(f"tool {tool.name}: there is no engine for workflows here")
    return home.engine


def _workflow(tool: ToolSpec, home: ToolHome) -> str:
    """The workflow for the engine: an id, or the path of a file of the plugin."""
    from tavern_core.model.toolfile import workflow_file_names

    reference = tool.implementation.get("workflowId")
    if not isinstance(reference, str) or not reference:
        return split_id(tool.name)[1]
    if home.folder is None:
        return reference
    path = PurePosixPath(reference)
    if path.is_absolute() or ".." in path.parts:
        raise ToolFileInvalid(
            f"tool {tool.name}: {reference!r} is not inside of the plugin", hint="write a path relative to plugin.yaml"
        )
    names = workflow_file_names(reference)
    for name in names:
        file = (home.folder / name).resolve()
        if file.is_relative_to(home.folder.resolve()) and file.is_file():
            return str(file)
    raise ToolFileInvalid(
        f"tool {tool.name}: there is no workflow file {reference!r} in {home.plugin}", hint=f"put it at {names[0]}"
    )
