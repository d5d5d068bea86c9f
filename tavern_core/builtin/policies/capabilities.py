"""The gate that refuses a call unless host, plugin, profile and caller all allow every capability of its tool (seed 004 §9.1).

Destructive tools (``danger:*``) are refused unless the capability is granted literally to both the plugin and this call.
"""

from __future__ import annotations

from tavern_core.contract.decisions import Deny, deny
from tavern_core.contract.hookspecs import hookimpl
from tavern_core.model.call import ToolCall, shortfall
from tavern_core.model.tool import ToolSpec


@hookimpl(fast=True, when=lambda tool: bool(tool.capabilities))
def tavern_check_call(call: ToolCall, tool: ToolSpec) -> Deny | None:
    lacks = shortfall(tool.plugin, tool.capabilities, call.rights, call.context, call.door)
    return None if lacks is None else deny(lacks.reason, hint=lacks.fix, missing=list(lacks.missing), side=lacks.side)
