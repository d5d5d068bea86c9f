"""Check whether a path is below one of the allowed folders, with links followed as the system would.

    roots_of(scope, places)      the real folders that a grant or a mark names
    path_flaw(path)              what is wrong with the text of a path, wherever it leads
    resolved(path, base)         the real path

The answer may be outdated when the file is opened: open it with `folder.Folder`, which checks every
step on the way while it opens it.
"""

from __future__ import annotations

import errno
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Final

from tavern_core.model.capability_scope import Scope, folders

LONGEST: Final = 4_096
_HIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
_ENCODED: Final = re.compile("%(2e|2f|5c|00)", re.IGNORECASE)
_SCHEME: Final = re.compile(r"[A-Za-z]:|[A-Za-z][A-Za-z0-9+.-]*:/|(file|data|https?|ftp|jar|phar|php):", re.IGNORECASE)


def path_flaw(path: object) -> str:
    """The flaw in the text of a path; empty if there is none.

    Everything that another parser may read differently is refused: ``..%2f``, ``~user``, ``C:``, ``name.``.
    """
    if not isinstance(path, str):
        return "is not text"
    if not path.strip():
        return "is empty"
    if len(path) > LONGEST:
        return f"is longer than {LONGEST:,} characters"
    if (found := _HIDDEN.search(path)) is not None:
        return f"holds the control or hidden character U+{ord(found[0]):04X}"
    if "\\" in path:
        return "holds a backslash"
    if path.startswith("~"):
        return "begins with '~', which may mean a home folder"
    if (found := _SCHEME.match(path)) is not None:
        return f"begins with {found[0]!r}, like an address or a drive"
    if (found := _ENCODED.search(path)) is not None:
        return f"holds {found[0]!r}, which may be read as another path"
    if not path.isascii() and _has_hidden_steps(path):
        return "holds letters that look like '.', '/' or '\\'"
    for part in path.split("/"):
        if part not in (".", "..") and part.endswith((".", " ")):
            return f"has a name that ends in {part[-1]!r}, which means another file on some systems"
    return ""


def roots_of(scope: Scope, places: Mapping[str, str]) -> list[str]:
    """The real folders and files that a scope of paths names: absolute, links followed.

    Args:
        places: what ``$data``, ``$plugin``, ``$workspace``, ``~`` and ``""`` (the project) mean; an entry that starts with
            another, or is invalid, names nothing.
    """
    return [os.path.realpath(path) for path in folders(scope, places) or () if path.startswith("/")]


def resolved(path: str, base: str) -> str:
    """The real path of `path`, relative to `base` if it is relative: absolute, every link followed.

    Raises:
        ValueError: it cannot be followed (a cycle of links, a name that is too long); the text says why.
    """
    joined = os.path.join(base, path)  # noqa: PTH118 - pathlib would drop '..' after a link
    real = os.path.realpath(joined)
    try:
        os.stat(joined)  # noqa: PTH116 - as above
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL):
            raise ValueError(os.strerror(error.errno).lower()) from None
    return real


def beneath(real: str, roots: Iterable[str]) -> bool:
    """True if `real` is one of the roots or in one; ``/database`` is not in ``/data``."""
    return any(real == root or root == "/" or real.startswith(root.rstrip("/") + "/") for root in roots)


def _has_hidden_steps(path: str) -> bool:
    """True if the compatibility form of the path has steps that the path itself does not show."""
    folded = unicodedata.normalize("NFKC", path)
    return (
        "\\" in folded
        or [p for p in folded.split("/") if p in (".", "..")] != [p for p in path.split("/") if p in (".", "..")]
        or (folded.count("/") != path.count("/"))
    )
