"""A regular expression of a schema (ECMA-262) as a tree.

JSON Schema says ECMA-262, Python's `re` and Rust's `regex` each differ from it (`\\d`, `\\w`, `$`, `\\p`, `\\Z` …). So a
pattern is read once, here, every character class becomes a set of code points, and each engine gets it written in the
few constructs on which all agree. What ECMA-262 does not have is refused with the spelling it has.
"""

from __future__ import annotations

from typing import TypeAlias

from tavern_core.frozen import dataclass

Ranges: TypeAlias = "tuple[tuple[int, int], ...]"
LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of a set of inclusive code point ranges."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    part: Node
    low: int
    high: int | None
    lazy: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """A capturing group; it matters only to back-references."""

    part: Node
    number: int


@dataclass(frozen=True, slots=True)
class Assertion:
    """``^``, ``$``, ``b`` (word boundary) or ``B``."""

    kind: str


@dataclass(frozen=True, slots=True)
class Look:
    part: Node
    opening: str
    """``(?=``, ``(?!``, ``(?<=`` or ``(?<!``."""


@dataclass(frozen=True, slots=True)
class BackReference:
    number: int


Node: TypeAlias = Chars | Sequence | Choice | Repeat | Group | Assertion | Look | BackReference


class PatternError(Exception):
    """What is wrong with a pattern, and the repair."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def ranges_of(*pairs: tuple[int, int]) -> Ranges:
    """Sorted, merged, without surrogates (no text holds them)."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(pairs):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], high)
        else:
            merged.append((low, high))
    clean: list[tuple[int, int]] = []
    for low, high in merged:
        if low < SURROGATES[0] <= high:
            clean.append((low, SURROGATES[0] - 1))
        elif high < SURROGATES[0] or low > SURROGATES[1]:
            clean.append((low, high))
        if (low <= SURROGATES[1] < high and low >= SURROGATES[0]) or (low < SURROGATES[0] and high > SURROGATES[1]):
            clean.append((SURROGATES[1] + 1, high))
    return tuple(clean)


def inverse(ranges: Ranges) -> Ranges:
    """Every other character."""
    found, start = [], 0
    for low, high in ranges:
        if low > start:
            found.append((start, low - 1))
        start = high + 1
    if start <= LAST:
        found.append((start, LAST))
    return ranges_of(*found)


def _chars(text: str) -> tuple[tuple[int, int], ...]:
    return tuple((ord(char), ord(char)) for char in text)


DIGIT = ranges_of((0x30, 0x39))
WORD = ranges_of((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
SPACE = ranges_of((9, 13), *_chars(" \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff"), (0x2000, 0x200A))
ANYTHING = ranges_of((0, LAST))
DOT = inverse(ranges_of(*_chars("\n\r\u2028\u2029")))
