"""The name somebody probably meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

_MOST_CANDIDATES = 20_000  # difflib is quadratic in spirit; a hostile catalogue must not make an error message slow
_LONGEST = 128
_NOT_ALPHANUMERIC = re.compile("[^a-z0-9]+")


def fold(name: str) -> str:
    """Lower case, and everything but letters and digits of any script dropped.

    >>> fold("File-Path 1")
    'filepath1'
    """
    if name.isascii():
        return _NOT_ALPHANUMERIC.sub("", name.lower())  # the same, ten times as fast: ids are folded by the thousand
    return "".join(c for c in name.casefold() if c.isalnum())


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The `count` names of `known` that are closest to `name`, best first; empty when none is close.

    Names that are equal after `fold` come first, then the ones difflib finds similar (both compared folded).
    """
    wanted = fold(name[:_LONGEST])
    by_fold: dict[str, list[str]] = {}
    for index, candidate in enumerate(known):
        if index >= _MOST_CANDIDATES:
            break
        by_fold.setdefault(fold(candidate[:_LONGEST]), []).append(candidate)
    close = [wanted] if wanted in by_fold else difflib.get_close_matches(wanted, by_fold, n=count, cutoff=0.6)
    return [candidate for key in close for candidate in sorted(by_fold[key])][:count]


def did_you_mean(name: str, known: Iterable[str], count: int = 3) -> str:
    """A sentence for an error message: ``did you mean 'a' or 'b'?``; empty when nothing is close."""
    found = nearest(name, known, count)
    return f"did you mean {' or '.join(repr(f) for f in found)}?" if found else ""


_FEW = 10


def known_instead(key: str, known: Sequence[str]) -> str:
    """How to repair a key that nobody knows: the nearest known one, all of a few, else to delete it."""
    return did_you_mean(key, known) or (f"there are: {', '.join(known)}" if 0 < len(known) < _FEW else "delete it")
