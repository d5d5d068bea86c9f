"""Workflows that plugins bring: files below `workflows.entry`, known without their code, and what their hooks return."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tavern_core.errors import PluginError
from tavern_core.kernel.life.contributions import Contributions
from tavern_core.kernel.life.lifecycle import Lifecycle
from tavern_core.kernel.life.records import Record
from tavern_core.kernel.workflows.files import SUFFIX
from tavern_core.kernel.workflows.shelf import workflow_files
from tavern_core.model.manifest import Entry

_SECTION: Final = "workflows"


class Brought:
    """The workflows of plugins, by ``<plugin>.<name>``."""

    def __init__(self, lifecycle: Lifecycle, contributions: Contributions) -> None:
        self._lifecycle = lifecycle
        self._contributions = contributions

    def all(self) -> dict[str, tuple[str, Any, Path | None]]:
        """Id → (plugin, content or path, the plugin's folder)."""
        found: dict[str, tuple[str, Any, Path | None]] = {}
        for record in self._lifecycle.records.values():
            if record.usable and (folder := _entry_folder(record)) is not None:
                for path in workflow_files(folder) if folder.is_dir() else [folder]:
                    found[f"{record.name}.{path.name.removesuffix(SUFFIX)}"] = record.name, path, record.candidate.folder
        for name, thing in self._contributions.all(_SECTION).items():
            plugin = self._contributions.owner(_SECTION, name) or ""
            record_ = self._lifecycle.records.get(plugin)
            folder_ = record_.candidate.folder if record_ is not None else None
            found[f"{plugin}.{name.removeprefix(plugin + '.')}"] = plugin, thing, folder_
        return found

    async def activate(self) -> None:
        """Activate the plugins whose code brings workflows, or the language models that nodes ask."""
        for record in list(self._lifecycle.records.values()):
            declares = _SECTION in record.candidate.facts.sections and _entry_folder(record) is None
            declares = declares or "llms" in record.candidate.facts.sections
            if record.usable and not record.active and (declares or record.candidate.implicit):
                try:
                    await self._lifecycle.activate(record.name)
                except PluginError:
                    continue  # the record says why


def _entry_folder(record: Record) -> Path | None:
    """The folder (or file) of `workflows.entry`, when it is inside the plugin."""
    candidate = record.candidate
    if _SECTION not in candidate.facts.sections or candidate.folder is None:
        return None
    declared = candidate.manifest().workflows
    if not isinstance(declared, Entry):
        return None
    place = (candidate.folder / declared.entry).resolve()
    return place if place.is_relative_to(candidate.folder.resolve()) else None
