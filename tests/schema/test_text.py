"""Text becomes typed values: strict JSON with places, and the command line's key=value."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core.schema.coerce import coerce_text
from tavern_core.schema.json_text import parse_json, pointer_location


@pytest.mark.parametrize(
    ("text", "line", "column", "pointer", "words"),
    [
        ('{"a": 1,\n "a": 2}', 2, 2, "/a", "'a' appears twice"),
        ('{"x": {"y": [1, {"z": 1, "z": 2}]}}', 1, 26, "/x/y/1/z", "twice"),
        ('{"a": [1, NaN]}', 1, 11, "/a/1", "NaN"),
        ('{"a": -Infinity}', 1, 7, "/a", "-Infinity"),
        ('{"a": 1e999}', 1, 7, "/a", "too large"),
        ('{"a": ' + "9" * 5_000 + "}", 1, 7, "/a", "too large"),
        ('{"a": "\\ud800"}', 1, 7, "/a", "surrogate"),
        ('{"a":\n  {"b": 1,}}', 2, 11, "", "remove the comma"),
        ("{'a': 1}", 1, 2, "", "double quotes"),
        ('{"a": True}', 1, 7, "", "true, false or null"),
        ('{"a": 1 // no\n}', 1, 9, "", "no comments"),
        ('{"a"：1}', 1, 5, "", "full-width"),
        ("", 1, 1, "", "ends too early"),
        ('{"a": [1', 1, 9, "", "ends too early"),
        ('{"a": 1}}', 1, 9, "", "extra data"),
        ("[" * 100 + "]" * 100, 1, 9, "/0" * 8, "64 levels"),
        ("[" * 100_000, 1, 65, None, "64 levels"),
        (b'{"a": "\xff"}', 1, 8, "", "UTF-8"),
        (b'\n{"\xe4\xb8\xad": "\xff"}', 2, 8, "", "UTF-8"),
        ("\ufeff[1", 1, 3, "", "ends too early"),
    ],
)
def test_each_error_has_line_and_column(
    text: str | bytes, line: int, column: int, pointer: str | None, words: str
) -> None:
    value, finding = parse_json(text, "a.tool.json")
    assert value is None
    assert finding is not None
    assert finding.where is not None
    assert (finding.where.file, finding.where.line, finding.where.column) == ("a.tool.json", line, column)
    assert pointer is None or finding.where.pointer == pointer
    assert words in f"{finding.message} {finding.hint}"


def test_what_is_read() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": [1, 2.5, null, "\xe4\xb8\xad"]}', "x") == ({"a": [1, 2.5, None, "中"]}, None)
    _, finding = parse_json("[1]", "x", max_chars=2, code="PROFILE_INVALID")
    assert finding is not None
    assert finding.code == "PROFILE_INVALID"


@settings(deadline=None)
@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
        lambda i: st.lists(i) | st.dictionaries(st.text(), i),
        max_leaves=10,
    )
)
def test_every_place_of_a_document_is_found(value: Any) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False)
    assert parse_json(text, "x") == (value, None)

    def walk(part: Any, pointer: str) -> None:
        line, column = pointer_location(text, pointer)
        rest = "\n".join([text.split("\n")[line - 1][column - 1 :], *text.split("\n")[line:]])
        assert json.JSONDecoder().raw_decode(rest)[0] == part
        if isinstance(part, dict):
            for name, inner in part.items():
                if len(name) < 100:
                    walk(inner, f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}")
        elif isinstance(part, list):
            for at, inner in enumerate(part):
                walk(inner, f"{pointer}/{at}")

    if "\r" not in text and "\x85" not in text:
        walk(value, "")


def test_a_place_that_is_not_there_is_the_nearest_around_it() -> None:
    assert pointer_location('{"a":\n {"b": 1}}', "/a/x/y") == (2, 2)


@settings(deadline=None)
@given(st.text('{}[]:,"\\019.eE+-truefalsnNaI \n', max_size=40))
def test_no_text_makes_the_reading_raise_and_json_is_read_as_json(text: str) -> None:
    value, finding = parse_json(text, "x")
    if finding is None:
        assert json.loads(text) == value
    else:
        assert finding.where is not None
    pointer_location(text, "/a/0")


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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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


@given(st.dictionaries(st.sampled_from([*SCHEMA["properties"], "x"]), st.text()))  # type: ignore[misc]
def test_no_text_makes_it_raise(texts: dict[str, str]) -> None:
    values, problems = coerce_text(SCHEMA, texts)
    assert len(values) + len(problems) == len(texts)
