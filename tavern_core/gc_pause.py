"""Python's cycle collector is paused while much is made that stays.

    with collector_paused():
        ...  # many objects, no garbage

Each time the process has grown by some objects the collector searches them for cycles. While a host is imported that is an eighth of
the time, and nothing is found: classes and functions stay. At the start of a process they count as old afterwards, as if the
collector had searched them several times already; else the next objects would have it search them all, three times. Not later:
counting as old puts off the search among the old, and a program that opens one host after the other would keep them all.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_AT_START: Final = 3
"""The imports of `Tavern` and `Plugin`, and the building of the first host."""
_pauses = 0


@contextmanager
def collector_paused() -> Iterator[None]:
    """No search for cycles within; afterwards as before. Memory that no cycle holds is freed as always."""
    global _pauses
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            _pauses += 1
            if (
                _pauses <= _AT_START and not gc.get_freeze_count()
            ):  # else the program has frozen objects, which are to stay so
                gc.freeze()
                gc.unfreeze()  # into the oldest generation
            gc.enable()
