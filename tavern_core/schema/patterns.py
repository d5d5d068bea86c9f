"""Regular expressions in schemas."""

from __future__ import annotations

from typing import Literal, TypeAlias

Dialect: TypeAlias = Literal["python", "rust"]


def pattern_flaw(pattern: str) -> tuple[str, str] | None:
    """Why a pattern may not be used: message and hint, or None."""
    return None


def in_dialect(pattern: str, dialect: Dialect) -> str:
    """The pattern written for one engine."""
    return pattern


def is_linear(pattern: str) -> bool:
    """True when the pattern needs no backtracking."""
    return "(?" not in pattern and "\\1" not in pattern
