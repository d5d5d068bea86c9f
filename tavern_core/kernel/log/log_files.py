"""The files of one event log: the current one, the older ones, the anchor, and the side files.

    audit.jsonl                               the current file
    audit-000000000001-000000004711.jsonl     older: first and last record; the names sort in order of the chain
    audit.head                                number and hash of the last record, or of one shortly before
    audit.torn-<time>.bin                     an incomplete line that was cut off
    audit.jsonl.damaged-<time>                a file without any readable record

Names, the anchor and the end of a file only; who writes and who checks is in event_log.py and verify.py.
"""

from __future__ import annotations

import os
import re
import time
import zlib
from dataclasses import field
from pathlib import Path
from typing import Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.files.atomic_file import PRIVATE_FILE, free_path, write_all
from tavern_core.kernel.files.regular_file import open_regular
from tavern_core.kernel.log.record import LONGEST_RECORD, ChainLink, decode_own, link
from tavern_core.model.event import LOG_DAMAGED

_HEAD: Final = re.compile(rb'\{"seq": *(\d{1,18}),"hash":"([0-9a-f]{64})","check":"([0-9a-f]{8})"\}\n?\Z')
_LONGEST_HEAD: Final = 256
_WINDOW: Final = 256 * 1024
"""Bytes at the end that are read first."""


def audit_log(home: Path) -> Path:
    """The path of the audit log of a host with this state folder."""
    return home / "audit" / "audit.jsonl"


def head_path(path: Path) -> Path:
    return path.with_suffix(".head")


def head_line(seq: int, digest: str) -> bytes:
    """The anchor's text: always the same length, so that one write replaces it."""
    text = f'{{"seq":{seq:18d},"hash":"{digest}"'.encode()
    return b'%b,"check":"%08x"}\n' % (text, zlib.crc32(text))


def read_head(descriptor: int) -> ChainLink | None:
    """The anchor; None if it is missing or corrupt (it only helps to detect more)."""
    return _parse_head(os.pread(descriptor, _LONGEST_HEAD, 0))


def read_head_file(path: Path) -> ChainLink | None:
    """The anchor of a log that is not open."""
    try:
        with open_regular(path) as file:
            return _parse_head(file.read(_LONGEST_HEAD))
    except FileNotFoundError:
        return None


def _parse_head(text: bytes) -> ChainLink | None:
    match = _HEAD.match(text)
    if match is None or b"%08x" % zlib.crc32(text[: match.start(3) - len(b',"check":"')]) != match[3]:
        return None
    return ChainLink(int(match[1]), match[2].decode(), "")


def rotated_files(path: Path) -> list[Path]:
    """The older files of this log, oldest first."""
    name = re.compile(re.escape(path.stem) + r"-\d{12,}-(\d{12,})(?:-\d+)?" + re.escape(path.suffix) + r"\Z")
    found = [(match[1].zfill(18), each) for each in path.parent.glob("*") if (match := name.match(each.name))]
    return [each for _, each in sorted(found)]


def all_files(path: Path) -> list[Path]:
    """The files of this log, oldest first."""
    return [*rotated_files(path), *([path] if path.exists() else ())]


def rotated_path(path: Path, descriptor: int, last: int) -> Path:
    """A free name for the current file, which ends with record `last`."""
    start = re.match(rb'\{"seq":(\d{1,18}),', os.pread(descriptor, 64, 0))
    first = int(start[1]) if start else last
    return free_path(path, f"{path.stem}-{first:012d}-{last:012d}", path.suffix)


def newest_rotated(path: Path) -> Path | None:
    """The newest older file; None if there is none."""
    return next(reversed(rotated_files(path)), None)


def cut_off(path: Path, descriptor: int, end: int, torn: bytes, seconds: float) -> str:
    """Move the incomplete line after `end` to a side file; returns its name."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(seconds))
    aside = free_path(path, f"{path.stem}.torn-{moment}", ".bin")
    copy = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    try:
        write_all(copy, torn)
        os.fsync(copy)  # the copy must be safe before the original goes
    finally:
        os.close(copy)
    os.ftruncate(descriptor, end)
    return aside.name


@dataclass(slots=True)
class LogTail:
    """The result of a scan. Offsets are bytes from the beginning of the file."""

    end: int
    """The offset after the last complete line."""
    last: ChainLink | None = None
    """The last intact record."""
    torn: bytes = b""
    """The bytes after the last complete line: a record whose writer died."""
    damaged: list[int] = field(default_factory=list)
    """Complete lines that are not intact records and that no record of the log mentions yet."""
    damaged_at_end: int = 0
    """Number of complete lines after the last intact record."""

    @property
    def is_clean(self) -> bool:
        return self.last is not None and not self.torn and not self.damaged

    @property
    def is_hopeless(self) -> bool:
        """Whether there is no record: it is not a log, or all of it is lost."""
        return self.last is None and (bool(self.damaged_at_end) or len(self.torn) > 2 * LONGEST_RECORD)


def read_tail(descriptor: int, known: int, size: int) -> LogTail:
    """Read the bytes from `known` (a line begins there) to `size`; of many, only the end with an intact record."""
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


def _look(data: bytes, start: int, *, whole: bool) -> LogTail:
    """Parse bytes of the log. `whole`: a line begins at the start; otherwise the first, incomplete line is skipped."""
    complete = data.rfind(b"\n") + 1
    tail = LogTail(end=start + complete, torn=data[complete:])
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
