"""Paths that are never granted: the host's own files, under every path that leads to them.

`tavern_core/box/protected_path_splitting.py` handles protected entries of granted folders. The kernel identifies
folders by inode, not by path: if the same file system is mounted a second time, the second path counts, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tavern_core.box.protected_path_splitting import is_in
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.capability_scope import Scope

_MOUNTS: Final = Path("/proc/self/mountinfo")
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of mountinfo."""

    device: str
    root: str
    """The mounted folder of the file system."""
    place: str
    """The mount point."""


def with_mount_aliases(paths: Iterable[str | Path], mounts: Sequence[Mount] | None = None) -> list[str]:
    """The resolved `paths`, with every other path of the same mount.

    Args:
        mounts: the mounts of this process, in order; None: read them.
    """
    mounts = read_mounts() if mounts is None else mounts
    found: list[str] = []
    for path in map(os.path.realpath, paths):
        found.append(path)
        holding = [mount for mount in mounts if is_in(path, mount.place)]
        if not holding:
            continue
        mount = max(
            reversed(holding), key=lambda m: len(m.place)
        )  # of several mounts at one place, the last one is visible
        inside = _joined(mount.root, path[len(mount.place.rstrip("/")) :])
        for other in mounts:
            if other.device == mount.device and other is not mount:
                if is_in(inside, other.root):
                    found.append(_joined(other.place, inside[len(other.root.rstrip("/")) :]))
                elif is_in(other.root, inside):
                    found.append(other.place)
    return list(dict.fromkeys(found))


def granted_paths(scope: Scope) -> tuple[str, ...]:
    """The resolved paths of a scope; None: without limit."""
    return ("/",) if scope is None else tuple(os.path.realpath(path) for path in scope if path.startswith("/"))


def read_mounts(file: Path = _MOUNTS) -> list[Mount]:
    """The mounts of this process; empty if the system does not report them."""
    try:
        lines = file.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []
    rows = [line.split(" ") for line in lines]
    return [Mount(row[2], _plain(row[3]), _plain(row[4])) for row in rows if len(row) > 4]


def _joined(folder: str, rest: str) -> str:
    return f"{folder.rstrip('/')}/{rest.strip('/')}".rstrip("/") or "/"


def _plain(escaped: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), escaped)
