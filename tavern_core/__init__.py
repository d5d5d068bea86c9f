"""tavern_core: a plugin host for agent tools.

    from tavern_core import CallContext, Plugin, Tavern, ToolResult

Names are imported when they are first used, so that `import tavern_core` stays light.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tavern_core import tam
    from tavern_core.contract.context import PluginContext
    from tavern_core.contract.decisions import deny, require_approval
    from tavern_core.contract.guards.folder import Folder
    from tavern_core.contract.hookspecs import hookimpl
    from tavern_core.contract.llm import LLM, LLMAnswer, ModelCall, Price, ScriptedLLM
    from tavern_core.contract.nodes import Final, Node, NodeContext, Out, Port, Skip, Stream, node
    from tavern_core.contract.protocols import BoundTool, Command, Contribution, Executor, Prompt, Resource, Service
    from tavern_core.contract.published_methods import mutates, read_only
    from tavern_core.contract.tool_context import ToolContext
    from tavern_core.contract.tools import Tool, factory, offer, tool
    from tavern_core.errors import CallError, PluginError, PolicyDenied, TavernError, ToolFailed
    from tavern_core.host import Plugin, Tavern
    from tavern_core.kernel.log.audit_log_queries import AuditLog
    from tavern_core.model.agent_run import AgentEvent, AgentOutcome
    from tavern_core.model.approval import Approval, ApprovalRequest
    from tavern_core.model.call import Budget, CallContext, ToolCall
    from tavern_core.model.call_limits import ToolLimits
    from tavern_core.model.event import Event
    from tavern_core.model.node import NodeMode, NodeSpec, PassThrough, Slot
    from tavern_core.model.parameter_guard_marks import Guard
    from tavern_core.model.question import Question
    from tavern_core.model.result import Evidence, ToolError, ToolResult
    from tavern_core.model.setting_declaration import SettingItem
    from tavern_core.model.tool import CostHints, Example, ToolSpec

__version__ = "1.0.0.dev0"

__all__ = [  # noqa: RUF022 - as `sorted` does it, so that dir() is the same
    "AgentEvent",
    "AgentOutcome",
    "Approval",
    "ApprovalRequest",
    "AuditLog",
    "BoundTool",
    "Budget",
    "CallContext",
    "CallError",
    "Command",
    "Contribution",
    "CostHints",
    "Event",
    "Evidence",
    "Example",
    "Executor",
    "Final",
    "Folder",
    "Guard",
    "LLM",
    "LLMAnswer",
    "ModelCall",
    "Node",
    "NodeContext",
    "NodeMode",
    "NodeSpec",
    "Out",
    "PassThrough",
    "Plugin",
    "PluginContext",
    "PluginError",
    "PolicyDenied",
    "Port",
    "Price",
    "Prompt",
    "Question",
    "Resource",
    "ScriptedLLM",
    "Service",
    "SettingItem",
    "Skip",
    "Slot",
    "Stream",
    "Tavern",
    "TavernError",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolError",
    "ToolFailed",
    "ToolLimits",
    "ToolResult",
    "ToolSpec",
    "__version__",
    "deny",
    "factory",
    "hookimpl",
    "mutates",
    "node",
    "offer",
    "read_only",
    "require_approval",
    "tam",
    "tool",
]

_HOME = {
    "tavern_core.contract.context": ("PluginContext",),
    "tavern_core.contract.decisions": ("deny", "require_approval"),
    "tavern_core.contract.published_methods": ("mutates", "read_only"),
    "tavern_core.contract.guards.folder": ("Folder",),
    "tavern_core.contract.hookspecs": ("hookimpl",),
    "tavern_core.contract.llm": ("LLM", "LLMAnswer", "ModelCall", "Price", "ScriptedLLM"),
    "tavern_core.contract.nodes": ("Final", "Node", "NodeContext", "Out", "Port", "Skip", "Stream", "node"),
    "tavern_core.contract.protocols": (
        "BoundTool",
        "Command",
        "Contribution",
        "Executor",
        "Prompt",
        "Resource",
        "Service",
    ),
    "tavern_core.contract.tool_context": ("ToolContext",),
    "tavern_core.contract.tools": ("Tool", "factory", "offer", "tool"),
    "tavern_core.errors": ("CallError", "PluginError", "PolicyDenied", "TavernError", "ToolFailed"),
    "tavern_core.host": ("Plugin", "Tavern"),
    "tavern_core.kernel.log.audit_log_queries": ("AuditLog",),
    "tavern_core.model.agent_run": ("AgentEvent", "AgentOutcome"),
    "tavern_core.model.approval": ("Approval", "ApprovalRequest"),
    "tavern_core.model.call": ("Budget", "CallContext", "ToolCall"),
    "tavern_core.model.call_limits": ("ToolLimits",),
    "tavern_core.model.event": ("Event",),
    "tavern_core.model.parameter_guard_marks": ("Guard",),
    "tavern_core.model.node": ("NodeMode", "NodeSpec", "PassThrough", "Slot"),
    "tavern_core.model.question": ("Question",),
    "tavern_core.model.result": ("Evidence", "ToolError", "ToolResult"),
    "tavern_core.model.setting_declaration": ("SettingItem",),
    "tavern_core.model.tool": ("CostHints", "Example", "ToolSpec"),
}
_LAZY = {name: module for module, names in _HOME.items() for name in names}

# A library does not print: the application decides where logs go.
logging.getLogger("tavern").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name == "tam":
        return importlib.import_module("tavern_core.tam")
    if (module := _LAZY.get(name)) is None:
        raise AttributeError(f"module 'tavern_core' has no attribute {name!r}")
    if module == "tavern_core.host":  # imports pydantic
        importlib.import_module("tavern_core.kernel.discovery.pydantic_shield").shield_pydantic()
        with importlib.import_module("tavern_core.gc_pause").collector_paused():
            importlib.import_module(module)
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
