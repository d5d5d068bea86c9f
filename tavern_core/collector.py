"""Python's cycle collector is paused while much is made that stays.

    with collector_paused():
        ...  # many objects, no garbage

Each time the process has grown by some objects the collector searches them for cycles. While a host is imported that is an eighth of
the time, and nothing is found: classes and functions stay.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No search for cycles within; afterwards as before. Memory that no cycle holds is freed as always."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
