"""The values of a call that the tool's schema marks as path, address or statement, and the decision about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tavern_core.contract.decisions import Deny, RequireApproval, deny
from tavern_core.model.call import ToolCall
from tavern_core.model.parameter_guard_marks import Guard, GuardKind, guard_of
from tavern_core.model.tool import ToolSpec
from tavern_core.schema.tree import nodes_of

if TYPE_CHECKING:
    from tavern_core.schema.guarded_value_search import GuardedValue, GuardedValueFinder

T = TypeVar("T")
_MOST_CACHED: Final = 5_000
_Cache = dict[int, tuple[Mapping[str, Any], T]]
"""Results by the identity of the schema; the schema is stored too, so that its identity is not reused."""
_kinds: _Cache[frozenset[GuardKind]] = {}
_finders: _Cache[GuardedValueFinder | None] = {}


def marks(tool: ToolSpec, kind: GuardKind) -> bool:
    """True if the tool's schema marks anything as `kind`."""
    return kind in _cached(_kinds, tool.input_schema, _kinds_in)


def marked(tool: ToolSpec, arguments: Mapping[str, Any]) -> list[GuardedValue] | Deny:
    """The marked values in `arguments`, or a denial if there are too many to check."""
    from tavern_core.schema.guarded_value_search import TooMuchMarked, compile_guarded

    finder = _cached(_finders, tool.input_schema, compile_guarded)
    try:
        return finder(arguments) if finder is not None else []
    except TooMuchMarked:
        return deny("the arguments hold too many values to check", hint="send fewer values in one call")


def guard(found: GuardedValue, kind: GuardKind) -> list[Guard]:
    """The guards of `kind` at one value."""
    return [one for one in found.guards if one.kind == kind]


def decision(
    call: ToolCall,
    tool: ToolSpec,
    kind: GuardKind,
    judge: Callable[[GuardedValue, Guard], Deny | RequireApproval | None],
) -> Deny | RequireApproval | None:
    """The first denial of a value that is marked as `kind`, or of too many values; else the first request for approval.

    Args:
        judge: decides about one value, by one of its marks.
    """
    found = marked(tool, call.arguments)
    if isinstance(found, Deny):
        return found
    approval = None
    for one in found:
        for mark in guard(one, kind):
            verdict = judge(one, mark)
            if isinstance(verdict, Deny):
                return verdict
            approval = approval or verdict
    return approval


def _kinds_in(schema: Mapping[str, Any]) -> frozenset[GuardKind]:
    return frozenset(found.kind for node in nodes_of(dict(schema)) if (found := guard_of(node)) is not None)


def _cached(cache: _Cache[T], schema: Mapping[str, Any], make: Callable[[dict[str, Any]], T]) -> T:
    entry = cache.get(id(schema))
    if entry is None or entry[0] is not schema:
        if len(cache) >= _MOST_CACHED:
            cache.clear()
        entry = cache[id(schema)] = schema, make(dict(schema))
    return entry[1]
