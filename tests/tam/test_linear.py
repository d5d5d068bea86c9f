"""Work grows with the text, not with its square: counted in calls of the interpreter, so no clock is asked."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType

import pytest

from tavern_core import tam


def _benchmark() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "bench_tam.py"
    spec = importlib.util.spec_from_file_location("bench_tam", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BENCH = _benchmark()


def calls_made(job: Callable[[], object]) -> int:
    """How many functions, Python's and C's, are called while `job` runs."""
    count = 0

    def notice(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        if event in ("call", "c_call"):
            count += 1

    before = sys.getprofile()
    sys.setprofile(notice)
    try:
        job()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("name", BENCH.HOSTILE)
@pytest.mark.parametrize("way", ["parse", "stream"])
def test_twice_the_hostile_text_is_at_most_twice_the_work(name: str, way: str) -> None:
    make = BENCH.HOSTILE[name]

    def work(pieces: int) -> int:
        text = make(pieces)
        if way == "parse":
            return calls_made(lambda: tam.bind(tam.parse(text), {"T": {}}))
        return calls_made(lambda: BENCH.feed_all([text[at : at + 20] for at in range(0, len(text), 20)]))

    once, twice = work(1500), work(3000)
    assert twice <= 2.2 * once + 200
