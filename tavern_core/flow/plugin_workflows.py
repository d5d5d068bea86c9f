"""Workflows of plugins: files below `workflows.entry`, known without their code, and results of their hooks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tavern_core.errors import PluginError
from tavern_core.flow.workflow_files import WorkflowSource, workflow_files
from tavern_core.kernel.files.safe_paths import beneath
from tavern_core.kernel.manifest.workflow_file_codec import SUFFIX
from tavern_core.kernel.plugins.lifecycle import Lifecycle
from tavern_core.kernel.plugins.plugin_record import PluginRecord

_SECTION: Final = "workflows"


class PluginWorkflows:
    """The workflows of plugins, by ``<plugin>.<name>``."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        base = lifecycle.tables.base
        self._lifecycle = lifecycle
        self._contributions = lifecycle.tables.contributions
        self._portal = base.portal
        self._cache = base.unpacked
        self._unpacked: dict[str, tuple[Any, Path | None]] = {}
        """Plugin → (its stamp, the folder of its files)."""

    def all(self) -> dict[str, WorkflowSource]:
        """The workflows by id."""
        found: list[WorkflowSource] = []
        for record, place in self._entries():
            for path in workflow_files(place) if place.is_dir() else [place]:
                id_ = f"{record.name}.{path.name.removesuffix(SUFFIX)}"
                found.append(WorkflowSource(id_, record.name, content=path, folder=self._root(record)))
        for name, content in self._contributions.all(_SECTION).items():
            plugin = self._contributions.owner(_SECTION, name) or ""
            owner = self._lifecycle.records.get(plugin)
            folder = self._root(owner) if owner is not None else None
            found.append(WorkflowSource(f"{plugin}.{name.removeprefix(plugin + '.')}", plugin, None, content, folder))
        return {source.id: source for source in found}

    def folders(self) -> list[Path]:
        """The folders (or files) of `workflows.entry` of all plugins."""
        return [place for _, place in self._entries()]

    def _entries(self) -> Iterator[tuple[PluginRecord, Path]]:
        for record in self._lifecycle.records.values():
            has_workflows = _SECTION in record.candidate.facts.sections  # looked at first: most plugins have none
            if has_workflows and record.usable and (place := self._entry_folder(record)) is not None:
                yield record, place

    def _entry_folder(self, record: PluginRecord) -> Path | None:
        """The folder (or file) of `workflows.entry`, if it is inside the plugin."""
        entry = _entry(record)
        root = self._root(record) if entry is not None else None
        if entry is None or root is None:
            return None
        return beneath(root, entry)

    def _root(self, record: PluginRecord) -> Path | None:
        """The folder of a plugin; for a zipped one, its unpacked folder."""
        candidate = record.candidate
        if candidate.folder is not None:
            return candidate.folder
        known = self._unpacked.get(record.name)
        if known is None or known[0] != candidate.stamp:
            self._cache.mkdir(parents=True, exist_ok=True)
            try:
                known = self._unpacked[record.name] = candidate.stamp, candidate.origin.unpack(self._cache)
            except (OSError, PluginError):  # a full disk only affects its workflows
                return None
        return known[1]

    async def prepare(self) -> None:
        """`activate`, for a use of workflows. Raises UsageError: the host is closed (USAGE)."""
        self._portal.check()
        await self.activate()

    async def activate(self) -> None:
        """Activate the plugins whose code contributes workflows, or language models for nodes."""
        await self._lifecycle.activate_all(_contributes)


def _contributes(record: PluginRecord) -> bool:
    """Whether the code of a plugin may contribute workflows, or language models."""
    candidate, sections = record.candidate, record.candidate.facts.sections
    return candidate.implicit or "llms" in sections or (_SECTION in sections and _entry(record) is None)


def _entry(record: PluginRecord) -> str | None:
    """The value of `workflows.entry` in plugin.yaml, which has a section of this name."""
    from tavern_core.model.manifest import Entry

    declared = record.candidate.origin.manifest().workflows
    return declared.entry if isinstance(declared, Entry) else None
