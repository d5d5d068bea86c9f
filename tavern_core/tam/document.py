"""The result of the scanner: blocks with their fields and comments, and the prose around them.

Plain tuples, because a dense text makes one value per field; they are immutable, too. Offsets count characters
(code points) from the beginning of the text, lines from 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar, Literal, NamedTuple, TypeAlias

from tavern_core.model.text_call import TextProblem
from tavern_core.tam.grammar import THINKING, ThoughtPatterns

Dialect = Literal["tam1", "tam2"]


class Field(NamedTuple):
    """A field `key:「始」value「末」`.

    Args:
        key: as spelled, trimmed; empty in an invalid field without one.
        value: verbatim; in the second dialect dedented by the field's indent and trimmed.
        start, end: the whole field, from the key to the end of the tail.
        value_start, value_end: the value between its delimiters, before trimming.
        line: of the key.
        form: `plain` 「始」, `escape` 「始ESCAPE」, `arrows` »»» or `angles` >>>.
        closed: False if the tail was missing and the end marker replaced it (second dialect).
    """

    key: str
    value: str
    start: int
    end: int
    value_start: int
    value_end: int
    line: int
    form: str
    closed: bool = True

    @property
    def span(self) -> tuple[int, int]:
        return self.start, self.end


class Comment(NamedTuple):
    """A `# …` line between fields, kept for display."""

    text: str
    start: int
    line: int


class Block(NamedTuple):
    """From a start marker to the end marker (or to where an invalid block was abandoned).

    Args:
        number: from 1, in order of appearance.
        start, end: offsets, both markers included.
        line, column: of the start marker.
        dialect: `tam2` as soon as one value is written in the second dialect.
        text: as written; cut at the limit if the block is too large.
        closed: whether its end marker was found.
    """

    number: int
    start: int
    end: int
    line: int
    column: int
    dialect: Dialect
    fields: tuple[Field, ...]
    comments: tuple[Comment, ...]
    problems: tuple[TextProblem, ...]
    text: str
    closed: bool

    @property
    def span(self) -> tuple[int, int]:
        return self.start, self.end

    @property
    def ok(self) -> bool:
        """Whether the block may be bound: it has no errors."""
        return not any(problem.severity == "error" for problem in self.problems)

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column (from 1) of an offset inside the block."""
        inside = max(0, offset - self.start)
        line_begin = self.text.rfind("\n", 0, inside)
        if line_begin < 0:
            return self.line, self.column + inside
        return self.line + self.text.count("\n", 0, inside), inside - line_begin


class Text(NamedTuple):
    """Event: a piece of prose. At most one line, so the events do not depend on how the text arrives.

    `thought` is True inside `<think>…</think>`, the tags included.
    """

    text: str
    start: int
    thought: bool = False


class BlockStart(NamedTuple):
    """Event: a block has begun; its fields, comments and problems follow, then the `Block` itself."""

    number: int
    start: int
    line: int


Event: TypeAlias = Text | BlockStart | Field | Comment | TextProblem | Block


class CutSpans:
    """Spans of a text that are only cut out on request, because few callers read the prose.

    Args:
        text: the whole text.
        spans: start and end of each span.
    """

    __slots__ = ("_spans", "_text")

    def __init__(self, text: str, spans: Iterable[tuple[int, int]]) -> None:
        self._text, self._spans = text, spans

    def __iter__(self) -> Iterator[str]:
        text = self._text
        return (text[start:end] for start, end in self._spans)


class Document:
    """The parsed text.

    `blocks` in order of appearance, `problems` of all blocks, `prose` the text outside the blocks (thoughts included).
    Two documents are equal when these three are.
    """

    __slots__ = ("_prose", "_prose_parts", "blocks", "problems", "thoughts")

    def __init__(
        self, blocks: Iterable[Block] = (), prose: Iterable[str] = (), thoughts: ThoughtPatterns = THINKING
    ) -> None:
        self.blocks: tuple[Block, ...] = tuple(blocks)
        self.problems: tuple[TextProblem, ...] = tuple(problem for block in self.blocks for problem in block.problems)
        self._prose_parts: Iterable[str] = prose
        self.thoughts = thoughts
        self._prose: str | None = None

    @property
    def prose(self) -> str:
        if self._prose is None:
            self._prose, self._prose_parts = "".join(self._prose_parts), ()
        return self._prose

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Document):
            return NotImplemented
        return self.blocks == other.blocks and self.problems == other.problems and self.prose == other.prose

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Document(blocks={len(self.blocks)}, problems={len(self.problems)})"
