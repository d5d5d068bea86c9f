"""The agent profiles of one host: as written in files, plugins or the program, and resolved to existing tools."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tavern_core.errors import Finding, Location, PluginError, ProfileInvalid, TavernError, UsageError
from tavern_core.kernel.access.profile_files import ProfileFiles, profile_of
from tavern_core.kernel.access.tool_selectors import plugin_key
from tavern_core.kernel.catalogue.missing_tools import absence
from tavern_core.kernel.catalogue.namespace_resolvers import Namespaces
from tavern_core.kernel.catalogue.tool_spec_cache import ToolSpecs
from tavern_core.kernel.plugins.contribution_registry import Contributions
from tavern_core.kernel.plugins.plugin_record import PluginRecord
from tavern_core.model.naming_rules import spellings, split_id

if TYPE_CHECKING:
    from tavern_core.contract.protocols import NamespaceResolver
    from tavern_core.kernel.access.profiles import Profile, ProfileLike, UnresolvedItem
    from tavern_core.model.agent_profile import AgentProfile


MOST_LENT: Final = 10_000
"""Maximum number of profiles of programs; the oldest are dropped first. Running agents keep theirs."""
UNNAMED: Final = "(unnamed)"
"""The name of a profile that was passed as a mapping without a name."""


class UnresolvedProfiles:
    """The profiles of one host, before their inventories are resolved to tools."""

    def __init__(self, files: ProfileFiles, contributions: Contributions) -> None:
        self._files = files
        self._contributions = contributions
        self._registered: dict[str, tuple[AgentProfile, tuple[Finding, ...]]] = {}

    def register(self, profile: AgentProfile, findings: tuple[Finding, ...] = ()) -> str:
        """Register a profile of the program for contexts, which refer to profiles by name; return that name.

        The name is a digest of the content: the same in every process, and different for every other profile.

        Args:
            findings: findings about the profile.

        Raises:
            ProfileInvalid: it contains a value that is not JSON (PROFILE_INVALID).
        """
        try:
            written = profile.model_dump_json()
        except (ValueError, RecursionError) as error:  # pydantic's PydanticSerializationError is a ValueError
            raise ProfileInvalid(
                f"the profile {profile.name!r:.100} is not JSON: {error}", hint="see its own keys"
            ) from error
        digest = hashlib.sha256(written.encode("utf-8", "backslashreplace")).hexdigest()[:12]
        name = f"{profile.name}@{digest}"
        self._registered.setdefault(name, (profile, findings))
        if len(self._registered) > MOST_LENT:
            self._registered.pop(next(iter(self._registered)), None)
        return name

    def get(self, given: ProfileLike) -> tuple[AgentProfile, tuple[Finding, ...]]:
        """A profile and the findings about it. A name has precedence over a file of the same name.

        Args:
            given: its name, the path of its file, or the profile itself.

        Raises:
            ProfileInvalid: it does not exist, or is invalid (PROFILE_INVALID).
            UsageError: it is not a profile (USAGE).
        """
        from tavern_core.kernel.access.profiles import Profile, misspelt
        from tavern_core.model.agent_profile import AgentProfile

        if isinstance(given, Profile):
            given = given.written
        if isinstance(given, Mapping | AgentProfile):
            giver = "the given profile"
            profile = profile_of(given, giver)
            data = given if isinstance(given, Mapping) else profile.model_dump(exclude_unset=True)
            findings = tuple(misspelt(data, lambda key: Location(giver, pointer=key), Location(giver)))
            return profile.model_copy(update={"name": profile.name or UNNAMED}), findings
        if isinstance(given, PathLike):
            return self._files.read(Path(given))
        if not isinstance(given, str):
            raise UsageError(
                f"a profile is a name, the path of an agent_profile.json or a mapping, got {type(given).__name__}",
                hint='for example {"tool_ids_inventory": ["text:count"]}',
            )
        if (lent := self._registered.get(given)) is not None:
            return lent
        known = self._files.names()
        contributed = self._contributions.get("profiles", given)
        if contributed is not None and given not in known:
            return contributed, ()
        # Profile names never end like this: a file's stem has no suffix.
        if given not in known and given.endswith(".json"):
            return self._files.read(Path(given))
        return self._files.get(given)

    def names(self) -> list[str]:
        """The names of all profiles in files and of active plugins, sorted."""
        return sorted({*self._files.names(), *self._contributions.all("profiles")})

    def has(self, name: str) -> bool:
        """Whether a profile with this name exists now."""
        return (
            name in self._registered
            or name in self._files.names()
            or self._contributions.get("profiles", name) is not None
        )

    def capabilities(self, given: ProfileLike) -> frozenset[str] | None:
        """The capabilities that a profile allows; None: all. A plugin must be active for its profiles. See `get`."""
        allowed = self.get(given)[0].capabilities
        return None if allowed is None else frozenset(allowed)


class Inventories:
    """Profiles from files, from plugins and from the program itself."""

    def __init__(self, specs: ToolSpecs, written: UnresolvedProfiles, namespaces: Namespaces) -> None:
        self.written = written
        self.specs: Final = specs
        self._base, self._lifecycle, self._registry = specs.base, specs.lifecycle, specs.registry
        self.namespaces: Final = namespaces
        self._contributions = specs.lifecycle.tables.contributions
        self._resolved: dict[str, tuple[tuple[int, int, int, int], Profile]] = {}
        """Name → the state for which it was resolved, and the profile."""

    async def resolved(self, given: ProfileLike) -> Profile:
        """A profile with its inventory resolved, after activating plugins that contribute the profile or a namespace.

        A plugin or resolver that fails loses only its own tools. Also works without an event loop.

        Args:
            given: its name, the path of its file, or the profile itself.

        Raises:
            ProfileInvalid: it does not exist, or is invalid (PROFILE_INVALID).
            UsageError: it is not a profile (USAGE).
        """
        if (cached := self._cached(given)) is not None:
            return cached
        if asyncio._get_running_loop() is None:
            return self._base.portal.run(self._prepared(given))
        return await self._prepared(given)

    def resolved_sync(self, given: ProfileLike) -> Profile:
        """`resolved` for sync code; possible in a running event loop if everything is active. Raises as `resolved`."""
        self.specs.catch_up()
        if (kept := self._cached(given)) is not None:
            return kept
        return self._base.portal.run(self._prepared(given)) if self._inactive_plugins(given) else self._resolve(given)

    async def _prepared(self, given: ProfileLike) -> Profile:
        failed: PluginError | None = None
        for _ in range(2):  # one plugin contributes the profile, others its namespaces
            for name in self._inactive_plugins(given):
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

    def _cached(self, given: ProfileLike) -> Profile | None:
        """The resolved profile, if nothing has changed since."""
        if not isinstance(given, str | PathLike) or str(given) not in self._resolved:
            return None
        stamp, resolved = self._resolved[str(given)]
        return resolved if stamp == self._stamp(self.written.get(given)[0]) else None

    def _resolve(self, given: ProfileLike) -> Profile:
        from tavern_core.kernel.access.profiles import resolve_profile

        written, findings = self.written.get(given)
        stamp = self._stamp(written)
        resolved = resolve_profile(written, self)
        if self.specs.read_workflows_for(resolved.findings):
            return self._resolve(given)
        resolved = replace(resolved, findings=(*findings, *resolved.findings))
        unlisted = self.specs.unlisted_upstreams()
        for finding in resolved.findings:
            ids = spellings(str(finding.details.get("id", "")))
            if unlisted.isdisjoint(plugin_key(split_id(i)[0]) for i in ids):
                self._base.diagnostics.add_finding(finding, severity="warning")
        if isinstance(given, str | PathLike) and not resolved.is_partial:
            if len(self._resolved) >= MOST_LENT:
                self._resolved.clear()
            self._resolved[str(given)] = stamp, resolved
        return resolved

    def _stamp(self, written: AgentProfile) -> tuple[int, int, int, int]:
        """A value that changes with the tools, with the reasons of missing tools, and with the profile."""
        return self._registry.generation, self._contributions.generation, self.specs.state, id(written)

    def _inactive_plugins(self, given: ProfileLike) -> list[str]:
        """The plugins to activate before a profile can be resolved, as far as known."""
        records = [r for r in self._lifecycle.records.values() if r.can_start and _brings_profiles(r)]
        if not records:
            return []
        if isinstance(given, str) and not self.written.has(given):
            found = [r.name for r in records if _may_bring(r, given)]
            if found:
                return found
        try:
            return self.namespaces.inactive(self._prefixes(given))
        except TavernError:
            return []  # resolving the profile raises this error

    def _prefixes(self, given: ProfileLike) -> set[str]:
        """The prefixes of an inventory's items that no plugin registers."""
        items = map(str.strip, self.written.get(given)[0].tool_ids_inventory)
        return {split_id(item)[0] for item in items if self.find(item) is None}

    def known_findings(self, given: ProfileLike) -> list[Finding]:
        """The items of an inventory that cannot be used, as far as known: without those that an inactive plugin may offer.

        Raises:
            ProfileInvalid: it does not exist, or is invalid (PROFILE_INVALID).
        """
        from tavern_core.kernel.access.profiles import inventory_findings

        profile = self.written.get(given)[0]
        return [each for each in inventory_findings(profile, self) if not self._may_appear(each.details.get("id", ""))]

    def _may_appear(self, written: str) -> bool:
        """Whether an inactive plugin or an upstream may offer a tool that is not known."""
        if not written or "*" in written or self.find(written.strip()) is not None:
            return False
        prefix = split_id(written.strip())[0]
        if self.namespaces.inactive([prefix]):
            return True
        records = self._lifecycle.records
        if (owner := records.get(prefix)) is not None and owner.candidate.source != "upstream":
            return owner.can_start and not owner.candidate.tool_ids
        return any(_may_add_tools(record) for record in records.values())

    def absent(self, written: str) -> UnresolvedItem | None:
        """Why a tool is missing: its plugin is disabled, its declaration or its file is invalid …"""
        from tavern_core.kernel.access.profiles import UnresolvedItem

        found = absence(written, self._lifecycle.records, self._registry.shadowed(), self._base.diagnostics)
        return None if found is None else UnresolvedItem(f"there is no tool {written!r}: {found.reason}", found.fix)

    def find(self, written: str) -> str | None:
        """See `ToolLookup.find`."""
        found = self._registry.find(written)
        return None if found is None else found.id

    def ids(self) -> list[str]:
        """The ids of all registered tools, sorted."""
        return sorted(self._registry.entries())

    def resolvers(self) -> Mapping[str, NamespaceResolver]:
        """See `ToolLookup.resolvers`."""
        return self.namespaces.resolvers()


def _may_bring(record: PluginRecord, profile: str) -> bool:
    """Whether a plugin declares this profile, or profiles without names."""
    facts = record.candidate.facts
    return "profiles" in facts.sections and profile in (facts.declared.get("profiles") or (profile,))


def _may_add_tools(record: PluginRecord) -> bool:
    """Whether tools may appear that nothing declares: of code that was not run, of a system that was not asked."""
    candidate = record.candidate
    if candidate.source == "upstream":
        return record.usable and not candidate.tool_ids
    return candidate.source != "builtin" and candidate.has_code and record.can_start and not candidate.tool_ids


def _brings_profiles(record: PluginRecord) -> bool:
    return bool({"profiles", "namespaces"} & record.candidate.facts.sections)
