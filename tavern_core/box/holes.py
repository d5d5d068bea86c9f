"""Granted folders with holes in them: what lies in a folder is given, but for what stays shut.

Rules of the kernel only ever add. So a granted folder that holds something shut is given entry by entry, and nothing new can be
made in that folder itself. That may be thousands of entries, so they are listed where the rules are made and not by the host.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence


def entries(folder: str) -> list[str]:
    """What lies in a folder, without links: where they lead to is given under its own path, or not at all."""
    with os.scandir(folder) as found:
        return [entry.name for entry in found if not entry.is_symlink()]


def around(path: str, shut: Sequence[str], own: str, listed: Callable[[str], list[str]] = entries) -> Iterator[str]:
    """`path`, or what lies in it where a file or folder below it stays shut.

    Args:
        path: resolved.
        shut: what must not be reached; see `closed`.
        own: the one folder inside of them that may be.
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
            yield from around(below, shut, own, listed)
        elif below != "/proc":
            yield below


def is_in(path: str, folder: str) -> bool:
    """Whether a path is `folder` or beneath it."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")
