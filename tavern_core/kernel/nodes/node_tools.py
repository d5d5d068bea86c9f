"""Tools of kind `node` and `workflow` without parameters: the parameters are those of their node or workflow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tavern_core.errors import TavernError
from tavern_core.kernel.files.regular_file import open_regular
from tavern_core.kernel.files.safe_paths import beneath
from tavern_core.kernel.manifest.workflow_file_codec import LARGEST_FILE, read_workflow
from tavern_core.schema.slot_to_schema import node_schema, workflow_schema

if TYPE_CHECKING:
    from tavern_core.model.node import NodeSpec
    from tavern_core.model.tool import ToolSpec
    from tavern_core.model.workflow import Workflow


def node_tool(spec: ToolSpec, node: NodeSpec) -> ToolSpec:
    """A tool of kind `node` with the node's values as defaults for the tool's file."""
    has_parameters = bool(spec.input_schema.get("properties"))
    return replace(
        spec,
        input_schema=spec.input_schema if has_parameters else node_schema(node.inputs, node.config_values),
        description=spec.description or node.description,
        display_name=spec.display_name or node.display_name,
        capabilities=spec.capabilities | node.capabilities,
    )


def flow_tool(spec: ToolSpec, workflow: Workflow) -> ToolSpec:
    """A tool of kind `workflow` with the workflow's interface as its parameters."""
    return replace(
        spec,
        input_schema=workflow_schema(workflow.inputs()),
        description=spec.description or workflow.description,
        display_name=spec.display_name or workflow.name,
    )


def workflow_behind(spec: ToolSpec, folder: Path | None) -> Workflow | None:
    """The workflow that a tool of kind `workflow` runs; None if its file cannot be read: a call reports why.

    Args:
        folder: the folder of the plugin's plugin.yaml.
    """
    from tavern_core.model.toolfile import workflow_file_names

    written = spec.implementation.get("workflowId")
    if folder is None or not isinstance(written, str):
        return None
    for name in workflow_file_names(written):
        if (path := beneath(folder, name)) is not None and path.is_file():
            try:
                with open_regular(path) as file:
                    return read_workflow(file.read(LARGEST_FILE + 1), str(path), path.stem)
            except (OSError, ValueError, TavernError):
                return None
    return None
