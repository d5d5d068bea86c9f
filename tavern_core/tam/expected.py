"""Messages about values: the type that a parameter expects, and why a text is no such value, in TAM's words.

A text may also be a value in the notation of another language: Python's `True`, a quoted 'text', a grouped 1,000.
"""

from __future__ import annotations

import json
import re
from collections.abc import Set
from typing import Any, Final

from tavern_core.model.message_translation import EITHER, joined, say
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.safe_printing import listed, shortened
from tavern_core.schema.alternatives_expansion import literals_of, types_of
from tavern_core.schema.text_coercion import CoercionFailure, TextReader
from tavern_core.tam.wording import WORDS

_SHOWN: Final = 60
_MAX_VALUES: Final = 20
_TYPES: Final = ("null", "boolean", "integer", "number", "object", "array", "string")


def display_value(value: Any) -> str:
    """A value for a message, shortened."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = shortened(text, _SHOWN)
    return repr(text) if isinstance(value, str) else text


def expected(reader: TextReader) -> str:
    """The expected value of a parameter, in words: ``integer``, ``one of 'a', 'b'``, ``array of integer or null``."""
    return joined(EITHER, dict.fromkeys(map(_expected, reader.alternatives)))


def _expected(leaf: Any) -> str:
    literals = literals_of(leaf)
    if literals is not None and len(literals) == 1:
        return display_value(literals[0])
    if literals is not None:
        return say(WORDS["one_of"], values=listed(literals, _MAX_VALUES, display_value))
    names = [name for name in _TYPES if name in types_of(leaf)]
    items = leaf.get("items") if names == ["array"] else None
    if isinstance(items, dict) and isinstance(items.get("type"), str):
        return say(WORDS["array_of"], items=items["type"])
    return joined(EITHER, names) or say(WORDS["nothing"])


def why_unread(reader: TextReader, text: str, unread: CoercionFailure) -> str:
    """Explain what is wrong with a text, and what to write instead."""
    trimmed = text.strip()
    got: Any = text
    if unread.error:
        why = repair(trimmed, reader.kinds) or (
            unread.error
            if reader.kinds - {"null"}
            else did_you_mean(trimmed, [value for value in reader.literals if isinstance(value, str)], 1)
        )
    elif isinstance(unread.value, str):
        why = say(WORDS["not_quoted"])
    else:
        why, got = "", unread.value
    wrong = say(WORDS["expected"], expected=expected(reader), got=display_value(got))
    return say(WORDS["because"], what=wrong, why=why) if why else wrong


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
    """Suggest what to write instead of `text`, which is not strict JSON; empty if that is not certain.

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
    """Read an item of a list that was written with commas: a number if it looks like one."""
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
