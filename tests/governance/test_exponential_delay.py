"""The delays between attempts grow, and stay within their bound however often something has failed."""

from __future__ import annotations

import pytest

from tavern_core.model.exponential_delay import exponential_delay


def test_delays_grow_by_a_factor_up_to_the_longest() -> None:
    assert [exponential_delay(retries, 0.5, 3.0) for retries in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert [exponential_delay(retries, 10, 60_000, 1.5) for retries in range(1, 4)] == [10, 15, 22.5]


@pytest.mark.parametrize("retries", [1_000, 1_100, 100_000])
def test_after_thousands_of_failures_the_delay_is_still_the_longest(retries: int) -> None:
    assert exponential_delay(retries, 0.5, 60.0) == 60.0
