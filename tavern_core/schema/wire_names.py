"""Tool ids in the form that the APIs of model providers allow: at most 64 of `A-Z a-z 0-9 _ -`, a letter or `_` first.

    text:count  ->  text__count          reversible by itself: a plugin's name has no `_`, so the first `__` is the colon
    a_b:c       ->  a_b__c_5f1e6d2a90    anything lost or ambiguous gets a prefix of the SHA-256 of the id

A name depends only on the id: it does not change when other tools are added or removed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from tavern_core.errors import NameConflict

LONGEST = 64
_DIGEST = 10
_CLEAN = re.compile(r"[A-Za-z][A-Za-z0-9-]*(?::[A-Za-z0-9_-]+)?\Z")
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]+")


def wire_name(tool_id: str) -> str:
    """The name of a tool in a provider's API.

    >>> wire_name("text:count")
    'text__count'
    """
    readable = tool_id.replace(":", "__", 1)
    if _CLEAN.match(tool_id) and len(readable) <= LONGEST:
        return readable
    digest = hashlib.sha256(tool_id.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    readable = _FOREIGN.sub("_", readable).strip("_-")[: LONGEST - _DIGEST - 1].rstrip("_-")
    if not readable[:1].isalpha():
        readable = f"tool_{readable}"[: LONGEST - _DIGEST - 1].rstrip("_-")
    return f"{readable}_{digest}"


class WireNames:
    """From wire names back to ids.

    Args:
        ids: every tool id that may be called.

    Raises:
        NameConflict: two ids have the same wire name; both are named.
    """

    def __init__(self, ids: Iterable[str]) -> None:
        self._ids: dict[str, str] = {}
        for tool_id in ids:
            other = self._ids.setdefault(wire_name(tool_id), tool_id)
            if other != tool_id:
                raise NameConflict(
                    f"the tools {other!r} and {tool_id!r} have the same wire name {wire_name(tool_id)!r}",
                    hint="rename one of them",
                )

    def tool_id(self, name: str) -> str | None:
        """The id of a wire name; a full id is accepted, too. None if there is no such tool."""
        found = self._ids.get(name)
        if found is None and self._ids.get(wire_name(name)) == name:
            return name
        return found

    def all(self) -> list[str]:
        """Every wire name, sorted."""
        return sorted(self._ids)
