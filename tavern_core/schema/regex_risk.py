"""Can a pattern take exponential time in a backtracking engine?

It can exactly when some text leads from a place inside a loop back to that place in two different ways (Weber and
Seidl 1991: exponential ambiguity). So each outermost loop becomes its position automaton (Glushkov), and two walkers
read the same text in it: they must never part and meet again. An edge that exists for two reasons, as in `(a+)+`,
parts them at once. Counted repetitions up to eight are written out, larger ones count as loops.
"""

from __future__ import annotations

from collections.abc import Iterator

from tavern_core.schema.regex_tree import (
    ANYTHING,
    Assertion,
    BackReference,
    Chars,
    Choice,
    Group,
    Look,
    Node,
    Ranges,
    Repeat,
    Sequence,
)

_WRITTEN_OUT = 8
_MAX_POSITIONS = 400
_MAX_STEPS = 400_000


class TooComplicated(Exception):
    """The pattern is too large to be judged."""


def explodes(tree: Node) -> bool:
    """True when the pattern can take exponential time.

    Raises:
        TooComplicated: a loop is too large to find out; refuse it as well.
    """
    return any(_ambiguous(loop) for loop in _outermost_loops(tree))


def size(tree: Node) -> int:
    """How large the pattern is with every count written out."""
    match tree:
        case Sequence(parts) | Choice(parts):
            return 1 + sum(map(size, parts))
        case Group(part) | Look(part):
            return 1 + size(part)
        case Repeat(part, low, high):
            return size(part) * max(1, high or low)
        case Chars(ranges):
            return 1 + len(ranges) // 8
        case _:
            return 1


def is_regular(tree: Node) -> bool:
    """True without look-around and back-references: an engine needs no backtracking at all."""
    match tree:
        case Look() | BackReference():
            return False
        case Sequence(parts) | Choice(parts):
            return all(map(is_regular, parts))
        case Group(part) | Repeat(part):
            return is_regular(part)
        case _:
            return True


def is_loop(high: int | None) -> bool:
    """True for a repetition without an end, or one too long to be written out."""
    return high is None or high > _WRITTEN_OUT


def _outermost_loops(tree: Node) -> Iterator[Repeat]:
    match tree:
        case Repeat(part, _, high):
            if is_loop(high):
                yield tree
                yield from _inside_looks(part)
            else:
                yield from _outermost_loops(part)
        case Sequence(parts) | Choice(parts):
            for each in parts:
                yield from _outermost_loops(each)
        case Group(part) | Look(part):
            yield from _outermost_loops(part)
        case _:
            return


def _inside_looks(tree: Node) -> Iterator[Repeat]:
    match tree:
        case Look(part):
            yield from _outermost_loops(part)
        case Sequence(parts) | Choice(parts):
            for each in parts:
                yield from _inside_looks(each)
        case Group(part) | Repeat(part):
            yield from _inside_looks(part)
        case _:
            return


