"""{{ cookiecutter.display_name.replace('\\', '').replace('"', "'") }}: a plugin for tavern_core."""

from __future__ import annotations

from typing import Annotated

from tavern_core import PluginContext, hookimpl, tool


class Tools:
    """The Python tools of this plugin: the methods marked with `@tool`."""

    def __init__(self, ctx: PluginContext) -> None:
        self._ctx = ctx

    @tool(read_only=True, examples=[{"name": "Ada"}])
    def greet(self, name: Annotated[str, "Who to greet"] = "World") -> str:
        """Greet a person."""
        return f"{self._ctx.get_config('greeting')}, {name or 'World'}!"


@hookimpl
def tavern_register_tools(ctx: PluginContext) -> list[Tools]:
    """Called once, when one of the tools is used for the first time."""
    return [Tools(ctx)]
