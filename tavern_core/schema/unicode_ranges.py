"""Which characters have a Unicode property (`\\p{…}`): general categories and the usual scripts.

Taken from Python's own tables, so that both engines mean the same Unicode version.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import cache

from tavern_core.schema.regex_tree import ANYTHING, LAST, SURROGATES, PatternError, Ranges, ranges_of

_LONG_NAMES = {
    "Letter": "L",
    "Uppercase_Letter": "Lu",
    "Lowercase_Letter": "Ll",
    "Mark": "M",
    "Number": "N",
    "Decimal_Number": "Nd",
    "Punctuation": "P",
    "Symbol": "S",
    "Separator": "Z",
    "Space_Separator": "Zs",
    "Other": "C",
    "Control": "Cc",
    "Alphabetic": "L",
    "Uppercase": "Lu",
    "Lowercase": "Ll",
}
_SCRIPTS = {
    "Han": "CJK ",
    "Hiragana": "HIRAGANA ",
    "Katakana": "KATAKANA ",
    "Hangul": "HANGUL ",
    "Latin": "LATIN ",
    "Cyrillic": "CYRILLIC ",
    "Greek": "GREEK ",
    "Arabic": "ARABIC ",
    "Hebrew": "HEBREW ",
    "Thai": "THAI ",
}


@cache
def property_ranges(name: str) -> Ranges:
    """The characters of a general category or a script, for Python's own Unicode version.

    Raises:
        PatternError: a property not known here.
    """
    kind, _, value = name.rpartition("=")
    if kind in ("", "gc", "General_Category"):
        category = _LONG_NAMES.get(value, value)
        if len(category) in (1, 2) and category[0] in "LMNPSZC" and category[:1].isupper():
            if found := _runs(lambda char: unicodedata.category(char).startswith(category)):
                return found
        elif value == "Any":
            return ANYTHING
        elif value == "ASCII":
            return ranges_of((0, 0x7F))
    if (kind in ("Script", "sc", "scx", "Script_Extensions") or kind == "") and value in _SCRIPTS:
        prefix = _SCRIPTS[value]
        return _runs(lambda char: unicodedata.name(char, "").startswith(prefix))
    raise PatternError(
        f"the property {name[:40]!r} is not known here",
        "use a general category such as `\\p{L}`, a script such as `\\p{Script=Han}`, or ranges",
    )


def _runs(belongs: Callable[[str], bool]) -> Ranges:
    found: list[tuple[int, int]] = []
    start = -1
    for code in range(LAST + 2):
        inside = code <= LAST and not SURROGATES[0] <= code <= SURROGATES[1] and belongs(chr(code))
        if inside and start < 0:
            start = code
        elif not inside and start >= 0:
            found.append((start, code - 1))
            start = -1
    return tuple(found)
