"""The documents in a folder, bounded in number, depth and size. Links are never followed, wherever they lead."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

from tavern_core.contract.guards.folder import Folder
from tavern_core.errors import Finding, Location, ToolFailed
from tavern_core.frozen import dataclass
from tavern_core.kernel.knowledge.documents import CODE

MOST_FILES: Final = 5_000
DEEPEST: Final = 12
LARGEST_FILE: Final = 1_000_000
"""Bytes."""
LARGEST_SUM: Final = 64_000_000
"""Bytes of all documents of one folder."""
MARKDOWN: Final = (".md", ".markdown")
SUFFIXES: Final = (*MARKDOWN, ".txt")
_MOST_FINDINGS: Final = 100


@dataclass(frozen=True, slots=True)
class Listing:
    """What a folder holds."""

    files: dict[str, tuple[int, int]]
    """Path below the folder → (time of the last change in nanoseconds, bytes)."""
    findings: tuple[Finding, ...]


def list_documents(root: Path) -> Listing:
    """The documents below `root`, in the order of their paths; what is not read is a finding."""
    found: dict[str, tuple[int, int]] = {}
    findings: list[Finding] = []
    total = 0

    def report(path: str, message: str, hint: str = "") -> None:
        if len(findings) < _MOST_FINDINGS:
            findings.append(Finding(CODE, message, hint, Location(str(root / path) if path else str(root)), "warning"))

    def walk(folder: Folder, path: str, depth: int) -> None:
        nonlocal total
        try:
            entries = folder.entries(path or "/")
        except ToolFailed as error:  # closed to us, or its name is one that `Folder` refuses
            report(path, error.message, "rename it, or make it readable")
            return
        for entry in entries:
            inner = f"{path}/{entry.name}" if path else entry.name
            if entry.name.startswith("."):
                continue
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                if depth < DEEPEST:
                    walk(folder, inner, depth + 1)
                else:
                    report(inner, f"lies deeper than {DEEPEST} folders and is not read")
            elif not entry.name.lower().endswith(SUFFIXES):
                continue
            elif not entry.name.isprintable():
                report(path, f"a file name cannot be printed: {entry.name!a:.100}", "rename the file")
            elif not stat.S_ISREG(status.st_mode):
                report(inner, "is no regular file and is not read", "links are not followed: put the file itself there")
            elif status.st_size > LARGEST_FILE:
                report(inner, f"is larger than {LARGEST_FILE:,} bytes and is not read", "split the file")
            elif len(found) >= MOST_FILES or total + status.st_size > LARGEST_SUM:
                raise _Full
            else:
                found[inner] = status.st_mtime_ns, status.st_size
                total += status.st_size

    try:
        with Folder(root) as folder:
            walk(folder, "", 0)
    except _Full:
        report(
            "", f"holds more than {MOST_FILES:,} documents or {LARGEST_SUM:,} bytes; the rest is not read", "split it"
        )
    except ToolFailed as error:
        report("", error.message, "create the folder, or correct its path")
    return Listing(found, tuple(findings))


class _Full(Exception):
    """A folder holds more than is read."""


def read_file(root: Path, path: str) -> bytes:
    """The content of one document. Raises ToolFailed: it cannot be read (TOOL_ERROR)."""
    with Folder(root) as folder, folder.open(path) as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise ToolFailed(f"is larger than {LARGEST_FILE:,} bytes and is not read", hint="split the file")
    return content
