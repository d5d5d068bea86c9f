"""file-operator: text files inside one workspace folder.

workspace.py  the folder, and that nothing leads out of it
edit.py       replace text that occurs exactly once
tools.py      the five tools
"""

from __future__ import annotations

from tavern_core import PluginContext, hookimpl

from .tools import FileTools
from .workspace import choose_root


@hookimpl
def tavern_register_tools(ctx: PluginContext) -> list[FileTools]:
    """One toolbox. The settings are asked for at each call, so that a change holds from the next one on."""

    def root(wanted: str | None) -> str:
        return choose_root(ctx.get_config("workspace"), wanted, lambda: ctx.data_dir / "workspace")

    return [FileTools(root, lambda: int(ctx.get_config("maxBytes")))]
