"""Refuse a call whose addresses its tool may not use (seed 004 §9.2, SECURITY §5).

A value that the schema marks as url is checked: scheme, host and port, against the mark and the scope granted to the plugin
(`read:web`, `network`) limited by the caller's scope. Without a scope: public names, ports 80 and 443.

This checks the text. The addresses of a name are only known when connecting: the service `net` checks
these, and every redirect.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tavern_core.contract.decisions import Deny, RequireApproval, deny
from tavern_core.contract.guards.guarded_arguments import decision, marks
from tavern_core.contract.hookspecs import hookimpl
from tavern_core.model.call import ToolCall
from tavern_core.model.capability_scope import Scope
from tavern_core.model.parameter_guard_marks import WHOLE, Guard
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:  # loaded with the first checked address
    from tavern_core.contract.guards.addresses import Target
    from tavern_core.schema.guarded_value_search import GuardedValue

_WEB: Final = ("read:web", "network")


@hookimpl(fast=True, when=lambda tool: marks(tool, "url"))
def tavern_check_call(call: ToolCall, tool: ToolSpec) -> Deny | RequireApproval | None:
    return decision(call, tool, "url", partial(_judge, call, tool))


def _is_no_address(guarded: GuardedValue, mark: Guard) -> bool:
    """True for a text that is not an address, if the schema also allows other texts."""
    from tavern_core.contract.guards.addresses import scheme_of

    value, may_be_path = guarded.value, any(other.kind == "path" for other in guarded.guards)
    if not isinstance(value, str) or not (may_be_path or mark.get(WHOLE)):
        return False
    return not scheme_of(value) and not value.lstrip().startswith(("//", "\\\\", "/\\", "\\/"))


def _judge(call: ToolCall, tool: ToolSpec, guarded: GuardedValue, mark: Guard) -> Deny | None:
    from tavern_core.contract.guards.addresses import BadUrl, read_url, target_flaw

    if _is_no_address(guarded, mark):
        return None
    pointer, url = guarded.pointer, guarded.value
    try:
        target = read_url(url, mark.get("schemes", ("https", "http")))
    except BadUrl as error:
        return _denied(pointer, url, str(error), error.hint or "write https://host/path with a plain host")
    for scopes, owner, hint in _limits(mark, call, tool, target):
        flaws = [target_flaw(scope, target) for scope in scopes]
        if all(flaws):
            reason = f"is not allowed by {owner}: {flaws[0]}"
            if None in scopes:  # any public name
                return _denied(pointer, url, reason, hint)
            hosts = list(dict.fromkeys(host for scope in scopes for host in scope or ()))
            return _denied(pointer, url, reason, hint, hosts=hosts)
    return None


def _limits(mark: Guard, call: ToolCall, tool: ToolSpec, target: Target) -> Iterator[tuple[list[Scope], str, str]]:
    """(scopes, one of which must allow it, their owner, the change that would widen them)."""
    if hosts := mark.get("hosts"):
        yield [hosts], "the mark of this parameter", f"use one of {', '.join(hosts[:5])}"
    wanted = [c for c in _WEB if c in tool.capabilities]
    name, entry = (wanted or _WEB)[-1], target.netloc
    scopes = [call.rights.scope(c) for c in wanted] or [None]
    owner = name if any(scope is not None for scope in scopes) else f"{name} without a scope"
    line = f"plugin.yaml of {tool.plugin}: capabilities: [{{name: {name}, scope: [{entry!r}]}}]"
    hint = f"{line}; then tavern plugins grant {tool.plugin} {name}"
    if name in call.context.scopes:
        hint += f"; the caller: CallContext(scopes={{{name!r}: [{entry!r}]}})"
    yield scopes, owner, hint


def _denied(pointer: str, url: Any, reason: str, hint: str, **details: Any) -> Deny:
    from tavern_core.contract.guards.addresses import shown

    safe = shown(url) if isinstance(url, str) else url
    return deny(
        f"argument {pointer}: the address {safe!r:.200} {reason}", hint=hint, pointer=pointer, guard="url", **details
    )