class _Automaton:
    """Positions (occurrences of a character set) and which may follow which, with the number of reasons."""

    def __init__(self) -> None:
        self.sets: list[Ranges] = []
        self.follow: list[dict[int, int]] = []

    def add(self, ranges: Ranges) -> int:
        if len(self.sets) >= _MAX_POSITIONS:
            raise TooComplicated
        self.sets.append(ranges)
        self.follow.append({})
        return len(self.sets) - 1

    def connect(self, last: list[int], first: list[int]) -> None:
        for source in last:
            edges = self.follow[source]
            for target in first:
                edges[target] = edges.get(target, 0) + 1

    def build(self, tree: Node) -> tuple[bool, list[int], list[int]]:
        """Add a tree; (may it be empty, its first positions, its last positions)."""
        match tree:
            case Chars(ranges):
                at = self.add(ranges)
                return False, [at], [at]
            case BackReference():
                at = self.add(ANYTHING)
                return False, [at], [at]
            case Assertion() | Look():
                return True, [], []
            case Group(part):
                return self.build(part)
            case Choice(parts):
                built = [self.build(part) for part in parts]
                return (
                    any(empty for empty, _, _ in built),
                    [at for _, first, _ in built for at in first],
                    [at for _, _, last in built for at in last],
                )
            case Sequence(parts):
                return self.chain([self.build(part) for part in parts])
            case Repeat(part, low, high):
                return self.repeat(part, low, high)

    def chain(self, built: list[tuple[bool, list[int], list[int]]]) -> tuple[bool, list[int], list[int]]:
        empty, first, last = True, list[int](), list[int]()
        for next_empty, next_first, next_last in built:
            self.connect(last, next_first)
            first = first + next_first if empty else first
            last = last + next_last if next_empty else next_last
            empty = empty and next_empty
        return empty, first, last

    def repeat(self, part: Node, low: int, high: int | None) -> tuple[bool, list[int], list[int]]:
        if is_loop(high):
            empty, first, last = self.build(part)
            self.connect(last, first)
            return empty or low == 0, first, last
        built: tuple[bool, list[int], list[int]] = (True, [], [])
        for at in reversed(range(high or 0)):  # X(X(X)?)?, which has one way to match each count
            empty, first, last = self.chain([self.build(part), built])
            built = (empty or at >= low, first, last)
        return built


def _ambiguous(loop: Repeat) -> bool:
    automaton = _Automaton()
    _, first, last = automaton.build(loop.part)
    automaton.connect(last, first)
    if any(count > 1 for edges in automaton.follow for count in edges.values()):
        return True
    return _walkers_meet(automaton)


def _walkers_meet(automaton: _Automaton) -> bool:
    """Can two walkers start together, part, and be together again at the place where they started?"""
    follow = [list(edges) for edges in automaton.follow]
    overlap = _Overlap(automaton.sets)
    steps = 0
    for start in range(len(follow)):
        # Everything two walkers can reach from (start, start), and from what (start, start) can be reached.
        forward: dict[tuple[int, int], list[tuple[int, int]]] = {}
        stack = [(start, start)]
        while stack:
            pair = stack.pop()
            if pair in forward:
                continue
            forward[pair] = nexts = [
                (left, right)
                for left in follow[pair[0]]
                for right in follow[pair[1]]
                if left == right or overlap(left, right)
            ]
            steps += len(nexts) + 1
            if steps > _MAX_STEPS:
                raise TooComplicated
            stack.extend(nexts)
        if _returns_apart(forward, (start, start)):
            return True
    return False


def _returns_apart(forward: dict[tuple[int, int], list[tuple[int, int]]], home: tuple[int, int]) -> bool:
    backward: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for pair, nexts in forward.items():
        for each in nexts:
            backward.setdefault(each, []).append(pair)
    seen: set[tuple[int, int]] = set()
    stack = list(backward.get(home, ()))
    while stack:
        pair = stack.pop()
        if pair in seen:
            continue
        seen.add(pair)
        if pair[0] != pair[1]:
            return True
        stack.extend(backward.get(pair, ()))
    return False


class _Overlap:
    """Do two positions have a character in common? Asked often, so remembered."""

    def __init__(self, sets: list[Ranges]) -> None:
        self.sets = sets
        self.known: dict[tuple[Ranges, Ranges], bool] = {}

    def __call__(self, left: int, right: int) -> bool:
        key = (self.sets[left], self.sets[right])
        if key not in self.known:
            self.known[key] = overlap(*key)
        return self.known[key]


def overlap(left: Ranges, right: Ranges) -> bool:
    """True when two sets have a character in common."""
    at = to = 0
    while at < len(left) and to < len(right):
        if left[at][0] <= right[to][1] and right[to][0] <= left[at][1]:
            return True
        if left[at][1] < right[to][1]:
            at += 1
        else:
            to += 1
    return False
