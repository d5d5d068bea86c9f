"""The agent profiles of one host, with their inventories resolved to tools that exist now."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING

from tavern_core.errors import PluginError, ProfileInvalid, TavernError, ToolNotFound
from tavern_core.kernel.catalogue.missing_tools import absence
from tavern_core.kernel.catalogue.namespaces import Namespaces
from tavern_core.kernel.catalogue.written_profiles import MOST_LENT, WrittenProfiles
from tavern_core.kernel.foundation import Foundation
from tavern_core.kernel.plugins.lifecycle import Lifecycle
from tavern_core.kernel.plugins.record import Record
from tavern_core.model.naming_rules import split_id

if TYPE_CHECKING:
    from tavern_core.kernel.access.profiles import Missing, Profile, ProfileLike
    from tavern_core.model.agent_profile import AgentProfile


class Inventories:
    """Profiles from files, from plugins and from the program itself."""

    def __init__(
        self, base: Foundation, written: WrittenProfiles, lifecycle: Lifecycle, namespaces: Namespaces
    ) -> None:
        self._base = base
        self.written = written
        self._lifecycle = lifecycle
        self._namespaces = namespaces
        self._registry = lifecycle.tables.registry
        self._contributions = lifecycle.tables.contributions
        self._resolved: dict[str, tuple[tuple[int, int, int], Profile]] = {}
        """Name → what it was resolved for, and the profile."""

    async def resolved(self, given: ProfileLike) -> Profile:
        """An agent profile with its inventory resolved, after activating the plugins that contribute it or a namespace of its inventory.

        A plugin or resolver that fails costs its own tools only. Steps by hand too, without an event loop.

        Args:
            given: its name, the path of its file, or the profile itself.

        Raises:
            ProfileInvalid: it does not exist, or is invalid (PROFILE_INVALID).
            UsageError: it is not a profile (USAGE).
        """
        if (kept := self._kept(given)) is not None:
            return kept
        if asyncio._get_running_loop() is None:
            return self._base.portal.run(self._prepared(given))
        return await self._prepared(given)

    def now(self, given: ProfileLike) -> Profile:
        """`resolved` for sync code, which may be called in a running event loop when everything is active. Raises as `resolved`."""
        if (kept := self._kept(given)) is not None:
            return kept
        return self._base.portal.run(self._prepared(given)) if self._asleep(given) else self._resolve(given)

    async def _prepared(self, given: ProfileLike) -> Profile:
        failed: PluginError | None = None
        for _ in range(2):  # one plugin contributes the profile, others its namespaces
            for name in self._asleep(given):
                try:
                    await self._lifecycle.activate(name)
                except PluginError as error:
                    failed = error
        is_name = isinstance(given, str) and not given.endswith(".json")
        if failed is not None and is_name and not self.written.has(str(given)):
            hint = f"a plugin that may have it has failed: {failed.message} ({failed.hint or failed.code})"
            raise ProfileInvalid(f"there is no profile {str(given)[:200]!r}", hint=hint)
        if self._contributions.all("namespaces").keys().isdisjoint(self._prefixes(given)):
            return self._resolve(given)
        return await self._base.mode.blocking(self._resolve, given, seconds=None, owner=("core", "profiles"))  # type: ignore[no-any-return]  # resolvers may take a while

    def _kept(self, given: ProfileLike) -> Profile | None:
        """The resolved profile, if nothing has changed since."""
        if not isinstance(given, str | PathLike) or str(given) not in self._resolved:
            return None
        stamp, resolved = self._resolved[str(given)]
        return resolved if stamp == self._stamp(self.written.get(given)[0]) else None

    def _resolve(self, given: ProfileLike) -> Profile:
        from tavern_core.kernel.access.profiles import resolve_profile

        written, findings = self.written.get(given)
        stamp = self._stamp(written)
        resolved = resolve_profile(
            written, self._find_id, sorted(self._registry.entries()), self._namespaces.resolvers(), absent=self._absent
        )
        resolved = replace(resolved, findings=(*findings, *resolved.findings))
        for finding in resolved.findings:
            self._base.diagnostics.add(finding.code, finding.located, hint=finding.hint)
        if isinstance(given, str | PathLike) and not resolved.is_partial:
            if len(self._resolved) >= MOST_LENT:
                self._resolved.clear()
            self._resolved[str(given)] = stamp, resolved
        return resolved

    def _stamp(self, written: AgentProfile) -> tuple[int, int, int]:
        return self._registry.generation, self._contributions.generation, id(written)

    def _asleep(self, given: ProfileLike) -> list[str]:
        """The plugins to activate before a profile can be resolved, as far as known."""
        records = [r for r in self._lifecycle.records.values() if r.usable and not r.active and _brings_profiles(r)]
        if not records:
            return []
        if isinstance(given, str) and not self.written.has(given):
            found = [r.name for r in records if _may_bring(r, given)]
            if found:
                return found
        try:
            return self._namespaces.inactive(self._prefixes(given))
        except TavernError:
            return []  # the request for the profile gets this error

    def _prefixes(self, given: ProfileLike) -> set[str]:
        """The prefixes of an inventory's items that no plugin registers."""
        items = map(str.strip, self.written.get(given)[0].tool_ids_inventory)
        return {split_id(item)[0] for item in items if self._find_id(item) is None}

    def _absent(self, written: str) -> Missing | None:
        """Why a tool is not there: its plugin is disabled, its declaration or its file is wrong …"""
        from tavern_core.kernel.access.profiles import Missing

        found = absence(written, self._lifecycle.records, self._registry.shadowed(), self._base.diagnostics)
        return None if found is None else Missing(f"there is no tool {written!r}: {found.reason}", found.fix)

    def _find_id(self, written: str) -> str | None:
        try:
            return self._registry.resolve(written).id
        except ToolNotFound:
            return None


def _may_bring(record: Record, profile: str) -> bool:
    """Whether a plugin declares this profile, or some that it does not name."""
    facts = record.candidate.facts
    return "profiles" in facts.sections and profile in (facts.declared.get("profiles") or (profile,))


def _brings_profiles(record: Record) -> bool:
    return bool({"profiles", "namespaces"} & record.candidate.facts.sections)
