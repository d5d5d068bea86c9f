"""Which values of a call the tool's schema marks as path, address or statement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tavern_core.contract.decisions import Deny, deny
from tavern_core.model.guard import Guard, GuardKind, guard_of
from tavern_core.model.tool import ToolSpec
from tavern_core.schema.guarded import Finder, Marked, TooMuchMarked, compile_guarded
from tavern_core.schema.tree import nodes_of

_MOST_KEPT: Final = 5_000
_finders: dict[int, tuple[Mapping[str, Any], Finder | None]] = {}
"""Compiled schemas by identity; the schema is kept beside, so that its identity is not given to another."""


def marks(tool: ToolSpec, kind: GuardKind) -> bool:
    """True when the tool's schema marks anything as `kind`."""
    schema = tool.input_schema
    return any((guard := guard_of(node)) is not None and guard.kind == kind for node in nodes_of(dict(schema)))


def marked(tool: ToolSpec, arguments: Mapping[str, Any]) -> list[Marked] | Deny:
    """The marked values in `arguments`, or a denial when there are too many to look at."""
    finder = _finder(tool.input_schema)
    try:
        return finder(arguments) if finder is not None else []
    except TooMuchMarked:
        return deny("the arguments hold too much to be judged", hint="send fewer values in one call")


def guard(found: Marked, kind: GuardKind) -> list[Guard]:
    """The guards of `kind` at one value."""
    return [one for one in found.guards if one.kind == kind]


def _finder(schema: Mapping[str, Any]) -> Finder | None:
    kept = _finders.get(id(schema))
    if kept is None or kept[0] is not schema:
        if len(_finders) >= _MOST_KEPT:
            _finders.clear()
        kept = _finders[id(schema)] = schema, compile_guarded(dict(schema))
    return kept[1]
