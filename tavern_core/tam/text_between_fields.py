"""The text between the fields of a block: comments, notes, and stray text.

Token by token, for everything except the common transition from one field to the next.
"""

from __future__ import annotations

import re

from tavern_core.model.message_translation import say
from tavern_core.tam.block_parsing import FIELDS, NOTE, VALUE, OpenBlock
from tavern_core.tam.document import Comment
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
    REACH,
    STRAY,
    TAIL,
    TOKEN,
    FieldHead,
    ValueForm,
    form_at,
    head_before,
    is_broken_opener,
)
from tavern_core.tam.value_end_detection import Undecided
from tavern_core.tam.window import NOWHERE
from tavern_core.tam.wording import WORDS

_SHOWN = 60


class BetweenFields(OpenBlock):
    """Reads everything except values."""

    __slots__ = (
        "_behind_tail", "_indent", "_key", "_key_column", "_key_line", "_key_start", "_line_start", "_malformed_line",
        "_note_code", "_note_place", "_scan", "_stray", "_tolerant_to", "waiting",
    )  # fmt: skip

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
        """Record that everything before `at` is understood; fields, comments or the end may follow."""
        self.state = FIELDS
        self.pos = self._scan = at
        self._behind_tail = behind_tail
        self._line_start = False
        self._stray = None
        self._tolerant_to = NOWHERE

    def _open(self, form: ValueForm, key: str, key_start: int, line: int, value_start: int) -> None:
        """Begin a value."""
        self.state = VALUE
        self.form = form
        self.value_start = value_start
        self._key, self._key_start, self._key_line, self._key_column = key, key_start, line, 0
        if form.second_dialect:
            self.second_dialect = True
            before = self.text[max(0, self._start - self.base, key_start - 257) : key_start]
            lead = before[before.rfind("\n") + 1 :]
            self._indent = len(lead) - len(lead.lstrip(" \t")) if "\n" in before else 0

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
            if answer is False:
                self._leave_behind()
            if answer is not None:
                return answer

    def _read_trailer(self) -> bool:
        """Read the rest of the line after a tail, where a comma and notes are allowed."""
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
                note = say(WORDS["note_behind"], note=_shortened(found[3]))
                self.report("trailing_comment", note, at=found.start(3))
            self.pos = self._scan = found.end()
            if not found[3]:
                break
        self._behind_tail = False
        return True

    def _take(self, found: re.Match[str]) -> bool | None:
        """Handle one token between fields. True: a step is done; False: more text is needed; None: it has no meaning."""
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
        words = (TAIL, ESCAPE.tail, ARROWS.tail)
        behind = at + next((len(word) for word in words if self.text.startswith(word, at)), 2)
        if at >= self._tolerant_to:
            self._report_malformed(at)
            self.pos = behind
        self._scan = behind
        return None

    def _open_field(self, form: ValueForm, at: int, head: FieldHead | None) -> None:
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
        """Handle text without another token."""
        if self.last:
            self.end_of_text()
            return True
        self._scan = max(self._scan, self.end - MARKER_REACH)
        self._leave_behind()
        return False

    def _leave_behind(self) -> None:
        """Leave text behind before more arrives.

        The key of a later field cannot reach back far, so earlier text is stray and is not scanned again.
        """
        reach_start = self.end - REACH
        if reach_start > self.pos and reach_start >= REACH:  # so large that the window will be shortened (`put_aside`)
            self._note_stray(reach_start, self.end)
            self.pos = reach_start

    def _begin_note(self, at: int, code: str) -> None:
        """Begin a comment line (no `code`), or a note that is ignored with warning `code`; both end with their line."""
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
            row = "note_behind" if self._note_code == "trailing_comment" else "note_between"
            self.report(self._note_code, say(WORDS[row], note=shown), place=self._note_place)
        self._between(end, behind_tail=False)
        return True

    def _note_stray(self, upto: int, end: int) -> None:
        """Remember the first stray text before `upto`, shown up to `end`; it is reported with the next token."""
        start = max(self.pos, self._tolerant_to, 0)
        if self._stray is None and upto > start and (found := STRAY.search(self.text, start, upto)):
            at = found.start()
            self._stray = _shortened(self.text[at : min(end, at + _SHOWN)]), (self.count_lines(at), self.column(at))

    def _check_stray(self, upto: int) -> None:
        """Check the text between `pos` and `upto`: only blanks and commas are allowed."""
        self._note_stray(upto, upto)
        if self._stray is not None:
            shown, place = self._stray
            self._stray = None
            self.report("stray_text", say(WORDS["text_between"], text=shown), place=place)

    def _report_malformed(self, at: int) -> None:
        """Report the line of `at`, which has a delimiter but is not a field."""
        line_start = max(self.text.rfind("\n", max(self.pos, at - 1000, 0), at) + 1, self.pos, at - 1000, 0)
        self._check_stray(line_start)
        line = self.count_lines(at)
        if line == self._malformed_line:
            return
        self._malformed_line = line
        shown = _shortened(self.text[line_start : at + 3].strip())
        self.report("malformed_field", say(WORDS["no_field"], line=shown), at=line_start)

    def _warn_fullwidth(self, sign: str, at: int) -> None:
        plain = ":" if sign == "：" else ","
        self.report("fullwidth_punctuation", say(WORDS["fullwidth"], sign=sign, plain=plain), at=at)

    def _warn_mixed(self, at: int) -> None:
        self.report("mixed_delimiters_used", say(WORDS["mixed"], sign=self.text[at : at + 3]), at=at)


def _shortened(text: str) -> str:
    """The first line of `text`, shortened for a message."""
    return (text.splitlines() or [""])[0].rstrip()[:_SHOWN]
