"""Regular expressions of schemas, tried in linear time: by the engine of jsonschema-rs, and by no other.

Python's `re` could take exponential time for a hostile pattern. So validation, explanations and guard marks all ask here,
and mean the same. What that engine cannot take (look-around, back-references, huge counts) is a flaw of the schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

_MAX_LENGTH: Final = 4_000
_REASON: Final = re.compile(r"\nerror: (.{1,200})")
_HINTS: Final = {
    "look-around": "say it without (?=…), (?!…), (?<=…) and (?<!…): with another keyword such as `not`, or in the tool",
    "backreferences": "say it without \\1 and \\k<name>, or check it in the tool",
    "size limit": "use smaller counts, or `maxLength`",
}


class PatternInvalid(ValueError):
    """No linear engine can try this pattern."""


@lru_cache(maxsize=2_000)
def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a text has the pattern somewhere in it, as a function of text that UTF-8 can hold.

    Raises:
        PatternInvalid: the pattern cannot be tried.
    """
    import jsonschema_rs

    if len(pattern) > _MAX_LENGTH:
        raise PatternInvalid(f"the pattern has more than {_MAX_LENGTH:,} characters")
    try:
        engine = jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=options())
    except ValueError as error:
        raise PatternInvalid(_reason(pattern)) from error
    is_valid: Callable[[str], bool] = engine.is_valid
    return is_valid


def options() -> Any:
    """How jsonschema-rs tries patterns: linearly."""
    import jsonschema_rs

    return jsonschema_rs.RegexOptions()


def fits(pattern: str, text: str) -> bool:
    """Whether `text` has the pattern somewhere in it.

    Raises:
        PatternInvalid: the pattern cannot be tried.
    """
    try:
        return matcher(pattern)(text)
    except UnicodeEncodeError:
        return False  # half a character


@lru_cache(maxsize=2_000)
def pattern_flaw(pattern: str) -> tuple[str, str] | None:
    """Why a pattern may not be used, as message and hint; None when it may."""
    try:
        matcher(pattern)
    except PatternInvalid as error:
        hint = next((hint for word, hint in _HINTS.items() if word in str(error)), "compare it with ECMA-262")
        return f"the pattern cannot be tried: {error}", hint
    return None


def written_out(pattern: str, names: Iterable[str], number: int) -> str:
    """A pattern for Python's `re` that matches those of `names` which the given one matches, and nothing else.

    Args:
        number: makes it differ from those of other patterns.
    """
    fitting = "|".join(re.escape(name) for name in names if fits(pattern, name))
    return rf"(?#{number})\A(?:{fitting})\Z" if fitting else rf"(?#{number})(?!)"


def _reason(pattern: str) -> str:
    """What Rust's regular expressions say is wrong."""
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except (SchemaError, UnicodeEncodeError) as error:
        if (found := _REASON.search(str(error))) is not None:
            return found[1]
        return "its size limit is exceeded" if "size limit" in str(error) else "it is no regular expression"
    return "it is no regular expression of ECMA-262"
