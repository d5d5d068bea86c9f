"""Folders in the formats of other systems, which are found beside plugins: VCP plugins and skills.

A marker file identifies such a folder. It is translated into a plugin (`kernel/manifest/translated_plugin.py`) and then
treated like any other: indexed, judged, reviewed, granted. Code in it is never imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.plugin_status import Source
from tavern_core.model.skill import SCRIPTS, SKILL_FILES

if TYPE_CHECKING:
    from tavern_core.kernel.files.plugin_file_reader import PluginFiles
    from tavern_core.kernel.manifest.translated_plugin import TranslatedPlugin

MARKS: Final[Mapping[Source, tuple[str, ...]]] = {"vcp": ("plugin-manifest.json",), "skill": SKILL_FILES}
"""The file that identifies a folder of this format."""
WATCHED: Final[Mapping[Source, tuple[str, ...]]] = {"vcp": MARKS["vcp"], "skill": (*SKILL_FILES, SCRIPTS)}
"""The files that are checked for changes at each start."""


@dataclass(frozen=True, slots=True)
class PluginRoot:
    """A folder whose folders are plugins."""

    path: Path
    source: Source = "folder"
    is_trusted: bool = True
    """For skills: the operator's own folder."""


def marker_file(names: Iterable[str], source: Source) -> str:
    """The name of the file that makes a folder with these names one of `source`; empty where it is none."""
    there = set(names)
    return next((name for name in MARKS.get(source, ()) if name in there), "")


def translate(source: Source, folder: str, content: bytes, files: PluginFiles, *, is_trusted: bool) -> TranslatedPlugin:
    """Translate a folder into a plugin.

    Args:
        folder: its name.
        content: of the file that marks it.
    """
    if source == "vcp":
        from tavern_core.kernel.manifest.vcp_manifest import read_vcp

        return read_vcp(content, folder, files)
    from tavern_core.kernel.manifest.skill_folder import read_skill_folder

    return read_skill_folder(folder, files, is_trusted=is_trusted)


def name_of(source: Source, folder: str) -> str:
    """The name of a plugin of which only the folder can be read."""
    from tavern_core.kernel.manifest.tool_ids import plugin_name

    return plugin_name(folder, "skill-" if source == "skill" else "")


def roots_of(
    plugins: Sequence[str], vcp: Sequence[str], project_skills: Sequence[str], user_skills: Sequence[str]
) -> list[PluginRoot]:
    """All folders to search; of two skills with one name, the project's is used.

    A folder that is the project's and the user's, because the project is the home folder, is the user's.
    """
    return [
        *(PluginRoot(Path(path)) for path in plugins),
        *(PluginRoot(Path(path), "vcp") for path in vcp),
        *(PluginRoot(Path(path), "skill", is_trusted=False) for path in project_skills if path not in user_skills),
        *(PluginRoot(Path(path), "skill") for path in user_skills),
    ]
