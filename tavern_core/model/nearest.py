"""The known name that a misspelt name probably means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from tavern_core.model.message_translation import EITHER, Row, joined, say

_MOST_CANDIDATES = 20_000  # a hostile catalogue must not make an error message slow
_MOST_COMPARED = 20_000  # letters, of all names together
_MOST_SLIPS = 4
_LONGEST = 128
_LAST_PART_ONLY = 10
"""The distance of a name with the right last part and other wrong parts."""
_BETWEEN_PARTS = re.compile("[:./]")
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
    """The `count` names of `known` that are closest to `name`, best first; empty if none is close.

    Names that are equal after `fold` are the only answer. Otherwise a name is close if each of its parts is (between
    ``:``, ``.`` and ``/``: a common prefix of ids says nothing), or if its last part is what was written. Two words
    are close if they differ by a few typing errors, more in long words, or if one is a prefix of the other.
    """
    wanted = _Wanted(name[:_LONGEST])
    equal: list[str] = []
    close: list[tuple[int, str]] = []
    for candidate in islice(known, _MOST_CANDIDATES):
        folded = fold(candidate[:_LONGEST])
        if folded == wanted.folded:
            equal.append(candidate)
        elif not equal and (far := wanted.distance(candidate[:_LONGEST], folded)) is not None:
            close.append((far, candidate))
    return (sorted(equal) or [candidate for _, candidate in sorted(close)])[:count]


class _Wanted:
    """A written name, and its distance from others. Words are compared once, because the ids of a plugin share a part."""

    def __init__(self, name: str) -> None:
        self.folded = fold(name)
        self._parts = [fold(part) for part in _BETWEEN_PARTS.split(name)]
        self._known: dict[tuple[str, str], int | None] = {}
        self._left = _MOST_COMPARED

    def distance(self, candidate: str, folded: str) -> int | None:
        """The distance of `candidate`; None if it is not close."""
        if not self.folded and len(self._parts) == 1:
            return None
        parts = [fold(part) for part in _BETWEEN_PARTS.split(candidate)]
        if len(parts) != len(self._parts):
            if len(self._parts) == 1 and (far := self._between(self.folded, parts[-1])) is not None:
                return far
            return self._between(self.folded, folded)
        if len(parts) > 1 and parts[-1] and parts[-1] == self._parts[-1]:
            total = sum(_LAST_PART_ONLY for mine, theirs in zip(self._parts, parts, strict=True) if mine != theirs)
        else:
            total = 0
        near = 0
        for mine, theirs in zip(self._parts, parts, strict=True):
            far = self._between(mine, theirs)
            if far is None:
                return total or None
            near += far
        return near

    def _between(self, mine: str, theirs: str) -> int | None:
        if mine == theirs:
            return 0
        pair = (mine, theirs)
        if pair not in self._known:
            self._known[pair] = self._compared(mine, theirs)
        return self._known[pair]

    def _compared(self, mine: str, theirs: str) -> int | None:
        short, long = sorted((mine, theirs), key=len)
        if not mine or (short and long.startswith(short) and 2 * len(short) >= len(long)):
            return len(long) - len(short)
        most = min(len(long) // 3, _MOST_SLIPS)
        if not short or short[0] != long[0]:
            most = min(most, 1)  # hardly anyone mistypes the first letter, and then not a second one
        if len(long) - len(short) > most or self._left <= 0:
            return None
        if len(set(mine) - set(theirs)) > most:
            return None
        self._left -= len(long)
        far = slips(mine, theirs, most)
        return far if far <= most else None


_DID_YOU_MEAN: Final[Row] = ("did you mean {names}?", "是不是 {names}？")


def suggestion(near: Iterable[str], row: Row = _DID_YOU_MEAN) -> str:
    """A sentence for an error message, in the words of `row`: ``did you mean 'a' or 'b'?``; empty for no names."""
    names = joined(EITHER, map(repr, near))
    return say(row, names=names) if names else ""


def did_you_mean(name: str, known: Iterable[str], count: int = 3) -> str:
    """The `suggestion` of the known names that are closest to `name`; empty if nothing is close."""
    return suggestion(nearest(name, known, count)) if isinstance(name, str) else ""  # it may come from anywhere


_FEW = 10


def known_instead(key: str, known: Sequence[str]) -> str:
    """A hint for an unknown key: the closest known one, the list if it is short, else to delete it."""
    return did_you_mean(key, known) or (f"there are: {', '.join(known)}" if 0 < len(known) < _FEW else "delete it")


# Edit distance --------------------------------------------------------------------------------------------------------
# The number of typing errors between two words: a character missing, added, wrong, or two swapped.
#
# The optimal string alignment distance, abandoned above a maximum.


def slips(one: str, other: str, most: int) -> int:
    """The number of typing errors between two words; `most` + 1 if there are more than `most`.

    >>> slips("cuont", "count", 2), slips("filePth", "filePath", 2), slips("nope", "wipe", 1)
    (1, 1, 2)
    """
    one, other = _without_common_ends(one, other)
    if abs(len(one) - len(other)) > most:
        return most + 1
    if not one or not other:
        return len(one) + len(other)
    return _aligned(one, other, most)


def _without_common_ends(one: str, other: str) -> tuple[str, str]:
    """Both words without their common prefix and suffix, which contain no error."""
    start = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        start += 1
    one, other = one[start:], other[start:]
    end = 0
    for a, b in zip(reversed(one), reversed(other), strict=False):
        if a != b:
            break
        end += 1
    return one[: len(one) - end], other[: len(other) - end]


def _aligned(one: str, other: str, most: int) -> int:
    """Row by row; the row before the last one is kept for swapped characters. Only a band of `most` around the middle counts."""
    far = most + 1
    before: list[int] = []
    last = [min(at, far) for at in range(len(other) + 1)]
    for i, a in enumerate(one, 1):
        row = [min(i, far)] + [far] * len(other)
        for j in range(max(1, i - most), min(len(other), i + most) + 1):
            b = other[j - 1]
            found = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and b == one[i - 2]:
                found = min(found, before[j - 2] + 1)
            row[j] = min(found, far)
        if min(row) > most and min(last) > most:
            return far
        before, last = last, row
    return last[-1]
