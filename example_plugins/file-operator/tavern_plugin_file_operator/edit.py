"""Replace text that occurs exactly once. Pure: text in, text out."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from tavern_core import ToolFailed

_MOST_LINES_NAMED = 10
_MOST_LINES_COMPARED = 20_000
_LONGEST_LINE_COMPARED = 200


@dataclass(frozen=True, slots=True)
class Edit:
    """A text after one replacement."""

    text: str
    line: int
    """Where the replaced text began, from 1."""


def apply_edit(text: str, search: str, replace: str) -> Edit:
    """`text` with its only occurrence of `search` replaced.

    Models write ``\\n``; in a text with ``\\r\\n`` line ends both strings are tried with those too.

    Raises:
        ToolFailed: `search` is empty, occurs nowhere or more than once, or nothing would change (TOOL_ERROR).
    """
    if not search:
        raise ToolFailed("search_string is empty", hint="quote the text to be replaced, whole lines if possible")
    if search == replace:
        raise ToolFailed("search_string and replace_string are the same; nothing would change")
    if search not in text and "\r\n" in text:
        search, replace = (part.replace("\r\n", "\n").replace("\n", "\r\n") for part in (search, replace))
    starts = _occurrences(text, search)
    if not starts:
        raise _not_found(text, search)
    lines = [text.count("\n", 0, start) + 1 for start in starts[: _MOST_LINES_NAMED + 1]]
    if len(starts) > 1:
        named = ", ".join(map(str, lines[:_MOST_LINES_NAMED])) + (" …" if len(starts) > _MOST_LINES_NAMED else "")
        raise ToolFailed(
            f"search_string occurs {len(starts)} times, in lines {named}",
            hint="quote more of the text around the place you mean, so that it occurs once",
            lines=lines[:_MOST_LINES_NAMED],
            count=len(starts),
        )
    start = starts[0]
    return Edit(text[:start] + replace + text[start + len(search) :], lines[0])


def _occurrences(text: str, search: str) -> list[int]:
    """Where `search` begins, overlapping ones included: replacing either would be a guess."""
    found, at = [], text.find(search)
    while at >= 0:
        found.append(at)
        at = text.find(search, at + 1)
    return found


def _not_found(text: str, search: str) -> ToolFailed:
    first = next((line for line in search.splitlines() if line.strip()), "").strip()
    lines = [line.strip()[:_LONGEST_LINE_COMPARED] for line in text.splitlines()[:_MOST_LINES_COMPARED]]
    close = difflib.get_close_matches(first[:_LONGEST_LINE_COMPARED], dict.fromkeys(lines), n=1, cutoff=0.6)
    if not close:
        return ToolFailed("search_string does not occur in the file", hint="read the file and quote it exactly")
    line = lines.index(close[0]) + 1
    return ToolFailed(
        f"search_string does not occur in the file; line {line} is closest: {close[0]!r}",
        hint="read the file and quote it exactly, blanks and line breaks included",
        nearestLine=line,
    )
