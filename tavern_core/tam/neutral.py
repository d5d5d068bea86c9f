"""Making text harmless: what a tool answered is shown to the model, and can never be read as a call.

A zero-width space goes into every marker, delimiter, thought tag and code fence, and between the text and its
surroundings where an edge could be completed to one. The text stays readable, and is changed nowhere else.
"""

from __future__ import annotations

import re
from typing import Final

from tavern_core.tam.grammar import MARKER_REACH

GUARD: Final = "\u200b"
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


def _nested(signs: list[str]) -> str:
    """`signs` in a row, broken off anywhere by the end of the text."""
    pattern = ""
    for sign in reversed(signs):
        pattern = rf"{sign}(?:{_GAP}\Z|{pattern})" if pattern else sign
    return pattern


def _continuations(signs: list[str]) -> list[str]:
    """What may stand at the beginning of a text to continue `signs` begun before it."""
    return [_nested(signs[at:]) for at in range(1, len(signs))]


def _letters(word: str) -> list[str]:
    return [f"(?i:{re.escape(letter)})" for letter in word]


def _spaced(word: str) -> list[str]:
    """The signs of a marker; blanks may stand before each sign that is no letter inside a word."""
    signs = ["<", r"\|", r"\[", *_letters(word), r"\]", r"\|", ">"]
    inside = {at + 3 for at in range(1, len(word)) if "_" not in word[at - 1 : at + 1]}
    return [sign if at in inside or at == 0 else _GAP + sign for at, sign in enumerate(signs)]


_WORDS: Final = [
    _spaced("REQUEST_TOOL"),
    _spaced("END_TOOL"),
    ["<", *_letters("think"), ">"],
    ["<", *_letters("thinking"), ">"],
    ["<", "/", *_letters("think"), ">"],
    ["<", "/", *_letters("thinking"), ">"],
    ["「", "始", "」"],
    ["「", "末", "」"],
    ["「", "始", *"ESCAPE", "」"],
    ["「", "末", *"ESCAPE", "」"],
]
_CONTINUES: Final = re.compile(
    "|".join(dict.fromkeys(part for word in _WORDS for part in _continuations(word))) + "|[»«`~]|>>|<<"
)


def _broken(signs: list[str]) -> str:
    """`signs` begun and broken off by the end of the text."""
    pattern = ""
    for sign in reversed(signs[1:-1]):
        pattern = rf"(?:{sign}{pattern})?"
    return signs[0] + pattern


_BEGINS: Final = re.compile("(?:" + "|".join(_broken(word) for word in _WORDS) + rf"){_GAP}\Z|[»«`~]\Z|>>\Z|<<\Z")


def neutralise(text: str) -> str:
    """Text that no longer can be read as a call, in either dialect, wherever it is put.

    Linear in the length of the text; doing it twice changes nothing more.

    >>> neutralise("<|[END_TOOL]|>").replace(GUARD, "·")
    '<·|[END_TOOL]|>'
    """
    text = _LIVE.sub(lambda found: found[0] + GUARD, text)
    if _CONTINUES.match(text):
        text = GUARD + text
    if _begins(text):
        text += GUARD
    return text


def _begins(text: str) -> bool:
    """Whether the end of `text` could be the beginning of a marker, delimiter, tag or fence."""
    return _BEGINS.search(text, max(0, len(text) - MARKER_REACH)) is not None
