"""The hint for a program that its box may have refused: what the box allowed, and what would allow more."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tavern_core.model.call import Rights
from tavern_core.model.capability import CAPABILITIES, covers

OPENING = ("read:fs", "write:fs", "read:web", "network", "network:host", "process:spawn")
"""Capabilities that allow something in a box."""
_SAME = (("read:web", "network", "network:host"),)
"""Capabilities with the same effect there."""


def what_would_allow(plugin: str, asked: Collection[str], rights: Rights, wanted: Sequence[str]) -> str:
    """One sentence; empty if nothing in `wanted` can have been refused.

    Args:
        asked: the capabilities that plugin.yaml requests.
        rights: of the call.
        wanted: capabilities, one of which may be missing.
    """
    ways = []
    if narrow := [name for name in wanted if rights.holds(name) and rights.scope(name) is not None]:
        ways.append(
            f"a wider scope of {', '.join(narrow)} in plugin.yaml, then `tavern plugins grant {plugin} {' '.join(narrow)}`"
        )
    lacking = [name for name in wanted if not _is_open(rights, name)]
    if held := [name for name in lacking if covers(rights.plugin, name)]:
        ways.append(f"let this call have {', '.join(held)}: caller, profile and host must all allow it")
    lacking = [name for name in lacking if name not in held]
    if undecided := [name for name in lacking if name in asked]:
        ways.append(f"`tavern plugins grant {plugin} {' '.join(undecided)}`")
    if unasked := [name for name in lacking if name not in asked]:
        name = unasked[0] if len(unasked) == 1 else "NAME"
        which = "" if len(unasked) == 1 else f", where NAME is {_choice(unasked)}"
        line = f"plugin.yaml: permissions: {{capabilities: [{name}]}}, best with a scope"
        ways.append(f"{line}, then `tavern plugins grant {plugin} {name}`{which}")
    if not ways:
        return ""
    had = [
        f"{name} ({', '.join(scope)})" if (scope := rights.scope(name)) else name
        for name in OPENING
        if rights.holds(name)
    ]
    return f"it ran in its box, with {', '.join(had) or 'nothing'} granted; if that refused it: {'; or '.join(ways)}"


def _choice(names: Sequence[str]) -> str:
    reported = [f"{name} to {CAPABILITIES[name].sentence}" for name in names]
    return " or ".join([", ".join(reported[:-1]), reported[-1]]) if len(reported) > 1 else reported[0]


def _is_open(rights: Rights, name: str) -> bool:
    return any(rights.holds(one) for one in next((same for same in _SAME if name in same), (name,)))
