"""The agent profiles of one host, with their inventories resolved to tools that exist now."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from tavern_core.errors import Finding, ToolNotFound
from tavern_core.kernel.contributions import Contributions
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.lifecycle import Lifecycle
from tavern_core.kernel.profile_shelf import ProfileShelf
from tavern_core.kernel.profiles import Profile, resolve_profile
from tavern_core.kernel.records import Record
from tavern_core.kernel.registry import Registry
from tavern_core.model.profile import AgentProfile


class Inventories:
    """Profiles from files and from plugins.

    Args:
        shelf: the profiles in files.
        wait: runs a coroutine for sync callers.
    """

    def __init__(
        self,
        shelf: ProfileShelf,
        *,
        contributions: Contributions,
        registry: Registry,
        lifecycle: Lifecycle,
        diagnostics: Diagnostics,
        wait: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        self._shelf = shelf
        self._contributions = contributions
        self._registry = registry
        self._lifecycle = lifecycle
        self._diagnostics = diagnostics
        self._wait = wait
        self._resolved: dict[str, tuple[tuple[int, int], Profile]] = {}
        """Name → what it was resolved for, and the profile."""

    def get(self, name: str) -> Profile:
        """An agent profile with its inventory resolved; see `prepare` for what plugins bring.

        Raises:
            ProfileInvalid: there is none of that name, or its file is wrong (PROFILE_INVALID).
        """
        written, findings = self._written(name)
        stamp = (self._registry.generation, id(written))
        known = self._resolved.get(name)
        if known is not None and known[0] == stamp:
            return known[1]
        namespaces = self._contributions.all("namespaces")
        resolved = resolve_profile(written, self._find_id, sorted(self._registry.entries()), namespaces)
        for finding in (*findings, *resolved.findings):
            self._diagnostics.add(finding.code, str(finding), hint=finding.hint)
        self._resolved[name] = stamp, resolved
        return resolved

    def now(self, name: str) -> Profile:
        """`get` for sync code: prepared first."""
        if any(not r.active and r.usable and _brings_profiles(r) for r in self._lifecycle.records.values()):
            self._wait(self.prepare(name))
        return self.get(name)

    async def prepare(self, name: str) -> None:
        """Activate the plugins that bring this profile, or a namespace of its inventory."""
        records = [r for r in self._lifecycle.records.values() if r.usable and not r.active]
        for record in records:
            if name in record.candidate.facts.declared.get("profiles", ()):
                await self._lifecycle.activate(record.name)
        if not any("namespaces" in r.candidate.facts.sections for r in records):
            return
        prefixes = {i.partition(":")[0] for i in self._written(name)[0].tool_ids_inventory}
        for record in records:
            if not record.active and prefixes & set(record.candidate.facts.declared.get("namespaces", ())):
                await self._lifecycle.activate(record.name)

    def _written(self, name: str) -> tuple[AgentProfile, tuple[Finding, ...]]:
        brought = self._contributions.get("profiles", name)
        if brought is not None and name not in self._shelf.names():
            return brought, ()
        return self._shelf.get(name)

    def _find_id(self, written: str) -> str | None:
        try:
            return self._registry.resolve(written).id
        except ToolNotFound:
            return None


def _brings_profiles(record: Record) -> bool:
    return bool({"profiles", "namespaces"} & record.candidate.facts.sections)
