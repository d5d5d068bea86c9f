"""Texts for messages: foreign values and errors, whatever their classes do when they are printed; shortened, and in lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from tavern_core.errors import HIDDEN, sayable

T = TypeVar("T")
_LONGEST: Final = 2_000
_MOST_NOTES: Final = 5


def seen(text: T, *, lines: bool = False) -> T:
    """A text of a plugin for people, with a blank for every invisible character; anything else unchanged.

    So a name cannot reverse the text around it, forge lines of a list, or look like another name.

    Args:
        lines: keep line ends and tabs.
    """
    if not isinstance(text, str) or text.isprintable():
        return text
    shown = HIDDEN.sub(" ", text)
    return shown if lines else " ".join(shown.split())  # type: ignore[return-value]


def is_text(value: str) -> bool:
    """False for a text with half of a surrogate pair: JSON can spell it, but no UTF-8 holds it."""
    try:
        str.encode(value)
    except UnicodeEncodeError:
        return False
    return True


def shortened(text: str, most: int) -> str:
    """`text` of at most `most` characters; an ellipsis ends one that was cut."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def with_length(text: str, most: int, length: int = 0) -> str:
    """`text` of at most `most` characters and, if it was cut, how many it had; `length`, if it was cut before."""
    return text if len(text) <= most else f"{text[:most]}… ({length or len(text):,} characters)"


def encodable(text: str) -> str:
    """`text` that can be written as UTF-8: lone surrogates as escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def reason_of(error: BaseException) -> str:
    """Why an operation failed: what the system says, else the text of the exception, else its class."""
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


def listed(values: Sequence[T], most: int, shown: Callable[[T], str] = str) -> str:
    """``a, b, …``: the first `most` values, each as `shown` writes it; an ellipsis stands for the others."""
    text = ", ".join(map(shown, values[:most]))
    return f"{text}, …" if len(values) > most else text


def and_more(left: int) -> str:
    """The end of a list from which `left` values are left out: `` and 3 more``; empty for none."""
    return f" and {left:,} more" if left > 0 else ""


def printed(value: object) -> str:
    """``repr(value)`` of at most 2,000 characters; the name of its type if it cannot be printed. Never raises."""
    try:
        return repr(value)[:_LONGEST]
    except (Exception, SystemExit):  # noqa: BLE001 - a hostile __repr__, or an integer of more digits than Python prints
        return f"of {value.bit_length():,} bits" if type(value) is int else type(value).__name__


def quoted_address(url: str) -> str:
    """An address as an error may quote it: credentials and the query, which may hold a key, are left out."""
    return repr(re.split(r"[?#]", re.sub(r"^(\w+://)?.*@", r"\1***@", url, flags=re.DOTALL))[0][:80])


def said(value: object) -> str:
    """``str(value)`` of at most 2,000 characters, empty if it cannot be printed. Never raises."""
    try:
        return str(value)[:_LONGEST]
    except (Exception, SystemExit):  # noqa: BLE001 - a hostile __str__
        return ""


def with_type(error: BaseException) -> str:
    """``ValueError: bad``: the class and the text of an exception, safe to print. Never raises."""
    text = said(error)
    return sayable(f"{type(error).__name__}: {text}" if text else type(error).__name__, _LONGEST)


def notes_of(error: BaseException) -> tuple[str, ...]:
    """The notes of `error` (PEP 678, `add_note`), safe to print. Never raises."""
    try:
        notes = error.__notes__  # a class of a plugin may override it
    except Exception:  # noqa: BLE001 - usually there are none
        return ()
    if not isinstance(notes, list | tuple):
        return ()
    return tuple(sayable(note, _LONGEST) for note in notes[:_MOST_NOTES] if type(note) is str and note)
