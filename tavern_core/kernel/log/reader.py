"""Reads the event log: oldest first, or the last few, across all its files.

Lines that are not records are skipped; `verify` reports them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.files.atomic_file import state_errors
from tavern_core.kernel.files.regular_file import open_regular
from tavern_core.kernel.log.log_files import all_files
from tavern_core.kernel.log.record import LONGEST_RECORD, RESERVED, decode

_BLOCK: Final = 64 * 1024
JsonRecord = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record of the audit log. Secrets in it were masked when it was written."""

    seq: int
    """Its number; the first record of a log has 1."""
    time: str
    """ISO 8601, UTC, milliseconds."""
    type: str
    """A type in `EVENT_TYPES`."""
    call_id: str
    """The call that it belongs to; empty if it belongs to none."""
    plugin: str
    data: Mapping[str, Any]
    """The data of the event: ``tool``, ``principal``, ``arguments``, ``reason`` … (see docs/configuration.md)."""
    prev: str
    """Hash of the record before."""
    hash: str

    def to_json(self) -> JsonRecord:
        """The record as in the file."""
        head = {
            "seq": self.seq,
            "time": self.time,
            "type": self.type,
            "callId": self.call_id or None,
            "plugin": self.plugin or None,
        }
        return {**head, **self.data, "prev": self.prev, "hash": self.hash}

    @classmethod
    def from_json(cls, record: JsonRecord) -> LogRecord:
        """The inverse of `to_json`; takes the readable parts of a corrupt record."""
        time, type_, call, plugin, prev, digest = (
            str(record.get(key) or "") for key in ("time", "type", "callId", "plugin", "prev", "hash")
        )
        data = {key: value for key, value in record.items() if key not in RESERVED}
        return cls(int(record["seq"]), time, type_, call, plugin, data, prev, digest)


def read(
    path: Path, *, last: int | None = None, call_id: str | None = None, types: Collection[str] | None = None
) -> Iterator[JsonRecord]:
    """The records of the log at `path`, oldest first.

    Args:
        last: only this many of the last matching records; read from the end, so that it is quick in a long log.
        call_id: only records of this call.
        types: only records of these types, e.g. ``{"POLICY_DENIED"}``.

    Raises:
        StateDamaged: a file cannot be opened. A log that does not exist has no records.
    """
    wanted = _filter(call_id, types)
    files = all_files(path)
    with state_errors(path, "read"):
        if last is not None:
            yield from reversed(_newest(files, max(0, last), wanted))
            return
        for file in files:
            with open_regular(file) as stream:
                while line := stream.readline(2 * LONGEST_RECORD):
                    if (record := wanted(line)) is not None:
                        yield record


def _filter(call_id: str | None, types: Collection[str] | None) -> Callable[[bytes], JsonRecord | None]:
    # A line contains the id as it is: lines without it need not be parsed.
    needle = json.dumps(call_id, ensure_ascii=False).encode("utf-8", "replace") if call_id is not None else b""

    def wanted(line: bytes) -> JsonRecord | None:
        if needle not in line or (record := decode(line)) is None or not isinstance(record.get("seq"), int):
            return None
        if call_id is not None and record.get("callId") != call_id:
            return None
        return record if types is None or record.get("type") in types else None

    return wanted


def _newest(files: list[Path], count: int, wanted: Callable[[bytes], JsonRecord | None]) -> list[JsonRecord]:
    found: list[JsonRecord] = []
    for file in reversed(files):
        with open_regular(file) as stream:
            for line in _backward(stream):
                if len(found) >= count:
                    return found
                if (record := wanted(line)) is not None:
                    found.append(record)
    return found


def _backward(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, last one first."""
    at = stream.seek(0, os.SEEK_END)
    parts: list[bytes] = []  # of the line whose beginning is not read yet, last part first
    while at > 0:
        size = min(_BLOCK, at)
        at -= size
        stream.seek(at)
        first, *rest = stream.read(size).split(b"\n")
        if not rest:
            parts.append(first)
            continue
        yield b"".join([rest[-1], *reversed(parts)])
        yield from reversed(rest[:-1])
        parts = [first]
    yield b"".join(reversed(parts))
