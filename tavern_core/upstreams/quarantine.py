"""Decides which tools of an upstream are as the operator reviewed them.

The lock file has the hash of each reviewed definition; the cache of listings has the definition itself, for a diff. If
an upstream is pinned, or the host is locked, a tool that is new, changed or renamed is in quarantine until it is
accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tavern_core.contract.adapters import UpstreamTool
from tavern_core.errors import ToolQuarantined
from tavern_core.kernel.access.tool_pins import Difference, changed_parts, differences
from tavern_core.kernel.grants.grant_store import GrantStore
from tavern_core.upstreams.listing_cache import ListingCache, definition, digest, is_of_all, lock_form
from tavern_core.upstreams.tool_specs import local_name
from tavern_core.upstreams.upstream_plugin_candidates import UpstreamEntry


class UpstreamQuarantine:
    """Compares listings with what was reviewed."""

    def __init__(self, grants: GrantStore, cache: ListingCache) -> None:
        self._grants = grants
        self._cache = cache

    def check(self, entry: UpstreamEntry, tool: UpstreamTool) -> None:
        """Return if the tool may be called.

        Raises:
            ToolQuarantined: it differs from the review, and that matters here; names the parts that changed
                (TOOL_QUARANTINED).
        """
        if not self._is_strict(entry):
            return
        if found := self.differences(entry).get(tool.name):
            entry.list_changed.emit()  # another process may have accepted a listing that is not known here yet
            raise ToolQuarantined(
                f"{entry.plugin}:{local_name(tool.name)} is in quarantine: {_summary(found)}",
                hint=f"tavern upstreams show {entry.name} shows the difference; if it is what you want: "
                f"tavern upstreams accept {entry.name}",
                changed=changed_parts(found),
            )

    def quarantined(self, entry: UpstreamEntry) -> tuple[str, ...]:
        """The tools that are in quarantine."""
        if not self._is_strict(entry):
            return ()
        tools = entry.tools()
        return tuple(sorted(name for name in self.differences(entry) if name in tools))

    def differences(self, entry: UpstreamEntry) -> dict[str, tuple[Difference, ...]]:
        """Tool → its differences from the review."""
        reviewed = self._reviewed(entry)
        if reviewed is None:
            return {}
        tools, kept = entry.tools(), self._stored_definitions(entry)
        found: dict[str, tuple[Difference, ...]] = {}
        for name, tool in tools.items():
            now = definition(tool)
            if name not in reviewed:
                before = next(
                    (old for old in reviewed if old not in tools and _shape(kept.get(old)) == _shape(now)), None
                )
                found[name] = (Difference("/name", before, name),)
            elif reviewed[name] != digest(now):
                found[name] = tuple(differences(kept.get(name), now)) or (Difference("", None, None),)
        found |= {name: (Difference("/name", name, None),) for name in reviewed if name not in tools}
        return found

    def first_seen(self, entry: UpstreamEntry) -> None:
        """After a listing: accept everything as reviewed if nothing was reviewed yet."""
        if not self._grants.is_frozen and self._reviewed(entry) is None:
            self.accept(entry, None)

    def accept(self, entry: UpstreamEntry, tools: Sequence[str] | None) -> None:
        """Accept the current definitions as reviewed.

        Args:
            tools: names; None: all. Those that are gone are forgotten.

        Raises:
            PluginNotFound: there is no grant for the upstream yet (PLUGIN_NOT_FOUND).
        """
        record = self._grants.read().get(entry.plugin)
        if record is None and not entry.config.requested().capabilities:
            return  # it needs no grant, so it is not reviewed
        hashes = entry.hashes()
        chosen = hashes
        if tools is not None:
            others = {name: known for name, known in (self._reviewed(entry) or {}).items() if name not in tools}
            chosen = {**others, **{name: hashes[name] for name in tools if name in hashes}}
        locked = lock_form(chosen)
        gone = dict.fromkeys(record.tools.keys() - locked.keys(), "") if record is not None else {}
        self._grants.accept_tools(entry.plugin, {**gone, **locked})
        definitions, tools_now = entry.definitions, entry.tools()
        accepted = {
            name: definition(tools_now[name]) for name in (hashes if tools is None else tools) if name in tools_now
        }
        kept = {name: old for name, old in {**self.reviewed(entry), **accepted}.items() if name in chosen}
        listed = self._cache.listed(entry.name)
        if listed is not None:
            self._cache.store(entry.name, listed, replace(definitions, reviewed=kept))

    def reviewed(self, entry: UpstreamEntry) -> dict[str, Mapping[str, Any]]:
        """The reviewed definitions, as far as they are known: stored with the next listing."""
        hashes, kept = self._reviewed(entry) or {}, self._stored_definitions(entry)
        now = {name: definition(tool) for name, tool in entry.tools().items()}
        same = {name: known for name, known in now.items() if hashes.get(name) == digest(known)}
        return {**{name: old for name, old in kept.items() if name in hashes}, **same}

    def _reviewed(self, entry: UpstreamEntry) -> dict[str, str] | None:
        """Tool → hash, as in the lock file; None: nothing was reviewed yet."""
        record = self._grants.read().get(entry.plugin)
        if record is None or not record.tools:
            return None
        if not is_of_all(record.tools):
            return dict(record.tools)
        kept = {name: digest(old) for name, old in self._stored_definitions(entry).items()}
        known = (hashes for hashes in (kept, entry.hashes()) if lock_form(hashes) == record.tools)
        return next(known, {})  # the reviewed state is no longer known, so everything is new

    def _stored_definitions(self, entry: UpstreamEntry) -> Mapping[str, Mapping[str, Any]]:
        """The stored definitions, also of the entry's earlier configuration; the lock file decides which are valid."""
        return self._cache.definitions(entry.name).reviewed

    def _is_strict(self, entry: UpstreamEntry) -> bool:
        return entry.config.pin or self._grants.is_frozen


def _shape(data: Any) -> str:
    """A definition without its name."""
    return digest({key: value for key, value in data.items() if key not in ("name", "displayName")}) if data else ""


def _summary(found: Sequence[Difference]) -> str:
    first = found[0]
    if first.path == "/name":
        return "it is new" if first.before is None else f"it is {first.before!r} under another name"
    changed = ", ".join(changed_parts(found))
    return "its definition is not the one that was reviewed" + (f" ({changed})" if changed else "")
