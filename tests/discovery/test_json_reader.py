"""Strict JSON with places."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core.kernel.text.json_document import read_json
from tests.rows import each_row

COMMA = 8 if sys.version_info >= (3, 13) else 9  # the comma itself, or what should not follow it
REFUSED = [
    ("", "1:1 expecting value"),
    ('{"a": 1,}', f"1:{COMMA} delete the comma"),
    ("{'a': 1}", "1:2 double quotes"),
    ('{"a": 1} // x', "1:10 no comments"),
    ('{"a": 1}\n{"b": 2}', "2:1 one JSON value in the file"),
    ('{"a": 1,\n "a": 2}', "2:2 twice, first at line 1, column 2"),
    ('{"x": {"b": 1, "b": 2}, "x": 3}', "1:16 twice", "1:25 twice, first at line 1, column 2"),
    ('{"a": NaN}', "1:7 NaN"),
    ('{"a": [1, -Infinity]}', "1:11 -Infinity"),
    ("[1e999]", "1:2 too large"),
    ('{"a": "\\ud800"}', "1:7 surrogate"),
    ('{"\\udfff": 1}', "1:1 surrogate"),
    ('{"a": ' + "9" * 5000 + "}", "1:7 5,000 digits"),
    ("[" * 100_000, "0:0 nested deeper than 64"),
    ("[" * 80 + "]" * 80, "1:65 nested deeper than 64"),
    ('{"a": "\t"}', "1:8 invalid control character"),
    ('{"\\u": 1}', "1:4 escape"),
    ('{"a": "x', "1:7 unterminated string"),
    ('{"a": True}', "1:7 true, false or null"),
    ('{"a"：1}', "1:5 full-width"),
    ('{"a": [1', "1:9 ends too early"),
    (b'{"a": "\xff"}', "1:8 0xFF is not UTF-8"),
    (b" " * 1_000_001, "0:0 larger than"),
]


@each_row(("text", "expected"), [(t, e) for t, *e in REFUSED])
def test_everything_refused_names_its_place(text: str | bytes, expected: list[str]) -> None:
    findings = read_json(text, "a.tool.json").findings
    assert [f"{f.where.line}:{f.where.column}" for f in findings if f.where] == [e.partition(" ")[0] for e in expected]
    for finding, e in zip(findings, expected, strict=True):
        assert e.partition(" ")[2] in f"{finding.message} ({finding.hint})"


TEXT = '{\n  "id": "x",\n  "a/b": [1, {"c": "{\\"d\\": 1}"}],\n  "e": {}\n}'


@each_row(
    ("path", "value", "key"),
    [((), "1:1", "1:1"), (("id",), "2:9", "2:3"), (("a/b", 1, "c"), "3:20", "3:15"), (("a/b", 0), "3:11", "3:11"),
     (("e",), "4:8", "4:3"), (("a/b", 1, "missing"), "3:14", "3:14")],
)  # fmt: skip
def test_a_path_is_found_in_the_text(path: tuple[str | int, ...], value: str, key: str) -> None:
    document = read_json("\ufeff" + TEXT, "a.tool.json")
    assert str(document.locate(path)).startswith(f"a.tool.json:{value}")
    assert str(document.locate(path, key=True)).startswith(f"a.tool.json:{key}")
    assert document.line(2) == '  "id": "x",'


def test_a_broken_text_is_located_as_far_as_it_goes() -> None:
    document = read_json('{"a": 1, "\\u": [2, "b"]', "a.tool.json")
    assert str(document.locate(("a",))) == "a.tool.json:1:7: a"
    assert str(document.locate(("\\u", 1))) == "a.tool.json:1:20: \\u.1"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=15,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(json_values, st.sampled_from([None, 1]), st.booleans())
def test_every_value_is_found_where_it_stands(data: object, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(data, indent=indent, ensure_ascii=ascii_only)
    document = read_json(text, "a.tool.json")
    if document.findings:
        return
    assert document.data == data
    lines = text.split("\n")

    def visit(value: object, path: tuple[str | int, ...]) -> None:
        where = document.locate(path)
        rest = "\n".join([lines[where.line - 1][where.column - 1 :], *lines[where.line :]])
        assert json.JSONDecoder().raw_decode(rest)[0] == value
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in items:
            visit(inner, (*path, key))

    visit(data, ())


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([*'{}[]:,"\\ \n1-eE.tN', "NaN", "null", '"a"', "\ud800", "\\u", "中"]), max_size=30))
def test_text_of_any_kind_is_answered(pieces: list[str]) -> None:
    document = read_json("".join(pieces), "a.tool.json")
    document.locate(("a", 0))
    assert document.findings or json.loads("".join(pieces)) == document.data
