"""The number of typing errors between two words: a character missing, added, wrong, or two swapped.

The optimal string alignment distance, abandoned above a maximum.
"""

from __future__ import annotations


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
