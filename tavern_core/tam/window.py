"""The part of the text that the scanner can see, and cached lexical facts about it.

A whole text is one window. A stream is a moving window: text that no decision needs any more is put aside (`kept` for the
construct being read, `done` for the rest of its block), so that a piece costs the same however long the block has become.

    done ........ | kept ............ | text (the window) ..............| what comes
                  anchor of the construct   <- at least REACH ->

Offsets into `text` are relative: `base` is the absolute offset of `text[0]`, and an offset below 0 is text put aside.
"What is the next tail (line-start field, marker) at or after here" is asked repeatedly about overlapping ranges;
each answer is cached with its range, which keeps invalid text linear.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tavern_core.tam.grammar import (
    ANGLE_HEAD,
    BROKEN_FIELD,
    BROKEN_MARKER,
    BROKEN_NOTE,
    FIELD,
    HEADS_IN,
    MARKER,
    MARKER_REACH,
    NOTES,
    REACH,
    ValueForm,
    form_at,
    head_before,
    is_broken_opener,
)

NOWHERE: Final = -(1 << 60)
"""No such place in the visible text. Below every real offset, also those put aside."""
_TRIM_AT = REACH


class _NextHit:
    """The next hit at or after any place in [low, at]; with `at` NOWHERE: no hit begins in [low, high)."""

    __slots__ = ("at", "high", "low")

    def __init__(self) -> None:
        self.low = self.high = 0
        self.at = NOWHERE

    def move(self, by: int) -> None:
        self.low += by
        self.high += by
        if self.at != NOWHERE:
            self.at += by


class TextWindow:
    """Text, its offset in the whole, and cached facts about it."""

    # More attributes than a dictionary that instances share may have (30): without slots each access costs more.
    __slots__ = (
        "_ahead", "_break", "_break_mark", "_escape", "_kept_break", "_last_tail", "_rejected", "base", "done", "end",
        "kept", "last", "line", "line_mark", "text",
    )  # fmt: skip

    def __init__(self) -> None:
        self.text = ""
        self.base = 0
        self.end = 0
        """The limit for reading: to the end of the text, or to the limit of the block."""
        self.last = False
        """No more text will come after `end`."""
        self.kept: list[str] = []
        self.done: list[str] = []
        self._ahead: dict[str, _NextHit] = {}
        self._rejected = NOWHERE
        self._escape = (NOWHERE, 0, 0, False)
        self._last_tail: tuple[str, int, int, int] = ("", NOWHERE, NOWHERE, NOWHERE)
        self.line = 1
        self.line_mark = 0
        self._break = -1
        self._break_mark = 0
        self._kept_break = -1

    # --- moving -------------------------------------------------------------------------------------------------

    def shift(self, by: int) -> None:
        """Shift every cached offset by `by`, because the start of the window moved."""
        self.end += by
        self.line_mark += by
        self._break += by
        self._break_mark += by
        self._kept_break += by
        for fact in self._ahead.values():
            fact.move(by)
        if self._rejected != NOWHERE:
            self._rejected += by
        start, at, depth, quoted = self._escape
        if start != NOWHERE:
            self._escape = (start + by, at + by, depth, quoted)
        tail, limit, low, found = self._last_tail
        if limit != NOWHERE:
            self._last_tail = (tail, limit + by, low + by, found if found == NOWHERE else found + by)

    def drop(self, cut: int) -> str:
        """Remove `text[:cut]` from the window and return it."""
        dropped = self.text[:cut]
        if cut > self.line_mark:
            self.count_lines(cut)
        self._note_break(cut)
        self.text = self.text[cut:]
        self.base += cut
        self.shift(-cut)
        return dropped

    def leave_behind(self) -> None:
        """Empty the window and forget its facts, after all text was read and nothing is open."""
        text, size = self.text, len(self.text)
        self.line += text.count("\n", self.line_mark)
        found = text.rfind("\n", max(self._break_mark, 0))
        self._break = (found if found >= 0 else self._break) - size
        self.line_mark = self._break_mark = 0
        self.base += size
        self.text = ""
        self._ahead.clear()
        self._rejected = NOWHERE
        self._escape = (NOWHERE, 0, 0, False)
        self._last_tail = ("", NOWHERE, NOWHERE, NOWHERE)

    def put_aside(self, begin: int, anchor: int) -> None:
        """Shorten the window of a block that began at `begin`; the construct at `anchor` stays in it."""
        cut = len(self.text) - REACH
        if cut < _TRIM_AT:
            return
        if begin >= cut:
            self.drop(cut)
        elif anchor < 0:
            self.kept.append(self.drop(cut))
        else:
            line_break = self.text.rfind("\n", 0, anchor)
            self._kept_break = line_break if line_break >= 0 else min(self._break, -1)
            dropped = self.drop(cut)
            self.done += self.kept
            self.done.append(dropped[max(begin, 0) : anchor])
            self.kept = [dropped[anchor:]]

    def restore(self) -> None:
        """Restore the construct's text to the window: it was decided, and reading continues inside it."""
        before = "".join(self.kept)
        self.kept = []
        self.text = before + self.text
        self.base -= len(before)
        self.shift(len(before))
        self._break, self._break_mark = self._kept_break, 0

    def between(self, start: int, end: int) -> str:
        """`text[start:end]`, where `start` may have been put aside."""
        if start >= 0:
            return self.text[start:end]
        before = "".join(self.kept)
        self.kept = [before]
        size = len(before)
        return before[size + start :] + self.text[:end] if end >= 0 else before[size + start : size + end]

    # --- lines --------------------------------------------------------------------------------------------------

    def count_lines(self, at: int) -> int:
        """The number (from 1) of the line `at` is in; cheap for ascending offsets."""
        mark = self.line_mark
        if at >= mark:
            self.line += self.text.count("\n", mark, at)
        else:
            self.line -= self.text.count("\n", max(at, 0), mark)
        self.line_mark = at
        return self.line

    def _note_break(self, at: int) -> None:
        """Cache the last line break before `at`."""
        if at > self._break_mark:
            found = self.text.rfind("\n", max(self._break_mark, 0), at)
            if found >= 0:
                self._break = found
            self._break_mark = at

    def column(self, at: int) -> int:
        """The column (from 1) of `at`."""
        if at >= self._break_mark:
            self._note_break(at)
            return at - self._break
        found = self.text.rfind("\n", 0, max(at, 0))
        return at - found if found >= 0 else at - min(self._break, at - 1)

    # --- facts --------------------------------------------------------------------------------------------------

    def _next(self, name: str, at: int, search: Callable[[int], tuple[int, int]]) -> int:
        """The next hit of `search` at or after `at`. `search(from)` returns (hit or NOWHERE, searched up to)."""
        fact = self._ahead.get(name)
        if fact is None:
            fact = self._ahead[name] = _NextHit()
            fact.low = fact.high = at
        if fact.low <= at:
            if fact.at >= at:
                return fact.at if fact.at < self.end else NOWHERE
            begin = max(at, fact.high) if fact.at == NOWHERE else at
        else:
            begin = at
        if begin == at:
            fact.low = at
        fact.at, fact.high = search(max(begin, 0))
        return fact.at

    def next_tail(self, tail: str, at: int) -> int:
        """The offset of the next `tail` at or after `at`."""

        def search(begin: int) -> tuple[int, int]:
            found = self.text.find(tail, begin, self.end)
            return (found, found) if found >= 0 else (NOWHERE, max(begin, self.end - len(tail) + 1))

        return self._next(tail, at, search)

    def next_line_head(self, form: ValueForm, at: int) -> int:
        """The offset of the next opener at or after `at` that belongs to a field at the start of a line."""

        def search(begin: int) -> tuple[int, int]:
            text, end = self.text, self.end
            for opener in HEADS_IN[form.name].finditer(text, begin, end):
                found = opener.start()
                if self._is_line_head(form, found):
                    return found, found
                if is_broken_opener(text, found, end):
                    return NOWHERE, found
            return NOWHERE, max(begin, end - 2)

        return self._next(form.name, at, search)

    def _is_line_head(self, form: ValueForm, at: int) -> bool:
        opened = form_at(self.text, at, self.end)
        if opened is None or opened.head not in form.heads:
            return False
        head = head_before(self.text, at, 0)
        if head is None or not head.line_start:
            return False
        # "Example:\n>>> f()" is a Python session in a text, no field
        return opened.head != ANGLE_HEAD or "\n" not in self.text[head.end : at]

    def next_marker(self, which: str, at: int) -> int:
        """The offset of the next `start` or `end` marker (or `any`) at or after `at`."""

        def search(begin: int) -> tuple[int, int]:
            for found in MARKER.finditer(self.text, begin, self.end):
                if which == "any" or (which == "start") == bool(found[1]):
                    return found.start(), found.start()
            return NOWHERE, max(begin, self.end - MARKER_REACH)

        return self._next(which, at, search)

    def is_boundary(self, at: int) -> bool | None:
        """Whether a boundary (TAM rule 5) is at `at`, after a tail; None if only more text can decide.

        End of line, comma, `#`, `//`, a marker or a field, perhaps after notes in brackets.
        """
        text, end, open_end = self.text, self.end, not self.last
        skipped = NOTES.match(text, at, end)
        at = skipped.end() if skipped else at
        if at >= end:
            return None if open_end else True
        sign = text[at]
        if sign in "\r\n,，#":
            return True
        if sign == "/":
            return None if open_end and at + 1 == end else text.startswith("//", at, end)
        if sign == "<":
            marker, broken_marker = MARKER, BROKEN_MARKER
        elif sign in "(（":
            return None if open_end and BROKEN_NOTE.match(text, at, end) else False
        else:
            marker, broken_marker = FIELD, BROKEN_FIELD
        if marker.match(text, at, end):
            return True
        return None if open_end and broken_marker.match(text, at, end) else False

    def reject_tail(self, at: int) -> None:
        """Remember that the tail at `at` has no boundary; its text may be dropped."""
        self._rejected = at

    def is_rejected(self, at: int) -> bool:
        return at == self._rejected

    def last_tail(self, tail: str, after: int, limit: int) -> int:
        """The last `tail` with a boundary that begins behind `after` and ends before `limit`."""
        known_tail, known_limit, low, found = self._last_tail
        if known_tail == tail and known_limit == limit and (found != NOWHERE or low <= after):
            return found if found > after else NOWHERE
        end = limit
        while True:
            at = self.text.rfind(tail, after + 1, end)
            if at < 0:
                found = NOWHERE
                break
            if self.is_boundary(at + len(tail)):
                found = at
                break
            end = at + len(tail) - 1
        self._last_tail = (tail, limit, after, found)
        return found

    def escape_state(self, start: int) -> tuple[int, int, bool]:
        """The progress in the ESCAPE value that begins at `start`: (offset, depth, inside a quoted block)."""
        known, at, depth, quoted = self._escape
        return (at, depth, quoted) if known == start else (start, 0, False)

    def remember_escape(self, start: int, at: int, depth: int, quoted: bool) -> None:
        self._escape = (start, at, depth, quoted)
