"""Stamps of files: whether a file was edited, without reading it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

_SETTLED_NS: Final = 50_000_000
"""How old a change must be to differ in time from the next one, because file systems count in ticks."""
Stamp = tuple[int, int, int, int]
"""(time of the last change of the content, and of anything, size, inode) of a file."""


def stamp_of(found: os.stat_result) -> Stamp | None:
    """The stamp of a file. None: it changed so recently that the next change may have the same time and size."""
    if 0 <= time.time_ns() - found.st_mtime_ns < _SETTLED_NS:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def stamp_at(path: str | Path) -> Stamp | None:
    """`stamp_of` the file at a path; None also where there is none."""
    try:
        return stamp_of(os.stat(path))  # noqa: PTH116 - searches look at hundreds of files: half the time of a Path
    except (OSError, ValueError):
        return None
