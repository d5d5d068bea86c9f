"""Rows of a table that one test goes through."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def row(what: object) -> Iterator[None]:
    """Whatever fails within, an assertion or a missing error, says in which row."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the row {what!r:.200}")
        raise
