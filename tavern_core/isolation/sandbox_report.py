"""What a person is told whose program may have been refused something by its box: what it had, and what would give it more."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tavern_core.model.call import Rights
from tavern_core.model.capability import CAPABILITIES, covers, forbids

OPENING = ("read:fs", "write:fs", "read:web", "network", "network:host", "process:spawn")
"""Capabilities that open something in a box."""
_SAME = (("read:web", "network", "network:host"),)
"""Capabilities that open the same there."""


def allows(rights: Rights, capability: str) -> bool:
    """Whether plugin, host, profile and caller all allow it; as the policy of capabilities judges what a tool declares."""
    sides = (rights.plugin, rights.caller, rights.host, rights.profile)
    return all(side is None or covers(side, capability) for side in sides) and not forbids(
        rights.host_denied, capability
    )


def what_would_allow(plugin: str, asked: Collection[str], rights: Rights, wanted: Sequence[str]) -> str:
    """One sentence; empty where nothing that is `wanted` could be refused.

    Args:
        asked: the capabilities that plugin.yaml asks for.
        rights: of the call.
        wanted: capabilities, any of which may be the one that is missing.
    """
    ways = []
    if narrow := [name for name in wanted if allows(rights, name) and rights.scope(name) is not None]:
        ways.append(
            f"a wider scope of {_listed(narrow)} in plugin.yaml, then `tavern plugins grant {plugin} {' '.join(narrow)}`"
        )
    lacking = [name for name in wanted if not _is_open(rights, name)]
    if held := [name for name in lacking if covers(rights.plugin, name)]:
        ways.append(f"let this call have {_listed(held)}: caller, profile and host must all allow it")
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
        if allows(rights, name)
    ]
    return f"it ran in its box, with {_listed(had) or 'nothing'} granted; if that refused it: {'; or '.join(ways)}"


def _choice(names: Sequence[str]) -> str:
    told = [f"{name} to {CAPABILITIES[name].sentence}" for name in names]
    return " or ".join([", ".join(told[:-1]), told[-1]]) if len(told) > 1 else told[0]


def _is_open(rights: Rights, name: str) -> bool:
    return any(allows(rights, one) for one in next((same for same in _SAME if name in same), (name,)))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
