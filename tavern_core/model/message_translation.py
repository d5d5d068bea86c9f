"""The language of texts for a model: which one is used, and texts in each of them.

    the caller of the API, else the agent profile, else `language` of tavern.yaml, else the locale, else English

How to add a message: one row in the table of its part, ``name=("English {value}", "中文 {value}")``; the code that uses it
writes ``say(ROWS["name"], value=...)``. The result is the English text, which also carries the Chinese one (`text_in`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any, Final, Literal, TypeAlias

Language: TypeAlias = Literal["zh", "en"]
Row: TypeAlias = tuple[str, str]
"""One message in English and in Chinese, with the same named values."""
EITHER: Final[Row] = ("{one} or {other}", "{one} 或 {other}")
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|「[^」]*」")
_VARIABLES: Final = ("LC_ALL", "LC_MESSAGES", "LANG")


def language_of(tag: object) -> Language | None:
    """The language that a tag such as ``zh-CN``, ``en_GB.UTF-8`` or ``C`` means; None for any other language.

    >>> language_of("zh_TW.UTF-8"), language_of("en"), language_of("fr")
    ('zh', 'en', None)
    """
    name = tag.replace("_", "-").partition("-")[0].partition(".")[0].strip().lower() if isinstance(tag, str) else ""
    return "zh" if name == "zh" else "en" if name == "en" else None


def of_the_locale(environment: Mapping[str, str]) -> Language:
    """The language of the process's locale: the first of LC_ALL, LC_MESSAGES and LANG that is set; else English."""
    return language_of(next((value for name in _VARIABLES if (value := environment.get(name))), "")) or "en"


class Said(str):
    """The English text of a message, which also carries the other language."""

    __slots__ = ("row", "values")
    row: Row
    values: Mapping[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return say_row, (self.row, dict(self.values))


def say_row(row: Row, values: Mapping[str, Any]) -> Said:
    """`row` with its values; see `say`."""
    said = Said(row[0].format(**values))
    said.row, said.values = row, values
    return said


def say(row: Row, **values: Any) -> Said:
    """A message with its named values, any of which may be messages themselves."""
    return say_row(row, values)


def joined(row: Row, words: Iterable[str]) -> str:
    """Several words as one text, by a message of two of them (`one`, `other`); empty if there are none."""
    some = list(words)
    return reduce(lambda one, other: say(row, one=one, other=other), some) if some else ""


def text_in(text: str, language: Language) -> str:
    """`text` in a language, if it exists in several; else unchanged."""
    if language == "en" or not isinstance(text, Said):
        return text
    return text.row[1].format(
        **{name: text_in(value, language) if isinstance(value, str) else value for name, value in text.values.items()}
    )


def row_in(row: Row, language: Language) -> str:
    """A message without values in a language."""
    return row[1] if language == "zh" else row[0]


def words_in(rows: Mapping[str, Row], language: Language) -> dict[str, str]:
    """A whole table in a language: its messages with values in braces."""
    return {name: row_in(row, language) for name, row in rows.items()}


def is_in(text: str, language: Language) -> bool:
    """Whether a model that reads `language` can read `text`.

    True for a message in that language, or for a text that outside of quotes has (zh) or has no (en) Chinese characters.
    """
    return isinstance(text, Said) or any("\u4e00" <= sign <= "\u9fff" for sign in _QUOTED.sub("", text)) == (
        language == "zh"
    )
