"""A text that was read as data, with the places and problems of its parts; limits for files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from tavern_core.errors import Finding, Location
from tavern_core.model.path_problem import SMALLER, Mark, Path

LARGEST_FILE: Final = 1_000_000  # bytes
MOST_NODES: Final = 50_000


@dataclass(frozen=True)
class LocatedDocument:
    """The content of a text, and the places of its parts.

    Args:
        file: shown in findings.
        text: the decoded text, without a byte order mark.
        data: dicts, lists and scalars; None for an empty text. With errors it holds the readable part.
        findings: all errors, in the order of the text.
        code: the error code of the findings.
    """

    file: str
    text: str
    data: Any
    findings: tuple[Finding, ...] = ()
    code: str = "MANIFEST_INVALID"

    @property
    def is_readable(self) -> bool:
        """False when anything in it was refused."""
        return not self.findings

    @cached_property
    def _marks(self) -> Mapping[Path, tuple[Mark, Mark]]:
        """Path → the places of its key and its value; read at the first request."""
        return self._read_marks()

    def _read_marks(self) -> Mapping[Path, tuple[Mark, Mark]]:
        return {}

    def locate(self, path: Sequence[str | int], *, key: bool = False) -> Location:
        """The place of the value at `path`, or (`key`) of its key.

        A path that is not in the text (a missing field) is placed at the nearest part of it that is.
        """
        wanted = tuple(path)
        pointer = ".".join(str(part) for part in wanted)
        for length in range(len(wanted), -1, -1):
            if (found := self._marks.get(wanted[:length])) is not None:
                line, column = found[0 if key or length < len(wanted) else 1]
                return Location(self.file, line, column, pointer)
        return Location(self.file, pointer=pointer)

    def line(self, number: int) -> str:
        """Line `number` (from 1) without its end; empty if there is none."""
        lines = self.text.splitlines()
        return lines[number - 1] if 0 < number <= len(lines) else ""


def text_of(text: str | bytes, file: str, code: str, largest: int = LARGEST_FILE) -> str | Finding:
    """The characters of a file without a byte order mark, or a finding if it cannot be read."""
    if len(text) > largest:
        return Finding(code, f"the file is larger than {largest:,} bytes", SMALLER, Location(file))
    if isinstance(text, bytes):
        decoded = decode(text, file, code)
        if isinstance(decoded, Finding):
            return decoded
        text = decoded
    return text.removeprefix("\ufeff")


def place(text: str, offset: int) -> Mark:
    """Line and column, from 1, of the character at `offset`."""
    before = text[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1


def decode(content: bytes, file: str, code: str) -> str | Finding:
    """The text of a file in UTF-8, or a finding with the place of the problem."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return Finding(code, "the file is UTF-16", "save it as UTF-8", Location(file, 1, 1))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        good = content[: error.start].decode("utf-8", "replace")
        where = Location(file, *place(good, len(good)))
        return Finding(code, f"byte 0x{content[error.start]:02X} is not UTF-8", "save the file as UTF-8", where)
