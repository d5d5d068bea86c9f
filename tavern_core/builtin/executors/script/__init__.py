"""Tools of kind `script`: a program of the plugin, JSON in, JSON out.

executor.py     one call, from top to bottom     script_output.py  the output as an answer
command.py      the command and the environment  masking.py        redacts secrets in the output
work_folder.py  folders and files of each call   report.py         the result of an ended script
queue.py        limits the scripts that run at the same time

`tavern_core/box` starts and ends them, and reads their output (script_spawner.py, script_fork_job.py, output.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tavern_core.contract.context import PluginContext
from tavern_core.contract.hookspecs import hookimpl
from tavern_core.contract.protocols import BoundTool, Executor, ToolHome
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.builtin.executors.script.executor import ScriptExecutor


class LazyScriptExecutor:
    """The executor, imported with the first script: most hosts have none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._executor: ScriptExecutor | None = None

    @property
    def close(self) -> Callable[[], None] | None:
        """Ends the process that starts scripts; called when the plugin is stopped. None until there is a script."""
        return None if self._executor is None else self._executor.close

    def bind(self, tool: ToolSpec, home: ToolHome, /) -> BoundTool:
        with self._lock:
            if self._executor is None:
                from tavern_core.builtin.executors.script.executor import ScriptExecutor

                self._executor = ScriptExecutor()
        return self._executor.bind(tool, home)


@hookimpl(fast=True)
def tavern_register_executors(ctx: PluginContext) -> Mapping[str, Executor]:
    return {"script": LazyScriptExecutor()}
