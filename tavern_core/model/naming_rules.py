"""Names of plugins and tools, and the normalization of written names to ids.

A tool id is ``plugin:tool``. Models and people also write ``plugin.tool`` and ``plugin/tool``; both are accepted on
input and never stored.
"""

from __future__ import annotations

import re
from typing import Final

from tavern_core.model.nearest import fold

KEBAB_CASE: Final = r"^[a-z0-9]+(-[a-z0-9]+)*$"
"""The pattern of plugin names, as JSON Schema writes it."""
PLUGIN_NAME: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*\Z")
LOCAL_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
LONGEST_PLUGIN_NAME: Final = 64
SERVICE_NAME: Final = r"^[^\s*:]{1,200}$"
"""The pattern of names of services that can be requested, as JSON Schema writes it: a permission holds them."""
COMMAND_HINT: Final = "write one word of letters, digits, - and _"
_COMMAND_NAME: Final = re.compile(r"[^\W_][\w.-]{0,63}\Z")
_RUN_ID: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}\Z")
_SERVICE_NAME: Final = re.compile(SERVICE_NAME)
CALLER_KINDS: Final = ("role", "profile", "user")
"""The prefixes of keys by caller; a key without one is a principal or ``*``."""
CALLER_KEYS: Final = "write user:<id>, role:<role>, profile:<name>, a principal, or * for all others"
RESERVED_NAMESPACES: Final = frozenset({"core", "system", "kb", "workflow", "jobs", "skill", "CodeInterpreter"})
"""Namespaces of the host (DESIGN §2); a plugin with one as its name is refused."""

SEARCH_TOOLS: Final = "system:search_tools"
"""The tool that finds others. Every caller may search its own inventory, so only deny lists apply to this tool."""
JOB_RESULT: Final = "jobs:getResult"
JOB_ANSWER: Final = "jobs:answer"
JOB_TOOLS: Final = ("jobs:getStatus", JOB_RESULT, "jobs:cancel", JOB_ANSWER)
"""The tools that take the id of a job. A caller that has got such an id can use it, so only deny lists apply to them."""
UNLISTED_TOOLS: Final = (SEARCH_TOOLS, *JOB_TOOLS, "jobs:list")
"""Tools of the host that are called by name and that no list of tools contains."""
_RESERVED: Final = frozenset(fold(name) for name in RESERVED_NAMESPACES)

RESERVED_COMMANDS: Final = frozenset(
    {
        "plugins", "tools", "run", "new", "doctor", "config", "logs", "hooks", "workflows", "nodes", "schema", "completion", "help", "version",
        "jobs", "serve", "mcp", "upstreams", "agent", "assist", "llms", "skills", "knowledge", "tokens", "cluster", "state", "approvals", "limits", "kb",
        "artifacts",
    }
)  # fmt: skip
"""Sub-commands of the host, including planned ones: no plugin may use one."""


def is_reserved(name: str) -> bool:
    """True for a name that only the host's own plugins may have: ``kb``, ``code-interpreter``, ``core-net``.

    Names that begin with ``core-`` are reserved for readability. Whether a plugin belongs to the host is a fact of its record, never of its name.
    """
    return is_reserved_namespace(name) or name.startswith("core-")


def is_reserved_namespace(name: str) -> bool:
    """True for a namespace of the host, and for one that closely resembles it."""
    return fold(name) in _RESERVED


def is_plugin_name(name: str) -> bool:
    """True for kebab-case of at most 64 characters: ``my-awesome-plugin``."""
    return len(name) <= LONGEST_PLUGIN_NAME and PLUGIN_NAME.match(name) is not None


def is_local_name(name: str) -> bool:
    """True for 1 to 64 of ``A-Z a-z 0-9 _ . -``: the part of a tool id after the colon."""
    return LOCAL_NAME.match(name) is not None


def is_service_name(name: str) -> bool:
    """True for a name by which a service can be requested and granted: printable, without blanks, ``:`` and ``*``."""
    return _SERVICE_NAME.match(name) is not None and name.isprintable()


def caller_key_flaw(key: str) -> str:
    """Why a key of `callers`, or of another section by caller, can match no caller; empty: it can."""
    kind, _, name = key.partition(":")
    if not key.strip() or (kind in CALLER_KINDS and not name):
        return f"the caller {key!r} matches no caller"
    if kind not in CALLER_KINDS and kind.strip().lower() in CALLER_KINDS:
        return f"the caller {key!r} matches no caller: the kinds of caller are written in lower case"
    if "*" in key and key != "*":
        return f"the caller {key!r} matches no caller: patterns are not understood here"
    return ""


def camel(name: str) -> str:
    """A name of a field as JSON has it: ``timeout_ms`` is ``timeoutMs``."""
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


def split_id(tool_id: str) -> tuple[str, str]:
    """``("plugin", "tool")`` of an id; the plugin is empty if there is no colon."""
    plugin, colon, local = tool_id.partition(":")
    return (plugin, local) if colon else ("", tool_id)


def spellings(written: str) -> list[str]:
    """The ids that `written` may mean, the most literal first.

    >>> spellings("FileOperator.WriteFile")
    ['FileOperator.WriteFile', 'FileOperator:WriteFile']
    """
    text = written.strip()
    found = [text]
    if ":" not in text:
        found += [text.replace(mark, ":", 1) for mark in "./" if mark in text]
    return found


def folded_id(tool_id: str) -> str:
    """Ids with the same one are too alike: they differ only in case, - and _."""
    plugin, local = split_id(tool_id)
    return f"{fold(plugin)}:{fold(local)}"


def is_run_id(run_id: object) -> bool:
    """Whether a run of a workflow could have this id, which is also the name of its files."""
    return isinstance(run_id, str) and _RUN_ID.match(run_id) is not None


def is_command_name(name: str) -> bool:
    """Whether ``tavern <name>`` can be typed: one word of any script, no option."""
    return _COMMAND_NAME.match(name) is not None
