"""Paths that plugins write: always relative, always inside the plugin.

Two separate checks: `path_problem` checks the text alone (a manifest is checked before installation),
`inside` follows the file system, links included, when a file is used (SECURITY §5, §6).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tavern_core.model.plugin_status import NOT_PART

_CONTROL: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_DRIVE: Final = re.compile(r"[A-Za-z]:")
_LONGEST: Final = 500


def path_problem(relative: str) -> str:
    """Why `relative` may not name a file inside a plugin; empty when it may.

    >>> path_problem("tools/a.tool.json"), path_problem("../other")
    ('', "'..' leaves the plugin's folder")
    """
    if not relative.strip():
        return "the path is empty"
    if len(relative) > _LONGEST:
        return f"the path is longer than {_LONGEST} characters"
    if _CONTROL.search(relative) is not None:
        return "the path holds a control character"
    if "\\" in relative:
        return "write / between folders, not \\"
    if relative.startswith(("/", "~")) or _DRIVE.match(relative) is not None:
        return "the path must be relative to the plugin's folder"
    parts = relative.split("/")
    if ".." in parts:
        return "'..' leaves the plugin's folder"
    if any(":" in part for part in parts):
        return "a path inside a plugin holds no ':'"
    if found := NOT_PART.intersection(parts):
        return f"{min(found)} is not part of a plugin"
    return ""


def inside(folder: Path, relative: str, *, roots: Sequence[Path] = ()) -> Path | str:
    """The real path of `relative` beneath `folder`, or the reason why there is none.

    Args:
        folder: the plugin's folder, itself without links.
        relative: as written in the manifest or a tool file.
        roots: further folders whose files count as the plugin's own (the source behind a link tree that pip made).

    Returns:
        An absolute path without links (it need not exist), or a sentence for a finding.
    """
    if problem := path_problem(relative):
        return problem
    path = folder / relative
    if not _has_link(folder, relative):
        return path
    real = Path(os.path.realpath(path))
    for root in (folder, *roots):
        if real.is_relative_to(os.path.realpath(root)):
            return real
    return f"{relative!r} is a link that leaves the plugin's folder"


def beneath(folder: Path, relative: str | Path) -> Path | None:
    """The real path of `relative` beneath `folder`; None: it leads out. It need not exist."""
    place = (folder / relative).resolve()
    return place if place.is_relative_to(folder.resolve()) else None


def _has_link(folder: Path, relative: str) -> bool:
    """True when a part of `relative` is a symbolic link; resolving the whole path costs ten times as much."""
    here = str(folder)
    for part in relative.split("/"):
        here = f"{here}/{part}"
        try:
            if os.path.islink(here):  # noqa: PTH114
                return True
        except ValueError:
            return True
    return False
