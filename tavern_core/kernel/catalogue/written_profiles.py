"""Agent profiles as written: in files, in plugins, or in the program itself."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tavern_core.errors import Finding, Location, ProfileInvalid, UsageError
from tavern_core.kernel.access.profile_files import ProfileFiles
from tavern_core.kernel.plugins.contributions import Contributions

if TYPE_CHECKING:
    from tavern_core.kernel.access.profiles import ProfileLike
    from tavern_core.model.agent_profile import AgentProfile

MOST_LENT: Final = 10_000
"""Profiles that programs have given; of more, the oldest are forgotten. Agents that run use theirs."""
UNNAMED: Final = "(unnamed)"
"""What a profile that was given as a mapping without a name is called."""


class WrittenProfiles:
    """The profiles of one host, before their inventories are resolved to tools."""

    def __init__(self, files: ProfileFiles, contributions: Contributions) -> None:
        self._files = files
        self._contributions = contributions
        self._lent: dict[str, tuple[AgentProfile, tuple[Finding, ...]]] = {}

    def lend(self, profile: AgentProfile, findings: tuple[Finding, ...] = ()) -> str:
        """Make a profile that a program has given known, for contexts, which name their profile; returns that name.

        The name is a digest of the content: the same in every process, and never that of another profile.

        Args:
            findings: what is odd about it.

        Raises:
            ProfileInvalid: a value in it is not JSON (PROFILE_INVALID).
        """
        try:
            written = profile.model_dump_json()
        except (ValueError, RecursionError) as error:  # pydantic's PydanticSerializationError is a ValueError
            raise ProfileInvalid(
                f"the profile {profile.name!r:.100} is not JSON: {error}", hint="see its own keys"
            ) from error
        digest = hashlib.sha256(written.encode("utf-8", "backslashreplace")).hexdigest()[:12]
        name = f"{profile.name}@{digest}"
        self._lent.setdefault(name, (profile, findings))
        if len(self._lent) > MOST_LENT:
            self._lent.pop(next(iter(self._lent)), None)
        return name

    def get(self, given: ProfileLike) -> tuple[AgentProfile, tuple[Finding, ...]]:
        """A profile and what is odd about it. A name goes before a file that happens to be called so.

        Args:
            given: its name, the path of its file, or the profile itself.

        Raises:
            ProfileInvalid: it does not exist, or is invalid (PROFILE_INVALID).
            UsageError: it is not a profile (USAGE).
        """
        from tavern_core.kernel.access.profile_files import profile_of
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
        if (lent := self._lent.get(given)) is not None:
            return lent
        known = self._files.names()
        contributed = self._contributions.get("profiles", given)
        if contributed is not None and given not in known:
            return contributed, ()
        if given not in known and given.endswith(".json"):  # no name ends like this: a file's stem has lost its suffix
            return self._files.read(Path(given))
        return self._files.get(given)

    def names(self) -> list[str]:
        """The names of all profiles in files and of active plugins, sorted."""
        return sorted({*self._files.names(), *self._contributions.all("profiles")})

    def has(self, name: str) -> bool:
        """Whether there is a profile of this name now."""
        return (
            name in self._lent or name in self._files.names() or self._contributions.get("profiles", name) is not None
        )

    def capabilities(self, given: ProfileLike) -> frozenset[str] | None:
        """What a profile lets calls do at most, None: all; of a plugin's profile, when the plugin is active. Raises as `get`."""
        allowed = self.get(given)[0].capabilities
        return None if allowed is None else frozenset(allowed)
