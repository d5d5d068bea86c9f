"""Work grows with the text, not with its square: counted in calls of the interpreter; only the soak asks the clock."""

from __future__ import annotations

import gc
import importlib.util
import time
from pathlib import Path
from types import ModuleType

import pytest

from tavern_core import tam
from tests.counting import calls_made
from tests.rows import each_row

pytestmark = pytest.mark.slow


def _benchmark() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "bench_tam.py"
    spec = importlib.util.spec_from_file_location("bench_tam", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BENCH = _benchmark()


@pytest.mark.parametrize("way", ["parse", "stream"])
@each_row("name", BENCH.HOSTILE)
def test_twice_the_hostile_text_is_at_most_twice_the_work(name: str, way: str) -> None:
    make = BENCH.HOSTILE[name]

    def work(pieces: int) -> int:
        text = make(pieces)
        if way == "parse":
            return calls_made(lambda: tam.bind(tam.parse(text), {"T": {}}))
        return calls_made(lambda: BENCH.feed_all([text[at : at + 20] for at in range(0, len(text), 20)]))

    pieces = 300
    if way == "stream":  # it looks ahead within a window, which the text must leave behind
        pieces = min(1500, max(pieces, 11_000 * 64 // len(make(64))))
    once, twice = work(pieces), work(2 * pieces)
    assert twice <= 2.2 * once + 200


@pytest.mark.soak
@pytest.mark.parametrize("name", BENCH.HOSTILE)
@pytest.mark.parametrize("way", ["parse", "stream"])
def test_a_doubled_hostile_text_takes_at_most_2_3_times_the_time(name: str, way: str) -> None:
    """What happens inside one call of C, a search of a pattern for example, is seen by the clock alone."""
    make = BENCH.HOSTILE[name]

    def seconds(pieces: int) -> float:
        text = make(pieces)
        parts = [text] if way == "parse" else [text[at : at + 20] for at in range(0, len(text), 20)]
        gc.collect()
        gc.disable()  # how often it collects depends on what other tests left in memory
        try:
            start = time.process_time()
            if way == "parse":
                tam.bind(tam.parse(text), {"T": {}})
            else:
                BENCH.feed_all(parts)
            return time.process_time() - start
        finally:
            gc.enable()

    pieces = 1_500
    # Large enough for the clock, and small enough for the caches of the processor: past them, each byte takes longer.
    while seconds(pieces) < 0.02 and pieces < 50_000:
        pieces *= 2
    rounds = [
        (seconds(pieces), seconds(pieces * 8)) for _ in range(9)
    ]  # in turns: a slow moment of the machine hits both
    small, large = map(min, zip(*rounds, strict=True))
    assert large <= 2.3**3 * small  # three doublings: what else the machine does weighs less than in one
