"""Bounds of one try: it ends, in the soak also soon, and whatever it says can be printed, sent and acted on."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from tavern_core.errors import Finding

HANGS = 20.0
"""Seconds after which a try counts as hanging, whatever else the machine does."""
SECOND = 1.0
"""Seconds of this process's own work that no single input may cost; only the soak asks the clock."""
SAYS_IT = re.compile(
    r"must |is not one of|does not fit the pattern|is longer than|is missing|needs |is larger than|is smaller than|has 1 to |is not reached in steps of "
)
"""What is wrong is what to do: `must be text, got a list`."""
WHOLE = re.compile(r"larger than|nested deeper|cannot be read|does not exist")
"""Said of the whole file."""


@contextmanager
def ends(what: object, within: float | None = None) -> Iterator[None]:
    """The body must end, whatever else the machine does; `within` also bounds the seconds of this process's own work."""

    def hanging(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"does not end: {what!r:.2000}")

    before = signal.signal(signal.SIGALRM, hanging)
    signal.setitimer(signal.ITIMER_REAL, HANGS)
    used = time.process_time()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    used = time.process_time() - used
    assert within is None or used < within, f"{used:.2f} s for {what!r:.2000}"


def check_text(text: str, what: object = "") -> None:
    """Fit for a terminal and a log: no half characters, no control characters, one screen at most."""
    assert text.isascii() or text.encode("utf-8", "strict"), what
    assert not [c for c in text if ord(c) < 32 and c not in "\n\t"], (text[:500], what)
    assert len(text) < 6_000, (text[:500], what)


def check_findings(findings: Iterable[Finding], content: bytes, *, lines: bool = True) -> None:
    """Every finding says what, where (file; line and column for text) and how to repair it."""
    last = len(content.decode("utf-8", "replace").splitlines()) + 2
    for finding in findings:
        check_text(str(finding), finding)
        assert finding.message, finding
        assert finding.hint or SAYS_IT.search(finding.message) or finding.severity != "error", finding
        assert finding.where is not None, finding
        assert finding.where.file, finding
        if lines and not WHOLE.search(finding.message):
            assert 1 <= finding.where.line <= last, (finding, last)
            assert finding.where.column >= 1, finding
