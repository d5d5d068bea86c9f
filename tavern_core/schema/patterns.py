"""Regular expressions of schemas, matched in linear time, only by the engine of jsonschema-rs.

Python's `re` could take exponential time for a hostile pattern. So validation, explanations and guard marks all use this module,
with the same meaning. A pattern that the engine does not support (look-around, back-references, huge counts) is a flaw of the schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

_MAX_LENGTH: Final = 4_000
_REASON: Final = re.compile(r"\nerror: (.{1,200})")
_BACKREFERENCES: Final = "say it without \\1 and \\k<name>, or check it in the tool"
_HINTS: Final = (
    (
        "^.*look-around",
        "say it without (?=…), (?!…), (?<=…) and (?<!…): with another keyword such as `not`, or in the tool",
    ),
    ("^.*has more than", "use a shorter one, or check it in the tool"),
    ("^.*size limit", "use smaller counts, or `maxLength`"),
    (r"\n.*\\0(?!\d)", r"write `\x00` for `\0`"),
    (r"\n.*\\k<", _BACKREFERENCES),
    ("^.*backreferences", _BACKREFERENCES),
    (r"\n.*\[\^\]", r"write `[\s\S]` for `[^]`"),
    (r"\n.*\[[^\]]*\\b", r"write `\x08` for `\b` in brackets"),
    (r"(?i)\n.*\\ud[89ab]", r"write the character itself, or `\u{1f600}`"),
    (r"^.*repetition[\s\S]*\{(?!\d)", r"write `\{` for a brace that is no repetition"),
)
"""Signs in a reason and, on the lines below it, in the pattern: the repair."""


class PatternInvalid(ValueError):
    """The linear engine does not support this pattern."""


@lru_cache(maxsize=2_000)
def matcher(pattern: str) -> Callable[[str], bool]:
    """A function that searches a text, encodable as UTF-8, for the pattern.

    Raises:
        PatternInvalid: the pattern is not supported.
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
    """The linear pattern engine of jsonschema-rs."""
    import jsonschema_rs

    return jsonschema_rs.RegexOptions()


def fits(pattern: str, text: str) -> bool:
    """Whether `text` contains a match of the pattern. Raises PatternInvalid: the pattern is not supported."""
    try:
        return matcher(pattern)(text)
    except UnicodeEncodeError:
        return False  # a surrogate


@lru_cache(maxsize=2_000)
def pattern_flaw(pattern: str) -> tuple[str, str] | None:
    """Why a pattern may not be used, as message and hint; None if it may."""
    try:
        matcher(pattern)
    except PatternInvalid as error:
        return untried(str(error), pattern)
    return None


def untried(reason: str, pattern: str) -> tuple[str, str]:
    """Message and hint for a pattern that is not supported.

    Args:
        pattern: the pattern, or a text that shows it.
    """
    signs = f"{reason}\n{pattern[:300]}"
    hint = next((hint for sign, hint in _HINTS if re.search(sign, signs)), "compare it with ECMA-262")
    return f"the pattern cannot be tried: {reason}", hint


def written_out(pattern: str, names: Iterable[str], number: int) -> str:
    """A pattern for Python's `re` that matches exactly those of `names` that the given one matches.

    Args:
        number: distinguishes it from those of other patterns.
    """
    fitting = "|".join(re.escape(name) for name in names if fits(pattern, name))
    return rf"(?#{number})\A(?:{fitting})\Z" if fitting else rf"(?#{number})(?!)"


def reason_in(report: str) -> str:
    """The complaint of Rust's regular expressions in a report of pydantic; empty: there is none."""
    if (found := _REASON.search(report)) is not None:
        return found[1]
    return "its size limit is exceeded" if "size limit" in report else ""


def _reason(pattern: str) -> str:
    """The complaint of Rust's regular expressions."""
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except (SchemaError, UnicodeEncodeError) as error:
        return reason_in(str(error)) or "it is not a regular expression"
    return "it is not a regular expression of ECMA-262"
