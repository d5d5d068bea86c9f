"""What is made while the cycle collector is paused counts as old afterwards, and what a program has frozen stays so."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tavern_core import gc_pause
from tavern_core.gc_pause import collector_paused


class Made:
    """An object that the collector watches."""


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    """What the tests have frozen (`conftest.py`) is frozen again afterwards."""
    gc.unfreeze()
    yield
    gc.enable()
    gc.freeze()


def generation_of(wanted: object) -> int | None:
    return next((n for n in range(3) if any(one is wanted for one in gc.get_objects(generation=n))), None)


@pytest.mark.slow
def test_what_is_made_meanwhile_at_the_start_is_old_afterwards_and_the_collector_runs_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gc_pause, "_pauses", 0)
    with collector_paused():
        assert not gc.isenabled()
        made = Made()
    assert gc.isenabled() and gc.get_freeze_count() == 0
    assert generation_of(made) not in (None, 0)


@pytest.mark.slow
def test_what_is_made_meanwhile_later_on_is_as_young_as_ever() -> None:
    for _ in range(4):
        with collector_paused():
            made = Made()
    assert generation_of(made) == 0


@pytest.mark.slow
def test_objects_that_the_program_has_frozen_stay_frozen() -> None:
    frozen = Made()
    gc.freeze()
    with collector_paused():
        made = Made()
    assert gc.get_freeze_count() > 0
    assert generation_of(frozen) is None and generation_of(made) == 0


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()
