"""Refuse a call whose paths lead out of the allowed folders (seed 004 §9.2, SECURITY §5).

A value that the schema marks as path must be, with links followed, below each of these, if present:

    the root of its mark       x-tavern: {guard: path, root: workspace}
    the scope of the grant     read:fs or write:fs, by the mode of the mark, or else as the tool needs; limited by the
                               caller's, CallContext(scopes={"read:fs": [...]})

Without either: below the caller's workspace, or else below the project.
Relative paths start at the root of the mark, else at the caller's workspace, else at the first granted folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tavern_core.contract.decisions import Deny, RequireApproval, deny
from tavern_core.contract.guards.guarded_arguments import decision, marks
from tavern_core.contract.hookspecs import hookimpl
from tavern_core.model.call import ToolCall
from tavern_core.model.parameter_guard_marks import Guard
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.schema.guarded_value_search import GuardedValue

_CAPABILITIES: Final = {"read": "read:fs", "write": "write:fs"}


@hookimpl(fast=True, when=lambda tool: marks(tool, "path"))
def tavern_check_call(call: ToolCall, tool: ToolSpec) -> Deny | RequireApproval | None:
    return decision(call, tool, "path", partial(_judge, call, tool))


def _judge(call: ToolCall, tool: ToolSpec, guarded: GuardedValue, mark: Guard) -> Deny | None:
    from tavern_core.contract.guards.paths import beneath, path_flaw, resolved, roots_of

    pointer, path = guarded.pointer, guarded.value
    if flaw := path_flaw(path):
        return _denied(pointer, path, flaw, "write a plain path, with / between folders")
    places = _places(call)
    limits = list(_limits(mark, call, tool, places))
    if not limits:
        owner = "the caller's workspace" if places.get("$workspace") else "the project's folder"
        hint = "pass CallContext(workspace_dir=...), or give the capability a scope in plugin.yaml"
        limits = [(roots_of(("$workspace",) if places.get("$workspace") else ("./",), places), owner, hint)]
    try:
        real = resolved(path, _base(mark, places, limits[0][0]))
    except ValueError as error:
        return _denied(pointer, path, f"cannot be followed: {error}", "name a file without a cycle of links")
    for roots, owner, hint in limits:
        if not beneath(real, roots):
            where = " or ".join(roots[:3]) or "any folder that exists here"
            return _denied(pointer, path, f"is not in {where} ({owner})", hint, roots=roots)
    return None


def _limits(
    mark: Guard, call: ToolCall, tool: ToolSpec, places: Mapping[str, str]
) -> Iterator[tuple[list[str], str, str]]:
    """(folders, the owner of this limit, the change that would widen it)."""
    from tavern_core.contract.guards.paths import roots_of

    if root := mark.get("root"):
        hint = "pass CallContext(workspace_dir=...)" if root == "workspace" else f"give a path in {root}"
        yield roots_of((_scope_entry(root),), places), f"the root {root!r} of this parameter", hint
    mode = mark.get("mode")
    wanted = [_CAPABILITIES[mode]] if mode else [c for c in _CAPABILITIES.values() if c in tool.capabilities]
    for capability in wanted:
        if capability in call.rights.plugin and (scope := call.rights.scope(capability)) is not None:
            hint = f"plugin.yaml of {tool.plugin}: scope of {capability}; then tavern plugins grant {tool.plugin} {capability}"
            if capability in call.context.scopes:
                hint += f"; the caller: CallContext(scopes={{{capability!r}: [...]}})"
            yield roots_of(scope, places), f"the scope of {capability}", hint


def _base(mark: Guard, places: Mapping[str, str], roots: list[str]) -> str:
    """The base of relative paths."""
    from tavern_core.contract.guards.paths import roots_of

    if root := mark.get("root"):
        return next(iter(roots_of((_scope_entry(root),), places)), "/")
    return places.get("$workspace") or next(iter(roots), "/")


def _scope_entry(root: str) -> str:
    """Convert the root of a mark into an entry of a scope: ``workspace`` is ``$workspace`` there."""
    return "./" if root == "project" else root if root.startswith(("/", "$", "~")) else f"${root}"


def _places(call: ToolCall) -> dict[str, str]:
    workspace = call.context.workspace_dir
    return {
        **dict(call.rights.places),
        **({"$workspace": str(Path(workspace).expanduser().absolute())} if workspace else {}),
    }


def _denied(pointer: str, path: Any, reason: str, hint: str, **details: Any) -> Deny:
    return deny(
        f"argument {pointer}: the path {path!r:.120} {reason}", hint=hint, pointer=pointer, guard="path", **details
    )
