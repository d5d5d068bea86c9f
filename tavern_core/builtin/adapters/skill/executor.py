"""One call of a skill.

`skill:<name>`      answers what a model reads (`skill_rendering.py`)
`skill:<name>.run`  runs a program of its folder `scripts/`, as a script tool with the protocol `text`

A skill ends nothing and decides nothing: it answers with data and evidence, and what a model does with that are calls of their own, by the
same path as all others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from tavern_core.builtin.adapters.skill.skill_rendering import SkillReader
from tavern_core.contract.protocols import BoundTool, ToolHome
from tavern_core.errors import PolicyDenied, ToolFailed, ToolFileInvalid
from tavern_core.model.call import ToolCall
from tavern_core.model.naming_rules import split_id
from tavern_core.model.result import ToolResult
from tavern_core.model.skill import RUN, SCRIPTS
from tavern_core.model.tool import ToolSpec

_RUNNERS: Final[Mapping[str, str]] = {".py": "python", ".js": "node", ".mjs": "node", ".cjs": "node", ".ts": "bun"}
"""Others must be executable files."""
_SHELL_NAME: Final = re.compile(r"\.(?:sh|bash|zsh|ksh|csh|fish|bat|cmd|ps1)\Z", re.IGNORECASE)
_SHELL_LINE: Final = re.compile(rb"#!.*?\b(?:sh|bash|zsh|dash|ksh|csh|tcsh|fish|busybox|pwsh)\b")


class SkillExecutor:
    """Reads skills and runs their scripts."""

    def bind(self, tool: ToolSpec, home: ToolHome, /) -> BoundTool:
        """Find the folder; nothing is read. Raises ToolFileInvalid: there is none in the plugin (TOOL_FILE_INVALID)."""
        folder = _folder(tool, home)
        name = split_id(tool.name)[1].removesuffix(RUN)
        reader = SkillReader(tool.name, tool.display_name if tool.implementation.get("runs") is None else name, folder)

        def read(arguments: Mapping[str, Any], call: ToolCall | None) -> ToolResult:
            _refuse_changed(tool, name, home)
            path = arguments.get("file")
            return reader.instructions() if path is None else reader.file(path, arguments.get("offset", 0))

        async def run(arguments: Mapping[str, Any], call: ToolCall | None) -> ToolResult:
            _refuse_changed(tool, name, home)
            evidence = reader.evidence(arguments["script"])
            bound = _script(tool, home, folder, arguments)
            value = await bound.run({"input": arguments.get("input", "")}, call)
            return ToolResult(True, value, evidence=(evidence,))

        if tool.implementation.get("runs"):
            return BoundTool(run, is_async=True, blocking=False, wants_call=True, stoppable=True)
        return BoundTool(read, is_async=False)


def _script(tool: ToolSpec, home: ToolHome, folder: Path, arguments: Mapping[str, Any]) -> BoundTool:
    """The script as a tool of kind `script`. Raises ToolFailed: it may not run (TOOL_ERROR)."""
    path = str(tool.implementation.get("path", ""))
    *runner, script = _command(tool, folder, arguments["script"])
    command = [*runner, f"{path}/{script}" if path else script, *arguments.get("arguments", ())]
    implementation = {"type": "script", "command": command, "protocol": "text"} | ({"cwd": path} if path else {})
    assert home.delegate is not None
    try:
        return home.delegate(replace(tool, kind="script", implementation=implementation))
    except ToolFileInvalid as error:
        raise ToolFailed(error.message.replace("implementation.command: ", ""), hint=error.hint) from error


def _folder(tool: ToolSpec, home: ToolHome) -> Path:
    if home.folder is None:
        raise ToolFileInvalid(f"tool {tool.name}: a skill needs a folder to lie in")
    root = home.folder.resolve()
    folder = (root / str(tool.implementation.get("path", ""))).resolve()
    if not folder.is_relative_to(root) or not folder.is_dir():
        raise ToolFileInvalid(f"tool {tool.name}: its folder is not in the plugin", hint="put the folder itself there")
    return folder


def _refuse_changed(tool: ToolSpec, name: str, home: ToolHome) -> None:
    if not home.is_intact():
        raise PolicyDenied(
            f"{tool.name}: its files are not those that were trusted",
            hint=f"look at them, then: tavern skills trust {name}",
            side="plugin",
        )


def _command(tool: ToolSpec, folder: Path, script: str) -> list[str]:
    parts = PurePosixPath(script).parts
    if parts[:1] != (SCRIPTS,) or ".." in parts:
        raise ToolFailed(
            f"{script!r:.120} is not in {SCRIPTS}/ of the skill", hint=f"name one such as {SCRIPTS}/run.py"
        )
    if runner := _RUNNERS.get(PurePosixPath(script).suffix.lower()):
        return [runner, script]
    with (folder / script).open("rb") as file:  # a regular file inside, as `SkillReader.evidence` has just seen
        is_shell = _SHELL_NAME.search(script) or _SHELL_LINE.match(file.readline(300))
    if is_shell:
        raise ToolFailed(
            f"{tool.name}: {script!r:.120} is a shell script, which is never run",
            hint="read it (file=…), and do what it does with tools",
        )
    return [script]
