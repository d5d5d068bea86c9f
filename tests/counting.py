"""Work counted in calls, which is the same on every machine, however busy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


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
