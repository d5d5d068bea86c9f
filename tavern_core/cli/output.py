"""Output to stdout: tables for a terminal, aligned text for a pipe, JSON for a program.

Widths are those of a terminal, where a Chinese character takes two columns. Control and invisible characters of foreign texts are
shown as escapes. Only the answer of a tool or a run (`data`) goes into a pipe unchanged. rich is imported only when a table is
printed on a terminal.
"""

from __future__ import annotations

import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TextIO

from tavern_core.cli.stdout import flush, is_open
from tavern_core.errors import HIDDEN
from tavern_core.frozen_dataclass import dataclass

_BREAKS: Final = re.compile("[\\s\x85\u2028\u2029]+")
_GAP: Final = "  "
COLOURS: Final[Mapping[str, str]] = {
    "active": "green",
    "ok": "green",
    "granted": "green",
    "failed": "red",
    "error": "red",
    "highest": "bold red",
    "high": "red",
    "denied": "red",
    "refused": "red",
    "medium": "yellow",
    "pending_consent": "yellow",
    "pending": "yellow",
    "warning": "yellow",
    "disabled": "dim",
    "hidden": "dim",
    "not run": "dim",
}
"""A cell with one of these words is shown in its colour."""


@dataclass(frozen=True, slots=True)
class Output:
    """The output stream of results: for a person, or with ``--json`` for a program, which gets `result` and nothing else.

    Args:
        stream: stdout; None if the process has none.
        no_color: no colour even on a terminal; as `NO_COLOR`.
        for_program: ``--json`` was given.
    """

    stream: TextIO | None
    no_color: bool = False
    for_program: bool = False

    @property
    def is_terminal(self) -> bool:
        """True if stdout is a terminal."""
        return is_open(self.stream) and self.stream.isatty()

    def result(self, value: Any) -> None:
        """Write the result for a program, as one JSON document."""
        if self.for_program:
            self.json(value)

    def text(self, text: str = "") -> None:
        """Write a text and a line end."""
        self._write(visible(text))

    def data(self, text: str) -> None:
        """Write requested data; a pipe gets `text` unchanged."""
        self._write(visible(text) if self.is_terminal else text)

    def _write(self, text: str) -> None:
        if not self.for_program:
            write(self.stream, text if text.endswith("\n") else text + "\n")

    def piece(self, text: str) -> None:
        """Write a part of requested data and flush."""
        write(self.stream, visible(text) if self.is_terminal else text)
        flush(self.stream)

    def line(self, text: str) -> None:
        """Write a line and flush: for endless output."""
        self.text(one_line(text))
        flush(self.stream)

    def json(self, value: Any) -> None:
        """Write a JSON document, indented, also without ``--json``: camelCase as the values are, UTF-8, no colour."""
        write(self.stream, json_text(value, indent=2) + "\n")

    def json_line(self, value: Any) -> None:
        """Write a JSON document on one line and flush: for endless output."""
        write(self.stream, json_text(value) + "\n")
        flush(self.stream)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str = "") -> None:
        """Write rows under headings. On a terminal long cells are wrapped, in a pipe each row is one line.

        Args:
            empty: the message on stderr instead of a table without rows.
        """
        cells = [] if self.for_program else [[_cell(value) for value in row] for row in rows]
        if not cells:
            if empty and not self.for_program:
                write(sys.stderr, empty + "\n")
        elif self.is_terminal:
            self._rich_table(columns, cells)
        else:
            write(self.stream, aligned(columns, [[one_line(cell) for cell in row] for row in cells]))

    def facts(self, pairs: Iterable[tuple[str, Any]]) -> None:
        """Write names and values, one pair a line; pairs without a value are left out."""
        shown = [(name, _cell(value)) for name, value in pairs if value not in (None, "", (), [], {})]
        longest = max((width(name) for name, _ in shown), default=0)
        for name, value in shown:
            lines = value.split("\n")
            self.text(pad(name, longest) + _GAP + lines[0])
            for line in lines[1:]:
                self.text(" " * (longest + len(_GAP)) + line)

    def _rich_table(self, columns: Sequence[str], rows: list[list[str]]) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for column in columns:
            table.add_column(Text(column), overflow="fold")
        for row in rows:
            table.add_row(*[Text(visible(cell), style=COLOURS.get(cell, "")) for cell in row])
        Console(
            file=self.stream, no_color=self.no_color or "NO_COLOR" in os.environ, highlight=False, markup=False
        ).print(table)


def json_text(value: Any, *, indent: int | None = None) -> str:
    """JSON text that can always be written as UTF-8: invisible characters are escaped, other values become text."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    return HIDDEN.sub(lambda found: json.dumps(found[0])[1:-1], text)


def write(stream: TextIO | None, text: str) -> None:
    """Write text, with escapes for characters that the stream cannot encode. Does nothing without a stream."""
    if not is_open(stream):
        return
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def visible(text: str) -> str:
    """`text` with control characters escaped (``\\x1b``); line ends and tabs stay."""
    return text if text.isprintable() else HIDDEN.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def one_line(text: str) -> str:
    """`text` without line ends or control characters: a row of a table stays a row."""
    return visible(_BREAKS.sub(" ", text).strip())


def width(text: str) -> int:
    """The width of `text` on a terminal.

    >>> width("ab"), width("工具")
    (2, 4)
    """
    if text.isascii():
        return len(text)
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def pad(text: str, columns: int) -> str:
    """`text`, padded with spaces to `columns`."""
    return text + " " * max(columns - width(text), 0)


def shorten(text: str, columns: int) -> str:
    """`text` on one line in at most `columns`, with an ellipsis if it is cut."""
    line = one_line(text[: 4 * columns + 1])
    if width(line) <= columns:
        return line
    characters, used = [], 0
    for character in line:
        used += _columns(character)
        if used > columns - 1:
            break
        characters.append(character)
    return "".join(characters) + "…"


def aligned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table as plain text: headings in capitals, columns aligned, nothing after the last one."""
    lines = [[c.upper() for c in columns], *rows]
    widths = [max(width(line[at]) for line in lines) for at in range(len(columns))]
    return "".join(_GAP.join(pad(*cell) for cell in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list | set | frozenset):
        return ", ".join(sorted(map(str, value)) if isinstance(value, set | frozenset) else map(str, value))
    return json_text(value) if isinstance(value, Mapping) else str(value)
