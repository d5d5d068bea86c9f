"""A skill in a folder of the project or of the user, as a plugin of its own: ``skill-<name>``."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from tavern_core.contract.permissions import TRUST
from tavern_core.errors import Finding, Location
from tavern_core.kernel.files.plugin_file_reader import FolderFiles, PluginFiles
from tavern_core.kernel.manifest.declared_tools import DeclaredTools
from tavern_core.kernel.manifest.skill_file import CODE, SkillFile
from tavern_core.kernel.manifest.skill_tools import LONGEST_DESCRIPTION, NAMESPACE, read_one, specs_of, version_of
from tavern_core.kernel.manifest.tool_ids import plugin_name
from tavern_core.kernel.manifest.translated_plugin import TranslatedPlugin, unstated_needs
from tavern_core.model.manifest import Manifest, Permissions
from tavern_core.model.skill import SKILL_FILES, WHOLE


def check_skill(folder: Path) -> SkillFile:
    """Check the skill in a folder by the specification, whatever else is there. Runs nothing."""
    real = Path(os.path.realpath(folder))
    files = FolderFiles(real)
    skill = read_one(folder.absolute().name or real.name, files, "")
    if why := files.why_not_whole():
        found = Finding(CODE, f"{why}, so no one can trust the skill", WHOLE, Location(SKILL_FILES[0]), "warning")
        return replace(skill, findings=(*skill.findings, found))
    return skill


def read_skill_folder(folder: str, files: PluginFiles, *, is_trusted: bool) -> TranslatedPlugin:
    """The skill in a folder, as a plugin.

    Args:
        folder: the name of its folder.
        is_trusted: it lies in the operator's own folder; others wait for ``skill:trust``.
    """
    skill = read_one(folder, files, "")
    name = plugin_name(skill.name, f"{NAMESPACE}-")
    if not skill.is_usable:
        return TranslatedPlugin(name, findings=skill.findings)
    specs = tuple(specs_of(skill, name, files, ""))
    manifest = Manifest(
        name=name,
        display_name=skill.name,
        version=version_of(skill),
        description=skill.description[:LONGEST_DESCRIPTION],
        permissions=unstated_needs("skills") if len(specs) > 1 else Permissions(),
    )
    asks = frozenset() if is_trusted else frozenset({TRUST.id})
    return TranslatedPlugin(name, manifest, DeclaredTools(specs), skill.findings, asks=asks)
