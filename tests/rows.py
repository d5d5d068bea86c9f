"""Rows of a table that one test goes through."""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

PARAM = type(pytest.param())
SHORT = reprlib.Repr()
"""How values are shown: some rows hold structures that would be written without end."""
SHORT.maxstring = SHORT.maxother = 200


@contextmanager
def row(what: object) -> Iterator[None]:
    """Whatever fails within, an assertion or a missing error, says in which row."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the row {what!r:.200}")
        raise


def each_row(
    names: str | Sequence[str], table: Iterable[Any], *, ids: Iterable[Any] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `pytest.mark.parametrize`, within one test: for rows that take less time than collecting and reporting a test.

    All are tried, also after one has failed. The first failure is raised, and its notes name all that failed.
    A test that takes `tmp_path` gets a new folder for each row; its other fixtures are shared.
    """
    words = names.replace(" ", "").split(",") if isinstance(names, str) else list(names)
    entries = list(table)
    labels = [None] * len(entries) if ids is None else ids
    rows = [_row(words, entry, label) for entry, label in zip(entries, labels, strict=True)]
    assert rows, "a table without rows"

    def with_all_rows(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def tried(*args: Any, **given: Any) -> None:
            __tracebackhide__ = True
            failed: list[tuple[str, BaseException]] = []
            for number, (label, values) in enumerate(rows):
                folder = {}
                if "tmp_path" in given:
                    folder["tmp_path"] = given["tmp_path"] / str(number)
                    folder["tmp_path"].mkdir()
                try:
                    answer = test(*args, **{**given, **folder, **values})
                    assert answer is None, (
                        "a test with rows is a plain function: nothing would await or go through this"
                    )
                except (Exception, pytest.fail.Exception) as error:
                    failed.append((_named(label, values), error))
            if failed:
                (name, first), *others = failed
                for note in (f"in the row {name}", *(f"also fails in the row {name}" for name, _ in others)):
                    first.add_note(note)
                raise first

        kept = [each for each in signature.parameters.values() if each.name not in words]
        tried.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return tried

    return with_all_rows


def _row(words: list[str], entry: Any, label: object) -> tuple[object, dict[str, Any]]:
    """The label of a row, and its values."""
    if isinstance(entry, PARAM):
        assert not entry.marks, "a marked row is a test of its own"
        label, entry = entry.id or label, entry.values
    elif len(words) == 1:
        entry = (entry,)
    return label, dict(zip(words, entry, strict=True))


def _named(label: object, values: dict[str, Any]) -> str:
    """How a row is named; of tables that are stacked, each names its own."""
    shown = ", ".join(f"{name}={SHORT.repr(value)}" for name, value in values.items())
    return f"{label}: {shown}" if label is not None else shown
