"""What a parameter expects and why a text is none of it, in TAM's words."""

from __future__ import annotations

import json
from typing import Any, Final

from tavern_core.model.message_translation import EITHER, joined, say
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.safe_printing import listed, shortened
from tavern_core.schema.alternatives_expansion import literals_of, types_of
from tavern_core.schema.text_coercion import CoercionFailure, TextReader
from tavern_core.tam.foreign_literals import repair
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
    """What a parameter expects: ``integer``, ``one of 'a', 'b'``, ``array of integer or null``."""
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
    """What is wrong with a text, and what to write instead."""
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
