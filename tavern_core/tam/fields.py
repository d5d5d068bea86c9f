"""What stands in a block: fields, comments, notes, and text that should not be there.

The common way (`key:「始」value「末」`, next line, next field) is one loop of two regular-expression matches and two finds
per field; everything else takes the careful way, token by token.
"""

from __future__ import annotations

import re

from tavern_core.tam.block import FIELDS, NOTE, SEEK, VALUE, OpenBlock
from tavern_core.tam.document import Block, Comment, Field
from tavern_core.tam.grammar import (
    AFTER_TAIL,
    ANGLES,
    ARROWS,
    BROKEN_AFTER_TAIL,
    BROKEN_LINE_NOTE,
    BROKEN_MARKER,
    ESCAPE,
    LINE_END,
    LINE_NOTE,
    MARKER,
    MARKER_REACH,
    NEXT,
    PLAIN,
    REACH,
    START,
    STRAY,
    TAIL,
    TOKEN,
    Form,
    Head,
    form_at,
    head_before,
    is_broken_opener,
)
from tavern_core.tam.values import Ending, Undecided, value_end
from tavern_core.tam.window import NOWHERE

_NEAR = 4096
_SHORT = 80
_SHOWN = 60
_FIELD_SIGNS = ("末", ">", "«")
_LINE_SIGNS = ("\n", "\r")
_TAIL_SIGNS = ("末", "始")
_LIMIT_SIGNS = ("始", "<")
_ESCAPE_SIGNS = ("末", "始", "<")
_tuple_new = tuple.__new__


