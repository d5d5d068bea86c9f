"""Tools of kind `script`: a program of the plugin, JSON in, JSON out.

command.py      what may be run                  script_input.py   what the script reads on stdin
environment.py  what it sees of the host         script_output.py    what it prints, and what that means
work_folder.py         a folder for each call           masking.py   no secret comes back out
executor.py     one call, from top to bottom     queue.py    how many at once

What starts them, ends them and listens to them: `tavern_core/box` (spawner.py, keeper.py, collect.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from tavern_core.contract.context import PluginContext
from tavern_core.contract.hookspecs import hookimpl
from tavern_core.contract.protocols import Executor


@hookimpl
def tavern_register_executors(ctx: PluginContext) -> Mapping[str, Executor]:
    from tavern_core.builtin.executors.script.executor import ScriptExecutor  # hosts without scripts need none of it

    return {"script": ScriptExecutor()}
