"""The requests of a plugin.yaml, compared with what the plugin's code used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.capability import SECRET_PREFIX
from tavern_core.model.capability_scope import DEFAULT_PORTS, Scope, allows_host, within
from tavern_core.model.manifest import Manifest
from tavern_core.review.audit.events import WAYS
from tavern_core.review.audit.observed_use import EVERYTHING, ObservedUse
from tavern_core.review.audit.path_names import OWN, PLUGIN, WORKSPACE

READ: Final = "read:fs"
WRITE: Final = "write:fs"
NETWORK: Final = "network"
WEB: Final = "read:web"
SPAWN: Final = "process:spawn"
SEEN: Final = (READ, WRITE, NETWORK, WEB, SPAWN)
"""Capabilities whose every use in the plugin's own code the guard observes."""
_FETCHING: Final = "net"
"""The host's service that fetches for a plugin, with these two permissions."""
_ANY_PORT: Final = (1,)
"""If the system chose the port, every port must be allowed; this unused port stands for it."""
_NEEDS: Final[Mapping[str, str]] = {"read": READ, "write": WRITE, "connect": NETWORK, "listen": NETWORK, "spawn": SPAWN}


def need(use: ObservedUse) -> str:
    """The permission that a use needs; empty if it needs none, or none exists."""
    if use.kind in ("read", "write") and (_is_in(use, OWN) or (use.kind == "read" and _is_in(use, (PLUGIN,)))):
        return ""
    if use.kind == "secret":
        return f"{SECRET_PREFIX}{use.target}"
    if use.kind == "service":
        return f"service:use:{use.target}"
    if use.kind == "change":
        return f"service:write:{use.target}"
    return _NEEDS.get(use.kind, "")


def entries(use: ObservedUse) -> tuple[str, ...]:
    """The possible scope entries for a use; none if no scope can express it."""
    if use.kind in ("read", "write"):
        return tuple(dict.fromkeys(text for text in (use.target, use.path) if text))
    if use.target in (WAYS, EVERYTHING) or use.target.startswith("unix:"):
        return ()
    return (use.target,)


def short_entry(use: ObservedUse) -> str:
    """The scope entry to write: the whole workspace, because its content depends on the caller."""
    return WORKSPACE if _is_in(use, (WORKSPACE,)) else use.target


@dataclass(frozen=True, slots=True)
class DeclaredPermissions:
    """The permissions of one plugin.yaml."""

    scopes: Mapping[str, tuple[Scope, ...]]
    """Capability → its requested scopes."""
    services: frozenset[str]
    """The services that it may use, and its own."""
    changeable: frozenset[str]
    """Those of them whose every method it may call."""

    @classmethod
    def of(cls, manifest: Manifest) -> DeclaredPermissions:
        """The requests of a manifest."""
        scopes: dict[str, tuple[Scope, ...]] = {}
        for request in manifest.permissions.capabilities:
            scopes[request.name] = (*scopes.get(request.name, ()), request.scope)
        asked = manifest.permissions.services
        changeable = frozenset((*asked.write, *asked.override, *own_services(manifest)))
        return cls(scopes, changeable | {*asked.use}, changeable)

    def covers(self, use: ObservedUse) -> str:
        """The permission that allows the use; empty: none does."""
        permission = need(use)
        if use.kind == "service":
            return permission if use.target in self.services else ""
        if use.kind == "change":
            return permission if use.target in self.changeable else ""
        if use.kind == "secret":
            return permission if permission in self.scopes else ""
        candidates = (WEB, NETWORK) if permission == NETWORK and use.kind == "connect" else (permission,)
        return next(
            (name for name in candidates for scope in self.scopes.get(name, ()) if _reaches(name, scope, use)), ""
        )

    def used(self, uses: Iterable[ObservedUse]) -> frozenset[str]:
        """The permissions that `uses` needed."""
        found = set[str]()
        for use in uses:
            found.add(self.covers(use) or need(use))
            if use.kind == "service" and use.target == _FETCHING:
                found |= {WEB, NETWORK}
        return frozenset(found - {""})


def own_services(manifest: Manifest) -> tuple[str, ...]:
    """The plugin's own services."""
    return tuple(declared.name for declared in manifest.services or ())


def _reaches(capability: str, scope: Scope, use: ObservedUse) -> bool:
    if scope == ():
        return False
    if not (named := entries(use)):
        return scope is None if capability == NETWORK else capability == SPAWN
    if capability in (NETWORK, WEB):
        host, port = _host_and_port(use.target)
        return any(allows_host(scope, host, number) for number in port)
    if capability == SPAWN:
        return scope is None or any(use.target == entry.rpartition("/")[2] for entry in scope)
    return any(within(capability, (entry,), scope) for entry in named)


def _host_and_port(target: str) -> tuple[str, tuple[int, ...]]:
    host, _, port = target.rpartition(":")
    if not host or target.endswith("]"):
        return target, DEFAULT_PORTS
    return host, (int(port),) if port.isdigit() else _ANY_PORT


def _is_in(use: ObservedUse, roots: tuple[str, ...]) -> bool:
    return use.target.partition("/")[0] in roots
