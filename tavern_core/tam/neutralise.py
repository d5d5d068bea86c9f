"""Making text harmless: a model can read the output of a tool, but it can never be parsed as a call.

A zero-width space goes into every marker, delimiter, thought tag and code fence, and at the edges of the text where
adjacent text could complete one. The text stays readable and is otherwise unchanged.
"""

from __future__ import annotations

import re
from typing import Any, Final

from tavern_core.model.plain_data import with_texts
from tavern_core.model.safe_printing import seen
from tavern_core.tam.grammar import (
    ARROW_HEAD,
    ARROW_TAIL,
    END,
    ESCAPE_HEAD,
    ESCAPE_TAIL,
    HEAD,
    MARKER_REACH,
    START,
    TAIL,
)

GUARD: Final = "\u200b"
VISIBLE: Final = "·"
_GAP = r"[ \t\u3000\xa0]{0,16}"
_LIVE: Final = re.compile(
    rf"<(?={_GAP}\|)"  # a marker, whole or begun
    rf"|<(?=/?(?i:thin))"
    rf"|(?:(?<=\|)|(?<=\|[ \t\u3000\xa0]))(?={_GAP}\[{_GAP}(?i:request|end){_GAP}_)"  # ... or its rest
    r"|「(?=[始末])"
    r"|»»(?=»)|««(?=«)|>>(?=>)|<<(?=<)"
    r"|^[ \t]*(?:``(?=`)|~~(?=~))",
    re.MULTILINE,
)


_WORDS: Final = (
    START.lower(),
    END.lower(),
    *("<think>", "<thinking>", "</think>", "</thinking>"),
    *(word.lower() for word in (HEAD, TAIL, ESCAPE_HEAD, ESCAPE_TAIL)),
    *(ARROW_HEAD, ARROW_TAIL, "```", "~~~"),
)
_ENDINGS: Final = (*dict.fromkeys(word[at:] for word in _WORDS for at in range(1, len(word))), ">>", "<<")
_BEGINNINGS: Final = (*dict.fromkeys(word[:at] for word in _WORDS for at in range(1, len(word))), ">>")
_LONGEST: Final = max(map(len, _WORDS))
_BLANKS: Final = str.maketrans("", "", " \t\u3000\xa0")


def neutralise_json(value: Any) -> Any:
    """Plain JSON from another system, such as a schema, as a model may read it: no text in it can be parsed as a call, nor holds hidden signs.

    Names and values that hold nothing of the kind stay as they are; quotes stand around each, so edges need no guard.
    """
    return with_texts(value, lambda text: neutralise(seen(text, lines=True), edges=False))


def foreign_prose(text: str) -> str:
    """A text of another system for people and models that cannot be read as a call.

    It is shown in quotes or lines of the host, so its edges need no guard.
    """
    return neutralise(seen(text, lines=True), edges=False, guard=VISIBLE)


def _continues(text: str) -> bool:
    """Whether the beginning of `text` could complete a word that begins before it. Blanks do not count."""
    begin = text[:MARKER_REACH].translate(_BLANKS).lower()[:_LONGEST]
    return begin.startswith(_ENDINGS) or (
        len(begin) < _LONGEST and bool(begin) and any(ending.startswith(begin) for ending in _ENDINGS)
    )


def _begins(text: str) -> bool:
    """Whether the end of `text` could be the beginning of a word. Blanks do not count."""
    return text[-MARKER_REACH:].translate(_BLANKS).lower().endswith(_BEGINNINGS)


def neutralise(text: str, *, edges: bool = True, guard: str = GUARD) -> str:
    """Text that cannot be parsed as a call, in either dialect, wherever it is inserted.

    Linear in the length of the text; a second pass changes nothing.

    Args:
        text: anything.
        edges: whether unknown text will directly precede or follow it. Without it, only the inside is
            changed, and short names stay: for a complete line, not for a piece of one.
        guard: what goes in; `VISIBLE` for texts from which signs that are not seen are taken out later.

    >>> neutralise("<|[END_TOOL]|>").replace(GUARD, "·")
    '<·|·[END_TOOL]|>'
    """
    text = _LIVE.sub(lambda found: found[0] + guard, text)
    if edges and _continues(text):
        text = guard + text
    if edges and _begins(text):
        text += guard
    return text
