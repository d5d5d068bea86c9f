"""How slow can a pattern be in a backtracking engine that cannot be exponential: the power of the text's length.

Two loops multiply when one text can be read by both and by everything that must stand between them: `\\d*\\d*x` tries
each cut, `\\d*\\.\\d*x` has only one. So the pattern is laid out as a row of loops and of characters that must occur,
and the longest chain of loops that share text is the power. The estimate errs on the high side.
"""

from __future__ import annotations

from collections.abc import Iterator

from tavern_core.frozen import dataclass
from tavern_core.schema.regex_risk import is_loop, overlap
from tavern_core.schema.regex_tree import (
    ANYTHING,
    BackReference,
    Chars,
    Choice,
    Group,
    Look,
    Node,
    Ranges,
    Repeat,
    Sequence,
    ranges_of,
)

_MOST_ITEMS = 200


@dataclass(frozen=True, slots=True)
class _Item:
    """A loop (`power` > 0) or a character that must occur, with the optional groups it stands in."""

    ranges: Ranges
    power: int
    within: tuple[int, ...]
    needs: tuple[Ranges, ...] = ()


def power(tree: Node) -> int:
    """The exponent of the text's length in the worst case, for one attempt at one starting position."""
    row = list(_row(tree, ()))
    looks = max((power(part) for part in _looks(tree)), default=0)
    if len(row) > _MOST_ITEMS:
        return max(looks, sum(item.power for item in row))
    best: list[int] = []
    for at, item in enumerate(row):
        longest = 0
        for before in range(at):
            if item.power and row[before].power and best[before] > longest and _share(row, before, at):
                longest = best[before]
        best.append(item.power + longest if item.power else 0)
    return max([looks, *best])


def _row(tree: Node, within: tuple[int, ...]) -> Iterator[_Item]:
    match tree:
        case Chars(ranges):
            yield _Item(ranges, 0, within)
        case BackReference():
            yield _Item(ANYTHING, 1, within)
        case Sequence(parts):
            for part in parts:
                yield from _row(part, within)
        case Group(part):
            yield from _row(part, within)
        case Choice(parts):
            yield _Item(_alphabet(tree), max(map(power, parts)), within, _common_needs(parts))
        case Repeat(part, low, high):
            if is_loop(high):
                yield _Item(_alphabet(part), max(1, power(part)), within, tuple(_needs(part)))
            else:
                for turn in range(high or 0):
                    yield from _row(part, within if turn < low else (*within, id(tree) + turn))
        case _:
            return


def _share(row: list[_Item], left: int, right: int) -> bool:
    """Can one text be read by both loops and all that must stand between them?"""
    one, other = row[left], row[right]
    if not overlap(one.ranges, other.ranges):
        return False
    if not all(overlap(need, other.ranges) for need in one.needs):
        return False
    if not all(overlap(need, one.ranges) for need in other.needs):
        return False
    groups = {*one.within, *other.within}
    between = (item for item in row[left + 1 : right] if not item.power and groups.issuperset(item.within))
    return all(overlap(item.ranges, one.ranges) and overlap(item.ranges, other.ranges) for item in between)


def _needs(tree: Node) -> Iterator[Ranges]:
    """Character sets of which every match of `tree` has a member."""
    match tree:
        case Chars(ranges):
            yield ranges
        case Sequence(parts):
            for part in parts:
                yield from _needs(part)
        case Group(part):
            yield from _needs(part)
        case Choice(parts):
            yield from _common_needs(parts)
        case Repeat(part, low, _):
            if low:
                yield from _needs(part)
        case _:
            return


def _common_needs(parts: tuple[Node, ...]) -> tuple[Ranges, ...]:
    """Each alternative needs something: together, one of all of that."""
    needs = [list(_needs(part)) for part in parts]
    if not all(needs):
        return ()
    return (ranges_of(*(pair for found in needs for pair in min(found, key=len))),)


def _alphabet(tree: Node) -> Ranges:
    match tree:
        case Chars(ranges):
            return ranges
        case BackReference():
            return ANYTHING
        case Sequence(parts) | Choice(parts):
            return ranges_of(*(pair for part in parts for pair in _alphabet(part)))
        case Group(part) | Repeat(part):
            return _alphabet(part)
        case _:
            return ()


def _looks(tree: Node) -> Iterator[Node]:
    match tree:
        case Look(part):
            yield part
        case Sequence(parts) | Choice(parts):
            for part in parts:
                yield from _looks(part)
        case Group(part) | Repeat(part):
            yield from _looks(part)
        case _:
            return
