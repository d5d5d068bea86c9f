"""Reading the settings of a tool for a call, which is refused while a required setting has no value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tavern_core.errors import SettingsInvalid, ToolFailed

if TYPE_CHECKING:
    from tavern_core.contract.protocols import BoundTool, ToolHome
    from tavern_core.model.call import ToolCall
    from tavern_core.model.tool import ToolSpec


def settings_for_call(tool: ToolSpec, read: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Read the settings for one call.

    Args:
        read: `ToolHome.settings`, or `ToolHome.plugin_settings`.

    Raises:
        ToolFailed: a required setting has no value (TOOL_ERROR).
    """
    try:
        return read()
    except SettingsInvalid as error:
        reasons = "; ".join(found.located for found in error.findings) or error.message
        raise ToolFailed(
            f"{tool.name} is not set up: {reasons}", hint=error.hint, findings=error.findings, fixFor="operator"
        ) from None


def when_set_up(bound: BoundTool, tool: ToolSpec, home: ToolHome) -> BoundTool:
    """`bound`, refused while a required setting of the tool has no value."""
    if not tool.config_schema:
        return bound
    run = bound.run

    def run_set_up(arguments: Mapping[str, Any], call: ToolCall | None) -> Any:
        settings_for_call(tool, home.settings)
        return run(arguments, call)

    return replace(bound, run=run_set_up)
