"""The current block: its beginning, its end, its problems, and recovery after an error.

    invalid value ----------------------------> SEEK --next start or end marker--> the block ends there
    too large, in a value --> OWN_TAIL --tail--> SEEK

Recovery never reads a quotation in one of its values as a separate block (TAM rule 6).
"""

from __future__ import annotations

import re

from tavern_core.model.message_translation import say
from tavern_core.model.text_call import TextProblem
from tavern_core.tam.document import Block, BlockStart, Comment, Event, Field
from tavern_core.tam.grammar import END, MARKER, MARKER_REACH, PLAIN, START, ValueForm
from tavern_core.tam.problems import PROBLEM_CODES, problem_of
from tavern_core.tam.window import NOWHERE, TextWindow
from tavern_core.tam.wording import WORDS

DEFAULT_MAX_BLOCK = 16 * 1024 * 1024
"""Characters in one block. A larger one is reported and skipped."""
MOST_ERRORS = 20
"""Maximum errors per code and block, and one warning of each code, so that a hostile block cannot fill the memory."""


_tuple_new = tuple.__new__  # a named tuple's own `__new__` costs three times as much

# States of the machine; `machine.py` has the diagram. Plain numbers, because every step compares them.
PROSE, THOUGHT, FENCE, FIELDS, VALUE, NOTE, OWN_TAIL, SEEK = range(8)


