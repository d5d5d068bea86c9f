"""Strict JSON: what is refused, with which reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core.model import depths
from tavern_core.schema.json_reader import NotJson, json_or_text, read_json, read_located
from tests.rows import each_row


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


@each_row(
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


PIECES = ["[", "]", "{", "}", ",", ":", '"a"', '"b":', "1", "-", "1e999", "NaN", "9" * 4_301, '"\\ud800"', '"\ud800"', '"\\ud83d\\ude00"',
          '"中"', "[" * 70, "]" * 70, " ", "\n"]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_the_quick_reader_and_the_one_with_places_refuse_the_same(text: str) -> None:
    value, findings = read_located(text, "a.json", "CODE", 1_000)
    try:
        quick = read_json(text, depths.VALUE, allow_halves=False)
    except NotJson:
        assert findings
    else:
        assert (value, findings) == (quick, [])


def test_half_characters_and_equal_keys_are_read_where_that_is_allowed() -> None:
    assert read_json('"\\ud800"') == "\ud800"
    with pytest.raises(NotJson, match="half of a surrogate pair"):
        read_json('["\\ud800"]', allow_halves=False)
    assert read_json('["\\ud83d\\ude00"]', allow_halves=False) == ["😀"]
    assert read_json('{"a": 1, "a": 2}', allow_equal_keys=True) == {"a": 2}


@pytest.mark.parametrize("text", ["NaN", "two words", "[" * 100_000, '{"a": 1, "a": 2}'], ids=range(4))
def test_what_a_person_wrote_is_text_where_it_is_not_strict_json(text: str) -> None:
    assert json_or_text(text) == text
    assert json_or_text(" [1, true] ") == [1, True]


def test_an_error_names_no_more_than_the_beginning_of_a_long_key() -> None:
    key = json.dumps("k" * 1_000_000)
    with pytest.raises(NotJson, match=r"'kkk.*…' appears twice in one object") as caught:
        read_json(f"{{{key}: 1, {key}: 2}}")
    assert len(str(caught.value)) < 200


def test_no_text_takes_more_than_linear_time_to_refuse() -> None:
    # Where each run of digits is searched from each of its digits, or once per level, this takes minutes.
    numbers = ",".join(["9" * 4_300] * 500)
    with pytest.raises(NotJson, match="a number of 4301 digits"):
        read_json(f'["{numbers}", {"9" * 4_301}]')
    value, findings = read_located(f"[{','.join(['9' * 4_299] * 500)}]", "a.json", "CODE", 1_000, 4_299)
    assert (len(value), findings) == (500, [])
    assert [json_or_text(text) for text in ("[" * 2_000_000, "[[]" * 700_000)] == ["[" * 2_000_000, "[[]" * 700_000]


@pytest.mark.parametrize("part", ["1e999", '"\\ud800"', "NaN"], ids=range(3))
def test_the_first_findings_are_enough(part: str) -> None:
    _, findings = read_located("[" + ",".join([part] * 100) + "]", "a.json", "CODE", 1_000)
    wheres = [each.where for each in findings]
    assert [(where.column, where.pointer) for where in wheres if where] == [
        (2 + number * (len(part) + 1), str(number)) for number in range(50)
    ]
    _, (only,) = read_located("[" + ",".join([part] * 100) + "]", "a.json", "CODE", 60)
    assert only.message == "more than 60 values"


_TEXTS = st.text(st.sampled_from('",[]{}\\a 字'), max_size=5)


def _size(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_size, parts))


@given(st.recursive(st.integers() | _TEXTS, lambda inner: st.lists(inner) | st.dictionaries(_TEXTS, inner)))
def test_as_many_values_are_read_as_are_allowed_and_no_more(value: Any) -> None:
    text, count = json.dumps(value), _size(value)
    assert read_located(text, "a.json", "CODE", count) == (value, [])
    if count > 1:
        _, (only,) = read_located(text, "a.json", "CODE", count - 1)
        assert only.message == f"more than {count - 1} values"
