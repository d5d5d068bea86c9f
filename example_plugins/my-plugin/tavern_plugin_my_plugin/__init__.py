"""The smallest plugin: one Python function that becomes the tool ``my-plugin:greet``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from tavern_core import PluginContext, hookimpl, tool


@tool(read_only=True)
def greet(name: Annotated[str, "Name to greet"] = "World") -> dict[str, Any]:
    """Greet a user."""
    name = name or "World"  # models send "" where they mean nothing
    return {
        "content": [{"type": "text", "text": f"Hello, {name}!"}],  # for the model to read
        "details": {"greeted": name},  # for programs: this becomes `result.value`
    }


@hookimpl
def tavern_register_tools(ctx: PluginContext) -> list[Callable[..., Any]]:
    """Called when the plugin is used for the first time: return what it offers."""
    return [greet]
