"""Tools of kind `skill`: instructions and files for a model, and the programs that come with them.

executor.py   one call           skill_rendering.py   instructions, the list of files, one file
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tavern_core.contract.context import PluginContext
from tavern_core.contract.hookspecs import hookimpl
from tavern_core.contract.protocols import BoundTool, Executor, ToolHome
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.builtin.adapters.skill.executor import SkillExecutor


class Skills:
    """The executor, imported with the first skill: most hosts have none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: SkillExecutor | None = None

    def bind(self, tool: ToolSpec, home: ToolHome, /) -> BoundTool:
        with self._lock:
            if self._made is None:
                from tavern_core.builtin.adapters.skill.executor import SkillExecutor

                self._made = SkillExecutor()
        return self._made.bind(tool, home)


@hookimpl(fast=True)
def tavern_register_executors(ctx: PluginContext) -> Mapping[str, Executor]:
    return {"skill": Skills()}
