"""A tool that depends on who calls: a factory makes it, anew for every caller.

The host calls the factory whenever a caller lists or calls the tool. It answers None where the tool should not exist: it is
then neither listed nor callable, and ``tavern tools why context-plugin:context_tool`` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tavern_core import CallContext, PluginContext, factory, hookimpl


def make_context_tool(ctx: CallContext) -> dict[str, Any] | None:
    """The tool for this caller, or None.

    Args:
        ctx: who calls. `ctx.config` is the section `config:` of tavern.yaml, unless the caller passes its own.
    """
    feature = (ctx.config or {}).get("myFeature")
    if not isinstance(feature, Mapping) or not feature.get("enabled"):
        return None

    def execute(tool_call_id: str, params: Mapping[str, Any]) -> dict[str, Any]:
        text = f"Agent: {ctx.agent_id}, Channel: {ctx.message_channel}"
        return {"content": [{"type": "text", "text": text}]}

    # A tool can also be written out as an object, instead of a function with @tool.
    return {
        "name": "context_tool",
        "description": "Tool that uses context",
        "parameters": {"type": "object", "properties": {}},
        "execute": execute,
    }


@hookimpl
def tavern_register_tools(ctx: PluginContext) -> list[Any]:
    """`names` lists the possible ids, so that the host knows them without a caller."""
    return [factory(make_context_tool, names=["context_tool"])]