class OpenBlock(TextWindow):
    """A window with at most one open block.

    Args:
        max_block: limit of one block, in characters.
        stream: also collect events.
    """

    __slots__ = (
        "_comments", "_cut_text", "_depth", "_problems", "_seen", "_start", "_start_column", "_start_line", "blocks",
        "events", "fields", "form", "limit", "max_block", "no_more", "pos", "prose_from", "second_dialect", "spans",
        "state", "stream", "value_start",
    )  # fmt: skip

    def __init__(self, *, max_block: int, stream: bool) -> None:
        super().__init__()
        self.max_block = max(1, max_block)
        self.stream = stream
        self.state = PROSE
        self.pos = 0
        self.blocks: list[Block] = []
        self.events: list[Event] = []
        self.spans: list[tuple[int, int]] = []
        self.no_more = False
        self.prose_from = 0
        self.limit = 0
        self.fields: list[Field] = []
        self.second_dialect = False
        self.form: ValueForm = PLAIN
        self.value_start = 0
        self._comments: list[Comment] = []
        self._problems: list[TextProblem] = []
        self._seen: dict[str, int] = {}
        self._start = 0  # absolute, unlike every other offset here
        self._start_line = self._start_column = 0
        self._cut_text: str | None = None
        self._depth = 0

    def shift(self, by: int) -> None:
        super().shift(by)
        self.pos += by
        self.prose_from += by
        self.limit += by
        self.value_start += by

    def report(
        self,
        code: str,
        message: str,
        hint: str = "",
        *,
        at: int = 0,
        place: tuple[int, int] | None = None,
        key: str = "",
    ) -> None:
        """Record a problem of the open block, at offset `at` or at `place` (line, column)."""
        count = self._seen.get(code, 0)
        self._seen[code] = count + 1
        if count >= (MOST_ERRORS if PROBLEM_CODES[code].severity == "error" else 1):
            return
        place = place or (self.count_lines(at), self.column(at))
        problem = problem_of(code, message, hint, block=len(self.blocks) + 1, place=place, key=key)
        self._problems.append(problem)
        if self.stream:
            self.events.append(problem)

    def add_comment(self, comment: Comment) -> None:
        self._comments.append(comment)
        if self.stream:
            self.events.append(comment)

    # --- beginning and end --------------------------------------------------------------------------------------

    def begin_block(self, start: int, end: int) -> None:
        """Begin a block with the marker `text[start:end]`."""
        self.done, self.kept = [], []
        self.limit = start + self.max_block
        self._start = self.base + start
        self._start_line, self._start_column = self.count_lines(start), self.column(start)
        self.fields, self._comments, self._problems, self._seen = [], [], [], {}
        self.second_dialect = False
        self._cut_text = None
        self.state = FIELDS
        self.pos = end
        if self.stream:
            values = (len(self.blocks) + 1, self._start, self._start_line)
            self.events.append(_tuple_new(BlockStart, values))
        if end - start != len(START) or not self.text.startswith(START, start):
            self._report_spelling(start, end, START)

    def end_block(self, end: int, *, closed: bool) -> None:
        """End the open block at `end`; prose begins."""
        values = (
            len(self.blocks) + 1,
            self._start,
            self.base + end,
            self._start_line,
            self._start_column,
            "tam2" if self.second_dialect else "tam1",
            tuple(self.fields),
            tuple(self._comments),
            tuple(self._problems),
            self._written(end) if self._cut_text is None else self._cut_text,
            closed,
        )
        block = _tuple_new(Block, values)
        self.done, self.kept = [], []
        self.blocks.append(block)
        if self.stream:
            self.events.append(block)
        self.state = PROSE
        self.pos = self.prose_from = end

    def _written(self, end: int) -> str:
        """The block's text up to `end`, at most its limit."""
        if self.done or self.kept:
            text = "".join(self.done) + "".join(self.kept) + self.text[: max(end, 0)]
            return text[: self.max_block]
        return self.text[self._start - self.base : min(end, self.limit)]

    def _report_spelling(self, start: int, end: int, marker: str) -> None:
        written = self.text[start:end]
        self.report(
            "nonstandard_marker",
            say(WORDS["spelling"], written=written, marker=marker),
            say(WORDS["write_marker"], marker=marker),
            at=start,
        )

    def at_marker(self, found: re.Match[str]) -> None:
        """Handle a marker outside of a value."""
        start, end = found.span()
        if found[1]:
            self.report(
                "unterminated_block",
                say(WORDS["no_end_before_next"], line=self._start_line, hidden=self._hidden()),
                at=start,
            )
            self.end_block(start, closed=False)
            self.begin_block(start, end)
            return
        if end - start != len(END) or not self.text.startswith(END, start):
            self._report_spelling(start, end, END)
        self.end_block(end, closed=True)

    def end_of_text(self) -> None:
        """Handle the end of the text inside a block."""
        self.report(
            "unterminated_block",
            say(WORDS["text_ends"], line=self._start_line, hidden=self._hidden()),
            at=self.end,
        )
        self.end_block(self.end, closed=False)

    def _hidden(self) -> str:
        """A note about an end marker inside a comment."""
        for comment in self._comments:
            found = MARKER.search(comment.text)
            if found and not found[1]:
                return say(WORDS["hidden_end"], line=comment.line)
        return ""

    # --- recovery ---------------------------------------------------------------------------------------------

    def give_up_size(self) -> None:
        """The block reaches its limit: report it, keep its beginning, and continue without storing text."""
        limit = self.end
        self.report(
            "block_too_large",
            say(WORDS["block_too_long"], line=self._start_line, most=self.max_block),
            place=(self._start_line, self._start_column),
        )
        if self.state == VALUE:
            form, value = self.form, self.between(self.value_start, limit)
            self._depth = max(1, value.count(form.head) - value.count(form.tail) + 1)
            read = max(value.rfind(form.head) + len(form.head), value.rfind(form.tail) + len(form.tail))
            self.pos = max(limit - len(value), limit - len(form.head) + 1)
            if read >= len(form.tail):
                self.pos = max(self.pos, limit - len(value) + read)
            self.state = OWN_TAIL
        else:
            self.pos = max(self.pos, limit - MARKER_REACH) if self.state == FIELDS else limit
            self.state = SEEK
        self._cut_text = self._written(limit)
        self.done, self.kept = [], []

    def skip_own_tail(self) -> bool:
        """After `block_too_large` in a value: continue to that value's own tail, counting nested ones."""
        form, text, at = self.form, self.text, self.pos
        while (tail := text.find(form.tail, at)) >= 0:
            self._depth += text.count(form.head, at, tail) - 1
            at = tail + len(form.tail)
            if self._depth <= 0:
                self.pos, self.state = at, SEEK
                return True
        head = text.rfind(form.head, at)
        if head >= 0:
            self._depth += text.count(form.head, at)
            at = head + len(form.head)
        self.pos = max(at, len(text) - len(form.head) + 1)
        if self.no_more:
            self.end_block(len(text), closed=False)
        return False

    def skip_to_marker(self) -> bool:
        """After an error, the block ends at the next marker of either kind."""
        at = self.next_marker("any", self.pos)
        found = MARKER.match(self.text, at) if at != NOWHERE else None
        if found is None:
            if self.no_more:
                self.end_block(self.end, closed=False)
                return True
            self.pos = max(self.pos, self.end - MARKER_REACH)
            return False
        if found[1]:
            self.end_block(at, closed=False)
            self.begin_block(at, found.end())
        else:
            self.end_block(found.end(), closed=True)
        return True

    def forget(self, cut: int) -> None:
        """Shorten the window while an invalid block is skipped; keep only as much text as the limit allows."""
        if cut <= 0:
            return
        begin = self._start - self.base
        if self._cut_text is None and begin < cut:
            self.done += self.kept
            self.kept = []
            self.done.append(self.text[max(begin, 0) : cut])
            if cut - begin >= self.max_block:
                self._cut_text = "".join(self.done)[: self.max_block]
                self.done = []
        self.drop(cut)
