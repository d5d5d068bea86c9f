"""The agent profiles of one host, with their inventories resolved to tools that exist now."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Final

from tavern_core.errors import Finding, Location, ToolNotFound, UsageError
from tavern_core.kernel.access.profile_shelf import ProfileShelf, profile_of
from tavern_core.kernel.access.profiles import Profile, ProfileLike, misspelt, resolve_profile
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.life.contributions import Contributions
from tavern_core.kernel.life.lifecycle import Lifecycle
from tavern_core.kernel.life.records import Record
from tavern_core.kernel.registry import Registry
from tavern_core.model.profile import AgentProfile

UNNAMED: Final = "(unnamed)"
"""What a profile that was given as a mapping without a name is called."""


class Inventories:
    """Profiles from files, from plugins and from the program itself.

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

    def get(self, given: ProfileLike) -> Profile:
        """An agent profile with its inventory resolved; see `prepare` for what plugins bring.

        Args:
            given: its name, the path of its file, or the profile itself.

        Raises:
            ProfileInvalid: there is none of that name, or it is wrong (PROFILE_INVALID).
            UsageError: it is nothing of that kind (USAGE).
        """
        written, findings = self._written(given)
        key = str(given) if isinstance(given, str | PathLike) else ""
        stamp = (self._registry.generation, id(written))
        known = self._resolved.get(key) if key else None
        if known is not None and known[0] == stamp:
            return known[1]
        namespaces = self._contributions.all("namespaces")
        resolved = resolve_profile(written, self._find_id, sorted(self._registry.entries()), namespaces)
        for finding in (*findings, *resolved.findings):
            self._diagnostics.add(finding.code, finding.located, hint=finding.hint)
        if key:
            self._resolved[key] = stamp, resolved
        return resolved

    def now(self, given: ProfileLike) -> Profile:
        """`get` for sync code: prepared first."""
        if any(not r.active and r.usable and _brings_profiles(r) for r in self._lifecycle.records.values()):
            self._wait(self.prepare(given))
        return self.get(given)

    async def prepare(self, given: ProfileLike) -> None:
        """Activate the plugins that bring this profile, or a namespace of its inventory."""
        records = [r for r in self._lifecycle.records.values() if r.usable and not r.active]
        for record in records:
            if given in record.candidate.facts.declared.get("profiles", ()):
                await self._lifecycle.activate(record.name)
        if not any("namespaces" in r.candidate.facts.sections for r in records):
            return
        prefixes = {i.partition(":")[0] for i in self._written(given)[0].tool_ids_inventory}
        for record in records:
            if not record.active and prefixes & set(record.candidate.facts.declared.get("namespaces", ())):
                await self._lifecycle.activate(record.name)

    def _written(self, given: ProfileLike) -> tuple[AgentProfile, tuple[Finding, ...]]:
        """The profile as somebody wrote it. A name goes before a file that happens to be called so."""
        if isinstance(given, Mapping | AgentProfile):
            giver = "the given profile"
            profile = profile_of(given, giver)
            data = given if isinstance(given, Mapping) else profile.model_dump()
            findings = tuple(misspelt(data, lambda key: Location(giver, pointer=key), Location(giver)))
            return profile.model_copy(update={"name": profile.name or UNNAMED}), findings
        if isinstance(given, PathLike):
            return self._shelf.read(Path(given))
        if not isinstance(given, str):
            raise UsageError(
                f"a profile is a name, the path of an agent_profile.json or a mapping, got {type(given).__name__}",
                hint='for example {"tool_ids_inventory": ["text:count"]}',
            )
        known = self._shelf.names()
        brought = self._contributions.get("profiles", given)
        if brought is not None and given not in known:
            return brought, ()
        if given not in known and given.endswith(".json"):  # no name ends like this: a file's stem has lost its suffix
            return self._shelf.read(Path(given))
        return self._shelf.get(given)

    def _find_id(self, written: str) -> str | None:
        try:
            return self._registry.resolve(written).id
        except ToolNotFound:
            return None


def _brings_profiles(record: Record) -> bool:
    return bool({"profiles", "namespaces"} & record.candidate.facts.sections)
