"""Verifies that the log is unchanged: every record of every file, its own hash and its place in the chain.

    changed     a line is not an intact record, or the record before it was replaced by another one
    missing     numbers are left out, at the beginning, in between or at the end
    reordered   a record follows one that was written later, or occurs twice
    torn        the last line is half written; the next `append` cuts it off and keeps it aside

Reads line by line and never raises on content.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import Any, Final, Literal

from tavern_core.errors import Problem, Severity
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.files.atomic_file import state_errors
from tavern_core.kernel.files.regular_file import open_regular
from tavern_core.kernel.log.log_files import all_files, head_path, read_head_file
from tavern_core.kernel.log.record import GENESIS, LONGEST_RECORD, ChainLink, decode_own, link
from tavern_core.model.event import LOG_REPAIRED

DamageKind = Literal["changed", "missing", "reordered", "torn"]
MOST_PROBLEMS: Final = 1000
_REMEMBERED: Final = 4096  # hashes of the latest records, to check one that is out of order


@dataclass(frozen=True, slots=True)
class LogProblem(Problem):
    """A place at which the log differs from what was written."""

    file: str
    line: int
    what: DamageKind
    message: str
    hint: str = ""
    severity: Severity = "error"

    @property
    def located(self) -> str:
        return f"{self.file}:{self.line}: {self.what}: {self.message}"

    def to_json(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line, "what": self.what, "message": self.message}


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of `verify`."""

    ok: bool
    records: int
    """Intact records."""
    problems: tuple[LogProblem, ...] = ()
    files: tuple[str, ...] = ()
    first: int = 0
    last: int = 0
    head: str = GENESIS
    """Hash of the last record. A copy elsewhere proves later that no record before it was changed."""
    repairs: tuple[str, ...] = ()
    """Repairs by the log itself: incomplete lines that were cut off, with the file that has them."""

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "records": self.records,
            "first": self.first,
            "last": self.last,
            "head": self.head,
            "files": list(self.files),
            "problems": [p.to_json() for p in self.problems],
            "repairs": list(self.repairs),
        }


def verify(path: Path, *, first: int = 1) -> VerifyReport:
    """Check the log at `path` with all its older files; a missing log has no errors.

    Args:
        first: number of the first expected record; higher if older files were archived elsewhere.

    Raises:
        StateDamaged: a file cannot be opened.
    """
    chain = _Chain(first)
    files = all_files(path)
    with state_errors(path, "read"):
        for file in files:
            chain.file = str(file)
            for number, line in _lines(file):
                chain.take(number, line, is_current=file == path)
        chain.finish(read_head_file(head_path(path)))
    return VerifyReport(
        not chain.problems,
        chain.records,
        tuple(chain.problems[:MOST_PROBLEMS]),
        tuple(f.name for f in files),
        chain.lowest,
        chain.highest,
        chain.head,
        tuple(chain.repairs),
    )


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers; one that is longer than any record is split into pieces, none of which is a record."""
    with open_regular(file) as stream:
        number = 1
        while line := stream.readline(2 * LONGEST_RECORD):
            yield number, line
            number += line.endswith(b"\n")


@dataclass(slots=True)
class _Chain:
    expected: int
    """The next expected number."""
    file: str = ""
    line: int = 0
    problems: list[LogProblem] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    records: int = 0
    lowest: int = 0
    highest: int = 0
    head: str = GENESIS
    is_broken: bool = False
    """The line before is not a record, its content is unknown."""
    gaps: dict[int, LogProblem] = field(default_factory=dict)
    """Missing numbers so far, while there are not too many of them → their place."""
    hashes: OrderedDict[int, str] = field(default_factory=OrderedDict)

    def take(self, number: int, line: bytes, *, is_current: bool) -> None:
        self.line = number
        found = link(line)
        if found is None:
            if line.endswith(b"\n") or not is_current:
                self._say("changed", "this line is not the record that was written")
            else:
                self._say("torn", "the last line is half written; the next event that is logged repairs it")
            self.is_broken = True
            return
        self.records += 1
        if (repair := decode_own(line, LOG_REPAIRED)) is not None:
            self.repairs.append(f"{self.file}:{number}: {repair.get('message')}")
            if ".damaged-" in (name := str(repair.get("keptIn"))) and self.records > 1 and found.seq == self.expected:
                self._say("changed", f"this file replaced one without a readable record, which is kept as {name}")
        self._place(found)
        self._remember(found)

    def finish(self, anchor: ChainLink | None) -> None:
        """Compare with the anchor, which knows the last record, or one shortly before."""
        self.problems += dict.fromkeys(self.gaps.values())
        if anchor is None:
            return
        if anchor.seq > self.highest and not (self.is_broken and anchor.seq <= self.expected):
            self._say("missing", f"{_numbers(self.highest + 1, anchor.seq)} missing at the end")
        elif anchor.seq in self.hashes and self.hashes[anchor.seq] != anchor.hash:
            self._say("changed", f"record {anchor.seq} was replaced: its hash is not the one noted when it was written")

    def _place(self, found: ChainLink) -> None:
        seq = found.seq
        if seq < self.expected and self.records > 1:
            self._out_of_order(seq)
        elif seq > self.expected and not self.is_broken:
            self._left_out(self.expected, seq - 1)
        elif seq > self.expected + 1:  # the corrupt line was one of them; more are missing
            self._left_out(self.expected + 1, seq - 1)
        elif seq < self.expected:
            self._say("reordered", f"the log begins with record {seq}; {self.expected} was expected")
        before = self.hashes.get(seq - 1) if seq > 1 else GENESIS
        if before is not None and before != found.prev:
            self._say("changed", f"the record before {seq} is not the one that was written: its hash is another")
        self.is_broken = False
        self.expected = max(self.expected, seq + 1)

    def _left_out(self, first: int, last: int) -> None:
        gap = LogProblem(self.file, self.line, "missing", f"{_numbers(first, last)} missing before this line")
        if last - first < _REMEMBERED:
            self.gaps |= dict.fromkeys(range(first, last + 1), gap)
        else:
            self.problems.append(gap)

    def _out_of_order(self, seq: int) -> None:
        if self.gaps.pop(seq, None) is not None:
            self._say("reordered", f"record {seq} comes after record {self.highest}")
        else:
            self._say("reordered", f"record {seq} is here again")

    def _remember(self, found: ChainLink) -> None:
        self.lowest = min(self.lowest or found.seq, found.seq)
        if found.seq > self.highest:
            self.highest, self.head = found.seq, found.hash
        self.hashes[found.seq] = found.hash
        if len(self.hashes) > _REMEMBERED:
            self.hashes.popitem(last=False)

    def _say(self, what: DamageKind, message: str) -> None:
        if len(self.problems) <= MOST_PROBLEMS:
            self.problems.append(LogProblem(self.file, self.line, what, message))


def _numbers(first: int, last: int) -> str:
    return f"record {first} is" if first == last else f"the records {first} to {last} are"