class FieldReader(OpenBlock):
    """Reads what stands between the markers of a block."""

    def __init__(self, *, max_block: int, stream: bool) -> None:
        super().__init__(max_block=max_block, stream=stream)
        self.waiting = Undecided.TAIL
        self._behind_tail = False
        self._line_start = False
        self._scan = 0
        self._stray: tuple[str, tuple[int, int]] | None = None
        self._tolerant_to = NOWHERE
        self._malformed_line = 0
        self._key = ""
        self._key_start = self._key_line = self._key_column = self._indent = 0
        self._note_code = ""
        self._note_place = (0, 0)

    def shift(self, by: int) -> None:
        super().shift(by)
        self._scan += by
        self._key_start += by
        if self._tolerant_to != NOWHERE:
            self._tolerant_to += by

    def begin_block(self, start: int, end: int) -> None:
        super().begin_block(start, end)
        self._between(end, behind_tail=False)
        self._line_start = True
        self._malformed_line = 0

    def _between(self, at: int, *, behind_tail: bool) -> None:
        """Everything before `at` is understood; fields, comments or the end may follow."""
        self.state = FIELDS
        self.pos = self._scan = at
        self._behind_tail = behind_tail
        self._line_start = False
        self._stray = None
        self._tolerant_to = NOWHERE

    # --- the common way -----------------------------------------------------------------------------------------

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
            values = (found[1], text[start:tail], base + key_start, base + behind, base + start, base + tail, line, "plain", True)
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
        """Read the block that begins at `start` in one go, if all of it is plain; else change nothing.

        The same as the steps would do, without their bookkeeping: most blocks are plain.
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
            if kind == 1 or tail < 0 or find("「始", value_start, tail) >= 0:
                return False
            key_start = found.start(1)
            line += text.count("\n", line_mark, key_start)
            line_mark = key_start
            values = (found[1], text[value_start:tail], key_start, tail + 3, value_start, tail, line, "plain", True)
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

    def _open(self, form: Form, key: str, key_start: int, line: int, value_start: int) -> None:
        """A value begins."""
        self.state = VALUE
        self.form = form
        self.value_start = value_start
        self._key, self._key_start, self._key_line, self._key_column = key, key_start, line, 0
        if form.second_dialect:
            self.second_dialect = True
            before = self.text[max(0, self._start - self.base, key_start - 257) : key_start]
            lead = before[before.rfind("\n") + 1 :]
            self._indent = len(lead) - len(lead.lstrip(" \t")) if "\n" in before else 0

    # --- the careful way ----------------------------------------------------------------------------------------

    def _read_between(self) -> bool:
        if self._behind_tail:
            if not self._read_trailer():
                return False
            if self.state != FIELDS:
                return True
        if self._line_start:
            if not self.last and BROKEN_LINE_NOTE.match(self.text, self.pos, self.end):
                return False
            self._line_start = False
            note = LINE_NOTE.match(self.text, self.pos, self.end)
            if note:
                self._begin_note(note.start(1), "" if note[1] == "#" else "stray_text")
                return True
        while True:
            found = TOKEN.search(self.text, self._scan, self.end)
            if found is None:
                return self._run_dry()
            answer = self._take(found)
            if answer is not None:
                return answer

    def _read_trailer(self) -> bool:
        """What may stand behind a tail on its line: comma and notes."""
        while True:
            if not self.last and BROKEN_AFTER_TAIL.match(self.text, self.pos, self.end):
                return False
            found = AFTER_TAIL.match(self.text, self.pos, self.end)
            if found is None:
                break
            if found[1] == "，":
                self._warn_fullwidth("，", found.start(1))
            if found[2]:
                self._begin_note(found.start(2), "trailing_comment")
                return True
            if found[3]:
                self._warn_ignored("trailing_comment", found[3], found.start(3))
            self.pos = self._scan = found.end()
            if not found[3]:
                break
        self._behind_tail = False
        return True

    def _take(self, found: re.Match[str]) -> bool | None:
        """Deal with one token between fields. True: a step is done; False: more text is needed; None: it means nothing."""
        at, sign = found.start(), found[0][0]
        if sign in "\r\n":
            mark = found[0].lstrip()
            self._check_stray(at)
            self._begin_note(found.end() - len(mark), "" if mark == "#" else "stray_text")
            return True
        if sign == "<":
            marker = MARKER.match(self.text, at, self.end)
            if marker:
                if not marker[1]:
                    # Before another start marker it is prose: the end marker is what is missing.
                    self._check_stray(at)
                self.at_marker(marker)
                return True
            if not self.last and BROKEN_MARKER.match(self.text, at, self.end):
                self._scan = at
                return False
            self._scan = at + 1
            return None
        if not self.last and is_broken_opener(self.text, at, self.end):
            self._scan = at
            return False
        return self._take_delimiter(at)

    def _take_delimiter(self, at: int) -> bool | None:
        form = form_at(self.text, at, self.end)
        if form is not None:
            head = head_before(self.text, at, max(self.pos, 0))
            if head is None and (form is ANGLES or (at < self._tolerant_to and form is not ESCAPE)):
                self._scan = at + 1
                return None
            self._open_field(form, at, head)
            return True
        if self.text.startswith("「末", at) and not self.text.startswith((TAIL, ESCAPE.tail), at):
            self._scan = at + 2
            return None
        if at >= self._tolerant_to:
            self._report_malformed(at)
            self.pos = at + 2
        self._scan = at + 2
        return None

    def _open_field(self, form: Form, at: int, head: Head | None) -> None:
        line = self.count_lines(head.start if head else at)
        if head is None:
            self._report_malformed(at)
            self._open(form, "", at, line, at + len(form.head))
            return
        self._check_stray(head.start)
        if head.fullwidth:
            self._warn_fullwidth("：", head.end)
        if form is ANGLES:
            self._warn_mixed(at)
        self._open(form, head.key, head.start, line, at + len(form.head))

    def _run_dry(self) -> bool:
        """No token is in sight."""
        if self.last:
            self.end_of_text()
            return True
        self._scan = max(self._scan, self.end - MARKER_REACH)
        far = self.end - REACH
        if far > self.pos + REACH:
            # A key of a field to come cannot reach back this far: what is before is stray, and need not be seen again.
            self._note_stray(far)
            self.pos = far
        return False

    def _begin_note(self, at: int, code: str) -> None:
        """A comment line (no `code`), or a note that is ignored with warning `code`; it runs to the end of its line."""
        self.state = NOTE
        self.pos = self._scan = at
        self._note_code = code
        self._note_place = self.count_lines(at), self.column(at)

    def read_note(self) -> bool:
        """Read on to the end of the note's line."""
        found = LINE_END.search(self.text, max(self._scan, 0), self.end)
        if found is None and not self.last:
            self._scan = self.end
            return False
        end = found.start() if found else self.end
        if not self._note_code:
            self.add_comment(Comment(self.between(self.pos, end), self.base + self.pos, self._note_place[0]))
        else:
            shown = _shortened(self.between(self.pos, min(end, self.pos + _SHOWN)))
            what = "after a value" if self._note_code == "trailing_comment" else "between the fields"
            self.report(self._note_code, f"The note {shown!r} {what} was ignored.", place=self._note_place)
        self._between(end, behind_tail=False)
        return True

    # --- values -------------------------------------------------------------------------------------------------

    def read_value(self) -> bool:
        """Read on to the end of the open value."""
        if self.form is PLAIN:
            done = self._close_common_field()
            if done is not None:
                return done
        ending = value_end(self, self.form, self.value_start)
        if not isinstance(ending, Ending):
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
            self._report_field(ending.code, f"Where the value of {self._key!r} ends is ambiguous: it holds {self.form.head} of its own.")
        if ending.code == "missing_value_end":
            self._report_field(ending.code, f"The value of {self._key!r} has no {self.form.tail}; it was read up to the end marker.")
        if ending.mixed:
            self._warn_mixed(tail)
        self._close_field(tail, resume)
        stray_to = ending.stray_to
        self._between(resume, behind_tail=stray_to == NOWHERE)
        if stray_to != NOWHERE:
            self._tolerant_to = stray_to
            if not ending.code:
                self._check_stray(stray_to)
        return True

    def _close_common_field(self) -> bool | None:
        """The common end of a short value: its first tail at the end of a line, no opener in it.

        False where such an end may still come, None where the value needs the rules.
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
        values = (self._key, text[start:tail], base + self._key_start, base + behind, base + start, base + tail, self._key_line, "plain", True)
        field = _tuple_new(Field, values)
        self.fields.append(field)
        if self.stream:
            self.events.append(field)
        self._between(behind, behind_tail=True)
        return True

    def _close_field(self, tail: int, resume: int) -> None:
        value = self.between(self.value_start, tail)
        if self.form.second_dialect:
            value = dedent(value, self._indent).strip()
        base = self.base
        field = Field(
            self._key,
            value,
            base + self._key_start,
            base + resume,
            base + self.value_start,
            base + tail,
            self._key_line,
            self.form.name,
            tail != resume,
        )
        self.fields.append(field)
        if self.stream:
            self.events.append(field)

    def _leave_value(self) -> None:
        form = self.form
        self._report_field(
            "unterminated_value",
            f"The value of {self._key!r} has no {form.tail} before the next field or the end.",
            f"Close it: `{self._key}:{form.head}…{form.tail}`.",
        )
        if form is ESCAPE:
            # Everything behind an ESCAPE that never closes may be quoted: none of it is run.
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
        """Signs without which no text to come can complete anything; none where any character may."""
        state, waiting = self.state, self.waiting
        if state == FIELDS:
            return _FIELD_SIGNS
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
        """Remember the column of the open field's key before its text goes."""
        if self.state == VALUE and not self._key_column:
            self._key_column = self.column(self._key_start)

    def _report_field(self, code: str, message: str, hint: str = "") -> None:
        self.note_key_place()
        self.report(code, message, hint, place=(self._key_line, self._key_column), key=self._key)

    # --- remarks ------------------------------------------------------------------------------------------------

    def _note_stray(self, upto: int) -> None:
        """Remember the first stray text before `upto`; it is reported with the next token."""
        if self._stray is None and upto > self.pos and (found := STRAY.search(self.text, max(self.pos, 0), upto)):
            at = found.start()
            self._stray = _shortened(self.text[at : at + _SHOWN]), (self.count_lines(at), self.column(at))

    def _check_stray(self, upto: int) -> None:
        """Between `pos` and `upto` there should be nothing but blanks and commas."""
        if self._stray is None and upto > self.pos and (found := STRAY.search(self.text, max(self.pos, 0), upto)):
            self._warn_ignored("stray_text", self.text[found.start() : upto], found.start())
        elif self._stray is not None:
            shown, place = self._stray
            self._stray = None
            self.report("stray_text", f"The text {shown!r} between the fields was ignored.", place=place)

    def _warn_ignored(self, code: str, text: str, at: int) -> None:
        what = "note" if code == "trailing_comment" else "text"
        where = "after a value" if code == "trailing_comment" else "between the fields"
        self.report(code, f"The {what} {_shortened(text)!r} {where} was ignored.", at=at)

    def _report_malformed(self, at: int) -> None:
        """The line of `at` has a delimiter, but is no field."""
        line_start = max(self.text.rfind("\n", max(self.pos, at - 1000, 0), at) + 1, self.pos, at - 1000, 0)
        self._check_stray(line_start)
        line = self.count_lines(at)
        if line == self._malformed_line:
            return
        self._malformed_line = line
        shown = _shortened(self.text[line_start : at + 3].strip())
        self.report("malformed_field", f"{shown!r} is no field: it needs a key, a colon, 「始」 and 「末」.", at=line_start)

    def _warn_fullwidth(self, sign: str, at: int) -> None:
        plain = ":" if sign == "：" else ","
        self.report("fullwidth_punctuation", f"The full-width {sign!r} was taken for {plain!r}.", at=at)

    def _warn_mixed(self, at: int) -> None:
        self.report("mixed_delimiters_used", f"{self.text[at : at + 3]!r} was taken for a delimiter of the second dialect.", at=at)


def _shortened(text: str) -> str:
    """The first line of `text`, shortened for a message."""
    return (text.splitlines() or [""])[0].rstrip()[:_SHOWN]


def dedent(value: str, indent: int) -> str:
    """Take up to `indent` leading blanks off every line but the first."""
    return re.sub(rf"\n[ \t]{{1,{indent}}}", "\n", value) if indent and "\n" in value else value
