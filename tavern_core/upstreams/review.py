"""Which tools of an upstream are as they were when somebody reviewed them.

The lock file has the hash of each reviewed definition; the catalogue keeps the definition itself, for a diff. Where an upstream is pinned, or
the host is locked, a tool that is new, changed or renamed is in quarantine until it is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tavern_core.contract.adapters import UpstreamTool
from tavern_core.errors import ToolQuarantined
from tavern_core.kernel.access.tool_pins import Difference, differences
from tavern_core.kernel.grants.grant_store import GrantStore
from tavern_core.upstreams.catalogue import Catalogue, definition, digest
from tavern_core.upstreams.entries import Entry


class Quarantine:
    """Compares what is listed with what was reviewed."""

    def __init__(self, grants: GrantStore, catalogue: Catalogue) -> None:
        self._grants = grants
        self._catalogue = catalogue

    def check(self, entry: Entry, tool: UpstreamTool) -> None:
        """Return when the tool may be called.

        Raises:
            ToolQuarantined: it is not as it was reviewed, and that matters here; with the diff (TOOL_QUARANTINED).
        """
        if not self._is_strict(entry):
            return
        if found := self.differences(entry).get(tool.name):
            raise ToolQuarantined(
                f"{entry.plugin}: the tool {tool.name!r:.80} is in quarantine: {_summary(found)}",
                hint=f"tavern upstreams show {entry.name} shows the difference; if it is what you want: "
                f"tavern upstreams accept {entry.name}",
                diff=[one.to_json() for one in found],
            )

    def quarantined(self, entry: Entry) -> tuple[str, ...]:
        """The tools that are in quarantine."""
        found = self.differences(entry) if self._is_strict(entry) else {}
        return tuple(sorted(name for name in found if name in entry.tools()))

    def differences(self, entry: Entry) -> dict[str, tuple[Difference, ...]]:
        """Tool → where it is not as it was reviewed."""
        reviewed = self._reviewed(entry)
        if reviewed is None:
            return {}
        tools, kept = entry.tools(), entry.definitions.reviewed
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

    def first_seen(self, entry: Entry) -> None:
        """After a listing: take everything as reviewed where nothing was yet."""
        if not self._grants.is_frozen and self._reviewed(entry) is None:
            self.accept(entry, None)

    def accept(self, entry: Entry, tools: Sequence[str] | None) -> None:
        """Take definitions as reviewed, as they are now.

        Args:
            tools: names; None: all, and those that are gone are forgotten.

        Raises:
            PluginNotFound: there is no grant for the upstream yet (PLUGIN_NOT_FOUND).
        """
        hashes = entry.hashes()
        if tools is None:
            gone = dict.fromkeys((self._reviewed(entry) or {}).keys() - hashes.keys(), "")
            chosen = {**gone, **hashes}
        else:
            chosen = {name: hashes[name] for name in tools}
        if self._grants.read().get(entry.plugin) is None and not entry.config.requested().capabilities:
            return  # it needs no grant, so nobody reviews it
        self._grants.accept_tools(entry.plugin, chosen)
        now = {name: definition(tool) for name, tool in entry.tools().items() if name in chosen}
        known = entry.definitions
        kept = {name: old for name, old in {**known.reviewed, **now}.items() if chosen.get(name, "-")}
        listed = self._catalogue.listed(entry.name)
        if listed is not None:
            self._catalogue.store(entry.name, listed, replace(known, reviewed=kept))

    def _reviewed(self, entry: Entry) -> dict[str, str] | None:
        """Tool → hash, as the lock file has it; None: nothing was reviewed yet."""
        record = self._grants.read().get(entry.plugin)
        return dict(record.tools) if record is not None and record.tools else None

    def _is_strict(self, entry: Entry) -> bool:
        return entry.config.pin or self._grants.is_frozen


def _shape(data: Any) -> str:
    """A definition but for its name."""
    return digest({key: value for key, value in data.items() if key not in ("name", "displayName")}) if data else ""


def _summary(found: Sequence[Difference]) -> str:
    first = found[0]
    if first.path == "/name":
        return "it is new" if first.before is None else f"it is {first.before!r} under another name"
    places = ", ".join(one.path for one in found[:5])
    return f"its definition is not the one that was reviewed ({places})"
