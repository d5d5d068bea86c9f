"""Tools of kind `skill`: instructions and files for a model, and the programs that come with them.

`executor.py` runs the calls; it is imported with the first one.
"""

from __future__ import annotations

from collections.abc import Mapping

from tavern_core.contract.context import PluginContext
from tavern_core.contract.hookspecs import hookimpl
from tavern_core.contract.protocols import BoundTool, Executor, ToolHome
from tavern_core.model.tool import ToolSpec


class LazySkillExecutor:
    """The executor, whose module is imported with the first skill: most hosts have none."""

    def bind(self, tool: ToolSpec, home: ToolHome, /) -> BoundTool:
        from tavern_core.builtin.adapters.skill.executor import SkillExecutor

        return SkillExecutor().bind(tool, home)


@hookimpl(fast=True)
def tavern_register_executors(ctx: PluginContext) -> Mapping[str, Executor]:
    return {"skill": LazySkillExecutor()}
