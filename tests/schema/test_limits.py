"""What is JSON, and how much of it."""

from __future__ import annotations

import enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tavern_core.model.json_pointer import split_pointer
from tavern_core.schema.bounded_json_copying import is_plain, json_copy, measure
from tavern_core.schema.problem import describe, pointer
from tests.rows import each_row


class Size(enum.IntEnum):
    BIG = 3


class Text(str):
    __slots__ = ()


class Table(dict):  # type: ignore[type-arg]
    def items(self) -> Any:
        raise RuntimeError("its own items are not asked")


class Row(list):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        raise RuntimeError("its own iterator is not asked")


class Liar:
    @property
    def __class__(self) -> Any:  # type: ignore[override]
        return dict


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@pytest.mark.slow
@given(json_values)
def test_json_is_plain_and_its_copy_is_equal_and_shares_nothing(value: Any) -> None:
    assert is_plain(value)
    assert measure(value) is None
    copy, problem = json_copy(value)
    assert problem is None
    assert copy == value
    if isinstance(value, list | dict):
        assert copy is not value


@each_row(
    ("value", "plain"),
    [
        (Size.BIG, 3),
        (Text("x"), "x"),
        (Table(a=Row([Text("y"), Size.BIG])), {"a": ["y", 3]}),
        ({Text("k"): True}, {"k": True}),
    ],
)
def test_subclasses_are_copied_to_their_base_without_running_their_code(value: Any, plain: Any) -> None:
    assert not is_plain(value)
    copy, problem = json_copy(value)
    assert (copy, problem) == (plain, None)
    assert is_plain(copy)
    assert type(copy) is type(plain)


@each_row(
    ("value", "path"),
    [
        ({"a": [1, {"b/c": {1}}]}, "/a/1/b~1c"),
        ({"a": (1,)}, "/a"),
        ([float("nan")], "/0"),
        ({"a": {2: 1}}, "/a"),
        (Liar(), ""),
        (..., ""),
        (1j, ""),
    ],
)
def test_what_is_not_json_is_found_at_its_place(value: Any, path: str) -> None:
    assert not is_plain(value)
    copy, problem = json_copy(value)
    assert copy is None
    assert problem is not None
    assert (problem.path, problem.keyword) == (path, "json")


@each_row(
    ("value", "limits", "words"),
    [
        ([[[]]], {"max_depth": 2}, "deeper than 2"),
        ([[]], {"max_depth": 2}, ""),
        (5, {"max_depth": 0}, ""),
        ([], {"max_depth": 0}, "deeper than 0"),
        ([1, 2, 3], {"max_nodes": 3}, "more than 3 values"),
        ([1, 2], {"max_nodes": 3}, ""),
        ({"abc": "de"}, {"max_chars": 4}, "more than 4 characters of text"),
        ({"abc": "de"}, {"max_chars": 5}, ""),
    ],
)
def test_limits_are_exact(value: Any, limits: Any, words: str) -> None:
    problem = measure(value, **limits)
    assert words in str(problem) if words else problem is None


@pytest.mark.parametrize(("value", "path"), [({"a": [1] * 50}, "/a"), ([0, dict.fromkeys("abcdefghijklmn", 1)], "/1")])
def test_what_is_too_wide_is_refused_at_its_place_before_it_is_walked_through(value: Any, path: str) -> None:
    problem = measure(value, max_nodes=10)
    assert problem is not None
    assert problem.path == path


@each_row(
    ("value", "words"),
    [
        ({"a": 1, "b": 2}, "object with a, b"),
        ({}, "empty object"),
        ({str(n): n for n in range(20)}, "object with 0, 1, 2, 3, 4, 5, 6, 7, …"),
        ([1, 2], "array of 2"),
        ("x" * 100, 'string "' + "x" * 59 + '…" (100 characters)'),
        (True, "boolean true"),
        (None, "null"),
        (1.5, "number 1.5"),
        (10**400, "a very large integer"),
        (b"", "bytes"),
    ],
)
def test_a_value_in_a_few_words(value: Any, words: str) -> None:
    assert describe(value) == words


@pytest.mark.slow
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=50)))
def test_pointers_are_reversible(parts: list[str]) -> None:
    assert split_pointer(pointer(parts)) == parts
