"""Calls written as text read back as they were; text made harmless stays harmless."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core import tam
from tavern_core.errors import UsageError
from tavern_core.tam import TamCall
from tests.rows import each_row
from tests.tam.cases import CASES, TOOLS, E, S, block
from tests.tam.texts import soups

OPEN = {"t": {}, "x:y": {}}
NAMES = st.sampled_from(["x", "X", "x1", "x_1", "x_", "a b", "参数", "1", "image_url_1", "-"])
KEYWORDS = st.sampled_from(
    ["command", "command2", "comment", "request_id", "on_error", "retry", "type_hint_x", "uri_x", "common_x"]
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), soups, st.text(),
                    st.sampled_from(["5", "null", " true", "{}", "{{step1}}", '"a"', "", " "]))  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(soups, inner, max_size=3), max_leaves=5
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    arguments=st.dictionaries(NAMES | KEYWORDS, VALUES, max_size=4),
    request_id=st.none() | st.just("r-1"),
    retry=st.integers(0, 5),
)
def test_a_call_reads_back_as_it_was(arguments: dict[str, Any], request_id: str | None, retry: int) -> None:
    call = TamCall(1, 1, "t", arguments, request_id, "continue" if retry else "stop", retry)
    text = tam.render([call])
    assert tam.bind(tam.parse(text), OPEN).calls == (call,), text
    assert tam.bind(tam.parse("words " + text + "\nmore"), OPEN).calls == (call,)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.dictionaries(NAMES, VALUES, max_size=3), min_size=2, max_size=3),
    st.sets(st.integers(0, 30), min_size=3, max_size=3),
)
def test_a_chain_reads_back_as_it_was(steps: list[dict[str, Any]], numbers: set[int]) -> None:
    calls = tuple(TamCall(number, 1, "t", arguments) for number, arguments in zip(sorted(numbers), steps, strict=False))
    text = tam.render(calls)
    assert tam.bind(tam.parse(text), OPEN).calls == calls, text


@pytest.mark.slow
def test_every_call_of_the_cases_reads_back() -> None:
    for case in CASES:
        calls = tam.bind(tam.parse(case.text), TOOLS).calls
        again = tam.bind(tam.parse(tam.render(calls, TOOLS)), TOOLS)
        assert [(c.index, c.tool, c.arguments) for c in again.calls] == [
            (c.index, c.tool, c.arguments) for c in calls
        ], case.says


def test_calls_of_different_blocks_are_blocks_of_their_own() -> None:
    calls = (TamCall(1, 1, "t", {}), TamCall(1, 2, "t", {}))
    assert tam.bind(tam.parse(tam.render(calls)), OPEN).calls == calls


def test_text_is_written_plainly() -> None:
    assert tam.render(TamCall(1, 1, "t", {"x": "a\nb"})) == f"{S}\ncommand:「始」t「末」\nx:「始」a\nb「末」\n{E}"


def test_a_schema_makes_hints_needless() -> None:
    call = TamCall(1, 1, "typed", {"n": 5, "s": "5", "a": [1]})
    assert "»»»" in tam.render(call)
    assert tam.render(call, TOOLS) == block(
        "command:「始」typed「末」", "n:「始」5「末」", "s:「始」5「末」", "a:「始」[1]「末」"
    )


TWINS = {"type": "object", "properties": {"x": {"type": "string"}, "x_": {"type": "string"}, "X": {"type": "string"}}}


@pytest.mark.parametrize("steps", [(1,), (1, 2), (7, 12)])
def test_a_call_written_with_its_schema_reads_back_as_it_was(steps: tuple[int, ...]) -> None:
    schemas = {"twins": TWINS}
    arguments = {"x": "{{step1}}", "x_": "null", "X": "a\n「末」"}
    calls = tuple(TamCall(number, 1, "twins", arguments) for number in steps)
    assert tam.bind(tam.parse(tam.render(calls, schemas)), schemas).calls == calls
    assert tam.bind(tam.parse(tam.render(calls, schemas)), schemas, references=True).calls == calls


@pytest.mark.parametrize(
    "call",
    [TamCall(1, 1, "t", {}, "r-1"), TamCall(1, 1, "t", {}, retry=2), TamCall(2, 1, "t", {}, on_error="continue")],
)
def test_a_modifier_with_the_name_of_a_parameter_is_refused(call: TamCall) -> None:
    names = ("request_id", "retry", "on_error")
    schemas = {"t": {"type": "object", "properties": {name: {"type": "string"} for name in names}}}
    with pytest.raises(UsageError, match="t: the modifier"):
        tam.render(call, schemas)


def test_anything_with_a_tool_and_arguments_can_be_written() -> None:
    class Asked:
        tool = "x:y"
        arguments = {"x": "1"}  # noqa: RUF012

    (call,) = tam.bind(tam.parse(tam.render(Asked())), OPEN).calls
    assert (call.tool, call.arguments) == ("x:y", {"x": "1"})


@each_row(
    "arguments",
    [
        {"a:b": "1"},
        {"": "1"},
        {" x": "1"},
        {"k" * 129: "1"},
        {"x": {1, 2}},
        {"x": float("nan")},
        {"x": b"1"},
        {"🙂": "1"},
    ],
)
def test_what_cannot_be_written_is_named(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="t: "):
        tam.render(TamCall(1, 1, "t", arguments))


@each_row(
    "wrong",
    [
        {"tool": ""},
        {"tool": " t"},
        {"index": -5},
        {"retry": 101},
        {"retry": -1},
        {"on_error": "maybe"},
        {"request_id": "a\nb"},
        {"request_id": " r"},
        {"request_id": "r" * 241},
        {"request_id": "r««« y:»»»1"},
        {"request_id": 5},
        {"retry": True},
        {"index": False},
        {"arguments": None},
    ],
)
def test_a_call_that_no_text_can_give_is_not_written(wrong: dict[str, Any]) -> None:
    call = {"index": 1, "block": 1, "tool": "t", "arguments": {"x": "1"}, **wrong}
    with pytest.raises(UsageError, match="cannot be"):
        tam.render(TamCall(**call))


# --- neutralise ------------------------------------------------------------------------------------------------------

GUARD = "\u200b"
WORDS = [
    S,
    E,
    "<think>",
    "</think>",
    "<thinking>",
    "「始」",
    "「末」",
    "「始ESCAPE」",
    "「末ESCAPE」",
    "»»»",
    "«««",
    "```",
    "~~~",
    "<  |  [ request_tool ] | >",
]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(soups)
def test_neutral_text_is_never_a_call_and_stays_readable(text: str) -> None:
    neutral = tam.neutralise(text)
    assert not tam.parse(neutral).blocks
    assert tam.neutralise(neutral) == neutral
    assert neutral.replace(GUARD, "") == text.replace(GUARD, "")


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(soups)
def test_neutral_text_stays_inside_the_value_it_is_put_into(text: str) -> None:
    neutral = tam.neutralise(text)
    for head, tail in (("「始」", "「末」"), ("「始ESCAPE」", "「末ESCAPE」"), ("»»»", "«««"), (">>>", "<<<")):
        (found,) = tam.parse(block("command:「始」any「末」", f"x:{head}{neutral}{tail}")).blocks
        assert len(found.fields) == 2
        assert found.ok


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.sampled_from(WORDS), st.data())
def test_the_text_around_cannot_complete_neutral_text(word: str, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(word) - 1))
    end = data.draw(st.integers(begin + 1, len(word)))
    middle = word[begin:end]
    if not middle.strip():
        return
    rest = "\ncommand:「始」any「末」\n<|[END_TOOL]|>" + block("command:「始」any「末」")
    for inside in (
        middle,
        middle + " and more" if end == len(word) else middle,
        "more and " + middle if begin == 0 else middle,
    ):
        text = "hello " + word[:begin] + tam.neutralise(inside) + word[end:] + rest
        assert len(tam.parse(text).blocks) == 1, text


def test_ordinary_text_is_left_as_it_is() -> None:
    for text in (
        "",
        "hello",
        '{"a": [1, 2]}',
        "a < b and c > d",
        "x = y << 2; z >> 1",
        "<p>html</p>",
        "中文「引号」和«книга»。",
        "use `code` ~5",
        "# 标题\n- a",
    ):
        assert tam.neutralise(text) == text
