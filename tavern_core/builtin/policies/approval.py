"""Hold calls of tools that ask for approval (`requires_approval`); without anybody to ask they do not run."""

from __future__ import annotations

from tavern_core.contract.decisions import RequireApproval, require_approval
from tavern_core.contract.hookspecs import hookimpl
from tavern_core.model.tool import ToolSpec


@hookimpl(fast=True, when=lambda tool: tool.requires_approval)
def tavern_check_call(tool: ToolSpec) -> RequireApproval:
    return require_approval(f"{tool.id} asks for approval of each call")
