"""The output and log of a worker: its end is stored for error messages, lines are logged, and the amount is limited."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

LONGEST_LINE: Final = 2_000
LONGEST_RECORD: Final = 10_000
RECORD_BYTES: Final = 100
"""The weight of a record in addition to its text, because reading it costs, too."""
FLOOD_BYTES: Final = 16_000_000
"""More than this within `FLOOD_S` is a flood."""
FLOOD_S: Final = 10.0
MOST_LINES: Final = 1_000
"""Maximum logged lines within `FLOOD_S`; the rest is counted."""


class WorkerOutput:
    """The output of one plugin's workers.

    Args:
        logger: the target of its lines.
        kept: stored bytes of its end.
    """

    def __init__(self, logger: logging.Logger, kept: int) -> None:
        self._logger = logger
        self._tail_bytes = kept
        self._lock = threading.Lock()
        self._end = bytearray()
        self._line = bytearray()
        self._since = 0.0
        self._bytes = 0
        self._lines = 0

    def take(self, chunk: bytes) -> bool:
        """Add a piece of output; False if it is a flood."""
        self._begin_anew()
        self._bytes += len(chunk)
        with self._lock:
            self._end += chunk[-self._tail_bytes :] if self._tail_bytes else b""
            del self._end[: max(len(self._end) - self._tail_bytes, 0)]
        if self._bytes > FLOOD_BYTES:
            return False
        *lines, rest = (bytes(self._line) + chunk).split(b"\n")
        self._line = bytearray(rest[:LONGEST_LINE])
        for line in lines[: max(MOST_LINES - self._lines, 0)]:
            self._logger.info("%s", line[:LONGEST_LINE].decode("utf-8", "replace").rstrip())
        self._lines += len(lines)
        return True

    def log(self, level: int, name: str, text: str) -> bool:
        """Log a record of the plugin; False if it is a flood. Lines beyond `MOST_LINES` are dropped and counted."""
        self._begin_anew()
        self._lines += 1
        self._bytes += RECORD_BYTES + len(name) + len(text)
        if self._lines <= MOST_LINES:
            shortened = text[:LONGEST_RECORD]
            self._logger.log(
                min(max(level, 0), logging.CRITICAL),
                "%s",
                shortened if name == self._logger.name else f"{name[:200]}: {shortened}",
            )
        return self._bytes <= FLOOD_BYTES

    def _begin_anew(self) -> None:
        now = time.monotonic()
        if now - self._since > FLOOD_S:
            if self._lines > MOST_LINES:
                self._logger.warning("%d more lines were left out", self._lines - MOST_LINES)
            self._since, self._bytes, self._lines = now, 0, 0

    def end(self) -> str:
        """The last lines, for an error message."""
        with self._lock:
            return bytes(self._end[-2_000:]).decode("utf-8", "replace").strip()
