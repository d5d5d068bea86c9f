"""Strict JSON: what is refused, with which reason."""

from __future__ import annotations

from typing import Any

import pytest

from tavern_core.schema.json_reader import NotJson, read_json
from tests.each_case import each_case


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('["' + "[" * 200 + '"]', ["[" * 200]),
        ('["\\\\", "\\"' + "{" * 200 + '"]', ["\\", '"' + "{" * 200]),
        ("[" + "[]," * 200 + "{}]", [[]] * 200 + [{}]),
    ],
    ids=["in a text", "behind an escaped quote", "side by side"],
)
def test_brackets_that_are_not_nested_are_read(text: str, value: Any) -> None:
    assert read_json(text) == value


@each_case(
    ("text", "why"),
    [
        ("[" * 101 + "]" * 101, "nested deeper than 100 levels"),
        ('{"a":' * 101, "nested deeper than 100 levels"),
        ('["' + "]" * 101 + '",' + "[" * 101, "nested deeper than 100 levels"),
        ('["' + "[" * 200, "not valid JSON"),
        ('["' + "[" * 200 + "\\", "not valid JSON"),
    ],
    ids=["lists", "objects", "behind a text", "in an open text", "before a lone backslash"],
)
def test_what_cannot_be_read_is_refused_with_its_reason(text: str, why: str) -> None:
    with pytest.raises(NotJson, match=why):
        read_json(text)
