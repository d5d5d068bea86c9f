"""Parts of the loop on their own: reading an answer piece by piece, repetition, compaction, the clock."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tavern_core.agents.answer_stream import AnswerReader
from tavern_core.agents.compaction import KEPT_TURNS, TARGET, plan_compaction, shorten, tokens_of_messages
from tavern_core.agents.repetition import is_looping
from tavern_core.agents.spending import Clock
from tavern_core.model.config import TamConfig
from tests.agents.desk import block
from tests.rows import each_row

TEXT = (
    f"<think>first {block('note', text='no')}</think>I add.\n{block('add', a=1)}\nThe result is 5.\n{block('add', a=2)}"
)


@pytest.mark.slow
@given(st.lists(st.integers(0, len(TEXT)), max_size=12), st.booleans())
def test_an_answer_is_cut_at_the_same_place_however_it_arrives(cuts: list[int], many: bool) -> None:
    listener = AnswerReader(TamConfig(), many_blocks=many)
    ends = sorted({0, *cuts, len(TEXT)})
    for start, end in pairwise(ends):
        listener.feed(TEXT[start:end])
    listener.close()
    first = TEXT.partition("\nThe result")[0]
    assert listener.text == (TEXT if many else first)
    assert listener.blocks == (2 if many else 1)
    assert listener.plain_text.startswith("I add.")
    assert listener.hides_call


@each_row(
    ("text", "loops"),
    [
        ("ha" * 3_000, True),
        ("I will look.\n" * 500, True),
        ("x" * 3_000, False),
        ("".join(f"line {n}\n" for n in range(2_000)), False),
        ("", False),
    ],
)  # fmt: skip
def test_a_passage_over_and_over_is_noticed(text: str, loops: bool) -> None:
    assert is_looping(text) is loops


def conversation(turns: int, size: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"role": "system", "content": "s" * 400}, {"role": "user", "content": "t" * 400}]
    for turn in range(turns):
        found += [{"role": "assistant", "content": f"call {turn}"}, {"role": "user", "content": f"{turn} " * size}]
    return found


@pytest.mark.slow
@example(16, 201, 1051)
@given(st.integers(0, 30), st.integers(1, 3_000), st.integers(300, 20_000))
def test_a_shortened_conversation_keeps_task_and_last_turns_and_names_what_it_left_out(
    turns: int, size: int, window: int
) -> None:
    before = conversation(turns, size)
    plan = plan_compaction(before, window)
    if plan is None:
        return
    begin, end = plan.turns
    addresses = [f"artifact:art-{n}" for n in range(len(plan.results) + (end > begin))]
    after = shorten(before, plan, addresses, "en")
    assert after[:2] == before[:2]
    assert after[-1] == before[-1]
    if tokens_of_messages(before[:2]) + tokens_of_messages(before[-2 * KEPT_TURNS :]) + 100 < window * TARGET:
        assert after[-2 * KEPT_TURNS :] == before[-2 * KEPT_TURNS :]
        assert tokens_of_messages(after) <= window
    assert tokens_of_messages(after) < tokens_of_messages(before)
    text = "\n".join(message["content"] for message in after)
    assert all(address in text for address in addresses)
    assert shorten(before, plan, addresses, "en") == after


def test_time_that_people_take_is_not_counted() -> None:
    clock = Clock(10.0)
    with clock.paused(), clock.paused():
        assert clock.is_paused
        held = clock.seconds
        assert clock.seconds == pytest.approx(held, abs=1e-3)
    assert not clock.is_paused
    assert 10.0 <= clock.seconds < 11.0
