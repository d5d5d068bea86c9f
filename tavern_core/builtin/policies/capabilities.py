"""Refuse a call whose tool needs more than host, plugin, profile and caller all allow (seed 004 §9.1).

Destructive tools (``danger:*``) are refused unless the capability is granted literally to both the plugin and this call.
"""

from __future__ import annotations

from typing import Any

from tavern_core.contract.decisions import Deny, deny
from tavern_core.contract.hookspecs import hookimpl
from tavern_core.model.call import HOST_PRINCIPAL, ToolCall
from tavern_core.model.capability import forbids, missing
from tavern_core.model.tool import ToolSpec


@hookimpl(fast=True, when=lambda tool: bool(tool.capabilities))
def tavern_check_call(call: ToolCall, tool: ToolSpec) -> Deny | None:
    rights, wanted = call.rights, tool.capabilities
    if lacking := missing(rights.plugin, wanted):
        return _denied(
            f"plugin {tool.plugin} was not granted {_listed(lacking)}",
            f"tavern plugins grant {tool.plugin} {' '.join(lacking)}",
            lacking,
            "plugin",
        )
    if denied := sorted(c for c in wanted if forbids(rights.host_denied, c)):
        return _denied(f"this host denies {_listed(denied)}", "capabilities.deny in tavern.yaml", denied, "host")
    if rights.host is not None and (lacking := missing(rights.host, wanted)):
        return _denied(f"this host allows no {_listed(lacking)}", "capabilities.allow in tavern.yaml", lacking, "host")
    if rights.profile is not None and (lacking := missing(rights.profile, wanted)):
        name = call.context.profile
        return _denied(
            f"profile {name!r} allows no {_listed(lacking)}", f"capabilities of profile {name}", lacking, "profile"
        )
    if lacking := missing(rights.caller, wanted):
        who = call.context.principal
        hint = f"pass CallContext(permissions={{{', '.join(map(repr, lacking))}}})"
        if call.door == "cli":
            hint = f"--permissions {','.join(lacking)}"
        if who == HOST_PRINCIPAL:
            hint += "; without a context the host itself calls, which never has danger:*"
        return _denied(f"{who} may not use {_listed(lacking)}", hint, lacking, "caller")
    if nowhere := [c for c in sorted(wanted) if call.context.scopes.get(c) == ()]:
        reason = f"{call.context.principal} lets {_listed(nowhere)} reach nothing: its scope is empty"
        return _denied(reason, "name what it may reach in CallContext.scopes, or leave the scope out", nowhere, "caller")
    return None


def _denied(reason: str, hint: str, lacking: list[str], side: str) -> Deny:
    details: dict[str, Any] = {"missing": lacking, "side": side}
    return deny(reason, hint=hint, **details)


def _listed(names: list[str]) -> str:
    return ", ".join(names)
