"""The fields of a block: where they begin, and their values.

The common case (`key:「始」value「末」`, next line, next field) is one loop of a regular-expression match and a find per
field; `value_end_detection.py` handles values that need the rules, and `text_between_fields.py` the text between two fields.
"""

from __future__ import annotations

import re

from tavern_core.model.message_translation import say
from tavern_core.tam.block_parsing import FIELDS, NOTE, SEEK, VALUE
from tavern_core.tam.document import Block, Field
from tavern_core.tam.grammar import ARROWS, ESCAPE, MARKER_REACH, NEXT, PLAIN, START, TAIL
from tavern_core.tam.text_between_fields import BetweenFields
from tavern_core.tam.value_end_detection import Undecided, ValueEnd, value_end
from tavern_core.tam.window import NOWHERE
from tavern_core.tam.wording import WORDS

_NEAR = 4096
_SHORT = 80
FIELD_SIGNS = ("末", ">", "«")
_LINE_SIGNS = ("\n", "\r")
_TAIL_SIGNS = ("末", "始")
_LIMIT_SIGNS = ("始", "<")
_ESCAPE_SIGNS = ("末", "始", "<")
_tuple_new = tuple.__new__


class FieldReader(BetweenFields):
    """Reads the text between the markers of a block."""

    __slots__ = ()

    def read_fields(self) -> bool:
        """Read on between two fields."""
        if self._scan != self.pos:
            return self._read_between()
        text, end = self.text, self.end
        if self.stream and end - self.pos < _SHORT and end != self.limit and not self.last:
            rest = text[self.pos : end]
            if not ("末" in rest or ">" in rest or "«" in rest):
                return False
        found = NEXT.match(text, self.pos, end)
        if found is None:
            return self._read_between()
        fields, base, stream = self.fields, self.base, self.stream
        while True:
            kind = found.lastindex
            if kind is None:
                self.end_block(found.end(), closed=True)
                return True
            key_start, key_end = found.span(1)
            mark = self.line_mark
            if key_start >= mark:
                self.line += text.count("\n", mark, key_start)
                self.line_mark = key_start
                line = self.line
            else:
                line = self.count_lines(key_start)
            start = found.end()
            if kind == 1:
                self._open(ARROWS, text[key_start:key_end], key_start, line, start)
                return True
            tail = text.find(TAIL, start, start + _NEAR if start + _NEAR < end else end)
            if tail < 0 or text.find("「始", start, tail) >= 0:
                break
            behind = tail + 3
            following = NEXT.match(text, behind, end)
            if following is None and (behind >= end or text[behind] not in "\n\r,"):
                break
            values = (
                found[1],
                text[start:tail],
                base + key_start,
                base + behind,
                base + start,
                base + tail,
                line,
                "plain",
                True,
            )
            field = _tuple_new(Field, values)
            fields.append(field)
            if stream:
                self.events.append(field)
            if following is None:
                self._between(behind, behind_tail=True)
                return True
            found = following
        self._open(PLAIN, found[1], key_start, line, start)
        return self.read_value()

    def read_common_block(self, start: int) -> bool:
        """Read the block at `start` in one pass if all of it is plain; else change nothing.

        Equivalent to the steps, without their bookkeeping, because most blocks are plain.
        """
        text, limit = self.text, min(start + self.max_block, len(self.text))
        find, match = text.find, NEXT.match
        found = match(text, start + len(START), limit)
        line_mark, line = self.line_mark, self.line
        line += text.count("\n", line_mark, start)
        first_line, line_mark = line, start
        fields: list[Field] = []
        while found and (kind := found.lastindex):
            value_start = found.end()
            tail = find(TAIL, value_start, value_start + _NEAR if value_start + _NEAR < limit else limit)
            if kind == 1 or tail < 0:
                return False
            value = text[value_start:tail]
            if "「始" in value:
                return False
            key_start = found.start(1)
            line += text.count("\n", line_mark, key_start)
            line_mark = key_start
            values = (found[1], value, key_start, tail + 3, value_start, tail, line, "plain", True)
            fields.append(_tuple_new(Field, values))
            found = match(text, tail + 3, limit)
        if found is None:
            return False
        end = found.end()
        column = self.column(start)
        self.line, self.line_mark = line, line_mark
        number = len(self.blocks) + 1
        block = (number, start, end, first_line, column, "tam1", tuple(fields), (), (), text[start:end], True)
        self.blocks.append(_tuple_new(Block, block))
        if start > self.prose_from:
            self.spans.append((self.prose_from, start))
        self.pos = self.prose_from = end
        return True

    def read_value(self) -> bool:
        """Read on to the end of the open value."""
        if self.form is PLAIN:
            done = self._close_common_field()
            if done is not None:
                return done
        ending = value_end(self, self.form, self.value_start)
        if not isinstance(ending, ValueEnd):
            if ending is Undecided.PAST:
                self.restore()
                return True
            self.waiting = ending
            return False
        if ending.code == "unterminated_value":
            self._leave_value()
            return True
        tail, resume = ending.value_end, ending.resume
        if ending.code == "ambiguous_value":
            self._report_field(
                ending.code,
                say(WORDS["ambiguous"], key=self._key, head=self.form.head),
            )
        if ending.code == "missing_value_end":
            self._report_field(ending.code, say(WORDS["read_to_end"], key=self._key, tail=self.form.tail))
        if ending.mixed:
            self._warn_mixed(tail)
        self._close_field(tail, resume)
        stray_to = ending.stray_to
        self._between(resume, behind_tail=stray_to == NOWHERE)
        if stray_to != NOWHERE:
            if not ending.code:
                self._check_stray(stray_to)
            self._tolerant_to = stray_to
        return True

    def _close_common_field(self) -> bool | None:
        """The common end of a short value: its first tail at the end of a line, no opener in it.

        False if such an end may still come, None if the value needs the rules.
        """
        text, start, end = self.text, self.value_start, self.end
        if start < 0 or end - start > _NEAR:
            return None
        tail = text.find(TAIL, start, end)
        if text.find("「始", start, end if tail < 0 else tail) >= 0:
            return None
        behind = tail + 3
        if tail < 0 or behind == end:
            self.waiting = Undecided.TAIL if tail < 0 else Undecided.BOUNDARY
            return None if self.last or end == self.limit else False
        if text[behind] not in "\n\r,":
            return None
        base = self.base
        values = (
            self._key,
            text[start:tail],
            base + self._key_start,
            base + behind,
            base + start,
            base + tail,
            self._key_line,
            "plain",
            True,
        )
        self._add(_tuple_new(Field, values))
        self._between(behind, behind_tail=True)
        return True

    def _add(self, field: Field) -> None:
        self.fields.append(field)
        if self.stream:
            self.events.append(field)

    def _close_field(self, tail: int, resume: int) -> None:
        value = self.between(self.value_start, tail)
        if self.form.second_dialect:
            value = dedent(value, self._indent).strip()
        base = self.base
        start, end, value_start = base + self._key_start, base + resume, base + self.value_start
        form, is_closed = self.form.name, tail != resume
        self._add(Field(self._key, value, start, end, value_start, base + tail, self._key_line, form, is_closed))

    def _leave_value(self) -> None:
        form = self.form
        self._report_field(
            "unterminated_value",
            say(WORDS["no_tail"], key=self._key, tail=form.tail),
            say(WORDS["close_it"], key=self._key, head=form.head, tail=form.tail),
        )
        if form is ESCAPE:
            # Everything after an ESCAPE that never closes may be a quotation, so none of it runs.
            self.end_block(self.end, closed=False)
            return
        if self.value_start < 0:
            self.restore()
        self.pos, self.state = self.value_start, SEEK

    def shorten(self) -> None:
        """Shorten the window; see `put_aside`."""
        self.note_key_place()
        self.put_aside(self._start - self.base, self.value_start if self.state == VALUE else self.pos)

    def waits_for(self) -> tuple[str, ...]:
        """Characters that further text needs to complete anything; none if any character may."""
        state, waiting = self.state, self.waiting
        if state == FIELDS:
            return FIELD_SIGNS
        if state == NOTE:
            return _LINE_SIGNS
        if state != VALUE or waiting is Undecided.BOUNDARY or self.form.second_dialect:
            return ()
        if self.text.rfind("「", -12) > self.text.rfind("」", -12):
            return ()  # a delimiter may be cut off here
        if self.form is PLAIN and waiting is Undecided.TAIL:
            return _TAIL_SIGNS
        if "<" in self.text[-MARKER_REACH:]:
            return ()
        return _ESCAPE_SIGNS if self.form is ESCAPE else _LIMIT_SIGNS

    def note_key_place(self) -> None:
        """Remember the column of the open field's key before its text is dropped."""
        if self.state == VALUE and not self._key_column:
            self._key_column = self.column(self._key_start)

    def _report_field(self, code: str, message: str, hint: str = "") -> None:
        self.note_key_place()
        self.report(code, message, hint, place=(self._key_line, self._key_column), key=self._key)


def dedent(value: str, indent: int) -> str:
    """Remove up to `indent` leading blanks from every line except the first."""
    return re.sub(rf"\n[ \t]{{1,{indent}}}", "\n", value) if indent and "\n" in value else value
