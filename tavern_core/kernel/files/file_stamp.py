"""Stamps of files: whether a file was edited, without reading it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_TICK: Final = 50_000_000
"""Minimum age of a change (nanoseconds) to differ in time from the next one, because file systems count in ticks."""
_COARSE_TICK: Final = 2_500_000_000
"""The same for file systems that count whole seconds."""
Stamp = tuple[int, int, int, int]
"""(time of the last change of the content, and of anything, size, inode) of a file."""
CompactStamp = int
"""The times and the size in one number: the index of plugins holds thousands, and is read at each start."""


def stamp_of(found: os.stat_result) -> Stamp | None:
    """The stamp of a file. None: it changed so recently that the next change may have the same time and size."""
    if 0 <= time.time_ns() - found.st_mtime_ns < _TICK:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _stat(path: str | Path) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - hundreds of files are looked at: half the time of a Path
    except (OSError, ValueError):
        return None


def stamp_at(path: str | Path) -> Stamp | None:
    """`stamp_of` the file at a path; None also where there is none."""
    return stamp_of(found) if (found := _stat(path)) is not None else None


def compact_stamp_at(path: str | Path) -> CompactStamp | None:
    """The compact stamp of a file or folder, or None if it does not exist; `is_settled` says whether it is reliable."""
    if (found := _stat(path)) is None:
        return None
    # The hash of a tuple of integers is the same in every process of one Python, and the quickest way to one number.
    return hash((found.st_mtime_ns, found.st_ctime_ns, found.st_size))


def have_stamps(beginning: str, stamps: Iterable[tuple[str, CompactStamp | None]]) -> bool:
    """True if every stamp is unchanged: `compact_stamp_at`, inlined because each start checks thousands.

    Args:
        beginning: of every path.
        stamps: the rest of each path, with its stamp.
    """
    stat = os.stat
    for rest, stamp in stamps:
        try:
            found = stat(beginning + rest)
        except (OSError, ValueError):
            now = None
        else:
            now = hash((found.st_mtime_ns, found.st_ctime_ns, found.st_size))
        if now != stamp:
            return False
    return True


def is_settled(path: str | Path, now: int) -> bool:
    """False when a file changed so shortly before `now` (nanoseconds) that a later edit could bear the same time.

    Kernels count file times in ticks of some milliseconds; file systems with whole seconds show it by their zeros.
    """
    if (found := _stat(path)) is None:
        return True
    newest = max(found.st_mtime_ns, found.st_ctime_ns)
    return newest + (_COARSE_TICK if newest % 1_000_000_000 == 0 else _TICK) <= now
