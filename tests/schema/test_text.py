"""Text becomes typed values: strict JSON, and the command line's key=value."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core.schema.json_reader import NotJson, read_json
from tavern_core.schema.text_coercion import coerce_text
from tests.rows import each_row


@each_row(
    ("text", "words"),
    [
        ('{"a": 1, "a": 2}', "'a' appears twice"),
        ("[1, NaN]", "NaN is not allowed"),
        ("-Infinity", "-Infinity is not allowed"),
        ("1e999", "too large"),
        ("9" * 5_000, "5000 digits"),
        ("[1,]", "character"),
        ("", "character 1"),
        ("[" * 101 + "]" * 101, "100 levels"),
        ("[" * 100_000, "100 levels"),
    ],
)
def test_what_is_no_strict_json_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(NotJson, match=re.escape(words)):
        read_json(text)


@settings(deadline=None)
@given(st.text('{}[]:,"\\019.eE+-truefalsnNaI \n', max_size=40))
def test_what_is_read_is_what_the_standard_library_reads(text: str) -> None:
    try:
        value = read_json(text)
    except NotJson:
        return
    assert json.loads(text) == value


SCHEMA = {
    "type": "object",
    "properties": {
        "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"}, "o": {"type": "object"}, "l": {"type": "array"},
        "s": {"type": "string"}, "e": {"enum": ["x", "y", 1, True]}, "c": {"const": "red"}, "u": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "m": {"type": ["integer", "null"]}, "ms": {"type": ["string", "null"]}, "r": {"$ref": "#/$defs/color"}, "any": {},
    },
    "allOf": [{"properties": {"deep": {"type": "integer"}}}],
    "$defs": {"color": {"enum": ["blue"]}},
}  # fmt: skip


@each_row(
    ("name", "text", "value"),
    [
        ("i", " 5\n", 5), ("i", "-0", 0), ("i", "2.0", 2.0), ("n", "1.5", 1.5), ("n", "3", 3), ("b", " true ", True), ("b", "false", False),
        ("o", '{"a": [1]}', {"a": [1]}), ("l", "[]", []), ("s", " 5 ", " 5 "), ("s", "true", "true"), ("s", "", ""), ("e", " x ", "x"),
        ("e", "1", 1), ("e", "true", True), ("c", "red\n", "red"), ("u", "5", 5), ("u", "five", "five"), ("u", " 5x ", " 5x "),
        ("m", "null", None), ("ms", "null", None), ("ms", " x", " x"), ("r", " blue", "blue"), ("any", "5", "5"), ("deep", "5", 5),
        ("undeclared", " 5", " 5"),
    ],
)  # fmt: skip
def test_text_gets_the_declared_type(name: str, text: str, value: Any) -> None:
    values, problems = coerce_text(SCHEMA, {name: text})
    assert problems == []
    assert values == {name: value}
    assert type(values[name]) is type(value)


@each_row(
    ("name", "text", "words"),
    [
        ("i", "x", 'must be integer, got "x"'), ("i", "1.5", "integer"), ("i", "true", "integer"), ("i", "", "integer"), ("i", "1_000", "integer"),
        ("n", "NaN", "number"), ("n", "Infinity", "number"), ("n", "1e999", "number"), ("b", "True", "true or false"), ("b", "1", "boolean"),
        ("b", "yes", "boolean"), ("o", "[1]", "object"), ("o", '{"a":1,"a":2}', "object"), ("l", "1,2", "[1, 2]"), ("e", "z", '"x" or "y" or 1'),
 ("m", "None", "null"), ("r", "red", '"blue"'), ("l", "[" * 1000, "array"),
    ],
)  # fmt: skip
def test_text_of_another_type_is_a_problem_at_the_parameter(name: str, text: str, words: str) -> None:
    values, (problem,) = coerce_text(SCHEMA, {name: text})
    assert values == {}
    assert problem.path == f"/{name}"
    assert words in f"{problem.message} {problem.hint}"


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from([*SCHEMA["properties"], "x"]), st.text()))  # type: ignore[misc]
def test_no_text_makes_it_raise(texts: dict[str, str]) -> None:
    values, problems = coerce_text(SCHEMA, texts)
    assert len(values) + len(problems) == len(texts)
