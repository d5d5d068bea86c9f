"""The files of one event log: the current one, the older ones, the anchor, and the side files.

    audit.jsonl                               the current file
    audit-000000000001-000000004711.jsonl     older: first and last record; the names sort in order of the chain
    audit.head                                number and hash of the last record, or of one shortly before
    audit.torn-<time>.bin                     an incomplete line that was cut off
    audit.jsonl.damaged-<time>                a file without any readable record

Names and the anchor only; who writes and who checks is in event_log.py and log_verify.py.
"""

from __future__ import annotations

import os
import re
import time
import zlib
from pathlib import Path
from typing import Final

from tavern_core.kernel.files.atomic_file import PRIVATE_FILE, write_all
from tavern_core.kernel.files.regular_file import open_regular
from tavern_core.kernel.log.record import Link

_HEAD: Final = re.compile(rb'\{"seq": *(\d{1,18}),"hash":"([0-9a-f]{64})","check":"([0-9a-f]{8})"\}\n?\Z')
_LONGEST_HEAD: Final = 256


def audit_log(home: Path) -> Path:
    """Where a host with this state folder keeps its audit log."""
    return home / "audit" / "audit.jsonl"


def head_path(path: Path) -> Path:
    return path.with_suffix(".head")


def head_line(seq: int, digest: str) -> bytes:
    """The anchor's text: always the same length, so that one write replaces it."""
    text = f'{{"seq":{seq:18d},"hash":"{digest}"'.encode()
    return b'%b,"check":"%08x"}\n' % (text, zlib.crc32(text))


def read_head(descriptor: int) -> Link | None:
    """The anchor; None if it is missing or corrupt (it only helps to detect more)."""
    return _parse_head(os.pread(descriptor, _LONGEST_HEAD, 0))


def read_head_file(path: Path) -> Link | None:
    """The anchor of a log that is not open."""
    try:
        with open_regular(path) as file:
            return _parse_head(file.read(_LONGEST_HEAD))
    except FileNotFoundError:
        return None


def _parse_head(text: bytes) -> Link | None:
    match = _HEAD.match(text)
    if match is None or b"%08x" % zlib.crc32(text[: match.start(3) - len(b',"check":"')]) != match[3]:
        return None
    return Link(int(match[1]), match[2].decode(), "")


def rotated_files(path: Path) -> list[Path]:
    """The older files of this log, oldest first."""
    name = re.compile(re.escape(path.stem) + r"-\d{12,}-(\d{12,})(?:-\d+)?" + re.escape(path.suffix) + r"\Z")
    found = [(match[1].zfill(18), each) for each in path.parent.glob("*") if (match := name.match(each.name))]
    return [each for _, each in sorted(found)]


def rotated_path(path: Path, descriptor: int, last: int) -> Path:
    """A free name for the current file, which ends with record `last`."""
    start = re.match(rb'\{"seq":(\d{1,18}),', os.pread(descriptor, 64, 0))
    first = int(start[1]) if start else last
    for count in range(1000):
        again = f"-{count}" if count else ""
        name = path.with_name(f"{path.stem}-{first:012d}-{last:012d}{again}{path.suffix}")
        if not name.exists():
            return name
    raise FileExistsError(f"a thousand files with the records up to {last}")


def newest_rotated(path: Path) -> Path | None:
    """The newest older file; None if there is none."""
    return next(reversed(rotated_files(path)), None)


def cut_off(path: Path, descriptor: int, end: int, torn: bytes, seconds: float) -> str:
    """Move the half-written line behind `end` to a side file; its name."""
    aside = _torn_path(path, seconds)
    copy = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    try:
        write_all(copy, torn)
        os.fsync(copy)  # the copy must be safe before the original goes
    finally:
        os.close(copy)
    os.ftruncate(descriptor, end)
    return aside.name


def _torn_path(path: Path, seconds: float) -> Path:
    """A free name for a half-written line."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(seconds))
    for count in range(1000):
        name = path.with_name(f"{path.stem}.torn-{moment}" + (f"-{count}" if count else "") + ".bin")
        if not name.exists():
            return name
    raise FileExistsError(f"a thousand half-written lines at {moment}")
