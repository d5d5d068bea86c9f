"""Names as plain text."""

from __future__ import annotations


def exact(name: object) -> str:
    """A name as plain text: a subclass of str may give one name to the check of rights and another to the look-up.

    Raises:
        TypeError: it is not text.
    """
    if type(name) is str:
        return name
    if not isinstance(name, str):
        raise TypeError(f"a name is a text, got {type(name).__name__}")
    return str.__str__(name)
