"""The delay before the next attempt: one function for calls, nodes, language models and connections."""

from __future__ import annotations


def exponential_delay(retries: int, first: float, longest: float, factor: float = 2.0) -> float:
    """The delay before retry 1, 2 and so on, in the unit of `first`.

    Callers that draw their delay at random use it as the upper bound.

    Args:
        factor: by which it grows with each retry.
    """
    try:
        return min(first * factor ** (retries - 1), longest)
    except OverflowError:  # after a thousand failures in a row
        return longest
