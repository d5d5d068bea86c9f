"""The environment of a script: an allow list of the host's variables.

Everything else is withheld, above all apparent secrets: a script gets secrets only as its own `config`, on stdin.
"""

from __future__ import annotations

import json
import os
import site
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tavern_core.box import runtime_paths
from tavern_core.box.policy import BoxPolicy
from tavern_core.box.protected_paths import is_in
from tavern_core.errors import ToolFileInvalid
from tavern_core.model.environment_variables import for_programs, is_name, is_passed, is_refused
from tavern_core.schema.secret_names import is_secret_name

_TELLING_ENDS: Final = ("KEY", "PASS", "AUTH", "CREDS")


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
        if is_secret_name(name) or name.upper().endswith(_TELLING_ENDS) or is_refused(name):
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
        out: where it leaves files that are kept.
    """
    passed = for_programs(host, runtime_paths.own_library(), frozenset(asked))
    if work:
        passed |= {"HOME": work, "TMPDIR": work}
        if site.ENABLE_USER_SITE:  # otherwise, packages of this user are found from their home
            passed["PYTHONUSERBASE"] = site.getuserbase()
    if out:
        passed["TAVERN_OUTPUT"] = out
    return {**passed, "TAVERN_TOOL": tool, "TAVERN_CALL_ID": call_id}


def vcp_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """The settings of a VCP plugin as variables: what is not set, or may not be one, is left out."""
    found = {}
    for name, value in config.items():
        if value is None or value == "" or not is_name(name) or is_refused(name) or is_passed(name):
            continue
        text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value
        if "\0" not in text:
            found[name] = text
    return found


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
