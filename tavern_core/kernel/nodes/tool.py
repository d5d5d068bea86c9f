"""A tool of kind `node`, completed by what its node says."""

from __future__ import annotations

from dataclasses import replace

from tavern_core.model.node import NodeSpec
from tavern_core.model.tool import ToolSpec
from tavern_core.schema.slots import node_schema


def node_tool(spec: ToolSpec, node: NodeSpec) -> ToolSpec:
    """A tool of kind `node` with what the node says where the tool's file says nothing."""
    has_parameters = bool(spec.input_schema.get("properties"))
    return replace(
        spec,
        input_schema=spec.input_schema if has_parameters else node_schema(node.inputs),
        description=spec.description or node.description,
        display_name=spec.display_name or node.display_name,
        capabilities=spec.capabilities | node.capabilities,
    )
