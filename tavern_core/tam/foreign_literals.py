"""Values in the notation of other languages: Python's `True`, a quoted 'text', a grouped 1,000. What to write instead."""

from __future__ import annotations

import json
import re
from collections.abc import Set
from typing import Any, Final

from tavern_core.model.message_translation import say
from tavern_core.tam.wording import WORDS

ANY_KIND: Final = frozenset(("null", "boolean", "integer", "number", "object", "array"))
_LONGEST_WORD: Final = 40
_YES_OR_NO: Final = frozenset(("true", "false", "yes", "no", "on", "off", "y", "n", "t", "f", "是", "否"))
_NOTHING: Final = frozenset(("null", "none", "nil", "undefined", "nan"))
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]{1,3}(?:[,，_ '][0-9]{3})+|[0-9]*)(?:\.[0-9]*)?")
_FULL_WIDTH: Final = str.maketrans("０１２３４５６７８９．－＋", "0123456789.-+")
_LONGEST_LIST: Final = 200
_COMMA: Final = re.compile(r"[,，、;；]")
_LINE_BREAK: Final = re.compile(r"[\r\n]")
_PLAIN_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,17})?")
_PYTHON_WORD: Final = re.compile(r"[\[,:]\s*(True|False|None)\b")
_SINGLE_QUOTE: Final = re.compile(r"[\[{,:]\s*'")
_JSON_WORDS: Final = {"True": "true", "False": "false", "None": "null"}


def repair(text: str, kinds: Set[str]) -> str:
    """What to write instead of `text`, which is not strict JSON; empty if that is not certain.

    Args:
        text: a value, trimmed.
        kinds: the JSON types that are expected.

    >>> repair("True", {"boolean"}), repair("1,000", {"integer"}), repair("True", {"integer"})
    ('write true or false', 'write 1000', '')
    """
    word = text.casefold() if len(text) <= _LONGEST_WORD else ""
    if word in _YES_OR_NO and "boolean" in kinds:
        return say(WORDS["write_boolean"])
    if word in _NOTHING:
        return say(WORDS["write_null" if "null" in kinds else "leave_out"])
    if word and not kinds.isdisjoint(("integer", "number")) and (number := _plain_number(word)):
        return say(WORDS["write_number"], number=number)
    if text[:1] in ("[", "{"):
        return _in_json(text) if not kinds.isdisjoint(("object", "array")) else ""
    if "array" in kinds and text and len(text) <= _LONGEST_LIST and not _LINE_BREAK.search(text):
        return say(
            WORDS["write_json"],
            json=json.dumps([_item(part) for part in _COMMA.split(text) if part.strip()], ensure_ascii=False),
        )
    return ""


def _item(part: str) -> Any:
    """One item of a list that was written with commas: a number if it looks like one."""
    part = part.strip().strip("\"'")
    return json.loads(part) if _PLAIN_NUMBER.fullmatch(part) else part


def _plain_number(text: str) -> str:
    """The number that `text` spells with separators, a plus, zeros in front or full-width digits; empty: none."""
    text = text.translate(_FULL_WIDTH)
    if not _NUMBER.fullmatch(text) or not any(sign.isdecimal() for sign in text):
        return ""
    whole, _, fraction = re.sub("[,，_ '+-]", "", text).partition(".")
    sign = "-" if text[0] == "-" else ""
    return sign + (whole.lstrip("0") or "0") + (f".{fraction}" if fraction else "")


def _in_json(text: str) -> str:
    if found := _PYTHON_WORD.search(text):
        return say(WORDS["json_word"], word=_JSON_WORDS[found[1]], written=found[1])
    if _SINGLE_QUOTE.search(text):
        return say(WORDS["json_quotes"])
    return say(WORDS["json_comma"]) if re.search(r",\s*[\]}]", text) else ""
