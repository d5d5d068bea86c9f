"""A folder with example workflows: looked at for every request, and only read where something changed."""

from __future__ import annotations

import os
from pathlib import Path

from tavern_core.assistant.node_index import Example
from tavern_core.errors import TavernError
from tavern_core.flow.workflow_files import Stamp, stamp_of, workflow_files
from tavern_core.kernel.files.regular_file import open_regular
from tavern_core.kernel.manifest.workflow_files import LARGEST_FILE, SUFFIX, read_workflow


class ExampleFolder:
    """One folder of `assistant.examples`. Used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._listed: tuple[Stamp, list[Path]] | None = None
        self._known: dict[str, tuple[Stamp, Example | None]] = {}
        """File → its stamp and what is kept of it; None: it is not a workflow."""

    def read(self) -> dict[str, Example]:
        """Id → example; files that are no workflows are left out."""
        found, kept = {}, {}
        for path in self._paths():
            file = str(path)
            stamp, known = _stamp(file), self._known.get(file)
            if known is None or stamp is None or known[0] != stamp:
                known = stamp or (0, 0, 0), _read(path)
            kept[file] = known
            if known[1] is not None:
                found[path.name.removesuffix(SUFFIX)] = known[1]
        self._known = kept
        return found

    def _paths(self) -> list[Path]:
        stamp = _stamp(str(self._folder))
        if self._listed is None or stamp is None or self._listed[0] != stamp:
            self._listed = stamp or (0, 0, 0), list(workflow_files(self._folder))
        return self._listed[1]


def _read(path: Path) -> Example | None:
    """The whole workflow is not kept: an application may have thousands of examples."""
    try:
        with open_regular(path) as file:
            return Example.of(read_workflow(file.read(LARGEST_FILE + 1), str(path), path.name.removesuffix(SUFFIX)))
    except (OSError, ValueError, TavernError):
        return None


def _stamp(path: str) -> Stamp | None:
    """None: it is missing, or changed so recently that the next change may look the same."""
    try:
        return stamp_of(os.stat(path))  # noqa: PTH116 - hundreds of files for each request: half the time of a Path
    except OSError:
        return None
