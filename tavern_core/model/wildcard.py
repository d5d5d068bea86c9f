"""Patterns in which ``*`` stands for any characters, and no other character is special."""

from __future__ import annotations


def matches(pattern: str, text: str) -> bool:
    """True when `text` is `pattern` with each ``*`` replaced by any characters. Linear: no backtracking.

    >>> matches("text:*", "text:count"), matches("*a*b", "xaxbx")
    (True, False)
    """
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == text
    *middle, last = rest
    if not text.startswith(first) or len(text) < len(first) + len(last) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True
