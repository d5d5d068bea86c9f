"""Keeps comments next to their grants when the lock file is written again.

    old text ──scan──> comments, each with what it is above or behind ──put──> the new text

A comment above a line belongs to that line, a comment at its end to the last value of the line. If that is removed, the comment moves to the nearest
enclosing element; a permission that moves to another list takes its comment along. Comments on a plugin that is no
longer in the file are removed with it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import yaml

from tavern_core.kernel.text.yaml_dialect import EventParser

Key = tuple[str, ...]
"""A place identified by its content, not by number: ``("plugins", "text", "granted", "read:fs")``."""
END: Final[Key] = ()
_LISTS: Final = ("granted", "refused", "requested")


class _Comment(NamedTuple):
    key: Key
    text: str
    """With its ``#``."""
    is_above: bool


def keep_comments(old: str, new: str, *, but: Iterable[str] = ()) -> str:
    """`new` with the comments of `old` in their places.

    Args:
        old: the previous file; well-formed YAML.
        new: the file to be written, block style, with its own comments only at the top.
        but: lines that are not a person's comment: headers of this program.
    """
    comments = list(_comments(old, frozenset(but)))
    if not comments:
        return new
    places = _places(new)
    above: dict[int, list[str]] = {}
    behind: dict[int, list[str]] = {}
    lines = new.splitlines()
    for comment in comments:
        line, is_exact = _target(comment.key, places, len(lines))
        if line is not None:
            (behind if is_exact and not comment.is_above else above).setdefault(line, []).append(comment.text)
    return "".join(_woven(lines, above, behind))


def _woven(lines: list[str], above: Mapping[int, list[str]], behind: Mapping[int, list[str]]) -> Iterator[str]:
    for number, line in enumerate([*lines, ""]):
        indent = line[: len(line) - len(line.lstrip())]
        yield from (f"{indent}{text}\n" for text in above.get(number, ()))
        if number < len(lines):
            yield "  ".join([line, *behind.get(number, ())]) + "\n"


def _target(key: Key, places: Mapping[Key, int], end: int) -> tuple[int | None, bool]:
    """The line of the new text for a comment at `key`, and whether it is exactly that element."""
    if key == END:
        return end, True
    if key in places:
        return places[key], True
    if len(key) == 4 and key[2] in _LISTS:
        for other in _LISTS:
            if (moved := (*key[:2], other, key[3])) in places:
                return places[moved], True
    if len(key) >= 2 and key[:2] not in places:
        return None, False
    nearest = next((key[:length] for length in range(len(key) - 1, 0, -1) if key[:length] in places), END)
    return (places[nearest] if nearest else end), False


def _comments(text: str, skip: frozenset[str]) -> Iterator[_Comment]:
    lines = text.splitlines(keepends=True)
    if not any("#" in line and line.rstrip() not in skip for line in lines):
        return
    places = sorted((line, key) for key, line in _places(text).items())
    at_lines = [line for line, _ in places]
    texts = _ScalarSpans(text)
    offset = 0
    for number, line in enumerate(lines):
        if (start := texts.comment(line, offset)) is not None:
            words = line[start:].rstrip()
            behind = bisect_right(at_lines, number)
            if line[:start].strip():
                yield _Comment(places[behind - 1][1] if behind else END, words, False)
            elif words not in skip:
                yield _Comment(places[behind][1] if behind < len(places) else END, words, True)
        offset += len(line)


class _ScalarSpans:
    """The positions of scalars in a document: a ``#`` in them begins no comment."""

    def __init__(self, text: str) -> None:
        tokens = yaml.scan(text, Loader=EventParser)
        spans = [(t.start_mark.index, t.end_mark.index) for t in tokens if isinstance(t, yaml.ScalarToken)]
        self._starts, self._ends = [start for start, _ in spans], [end for _, end in spans]

    def comment(self, line: str, offset: int) -> int | None:
        """The beginning of a comment in a line: a ``#`` at the start or after a blank, outside of texts."""
        at = line.find("#")
        while at >= 0:
            last = bisect_right(self._starts, offset + at) - 1
            is_free = last < 0 or offset + at >= self._ends[last]
            if is_free and (at == 0 or line[at - 1] in " \t"):
                return at
            at = line.find("#", at + 1)
        return None


def _places(text: str) -> dict[Key, int]:
    """Every key and every item of a list → its line, from 0."""
    found: dict[Key, int] = {}
    root = yaml.compose(text, Loader=EventParser)
    waiting: list[tuple[Key, Any]] = [((), root)]
    while waiting:
        key, node = waiting.pop()
        if isinstance(node, yaml.MappingNode):
            for name, value in node.value:
                inner = (*key, str(name.value))
                found.setdefault(inner, name.start_mark.line)
                waiting.append((inner, value))
        elif isinstance(node, yaml.SequenceNode):
            for item in node.value:
                inner = (*key, str(item.value))
                found.setdefault(inner, item.start_mark.line)
    return found
