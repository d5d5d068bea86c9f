"""The documents in a folder, bounded in number, depth and size. Links are never followed, wherever they lead."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from tavern_core.contract.guards.folder import Folder
from tavern_core.errors import Finding, Location, ToolFailed
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.files.file_stamp import Stamp, stamp_of
from tavern_core.knowledge.chunking import CODE
from tavern_core.model import depths

MOST_FILES: Final = 5_000
LARGEST_FILE: Final = 1_000_000
"""Bytes."""
LARGEST_SUM: Final = 64_000_000
"""Bytes of all documents of one folder."""
MARKDOWN: Final = (".md", ".markdown")
SUFFIXES: Final = (*MARKDOWN, ".txt")
_MOST_FINDINGS: Final = 100


@dataclass(frozen=True, slots=True)
class FolderListing:
    """The content of a folder."""

    files: dict[str, Stamp | None]
    """Path below the folder → its stamp, None if unreliable."""
    findings: tuple[Finding, ...]


def list_documents(root: Path) -> FolderListing:
    """The documents below `root`, in the order of their paths; what is not read is a finding."""
    walk = _Walk(root)
    try:
        with Folder(root) as folder:
            walk.visit(folder, "", 0)
    except _FolderTooLarge:
        most = f"{MOST_FILES:,} documents or {LARGEST_SUM:,} bytes"
        walk.report("", f"holds more than {most}; the rest is not read", "split it")
    except ToolFailed as error:
        walk.report("", error.message, "create the folder, or correct its path")
    return FolderListing(walk.files, tuple(walk.findings))


class _Walk:
    """A walk through a folder."""

    def __init__(self, root: Path) -> None:
        self.files: dict[str, Stamp | None] = {}
        self.findings: list[Finding] = []
        self._root = root
        self._total = 0

    def report(self, path: str, message: str, hint: str = "") -> None:
        """Add a finding about a path below the root."""
        if len(self.findings) < _MOST_FINDINGS:
            place = Location(str(self._root / path) if path else str(self._root))
            self.findings.append(Finding(CODE, message, hint, place, "warning"))

    def visit(self, folder: Folder, path: str, depth: int) -> None:
        """List the folder at `path` and those below it. Raises _FolderTooLarge."""
        try:
            entries = folder.entries(path or "/")
        except ToolFailed as error:  # closed to us, or its name is one that `Folder` refuses
            self.report(path, error.message, "rename it, or make it readable")
            return
        for entry in entries:
            inner = f"{path}/{entry.name}" if path else entry.name
            if entry.name.startswith("."):
                continue
            status = entry.stat(follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                self._take(entry.name, path, inner, status)
            elif depth < depths.KNOWLEDGE_FOLDERS:
                self.visit(folder, inner, depth + 1)
            else:
                self.report(inner, f"lies deeper than {depths.KNOWLEDGE_FOLDERS} folders and is not read")

    def _take(self, name: str, folder: str, path: str, status: os.stat_result) -> None:
        if not name.lower().endswith(SUFFIXES):
            return
        if not name.isprintable():
            self.report(folder, f"a file name cannot be printed: {name!a:.100}", "rename the file")
        elif not stat.S_ISREG(status.st_mode):
            self.report(
                path, "is not a regular file and is not read", "links are not followed: put the file itself there"
            )
        elif status.st_size > LARGEST_FILE:
            self.report(path, f"is larger than {LARGEST_FILE:,} bytes and is not read", "split the file")
        elif len(self.files) >= MOST_FILES or self._total + status.st_size > LARGEST_SUM:
            raise _FolderTooLarge
        else:
            self.files[path] = stamp_of(status)
            self._total += status.st_size


class _FolderTooLarge(Exception):
    """A folder holds more than is read."""


def read_file(root: Path, path: str) -> bytes:
    """The content of one document. Raises ToolFailed: it cannot be read (TOOL_ERROR)."""
    with Folder(root) as folder, folder.open(path) as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise ToolFailed(f"is larger than {LARGEST_FILE:,} bytes and is not read", hint="split the file")
    return content
