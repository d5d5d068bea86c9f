"""The smallest `permissions:` block that allows the observed uses, as YAML to paste into plugin.yaml.

Requests that no trace can observe stay: the console, sensitive arguments, the order of hooks, and capabilities that a
tool names and no test used; these are marked.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from tavern_core.contract.permissions import canonical_hook
from tavern_core.model.capability_scope import scope_kind, within
from tavern_core.model.manifest import CapabilityRequest, Manifest
from tavern_core.review.audit.observed_use import EVERYTHING, ObservedUse
from tavern_core.review.declared_permissions import (
    NETWORK,
    READ,
    SEEN,
    SPAWN,
    WEB,
    WRITE,
    DeclaredPermissions,
    entries,
    need,
    own_services,
    short_entry,
)

MOST_FILES = 3
"""Files of one folder that are listed individually."""
_EPHEMERAL = 32_768
"""From here on, systems assign ports automatically."""


def permission_block(
    manifest: Manifest, uses: Sequence[ObservedUse], hooks: Collection[str], named: Collection[str]
) -> str:
    """The block, ending in a line end.

    Args:
        uses: what the plugin's code used.
        hooks: permissions of the hooks that it implements.
        named: capabilities that its tools declare.
    """
    asked = manifest.permissions
    lines: list[str] = []
    written = {canonical_hook(text): text for text in asked.hooks}
    lines += _list("hooks", [written.get(permission, permission) for permission in sorted(hooks)])
    lines += _section("ui", {"wrap": asked.ui.wrap, "inject": asked.ui.inject, "override": asked.ui.override})
    lines += _section("services", _services(manifest, uses))
    lines += _capabilities(manifest, uses, named)
    lines += _list("data", asked.data)
    if asked.tryfirst:
        lines.append("  tryfirst: true")
    return "permissions: {}\n" if not lines else "\n".join(["permissions:", *lines]) + "\n"


def _services(manifest: Manifest, uses: Iterable[ObservedUse]) -> Mapping[str, Collection[str]]:
    asked = manifest.permissions.services
    own_names = {*own_services(manifest)}
    used = {use.target for use in uses if use.kind == "service"} - own_names
    changed = {use.target for use in uses if use.kind == "change"} - own_names - {*asked.override}
    # A requested one stays, because no trace observes the calls of tools of kind `service`.
    write = list(dict.fromkeys([*(name for name in asked.write if name in used), *sorted(changed)]))
    return {"use": sorted(used - {*write, *asked.override}), "write": write, "override": asked.override}


def _capabilities(manifest: Manifest, uses: Sequence[ObservedUse], named: Collection[str]) -> Iterator[str]:
    asked = DeclaredPermissions.of(manifest)
    by_name: dict[str, list[ObservedUse]] = {}
    for use in uses:
        permission = asked.covers(use) or need(use)
        if permission and not permission.startswith("service:"):
            by_name.setdefault(permission, []).append(use)
    requests = {request.name: request for request in manifest.permissions.capabilities}
    fetched = {WEB, NETWORK} if any(use.kind == "service" and use.target == "net" for use in uses) else set()
    names = [name for name in requests if name in by_name or name in named or name in fetched or name not in SEEN]
    names += [name for name in (READ, WRITE, NETWORK, SPAWN, *sorted(by_name)) if name in by_name and name not in names]
    names = [name for name in dict.fromkeys(names) if name not in _unseen_secrets(requests, by_name, named)]
    if names:
        yield "  capabilities:"
    for name in names:
        yield from _capability(name, by_name.get(name, ()), requests.get(name), name in named)


def _unseen_secrets(requests: Collection[str], by_name: Collection[str], named: Collection[str]) -> set[str]:
    return {name for name in requests if name.startswith("secrets:") and name not in by_name and name not in named}


def _capability(
    name: str, uses: Sequence[ObservedUse], request: CapabilityRequest | None, is_named: bool
) -> Iterator[str]:
    scope, remark = _scope(name, uses, request)
    if not uses:
        remark = "a tool says that it needs it; no test used it" if is_named else "no trace can see this"
    yield f"    - name: {name}" + (f"  # {remark}" if remark else "")
    if scope is not None:
        yield f"      scope: [{', '.join(_text(entry) for entry in scope)}]"
    if request is not None and request.reason:
        yield f"      reason: {_text(request.reason)}"


def _scope(name: str, uses: Sequence[ObservedUse], request: CapabilityRequest | None) -> tuple[list[str] | None, str]:
    """The entries that cover the uses: existing ones, else new ones; None if no list can express them."""
    if not uses:
        return (None if request is None or request.scope is None else list(request.scope)), ""
    if not scope_kind(name):
        return None, ""
    if any(not entries(use) and use.target != EVERYTHING for use in uses):
        return None, "unix and raw sockets: no scope can name them"
    wanted: dict[str, None] = {}
    for use in uses:
        if use.target != EVERYTHING:
            wanted[_written(name, use, request)] = None
    if not wanted:
        return None, "it makes copies of its own process"
    found = _folded(list(wanted)) if scope_kind(name) == "paths" else list(wanted)
    remark = (
        "the system chose the port; it may be another one next time"
        if any(_is_chosen(entry) for entry in found)
        else ""
    )
    return found, remark


def _written(name: str, use: ObservedUse, request: CapabilityRequest | None) -> str:
    """The entry of plugin.yaml that covers the use, else one for it alone."""
    for entry in (request.scope or ()) if request is not None else ():
        if any(within(name, (one,), (entry,)) for one in entries(use)):
            return entry
    return short_entry(use)


def _folded(paths: list[str]) -> list[str]:
    """Replace many files of one folder by the folder; drop entries below another entry."""
    paths_by_folder: dict[str, list[str]] = {}
    for path in paths:
        paths_by_folder.setdefault(path.rpartition("/")[0], []).append(path)
    folded = [
        folder if len(files) > MOST_FILES and folder not in ("", ".", "~") else file
        for folder, files in paths_by_folder.items()
        for file in files
    ]
    unique = list(dict.fromkeys(folded))
    return [
        path
        for path in unique
        if not any(path != other and path.startswith(f"{other.rstrip('/')}/") for other in unique)
    ]


def _is_chosen(entry: str) -> bool:
    host, _, port = entry.rpartition(":")
    return port.isdigit() and int(port) >= _EPHEMERAL and (host.startswith(("127.", "[::1]")) or host == "localhost")


def _section(name: str, keys: Mapping[str, Collection[str]]) -> Iterator[str]:
    filled = {key: values for key, values in keys.items() if values}
    if filled:
        yield f"  {name}:"
        yield from (f"    {key}: [{', '.join(map(_text, values))}]" for key, values in filled.items())


def _list(name: str, values: Collection[str]) -> Iterator[str]:
    if values:
        yield f"  {name}: [{', '.join(map(_text, values))}]"


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
