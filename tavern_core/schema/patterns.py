"""Regular expressions in schemas: judged once, then written for each engine so that both mean the same.

A pattern is refused when it is not ECMA-262, cannot be written for both engines, or can take exponential time. Patterns
that are merely slow (a power of the length) are for jsonschema-rs's linear engine; for Python's `re` the text they are
tried on is capped (`longest_text`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from tavern_core.schema.regex_parser import parse_pattern
from tavern_core.schema.regex_risk import TooComplicated, explodes, is_regular, size
from tavern_core.schema.regex_tree import (
    Assertion,
    BackReference,
    Chars,
    Choice,
    Group,
    Look,
    Node,
    PatternError,
    Ranges,
    Repeat,
    Sequence,
)
from tavern_core.schema.regex_work import power

Dialect: TypeAlias = Literal["python", "rust"]

LONGEST: Final = "x-tavern-longest"
WRITTEN: Final = "x-tavern-pattern"
"""Where a schema prepared for Python keeps how much text its pattern may be tried on, and the pattern as written."""

_MAX_SIZE: Final = 50_000
_MOST_STEPS: Final = 100_000_000
"""What Python's `re` may do in the worst case: about a second."""
_WORD: Final = "[0-9A-Z_a-z]"
_PYTHON_BOUNDARY: Final = {
    "b": f"(?:(?<!{_WORD})(?={_WORD})|(?<={_WORD})(?!{_WORD}))",
    "B": f"(?:(?<!{_WORD})(?!{_WORD})|(?<={_WORD})(?={_WORD}))",
}


@lru_cache(maxsize=2_000)
def pattern_flaw(pattern: str) -> tuple[str, str] | None:
    """Why a pattern may not be used, as message and hint, or None."""
    try:
        tree = parse_pattern(pattern)
        if size(tree) > _MAX_SIZE:
            return "the pattern is too large with its counts written out", "use smaller counts, or `maxLength`"
        if explodes(tree):
            hint = "two ways to repeat the same text, such as `(a+)+`; repeat it in one place only"
            return "the pattern can take exponential time", hint
        re.compile(_write(tree, "python"))
    except PatternError as error:
        return f"the pattern is wrong: {error.message}", error.hint
    except (TooComplicated, RecursionError):
        return "the pattern is too complicated to be judged", "simplify the part inside the loop"
    except (re.error, OverflowError) as error:
        return f"the pattern cannot be used: {error}", "look-behind needs a fixed width"
    return None


@lru_cache(maxsize=2_000)
def in_dialect(pattern: str, dialect: Dialect) -> str:
    """A flawless pattern written for one engine."""
    return _write(parse_pattern(pattern), dialect)


@lru_cache(maxsize=2_000)
def is_linear(pattern: str) -> bool:
    """True when a flawless pattern needs no backtracking."""
    return is_regular(parse_pattern(pattern))


@lru_cache(maxsize=2_000)
def longest_text(pattern: str) -> int:
    """How many characters Python's `re` may be given with a flawless pattern."""
    exponent = power(parse_pattern(pattern)) + (0 if pattern.startswith("^") else 1)
    return int(_MOST_STEPS ** (1 / max(1, exponent)))


def _write(tree: Node, dialect: Dialect) -> str:
    """The pattern as text. Every group is plain unless a back-reference needs its number."""
    match tree:
        case Chars(ranges):
            return _write_chars(ranges, dialect)
        case Sequence(parts):
            return "".join(
                f"(?:{_write(part, dialect)})" if isinstance(part, Choice) else _write(part, dialect) for part in parts
            )
        case Choice(parts):
            return "|".join(_write(part, dialect) for part in parts)
        case Group(part):
            return f"({_write(part, dialect)})"
        case Look(part, opening):
            return f"{opening}{_write(part, dialect)})"
        case BackReference(number):
            return f"(?:\\{number})"
        case Assertion(kind):
            return _write_assertion(kind, dialect)
        case Repeat(part, low, high, lazy):
            inner = _write(part, dialect)
            inner = inner if isinstance(part, Chars | Group) else f"(?:{inner})"
            return inner + _write_count(low, high) + ("?" if lazy else "")


def _write_assertion(kind: str, dialect: Dialect) -> str:
    if kind in ("b", "B"):
        return _PYTHON_BOUNDARY[kind] if dialect == "python" else f"(?-u:\\{kind})"
    return "\\Z" if kind == "$" and dialect == "python" else kind


def _write_count(low: int, high: int | None) -> str:
    if (low, high) in ((0, None), (1, None), (0, 1)):
        return {(0, None): "*", (1, None): "+", (0, 1): "?"}[low, high]
    return f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"


def _write_chars(ranges: Ranges, dialect: Dialect) -> str:
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _write_code(ranges[0][0], dialect)
    members = [
        _write_code(low, dialect) + (f"-{_write_code(high, dialect)}" if high > low else "") for low, high in ranges
    ]
    return f"[{''.join(members)}]"


def _write_code(code: int, dialect: Dialect) -> str:
    char = chr(code)
    if char.isascii() and char.isalnum():
        return char
    if code < 0x100:
        return f"\\x{code:02x}"
    if dialect == "python":
        return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return f"\\u{{{code:x}}}"
