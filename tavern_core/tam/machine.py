"""The state machine that reads blocks out of text.

    PROSE --start marker--> FIELDS --opener--> VALUE --tail--> FIELDS --end marker--> PROSE
      |  ^                   |  ^  `---start marker: unterminated_block, a new block---'
      v  |                   v  |
    THOUGHT, FENCE           NOTE (a # line, or a note after a value)

    after a value that never ended, or a block that grew too large:   OWN_TAIL --> SEEK --> PROSE or a new block

A step is taken only if no further text could change it, so the steps, and the events they emit, are the same however
the text is split. `parse` is this machine with the whole text in its window.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from tavern_core.tam.block_parsing import DEFAULT_MAX_BLOCK, FENCE, FIELDS, NOTE, OWN_TAIL, PROSE, SEEK, THOUGHT, VALUE
from tavern_core.tam.document import CutSpans, Document, Event, Text
from tavern_core.tam.fields import FieldReader
from tavern_core.tam.grammar import (
    BROKEN_FENCE,
    LAST_FENCE,
    MARKER_REACH,
    OPEN_FENCE,
    START,
    THINKING,
    ThoughtPatterns,
    closing_fence,
    named_thoughts,
)

_tuple_new = tuple.__new__


class Machine(FieldReader):
    """Reads `text`; see the diagram above. Use `parse` or `Scanner`.

    Args:
        max_block: limit of one block, in characters.
        stream: emit events, and collect the prose as it passes; without it, only its position.
        ignore_fenced: blocks and thoughts in Markdown code fences count as text.
    """

    __slots__ = (
        "_depth", "_fence", "_ignore_fenced", "_known_fence", "_line_parts", "_thought", "_thoughts", "prose",
    )  # fmt: skip

    def __init__(
        self,
        *,
        max_block: int = DEFAULT_MAX_BLOCK,
        stream: bool = False,
        ignore_fenced: bool = False,
        thoughts: ThoughtPatterns = THINKING,
    ) -> None:
        super().__init__(max_block=max_block, stream=stream)
        self.prose: list[str] = []
        self._ignore_fenced = ignore_fenced
        self._line_parts: list[str] = []
        self._thoughts, self._thought, self._depth = thoughts, "think", 0
        self._fence = "```"
        self._known_fence: tuple[re.Match[str] | None, tuple[int, int, bool]] = (None, (-1, -1, False))

    def run(self) -> None:
        """Take every step that is certain."""
        no_more = self.no_more
        while True:
            state = self.state
            size = self.end = len(self.text)
            in_block = FIELDS <= state <= NOTE
            if in_block and self.limit < size:
                self.end = self.limit
            self.last = no_more and self.end == size
            if _STEPS[state](self):
                continue
            if not (in_block and self.limit < size and FIELDS <= self.state <= NOTE):
                return
            self.give_up_size()

    # --- prose --------------------------------------------------------------------------------------------------

    def _read_prose(self) -> bool:
        if not (self.stream or self._ignore_fenced):
            self._read_common_blocks()
        text, at = self.text, self.pos
        fence = self._next_fence(at) if self._ignore_fenced else None
        while True:
            at = text.find("<", at)
            found = self._thoughts.may_open.search(text, at) if at >= 0 else None
            if fence and (found is None or fence.start() < found.start()):
                return self._at_fence(fence)
            if found is None:
                return self._end_of_prose()
            at = found.start()
            opening = self._thoughts.opening.match(text, at)
            if opening:
                self._leave_prose(opening)
                return True
            if not self.no_more and self._thoughts.broken.match(text, at):
                return self._end_of_prose()
            at += 1

    def _read_common_blocks(self) -> None:
        """Read well-formed blocks of the first dialect as long as they follow; unusual ones are left to the steps."""
        text = self.text
        while True:
            start = text.find("<", self.pos)
            if start < 0 or not text.startswith(START, start) or not self.read_common_block(start):
                return

    def _leave_prose(self, opening: re.Match[str]) -> None:
        """Begin a block or a thought."""
        start, end = opening.span()
        if opening[1]:
            self._pass_prose(start, whole=True)
            self.begin_block(start, end)
            return
        if self.stream:
            self._pass_prose(start, whole=True)
        self._thought, self._depth = opening[2].lower(), 1
        self.state, self.pos = THOUGHT, end

    def _end_of_prose(self) -> bool:
        """Handle visible text in which nothing begins, except perhaps at its end."""
        text, hold = self.text, len(self.text)
        if not self.no_more:
            bracket = text.rfind("<", max(self.pos, hold - MARKER_REACH))
            if bracket >= 0 and self._thoughts.broken.match(text, bracket):
                hold = bracket
        return self._hold_prose(hold)

    def _hold_prose(self, hold: int) -> bool:
        """Emit the prose before `hold` and wait for more."""
        self.pos = hold
        self._pass_prose(hold, whole=self.no_more)
        return False

    def _read_thought(self) -> bool:
        for tag in self._thoughts.tags[self._thought].finditer(self.text, self.pos):
            self.pos = tag.end()
            self._depth += -1 if tag[1] else 1
            if not self._depth:
                if self.stream:
                    self._pass_prose(self.pos, whole=True)
                self.state = PROSE
                return True
        hold = len(self.text)
        if not self.no_more:
            bracket = self.text.rfind("<", max(self.pos, hold - MARKER_REACH))
            if bracket >= 0 and ">" not in self.text[bracket:]:
                hold = bracket  # an incomplete tag
        self.pos = max(self.pos, hold)
        self._pass_prose(self.pos, whole=self.no_more)
        return False

    def _pass_prose(self, upto: int, *, whole: bool) -> None:
        """Emit the prose before `upto`; `whole`: its last line ends here because something else begins."""
        begin = self.prose_from
        if not self.stream:
            if whole and upto > begin:
                self.spans.append((begin, upto))
                self.prose_from = upto
            return
        if begin == upto and not self._line_parts:
            return
        self.prose_from = upto
        segment, at, thought = self.text[begin:upto], 0, self.state == THOUGHT
        while (line_end := segment.find("\n", at) + 1) > 0:
            self._emit(segment[at:line_end], self.base + begin + line_end, thought)
            at = line_end
        if at < len(segment):
            self._line_parts.append(segment[at:])
        if whole and self._line_parts:
            self._emit("", self.base + upto, thought)

    def pass_piece(self, piece: str) -> list[Event]:
        """Emit a piece of prose in which nothing can begin. The window must be empty."""
        self.base += len(piece)
        at = piece.find("\n") + 1
        if not piece:
            return []
        if not at:
            self._line_parts.append(piece)
            self._break -= len(piece)
            return []
        events: list[Event] = []
        begin, parts = 0, self._line_parts
        offset = self.base - len(piece)
        while at:
            line = piece[begin:at]
            if parts:
                parts.append(line)
                line = "".join(parts)
                parts.clear()
            self.prose.append(line)
            events.append(_tuple_new(Text, (line, offset + at - len(line), False)))
            self.line += 1
            begin, at = at, piece.find("\n", at) + 1
        if begin < len(piece):
            parts.append(piece[begin:])
        self._break = begin - len(piece) - 1
        return events

    def _emit(self, rest: str, end: int, thought: bool) -> None:
        line = rest
        if self._line_parts:
            line = "".join(self._line_parts) + rest
            self._line_parts.clear()
        self.prose.append(line)
        self.events.append(_tuple_new(Text, (line, end - len(line), thought)))

    # --- fences -------------------------------------------------------------------------------------------------

    def _next_fence(self, at: int) -> re.Match[str] | None:
        """The next opening fence, or the end of the text if one may be incomplete there."""
        known, searched_to = self._known_fence
        now = (self.base, len(self.text), self.no_more)
        if searched_to == now and (known is None or known.start() >= at):
            return known
        fence = (LAST_FENCE if self.no_more else OPEN_FENCE).search(self.text, at)
        if fence is None and not self.no_more:
            fence = BROKEN_FENCE.search(self.text, max(at, len(self.text) - 600))
        self._known_fence = (fence, now)
        return fence

    def _at_fence(self, fence: re.Match[str]) -> bool:
        sign = next((sign for sign in fence.groups() if sign), "")
        if not sign or (fence.end() == len(self.text) and not self.no_more):
            return self._hold_prose(fence.start())
        self._fence = sign
        self.pos = fence.end()
        self.state = FENCE
        return True

    def _read_fence(self) -> bool:
        for found in closing_fence(self._fence).finditer(self.text, self.pos):
            if found.end() < len(self.text) or self.no_more:
                self.pos = found.end()
                self.state = PROSE
                return True
        line_start = self.text.rfind("\n", self.pos) + 1
        self.pos = len(self.text) if self.no_more else max(self.pos, line_start)
        self._pass_prose(self.pos, whole=self.no_more)
        return False


_STEPS: Final[dict[int, Callable[[Machine], bool]]] = {
    PROSE: Machine._read_prose,
    THOUGHT: Machine._read_thought,
    FENCE: Machine._read_fence,
    FIELDS: Machine.read_fields,
    VALUE: Machine.read_value,
    NOTE: Machine.read_note,
    OWN_TAIL: Machine.skip_own_tail,
    SEEK: Machine.skip_to_marker,
}


def parse(
    text: str, *, ignore_fenced: bool = False, max_block: int = DEFAULT_MAX_BLOCK, thoughts: Iterable[str] = ()
) -> Document:
    """Read every block out of `text`. Never raises on any text; time is linear in its length.

    Args:
        text: the text of a model, a script or a person.
        ignore_fenced: ignore blocks in Markdown code fences.
        max_block: maximum characters of one block.
        thoughts: further names of tags that hide their content, besides ``think`` and ``thinking``.

    Raises:
        UsageError: `thoughts` holds an invalid name of a tag (USAGE).

    >>> document = parse("Fine. <|[REQUEST_TOOL]|>\\ncommand:「始」text:count「末」\\n<|[END_TOOL]|>")
    >>> document.blocks[0].fields[0].value
    'text:count'
    """
    hidden = named_thoughts(thoughts)
    machine = Machine(max_block=max_block, ignore_fenced=ignore_fenced, thoughts=hidden)
    machine.text = text
    machine.no_more = True
    machine.run()
    if not machine.blocks:
        return Document((), (text,), hidden)
    return Document(machine.blocks, CutSpans(text, machine.spans), hidden)
