"""No text makes the parser, the binder or the writer raise, and a damaged text never runs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core import tam
from tests.tam.cases import CASES, TOOLS
from tests.tam.texts import soup, soups

SCHEMAS = st.recursive(
    st.sampled_from(
        [
            True,
            False,
            None,
            5,
            {},
            {"type": "string"},
            {"type": "integer"},
            {"type": 7},
            {"type": ["null", 3]},
            {"$ref": "#"},
            {"$ref": "#/$defs/a"},
            {"$ref": "http://x"},
            {"enum": [1, "1", None]},
            {"enum": 3},
            {"const": {}},
            {"minimum": "x"},
        ]
    ),
    lambda inner: st.one_of(
        st.builds(lambda items: {"anyOf": items}, st.lists(inner, max_size=3)),
        st.builds(lambda items: {"allOf": items}, st.lists(inner, max_size=3)),
        st.builds(lambda items: {"type": "array", "items": items}, inner),
        st.builds(
            lambda a, b: {"type": "object", "properties": {"x": a, "key": b, "y1": a}, "additionalProperties": b},
            inner,
            inner,
        ),
        st.builds(lambda a: {"properties": a, "required": ["x", 3], "patternProperties": {"(": a, "^k": a}}, inner),
    ),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(text=soups, schema=SCHEMAS, references=st.booleans())
def test_any_text_with_any_schema_binds_without_raising(text: str, schema: object, references: bool) -> None:
    plan = tam.bind(tam.parse(text), {"any": schema}, references=references, destructive=lambda tool: True)
    refused = {problem.block for problem in plan.errors}
    assert not refused & {call.block for call in plan.calls}
    for problem in plan.problems:
        assert problem.code in tam.PROBLEM_CODES
        assert problem.message
        assert problem.hint
        assert problem.block >= (problem.code != "looks_like_call")
        assert problem.line >= 1
        assert problem.column >= 1


@pytest.mark.parametrize("seed", range(8))
def test_mutations_of_every_case(seed: int) -> None:
    chance = random.Random(seed)
    for case in CASES:
        if len(case.text) > 5000:
            continue
        text = case.text
        for _ in range(chance.randint(1, 4)):
            at, size = chance.randint(0, len(text)), chance.choice([0, 1, 1, 3, 10])
            text = (
                text[:at]
                + chance.choice(["", "", soup(chance, 1), chr(chance.randint(0, 0x10FFFF))])
                + text[at + size :]
            )
        plan = tam.bind(tam.parse(text), TOOLS)
        for call in plan.calls:
            assert call.tool in TOOLS


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(text=soups, at=st.integers(0, 10**6))
def test_a_text_cut_off_inside_a_block_does_not_run_that_block(text: str, at: int) -> None:
    whole = tam.parse(text)
    cut = text[: at % (len(text) + 1)]
    for found in tam.parse(cut).blocks:
        if found.end == len(cut) and not found.closed:
            assert not found.ok
    assert tam.parse(text) == whole


def test_the_problems_of_a_hostile_block_are_bounded() -> None:
    text = "<|[REQUEST_TOOL]|>" + "\nx「末」" * 5000 + "\n<|[END_TOOL]|>"
    assert 0 < len(tam.parse(text).problems) <= 20


@pytest.mark.slow
def test_the_problems_of_a_hostile_plan_are_bounded() -> None:
    fields = "".join(f"\nx{number}:「始」1「末」" for number in range(2, 20_000))
    plan = tam.bind(tam.parse(f"<|[REQUEST_TOOL]|>\ncommand1:「始」any「末」{fields}\n<|[END_TOOL]|>"), {"any": {}})
    assert not plan.calls
    assert [problem.code for problem in plan.problems] == ["orphan_parameter"] * 20


def test_many_steps_and_many_shared_fields_are_refused() -> None:
    steps = "".join(f"\ncommand{number}:「始」any「末」" for number in range(2000))
    shared = "".join(f"\nx{number}x:「始」1「末」" for number in range(2000))
    plan = tam.bind(tam.parse(f"<|[REQUEST_TOOL]|>{steps}{shared}\n<|[END_TOOL]|>"), {"any": {}})
    assert [problem.code for problem in plan.problems] == ["block_too_large"]


@pytest.mark.parametrize("word", ["allOf", "anyOf", "oneOf"])
def test_a_schema_that_refers_to_itself_again_and_again_ends(word: str) -> None:
    loop = {word: [{"$ref": "#/$defs/loop"}] * 5}
    schema = {"properties": {"x": {"type": "array", "items": {"$ref": "#/$defs/loop"}}}, "$defs": {"loop": loop}}
    text = "<|[REQUEST_TOOL]|>\ncommand:「始」any「末」\nx:「始」[1, 2]「末」\n<|[END_TOOL]|>"
    assert tam.bind(tam.parse(text), {"any": schema}).calls[0].arguments == {"x": [1, 2]}
