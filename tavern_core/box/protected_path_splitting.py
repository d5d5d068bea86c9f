"""Granted folders with holes: a folder is granted except for protected entries.

Kernel rules can only add rights. So a granted folder with a protected entry is passed entry by entry, and nothing new can be
created in that folder itself. There may be thousands of entries, so the process that creates the rules lists them, not the host.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence


def entries(folder: str) -> list[str]:
    """The entries of a folder without links; their targets need their own grants."""
    with os.scandir(folder) as found:
        return [entry.name for entry in found if not entry.is_symlink()]


def unprotected_entries(
    path: str, shut: Sequence[str], own: str, listed: Callable[[str], list[str]] = entries
) -> Iterator[str]:
    """`path`, or its entries if something below it is protected.

    Args:
        path: resolved.
        shut: protected paths, resolved, with all names of the same mount.
        own: the only accessible folder inside them.
    """
    if is_in(path, own):
        yield path
        return
    if any(is_in(path, one) for one in shut):
        return
    prefix = f"{path.rstrip('/')}/"
    holes = {one[len(prefix) :].partition("/")[0] for one in shut if one.startswith(prefix)}
    if not holes:
        yield path
        return
    try:
        names = listed(path)
    except OSError:
        return
    for name in sorted(names):
        below = prefix + name
        if name in holes:
            yield from unprotected_entries(below, shut, own, listed)
        elif below != "/proc":
            yield below


def is_in(path: str, folder: str) -> bool:
    """Whether a path is `folder` or below it."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")
