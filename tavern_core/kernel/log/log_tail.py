"""The end of a log file: where the chain stands, and what is wrong there.

Only the end is read when a log is opened (`verify` reads all of it), growing until at least one intact record is seen.
"""

from __future__ import annotations

import os
from dataclasses import field
from typing import Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.log.record import LONGEST_RECORD, Link, decode_own, link
from tavern_core.model.event import LOG_DAMAGED

_WINDOW: Final = 256 * 1024


@dataclass(slots=True)
class Tail:
    """What was seen. Offsets are bytes from the beginning of the file."""

    end: int
    """Behind the last complete line."""
    last: Link | None = None
    """The last intact record."""
    torn: bytes = b""
    """What stands behind the last complete line: a record whose writer died."""
    damaged: list[int] = field(default_factory=list)
    """Complete lines that are no intact records and that no record of the log mentions yet."""
    damaged_at_end: int = 0
    """How many complete lines stand behind the last intact record."""

    @property
    def is_clean(self) -> bool:
        return self.last is not None and not self.torn and not self.damaged

    @property
    def is_hopeless(self) -> bool:
        """No record: not a log, or all of it is lost."""
        return self.last is None and (bool(self.damaged_at_end) or len(self.torn) > 2 * LONGEST_RECORD)


def read_tail(descriptor: int, known: int, size: int) -> Tail:
    """Look at the bytes from `known` (a line begins there) to `size`; of a long stretch only at its end."""
    window = _WINDOW
    while True:
        start = max(known, size - window)
        tail = _look(_read(descriptor, start, size - start), start, whole=start == known)
        if tail.last is not None or start == known:
            return tail
        window *= 4


def _read(descriptor: int, start: int, count: int) -> bytes:
    parts = []
    while count > 0 and (part := os.pread(descriptor, count, start)):
        parts.append(part)
        start += len(part)
        count -= len(part)
    return b"".join(parts)


def _look(data: bytes, start: int, *, whole: bool) -> Tail:
    """`whole`: a line begins at the beginning; otherwise the first, cut line is left out."""
    complete = data.rfind(b"\n") + 1
    tail = Tail(end=start + complete, torn=data[complete:])
    mentioned: list[range] = []
    at = 0 if whole else data.find(b"\n") + 1
    for line in data[at:complete].splitlines(keepends=True) if at < complete else ():
        found = link(line)
        if found is None:
            tail.damaged.append(start + at)
            tail.damaged_at_end += 1
        else:
            tail.last = found
            tail.damaged_at_end = 0
            mentioned += _mentioned(line)
        at += len(line)
    tail.damaged = [offset for offset in tail.damaged if not any(offset in stretch for stretch in mentioned)]
    return tail


def _mentioned(line: bytes) -> list[range]:
    """The stretch of the file that a LOG_DAMAGED record is about."""
    match (decode_own(line, LOG_DAMAGED) or {}).get("between"):
        case [int(first), int(last)]:
            return [range(first, last + 1)]
        case _:
            return []
