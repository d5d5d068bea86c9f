"""The command line of `implementation.command`: a known interpreter with a file of the plugin, or a file of the plugin.

    python scripts/fetch.py --fast        the host's own interpreter
    node | bun [run] | deno run …         found on PATH when the tool is called
    bin/tool --x                          an executable file of the plugin

Never a shell, never a program found by a bare name, never code on the command line (``-c``, ``-e``, ``-m``): what runs is a
file that was installed with the plugin. Paths are relative to the plugin's folder and may not leave it, links included.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tavern_core.box import runtime_paths
from tavern_core.box.policy import BoxPolicy
from tavern_core.box.protected_path_splitting import is_in
from tavern_core.errors import ToolFileInvalid
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.environment_variables import is_name, is_passed, is_refused
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.plugin_status import NOT_PART
from tavern_core.model.safe_printing import is_text
from tavern_core.model.script_command import RUNNERS, words_before_file
from tavern_core.schema.secret_names import is_secret_variable


@dataclass(frozen=True, slots=True)
class ScriptCommand:
    """A checked command."""

    runner: str
    """A name in `RUNNERS`; empty: the file itself is the program."""
    before: tuple[str, ...]
    """Options of the runner."""
    file: Path
    """The file that runs: absolute, links resolved, inside the plugin's folder."""
    after: tuple[str, ...]
    """Words for the script."""
    folder: Path
    """Working directory, inside the plugin's folder."""

    def argv(self, find: Callable[[str], str | None]) -> tuple[str, ...] | None:
        """The whole command line; None if the runner is not installed.

        Args:
            find: a runner's name → the absolute path of its program, or None.
        """
        if not self.runner:
            return (str(self.file), *self.after)
        program = find(self.runner)
        return None if program is None else (program, *self.before, str(self.file), *self.after)


def read_command(tool: str, command: Any, cwd: Any, plugin: Path) -> ScriptCommand:
    """Check `command` and `cwd` of a tool file.

    Args:
        tool: the tool's id, for messages.
        command: a string, split as a POSIX shell would without being given to one, or a list of words.
        cwd: working directory relative to the plugin's folder; None: that folder.
        plugin: the plugin's folder.

    Raises:
        ToolFileInvalid: anything that is not one of the three forms (TOOL_FILE_INVALID).
    """
    root = plugin.resolve()
    words = _words(tool, command)
    first = words[0]
    runner = "python" if first == "python3" else first if first in RUNNERS else ""
    if not runner:
        file = _own_file(tool, first, root, RUNNERS)
        if not os.access(file, os.X_OK):
            raise _wrong(
                tool, f"{first!r:.120} is not executable", f"chmod +x {first}, or name its interpreter: python {first}"
            )
        return ScriptCommand("", (), file, tuple(words[1:]), _folder(tool, cwd, root))
    count, problem, hint = words_before_file(words)
    if problem:
        raise _wrong(tool, problem, hint)
    file = _own_file(tool, words[count], root)
    return ScriptCommand(runner, tuple(words[1:count]), file, tuple(words[count + 1 :]), _folder(tool, cwd, root))


def _words(tool: str, command: Any) -> list[str]:
    if isinstance(command, str):
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise _wrong(tool, f"{command!r:.200} cannot be split into words: {error}", "close the quotation") from None
    elif isinstance(command, list | tuple) and all(isinstance(word, str) for word in command):
        words = list(command)
    else:
        raise _wrong(
            tool, f"must be a string or a list of strings, got {command!r:.200}", '"command": "python scripts/tool.py"'
        )
    if not words or not words[0]:
        raise _wrong(tool, "is empty", '"command": "python scripts/tool.py"')
    if any("\0" in word for word in words):
        raise _wrong(tool, "holds a NUL character", "remove it")
    if not all(map(is_text, words)):
        raise _wrong(tool, "holds half of a surrogate pair", "write it as text")
    return words


def _own_file(tool: str, word: str, root: Path, runners: Iterable[str] = ()) -> Path:
    file = _inside(tool, word, root)
    if os.path.isfile(file):  # noqa: PTH113 - Path.is_file raises for a name that is too long
        return file
    suggestion = did_you_mean(word, [*runners, *_files_beside(file, root)])
    if runners and "/" not in word:
        allowed = ", ".join(RUNNERS)
        raise _wrong(
            tool,
            f"{word!r:.120} is neither a known runner nor a file of the plugin",
            suggestion or f"runners: {allowed}",
        )
    raise _wrong(
        tool,
        f"there is no file {word!r:.120} in the plugin",
        suggestion or "paths are relative to the folder of plugin.yaml",
    )


def _files_beside(file: Path, root: Path) -> list[str]:
    try:
        return [str(found.relative_to(root)) for found in file.parent.iterdir()]
    except (OSError, ValueError):
        return []


