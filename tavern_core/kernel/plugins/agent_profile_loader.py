"""Reads a plugin's profiles: ``<name>.json`` or ``<name>/agent_profile.json`` in `profiles.entry`.

They are known when the plugin is active.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tavern_core.errors import ActivationFailed, Finding, ProfileInvalid
from tavern_core.kernel.access.profile_files import ProfileFiles
from tavern_core.kernel.files.safe_paths import beneath
from tavern_core.kernel.plugins.candidate import PluginCandidate

if TYPE_CHECKING:
    from tavern_core.model.agent_profile import AgentProfile


def profiles_in(candidate: PluginCandidate, cache: Path) -> tuple[dict[str, AgentProfile], list[Finding]]:
    """Name → profile, and the findings in the files; an invalid file loses only its own profile.

    Args:
        cache: where a zipped plugin is unpacked.

    Raises:
        ActivationFailed: `profiles.entry` is not a file or folder inside the plugin (ACTIVATION_FAILED).
    """
    from tavern_core.model.agent_profile import AgentProfile
    from tavern_core.model.manifest import Entry

    entry = candidate.origin.manifest().profiles if "profiles" in candidate.facts.sections else None
    if not isinstance(entry, Entry):
        return {}, []
    root = candidate.unpacked(cache)
    place = None if root is None else beneath(root, entry.entry)
    if place is None or not place.exists():
        raise ActivationFailed(
            f"{candidate.name}: profiles.entry {entry.entry!r} is not a file or folder inside the plugin",
            hint="create it, or write its path relative to plugin.yaml",
        )
    files, found, findings = ProfileFiles([place]), dict[str, AgentProfile](), list[Finding]()
    for name in files.names() if place.is_dir() else [""]:
        try:
            profile, warnings = files.get(name) if name else files.read(place)
        except ProfileInvalid as error:
            findings += error.findings
            continue
        found[profile.name] = profile
        findings += warnings
    return found, findings
