"""The tokens of the text protocol: markers, delimiters, keys, and their context.

Facts about characters only; their meaning per state is in `machine.py`. Everything here looks a bounded distance
ahead and behind (`REACH` characters), because the scanner must decide from a window of an endless stream:

    marker        < | [ REQUEST_TOOL ] | >      any case, up to 16 blanks between the signs
    key           1-128 letters (any script), digits, _ - . or inner blanks
    colon         `:` or `：`, up to 256 blanks and line breaks on either side
    boundary      what must follow the tail of a value (TAM rule 5)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from tavern_core.errors import UsageError
from tavern_core.frozen_dataclass import dataclass

START: Final = "<|[REQUEST_TOOL]|>"
END: Final = "<|[END_TOOL]|>"
HEAD: Final = "「始」"
TAIL: Final = "「末」"
ESCAPE_HEAD: Final = "「始ESCAPE」"
ESCAPE_TAIL: Final = "「末ESCAPE」"
ARROW_HEAD: Final = "»»»"
ARROW_TAIL: Final = "«««"
ANGLE_HEAD: Final = ">>>"
ANGLE_TAIL: Final = "<<<"

MAX_KEY: Final = 128
REACH: Final = 1600
"""No decision depends on more than this many characters before or after its place."""

BLANK: Final = r"[ \t\u3000\xa0]"
SPACE: Final = r"[ \t\u3000\xa0\r\n]"
# Scripts whose words are written with combining signs that `\w` leaves out; whole blocks, because a sign of such a
# block can only occur in a word: combining Latin, Hebrew, Arabic, Indic, Thai, Lao, Tibetan, Burmese, Khmer, kana voicing.
_SIGNS = (
    r"\u0300-\u036f\u0483-\u0489\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u06d6-\u06ed\u0900-\u0fff\u1000-\u109f"
    r"\u1780-\u17ff\u200c\u200d\u20d0-\u20f0\u302a-\u302f\u3099\u309a\ufe20-\ufe2f"
)
KEY_CHAR: Final = rf"[\w.\-{_SIGNS}]"
_KEY_RUN = rf"{KEY_CHAR}[\w.\-{_SIGNS} \t\u3000\xa0]"
_GAP = BLANK + "{0,16}+"


@dataclass(frozen=True, slots=True)
class ValueForm:
    """A way to write a value: its delimiters and which openers count as a field inside it.

    Args:
        name: `plain`, `escape`, `arrows` or `angles`; what `Field.form` says.
        other_tail: the tail of the sister form of the second dialect, accepted if its own is missing.
        heads: the openers that, at a line start inside such a value, show that its own tail is missing. A `>>>` is
            not one in a `»»»` value: Python sessions are common in values.
    """

    name: str
    head: str
    tail: str
    other_tail: str
    heads: tuple[str, ...]
    second_dialect: bool = False


PLAIN: Final = ValueForm("plain", HEAD, TAIL, "", (HEAD, ESCAPE_HEAD))
ESCAPE: Final = ValueForm("escape", ESCAPE_HEAD, ESCAPE_TAIL, "", ())
ARROWS: Final = ValueForm("arrows", ARROW_HEAD, ARROW_TAIL, ANGLE_TAIL, (ARROW_HEAD,), True)
ANGLES: Final = ValueForm("angles", ANGLE_HEAD, ANGLE_TAIL, ARROW_TAIL, (ARROW_HEAD, ANGLE_HEAD), True)
HEADS_IN: Final = {"plain": re.compile("「始"), "arrows": re.compile("»»»"), "angles": re.compile("»»»|>>>")}
"""The first characters of an opener that counts inside a value, per form."""
FORMS: Final = {form.head: form for form in (PLAIN, ESCAPE, ARROWS, ANGLES)}


def _spelled(word: str) -> str:
    """A regular expression for a marker word in any case with blanks around its underscore."""
    return _GAP.join(f"(?i:{part})" for part in re.split("(_)", word))


def _marker(words: str) -> str:
    return rf"<{_GAP}\|{_GAP}\[{_GAP}(?:{words}){_GAP}\]{_GAP}\|{_GAP}>"


_START, _END = _spelled("REQUEST_TOOL"), _spelled("END_TOOL")


def _beginnings(signs: list[str]) -> str:
    """A regular expression for `signs` cut off anywhere by the end of the text."""
    pattern = r"\Z"
    for sign in reversed(signs[1:]):
        pattern = rf"(?:\Z|{sign}{pattern})"
    return signs[0] + pattern


def _marker_signs(word: str) -> list[str]:
    signs = ["<", r"\|", r"\[", *(f"(?i:{letter})" for letter in word), r"\]", r"\|", ">"]
    blank_after = {
        0,
        1,
        2,
        len(signs) - 4,
        len(signs) - 3,
        len(signs) - 2,
        *(i + 3 + d for i, c in enumerate(word) if c == "_" for d in (-1, 0)),
    }
    return [sign + (_GAP if at in blank_after else "") for at, sign in enumerate(signs)]


_BROKEN_START = _beginnings(_marker_signs("REQUEST_TOOL"))
_BROKEN_END = _beginnings(_marker_signs("END_TOOL"))
_ATTRIBUTES = rf"(?:{SPACE}[^<>]{{0,200}}+)?+"

MARKER: Final = re.compile(_marker(f"({_START})|{_END}"))
"""A start marker (group 1 is set) or an end marker, standard or not."""
BROKEN_MARKER: Final = re.compile(f"{_BROKEN_START}|{_BROKEN_END}")
"""The beginning of a marker, cut off by the end of the text."""


_TAG_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


class ThoughtPatterns(NamedTuple):
    """The patterns for the tags of thoughts, for one set of names."""

    may_open: re.Pattern[str]
    """The possible beginnings of a block or a thought; fast to search, then `opening` decides."""
    opening: re.Pattern[str]
    """A start marker (group 1 is set) or the tag that begins a thought (its name is group 2)."""
    broken: re.Pattern[str]
    """The beginning of one of these, cut off by the end of the text."""
    tags: Mapping[str, re.Pattern[str]]
    """Name → the start or end of a thought in a thought of the same name; group 1 is set for an end. `<think/>` is neither."""


@lru_cache(maxsize=64)
def thoughts(more: tuple[str, ...] = ()) -> ThoughtPatterns:
    """The tags `<think>`, `<thinking>` and those of further names.

    Raises:
        UsageError: an invalid name; valid is a letter, then up to 63 letters, digits, ``-`` and ``_`` (USAGE).
    """
    for name in more:
        if not isinstance(name, str) or _TAG_NAME.fullmatch(name) is None:
            raise UsageError(
                f"{name!r:.80} is not the name of a tag", hint="a letter, then letters, digits, - and _: reasoning"
            )
    names = sorted({"think", "thinking", *(name.lower() for name in more)}, key=lambda name: (-len(name), name))
    begun = "|".join(sorted({name[:3] for name in names}))
    broken = "|".join(
        _beginnings([f"<{_GAP}", *(f"(?i:{re.escape(sign)})" for sign in name), _ATTRIBUTES, ">"]) for name in names
    )
    return ThoughtPatterns(
        re.compile(rf"<{_GAP}(?:\||(?i:{begun}))"),
        re.compile(rf"({_marker(_START)})|<{_GAP}((?i:{'|'.join(names)})){_ATTRIBUTES}(?<!/)>"),
        re.compile(f"{_BROKEN_START}|{broken}"),
        {name: re.compile(rf"<{_GAP}(/?){_GAP}(?i:{name}){_ATTRIBUTES}(?<!/)>") for name in names},
    )


THINKING: Final = thoughts()
"""The default tags of thoughts."""


def named_thoughts(names: Iterable[str]) -> ThoughtPatterns:
    """`thoughts` for the argument of a caller; raises as it does."""
    if isinstance(names, str):
        raise UsageError(
            f"thoughts= takes a list of names, got the text {names!r:.80}", hint=f"thoughts=[{names!r:.80}]"
        )
    return thoughts(tuple(names)) if names else THINKING


MARKER_REACH: Final = 300
_INFO = r"(?:(`{3,64}+)[^`\r\n]{0,200}+|(~{3,64}+)[^\r\n]{0,200}+)"
OPEN_FENCE: Final = re.compile(rf"^[ \t]{{0,256}}+{_INFO}(?=[\r\n])", re.MULTILINE)
"""The opening line of a Markdown code fence. Back-ticks with more of them on the line are inline code."""
LAST_FENCE: Final = re.compile(rf"^[ \t]{{0,256}}+{_INFO}(?=[\r\n]|\Z)", re.MULTILINE)
BROKEN_FENCE: Final = re.compile(rf"^[ \t]{{0,256}}+(?:`{{1,2}}|~{{1,2}}|{_INFO})?\Z", re.MULTILINE)


def closing_fence(sign: str) -> re.Pattern[str]:
    """The line that closes a fence which `sign` opened: as many of its signs, or more."""
    return re.compile(rf"^[ \t]{{0,256}}+{re.escape(sign[0])}{{{len(sign)},}}+[ \t\r]*$", re.MULTILINE)


_COLON = rf"{SPACE}{{0,256}}+[:：]{SPACE}{{0,256}}+"
_NOTE = r"(?:\([^()（）「」<>\r\n]{0,200}\)|（[^()（）「」<>\r\n]{0,200}）)"
NOTES: Final = re.compile(rf"{BLANK}{{0,256}}+(?:{_NOTE}{BLANK}{{0,256}}+){{0,8}}+")
"""Blanks and notes in brackets after a tail."""
BROKEN_NOTE: Final = re.compile(r"[(（][^()（）「」<>\r\n]{0,200}+\Z")
FIELD: Final = re.compile(rf"{_KEY_RUN}{{0,127}}+{_COLON}(?:「始(?:ESCAPE)?」|»»»|>>>)")
_BROKEN_OPENER = r"(?:\Z|「(?:\Z|始(?:\Z|E(?:\Z|S(?:\Z|C(?:\Z|A(?:\Z|P(?:\Z|E\Z)))))))|»{1,2}\Z|>{1,2}\Z)"
BROKEN_FIELD: Final = re.compile(rf"{_KEY_RUN}{{0,127}}+{SPACE}{{0,256}}+(?:\Z|[:：]{SPACE}{{0,256}}+{_BROKEN_OPENER})")

NEXT: Final = re.compile(
    rf"[ \t]{{0,256}}+(?:[,\r\n][ \t\r\n]*+)?+"
    rf"(?:({KEY_CHAR}{{1,128}}+)[ \t]{{0,256}}+:[ \t]{{0,256}}+(?:(「始」)|»»»)|<\|\[END_TOOL\]\|>)"
)
"""The common continuation after a tail: a next field in plain spelling (group 1 its key; group 2 set for 「始」) or the end marker."""

TOKEN: Final = re.compile(rf"[\r\n]{BLANK}{{0,256}}+(?:#|//)|「[始末]|»»»|>>>|«««|<{_GAP}\|")
"""Everything with a meaning between fields."""
LINE_NOTE: Final = re.compile(rf"{SPACE}{{0,256}}+(#|//)")
BROKEN_LINE_NOTE: Final = re.compile(rf"{SPACE}{{0,256}}+/?\Z")
AFTER_TAIL: Final = re.compile(rf"{BLANK}{{0,256}}+(?:([,，]){BLANK}{{0,256}}+)?(?:(#|//)|({_NOTE}))?")
"""Text that may follow a value on its line: (1) a comma, (2) a note to the end of the line, (3) a note in brackets."""
BROKEN_AFTER_TAIL: Final = re.compile(
    rf"{BLANK}{{0,256}}+(?:[,，]{BLANK}{{0,256}}+)?(?:\Z|/\Z|[(（][^()（）「」<>\r\n]{{0,200}}+\Z)"
)
STRAY: Final = re.compile(r"[^ \t\u3000\xa0\r\n,，\ufeff\u200b]")
LINE_END: Final = re.compile(r"[\r\n]")
ESCAPE_TOKEN: Final = re.compile(rf"「[始末]ESCAPE」|<{_GAP}\|")

_REVERSED_HEAD = re.compile(
    rf"{SPACE}{{0,256}}+([:：]){SPACE}{{0,256}}+({KEY_CHAR}[\w.\-{_SIGNS} \t\u3000\xa0]{{0,384}}+)([\r\n]?)"
)
_HEAD_REACH: Final = 1000
_BROKEN_DELIMITERS: Final = frozenset(
    word[:size] for word in (HEAD, ESCAPE_HEAD, TAIL, ESCAPE_TAIL) for size in range(1, len(word))
)
_BEFORE_OPENER = frozenset(":： \t\u3000\xa0\r\n")


class FieldHead(NamedTuple):
    """The key before an opener. Offsets into the searched text."""

    key: str
    start: int
    end: int
    fullwidth: bool
    line_start: bool


def head_before(text: str, opener: int, lowest: int) -> FieldHead | None:
    """The key and colon directly before `text[opener:]`, or None.

    Args:
        opener: start of the opener.
        lowest: nothing before this offset belongs to the key.
    """
    if opener <= lowest or text[opener - 1] not in _BEFORE_OPENER:
        return None
    lowest = max(lowest, opener - _HEAD_REACH)
    near = max(lowest, opener - 100)
    found = _REVERSED_HEAD.match(text[near:opener][::-1])
    if near > lowest and (found is None or found.end() == opener - near):
        found = _REVERSED_HEAD.match(text[lowest:opener][::-1])
    if found is None:
        return None
    run = found[2][::-1]
    key = run.lstrip(" \t\u3000\xa0")
    if len(key) > MAX_KEY:
        return None
    end = opener - found.start(2)
    return FieldHead(key, end - len(key), end, found[1] == "：", bool(found[3]))


def form_at(text: str, at: int, end: int) -> ValueForm | None:
    """The form whose opener is at `at`; None if there is none (or not yet)."""
    for head, form in FORMS.items():
        if text.startswith(head, at, end):
            return form
    return None


def is_broken_opener(text: str, at: int, end: int) -> bool:
    """Whether `text[at:end]` is the beginning of an opener or tail of the first dialect, and no more."""
    return end - at < len(ESCAPE_TAIL) and text[at:end] in _BROKEN_DELIMITERS
