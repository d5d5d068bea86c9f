"""A stream gives what the whole text gives, however it is cut, and keeps no more than it must."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core import tam
from tavern_core.tam import BlockStart, Comment, Field, Problem, Text
from tests.rows import each_row
from tests.tam.cases import E, S, block
from tests.tam.texts import cut, soup, soups


def feed(pieces: list[str], **options: Any) -> tuple[list[tam.Event], tam.Document]:
    scanner = tam.Scanner(**options)
    events: list[tam.Event] = []
    for piece in pieces:
        events += scanner.feed(piece)
    events += scanner.close()
    return events, scanner.document


def check(text: str, chance: random.Random, **options: Any) -> None:
    document = tam.parse(text, **options)
    at_once, whole = feed([text], **options)
    assert whole == document
    for _ in range(2):
        events, pieced = feed(cut(chance, text), **options)
        assert events == at_once
        assert pieced == document
    assert "".join(event.text for event in at_once if isinstance(event, Text)) == document.prose
    assert [event for event in at_once if isinstance(event, tam.Block)] == list(document.blocks)
    assert [event for event in at_once if isinstance(event, Problem)] == list(document.problems)
    assert [event for event in at_once if isinstance(event, Field)] == [f for b in document.blocks for f in b.fields]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    text=soups, seed=st.integers(0, 2**16), fenced=st.booleans(), limit=st.sampled_from([1, 20, 50, 100, 300, 10**6])
)
def test_the_events_do_not_depend_on_the_cuts(text: str, seed: int, fenced: bool, limit: int) -> None:
    check(text, random.Random(seed), ignore_fenced=fenced, max_block=limit)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet=st.characters(categories=None), max_size=80), seed=st.integers(0, 2**16))
def test_any_characters_at_all(text: str, seed: int) -> None:
    check(text, random.Random(seed))


@each_row("seed", range(40))
def test_long_soups(seed: int) -> None:
    chance = random.Random(seed)
    check(soup(chance, 300), chance, ignore_fenced=chance.random() < 0.3, max_block=chance.choice([200, 3000, 10**6]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_values_longer_than_the_window(seed: int) -> None:
    chance = random.Random(seed)
    filler = [soup(chance, 400) if chance.random() < 0.5 else "word " * chance.randint(100, 3000) for _ in range(3)]
    text = (
        f"{S}\nx:「始」{filler[0]}「末」 \ny:「始ESCAPE」{filler[1]}「末ESCAPE」\nz:»»»{filler[2]}«««\n# {filler[0]}\n{E}"
        * 2
    )
    check(text, chance)


def test_a_field_comes_as_soon_as_its_end_is_certain() -> None:
    scanner = tam.Scanner()
    scanner.feed(f"{S}\nx:「始」1「末」")
    assert [event.value for event in scanner.feed("\n") if isinstance(event, Field)] == ["1"]
    assert scanner.feed("y:「始」a「末」b") == []
    assert [event.value for event in scanner.feed("\nc「末」\nz:「始」") if isinstance(event, Field)] == ["a「末」b\nc"]


def test_a_block_on_one_line_comes_with_the_piece_that_ends_it() -> None:
    text = f"{S}x:「始」{'long ' * 300}「末」 y:「始ESCAPE」a「末」b「末ESCAPE」{E}"
    scanner = tam.Scanner()
    blocks = [
        (at, event) for at, char in enumerate(text) for event in scanner.feed(char) if isinstance(event, tam.Block)
    ]
    [(at, found)] = blocks
    assert at == len(text) - 1
    assert [field.value for field in found.fields] == ["long " * 300, "a「末」b"]


def test_prose_comes_by_the_line_and_knows_thoughts() -> None:
    events, _ = feed(["hel", "lo\nyou <thi", "nk>a\nb</think> c"])
    assert events == [
        Text("hello\n", 0),
        Text("you ", 6),
        Text("<think>a\n", 10, True),
        Text("b</think>", 19, True),
        Text(" c", 28),
    ]


def test_events_of_a_block_in_order() -> None:
    events, _ = feed([block("# why", "x:「始」1「末」 // note")])
    assert [type(event) for event in events] == [BlockStart, Comment, Field, Problem, tam.Block]


def test_positions_point_into_the_text() -> None:
    text = "wörds\n" + block("# why", "  x:「始」1\n2「末」", "y:»»» z «««")
    document = tam.parse(text)
    (found,) = document.blocks
    assert text[found.start : found.end] == found.text
    assert (found.line, found.column, found.number, found.dialect) == (2, 1, 1, "tam2")
    assert [text[f.start : f.end] for f in found.fields] == ["x:「始」1\n2「末」", "y:»»» z «««"]
    assert [text[f.value_start : f.value_end] for f in found.fields] == ["1\n2", " z "]
    assert [f.line for f in found.fields] == [4, 6]
    assert [found.place(f.start) for f in found.fields] == [(4, 3), (6, 1)]
    assert [(c.text, c.line, text[c.start]) for c in found.comments] == [("# why", 3, "#")]
    assert document.prose == "wörds\n"


def test_fenced_blocks_are_left_alone_when_asked() -> None:
    call = block("command:「始」any「末」")
    shown = [
        (f"```\n{call}\n```\n", 0),
        (f"~~~~ tam\n{call}\n~~~\n{call}\n~~~~\n{call}", 1),
        (f"  ```tam\n{call}\n  ```\n{call}", 1),
        (f"```\n{call}", 0),
        (f"``` inline ```\n{call}", 1),
        (f"text ```\n{call}\n", 1),
        (f"```\n<think>\n```\n{call}", 1),
        (f"```{'x' * 500}\n{call}", 1),
    ]
    for text, blocks in shown:
        assert len(tam.parse(text, ignore_fenced=True).blocks) == blocks, text
        assert feed(list(text), ignore_fenced=True)[1] == tam.parse(text, ignore_fenced=True), text


def test_a_block_that_is_too_large_is_skipped_without_being_kept() -> None:
    inner = block("command:「始」any「末」")
    text = f"{S}\nx:「始」{'a' * 200}\n{inner}「末」 {inner}\n{E} " + inner
    document = tam.parse(text, max_block=100)
    assert [problem.code for problem in document.blocks[0].problems] == ["block_too_large"]
    assert len(document.blocks[0].text) == 100
    assert not tam.bind(tam.parse(f"{S}\nx:「始ESCAPE」{'a' * 200}\n{inner}", max_block=100), {"any": {}}).calls


def test_a_block_quoted_in_a_value_that_is_too_large_is_not_run() -> None:
    inner = block("command:「始」any「末」", "y:「始」1「末」")
    text = f"{S}\nx:「始」{'a' * 200}\n{inner}\n{inner}「末」\n{E}\n" + inner
    plan = tam.bind(tam.parse(text, max_block=100), {"any": {}})
    assert [call.block for call in plan.calls] == [2]


def test_an_open_block_streamed_for_ever_keeps_a_bounded_text() -> None:
    scanner = tam.Scanner(max_block=1000)
    scanner.feed(f"{S}\nx:「始」")
    tracemalloc.start()
    try:
        for _ in range(2000):
            scanner.feed("some words and 末 signs " * 100)  # five million characters
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 200_000
    scanner.close()
    assert scanner.document.problems[0].code == "block_too_large"


def test_after_close_a_scanner_takes_nothing_more() -> None:
    scanner = tam.Scanner()
    scanner.feed("a")
    assert scanner.close() == [Text("a", 0)]
    assert scanner.feed("b") == scanner.close() == []
    assert scanner.document.prose == "a"
