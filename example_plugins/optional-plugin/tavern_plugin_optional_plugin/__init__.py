"""An optional tool: installed, but hidden from everybody until the host's `tools.allow` names it.

tools:
  allow: [dangerous_tool]       # this tool; or optional-plugin: all of this plugin; or group:plugins: all of all
"""

from __future__ import annotations

from typing import Any

from tavern_core import PluginContext, hookimpl, offer, tool


@tool
def dangerous_tool() -> str:
    """A dangerous tool that requires explicit enablement."""
    return "Executed!"  # a text is both the value of the result and its content


@hookimpl
def tavern_register_tools(ctx: PluginContext) -> list[Any]:
    """`optional` stands in plugin.yaml too: there it holds before this code was ever imported."""
    return [offer(dangerous_tool, optional=True)]