def _folder(tool: str, cwd: Any, root: Path) -> Path:
    if cwd is None:
        return root
    if not isinstance(cwd, str):
        raise _wrong(tool, f"cwd must be a string, got {cwd!r:.120}", '"cwd": "work"')
    folder = _inside(tool, cwd, root)
    if not os.path.isdir(folder):  # noqa: PTH112 - as above
        raise _wrong(tool, f"cwd {cwd!r:.120} is not a folder of the plugin", "create it, or leave cwd out")
    return folder


def _inside(tool: str, word: str, root: Path) -> Path:
    """`word` below `root`, links resolved."""
    if Path(word).is_absolute() or ".." in Path(word).parts:
        raise _wrong(
            tool, f"{word!r:.120} leads out of the plugin", "name a file of the plugin, relative to its folder"
        )
    try:
        path = (root / word).resolve()
        source = (root / "plugin.yaml").resolve().parent
    except (OSError, RuntimeError, ValueError) as error:  # a cycle of links, an impossible name
        raise _wrong(tool, f"{word!r:.120} is not a usable path: {error}", "name a file of the plugin") from None
    # An editable-strict install is a tree of links into the source folder: there, the same relative place counts.
    if not path.is_relative_to(root) and path != source / word:
        raise _wrong(
            tool, f"{word!r:.120} is a link that leads out of the plugin", "put the file itself into the plugin"
        )
    if NOT_PART.intersection((*Path(word).parts, *(path.relative_to(root).parts if path.is_relative_to(root) else ()))):
        raise _wrong(
            tool, f"{word!r:.120} is in a folder that does not belong to a plugin", "put the file next to plugin.yaml"
        )
    return path


def _wrong(tool: str, flaw: str, hint: str) -> ToolFileInvalid:
    return ToolFileInvalid(f"tool {tool}: implementation.command: {flaw}", hint=hint)


# Environment ----------------------------------------------------------------------------------------------------------
# The environment of a script: an allow list of the host's variables.
#
# Everything else is withheld, above all apparent secrets: a script gets secrets only as its own `config`, on stdin.


def check_names(tool: str, names: Iterable[str]) -> tuple[str, ...]:
    """The variables that a tool file requests in `implementation.env`.

    Raises:
        ToolFileInvalid: not a name, the name of a secret, or one that is never passed on (TOOL_FILE_INVALID).
    """
    checked = tuple(names)
    for name in checked:
        if not is_name(name):
            raise ToolFileInvalid(
                f"tool {tool}: implementation.env: {name!r} is not the name of an environment variable"
            )
        if is_refused(name) and not name.startswith("TAVERN_"):
            raise ToolFileInvalid(
                f"tool {tool}: implementation.env: {name!r} makes programs load code and is never passed on",
                hint="delete it; the plugin contains what the script needs",
            )
        if is_secret_variable(name) or is_refused(name):
            raise ToolFileInvalid(
                f"tool {tool}: implementation.env: {name!r} may hold a secret and is not passed on",
                hint='declare it in configSchema with "secret": true and set it to {"$env": "' + name + '"}',
            )
    return checked


def environment(
    host: Mapping[str, str], asked: Iterable[str], tool: str, call_id: str, work: str = "", out: str = ""
) -> dict[str, str]:
    """The whole environment of one script.

    Args:
        host: the host's own.
        asked: further requested names, each granted to the call as ``env:<NAME>``; unset ones are left
            out.
        work: the folder of this call, in place of the host's home and temporary folder; empty: it sees those.
        out: the folder for files that are kept.
    """
    variables = runtime_paths.program_environment(host, work, frozenset(asked))
    if out:
        variables["TAVERN_OUTPUT"] = out
    return {**variables, "TAVERN_TOOL": tool, "TAVERN_CALL_ID": call_id}


def vcp_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """The settings of a VCP plugin as variables, without those that have no value or may not be variables."""
    variables = {}
    for name, value in config.items():
        if value is None or value == "" or not is_name(name) or is_refused(name) or is_passed(name):
            continue
        text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value
        if "\0" not in text:
            variables[name] = text
    return variables


def granted_places(policy: BoxPolicy, workspace: str) -> dict[str, str]:
    """The places of a box's folders, because a script cannot resolve ``$data`` and ``$workspace`` of its grants.

    Args:
        workspace: of the call; empty: it has none.
    """
    granted = (*policy.granted.read, *policy.granted.write)
    folders = {
        "TAVERN_DATA_DIR": policy.granted.own,
        "TAVERN_WORKSPACE": os.path.realpath(workspace) if workspace else "",
    }
    return {
        name: folder
        for name, folder in folders.items()
        if folder and Path(folder).is_dir() and any(is_in(folder, path) or is_in(path, folder) for path in granted)
    }
