"""What plugins raise and answer, as text, whatever their classes do when they are printed."""

from __future__ import annotations

from typing import Final

_LONGEST: Final = 2_000


def printed(value: object) -> str:
    """``repr(value)`` of at most 2,000 characters; the name of its type where it cannot be printed. Never raises."""
    try:
        return repr(value)[:_LONGEST]
    except Exception:  # noqa: BLE001 - a hostile __repr__
        return type(value).__name__


def said(value: object) -> str:
    """``str(value)`` of at most 2,000 characters, empty where it cannot be printed. Never raises."""
    try:
        return str(value)[:_LONGEST]
    except Exception:  # noqa: BLE001 - a hostile __str__
        return ""
