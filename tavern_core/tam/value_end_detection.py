"""Finding the end of a value (TAM rules 5 and 6).

The answer is a function of the text alone: with more text, it stays the same or is no longer `Undecided`. So a stream
and a whole text get the same values.

    「始」 value … first tail --followed by a boundary--> ends there                                     (a)
                      |------ not: last tail with a boundary before the next line-start field or end marker (b)
                      |------ none: at the first tail; the rest of the line is stray, or `ambiguous_value`   (c)
    a line-start field before the first tail, or no tail at all                                   `unterminated_value`
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from tavern_core.tam.grammar import ESCAPE_TAIL, ESCAPE_TOKEN, LINE_END, MARKER, MARKER_REACH, ValueForm, head_before
from tavern_core.tam.window import NOWHERE, TextWindow


class Undecided(Enum):
    """Why there is no answer yet: the missing text."""

    TAIL = "no tail is in sight"
    BOUNDARY = "what follows the first tail is cut off"
    LIMIT = "the first tail has no boundary, and neither a field nor the end is in sight"
    PAST = "text that was skipped"


class ValueEnd(NamedTuple):
    """The end of a value.

    Args:
        value_end: the offset of the end; for an unterminated value, the offset where that became certain.
        resume: the offset where reading continues.
        code: a problem, or empty: `unterminated_value`, `ambiguous_value`, `missing_value_end`.
        stray_to: up to here the rest of the line is stray text (rule 5c); NOWHERE otherwise.
        mixed: the value was closed by the tail of the sister form.
    """

    value_end: int
    resume: int
    code: str = ""
    stray_to: int = NOWHERE
    mixed: bool = False


def value_end(window: TextWindow, form: ValueForm, start: int) -> ValueEnd | Undecided:
    """Find the end of the value that begins at `start`."""
    if form.tail == ESCAPE_TAIL:
        return _escaped_end(window, start)
    if form.second_dialect:
        return _second_dialect_end(window, form, start)
    first = window.next_tail(form.tail, start)
    head = window.next_line_head(form, start)
    if head != NOWHERE and not NOWHERE < first < head:
        return ValueEnd(head, start, "unterminated_value")
    if first == NOWHERE:
        return ValueEnd(window.end, start, "unterminated_value") if window.last else Undecided.TAIL
    return _from_first_tail(window, form, start, first)


def _from_first_tail(window: TextWindow, form: ValueForm, start: int, first: int) -> ValueEnd | Undecided:
    size = len(form.tail)
    if not window.is_rejected(first):
        found = window.is_boundary(first + size)
        if found is None:
            return Undecided.BOUNDARY
        if found:
            return _checked(window, form, start, first)
        window.reject_tail(first)
    head, marker = window.next_line_head(form, first), window.next_marker("end", first)
    limits = [limit for limit in (head, marker) if limit != NOWHERE]
    if not limits and not window.last:
        return Undecided.LIMIT
    limit = min(limits, default=window.end)
    if start < 0:
        return Undecided.PAST
    last = window.last_tail(form.tail, first, limit)
    if last != NOWHERE:
        return _checked(window, form, start, last)
    line_end = LINE_END.search(window.text, first, limit)
    code = "ambiguous_value" if window.text.find(form.head[:2], start, first) >= 0 else ""
    return ValueEnd(first, first + size, code, line_end.start() if line_end else limit)


def _checked(window: TextWindow, form: ValueForm, start: int, tail: int) -> ValueEnd | Undecided:
    """The value ends at `tail`, unless that tail belongs to a block quoted in the value, or a delimiter is doubled: then the end is not certain."""
    text, code = window.between(start, tail), ""
    if _has_doubled(text, form):
        code = "ambiguous_value"
    elif form.head in text:
        quoted = next((m for m in MARKER.finditer(text) if m[1]), None)
        if quoted and text.count(form.head, quoted.start()) > text.count(form.tail, quoted.start()):
            code = "ambiguous_value"
    return ValueEnd(tail, tail + len(form.tail), code)


def _has_doubled(text: str, form: ValueForm) -> bool:
    """Whether a value begins with a head, or ends with a tail, that has no partner in it: it was not meant as content."""
    if text.startswith(form.head):
        return text.count(form.head) > text.count(form.tail)
    return text.endswith(form.tail) and text.count(form.tail) > text.count(form.head)


def _second_dialect_end(window: TextWindow, form: ValueForm, start: int) -> ValueEnd | Undecided:
    first, head = window.next_tail(form.tail, start), window.next_line_head(form, start)
    end, begin = window.next_marker("end", start), window.next_marker("start", start)
    # An end marker and then a start marker: the block is over, its tail forgotten. In the reverse order, a block is quoted.
    over = NOWHERE < end < begin
    stop = min((place for place in (head, begin if over else NOWHERE) if place != NOWHERE), default=NOWHERE)
    if first != NOWHERE and (stop == NOWHERE or first < stop):
        return _from_first_tail(window, form, start, first)
    if stop == NOWHERE and not window.last:
        return (
            Undecided.TAIL
        )  # an end marker alone decides nothing: it may be part of the value, with the tail still to come
    if start < 0:
        return Undecided.PAST
    before = min((place for place in (stop, end) if place != NOWHERE), default=window.end)
    other = window.last_tail(form.other_tail, start - 1, before)
    if other != NOWHERE:
        return ValueEnd(other, other + len(form.other_tail), mixed=True)
    if end != NOWHERE and end == before and not NOWHERE < begin < end:
        return ValueEnd(end, end, "missing_value_end")
    return ValueEnd(before, start, "unterminated_value")


def _escaped_end(window: TextWindow, start: int) -> ValueEnd | Undecided:
    """The first 「末ESCAPE」, not counting those of quoted blocks."""
    at, depth, quoted = window.escape_state(start)
    while True:
        found = ESCAPE_TOKEN.search(window.text, at, window.end) if at < window.end else None
        if found is None:
            at = max(at, window.end - 20)  # a tail or a marker may be cut off here
            break
        at = found.start()
        if found[0][0] == "<":
            marker = MARKER.match(window.text, at, window.end)
            if marker is None and not window.last and window.end - at < MARKER_REACH:
                break
            if marker:
                quoted = bool(marker[1])
        elif found[0] == ESCAPE_TAIL:
            if not depth:
                return ValueEnd(at, found.end())
            depth -= 1
        elif quoted and head_before(window.text, at, 0):
            depth += 1
        at = found.end()
    window.remember_escape(start, at, depth, quoted)
    return ValueEnd(window.end, start, "unterminated_value") if window.last else Undecided.TAIL
