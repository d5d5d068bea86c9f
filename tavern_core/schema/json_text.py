"""JSON text read strictly, and places in it found again: every error has line and column.

Refused, where the standard library is lenient: duplicate keys, NaN and Infinity, lone surrogates, numbers nobody can
hold, too much text, too much depth. A byte order mark is accepted. Nothing here raises on content.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from tavern_core.errors import Finding, Location
from tavern_core.schema.limits import MAX_DEPTH, measure
from tavern_core.schema.problem import pointer, printable

MAX_TEXT = 4_000_000
"""Characters (or bytes) of one JSON document."""

_BLANK = re.compile(r"[ \t\n\r]*")
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.S)
_SCALAR = re.compile(r"[^\s,\]\}\[\{:\"]+")


class _Refused(ValueError):
    """The document is not what we accept; found by a hook, which cannot know where."""


def parse_json(
    text: str | bytes,
    file: str,
    *,
    code: str = "TOOL_FILE_INVALID",
    max_chars: int = MAX_TEXT,
    max_depth: int = MAX_DEPTH,
) -> tuple[Any, Finding | None]:
    """Read one JSON document.

    Args:
        text: its text or its UTF-8 bytes, with or without a byte order mark.
        file: the name for findings.
        code: the code for findings.
        max_chars: most characters or bytes.
        max_depth: most levels of nesting.

    Returns:
        ``(value, None)``, or ``(None, finding)`` with line, column and, inside the document, a JSON pointer.
    """
    if len(text) > max_chars:
        return None, Finding(code, f"the file is larger than {max_chars:,} characters", "split it", Location(file))
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            read = error.object[: error.start].decode("utf-8")
            line, column = _line_column(read, len(read))
            return None, Finding(code, "the file is not UTF-8 text", "save it as UTF-8", Location(file, line, column))
    text = text.removeprefix("\ufeff")
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        where = Location(file, error.lineno, error.colno)
        return None, Finding(code, f"not JSON: {_lower(error.msg)}", _hint(text, error.pos), where)
    except (_Refused, RecursionError, ValueError) as error:
        return None, _locate(text, file, code, max_depth, str(error))
    if problem := measure(value, max_depth):
        line, column = pointer_location(text, problem.path)
        return None, Finding(code, problem.message, problem.hint, Location(file, line, column, problem.path))
    return value, None


def pointer_location(text: str, wanted: str) -> tuple[int, int]:
    """Line and column (from 1) of the value at a JSON pointer; of the nearest value around it when there is none.

    Args:
        text: the document, well-formed at least up to that place.
        wanted: a JSON pointer, "" for the whole.
    """
    scan = _Scan(text)
    scan.run()
    parts = wanted
    while parts and parts not in scan.places:
        parts = parts.rpartition("/")[0]
    return _line_column(text, scan.places.get(parts, 0))


def _line_column(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def _locate(text: str, file: str, code: str, max_depth: int, message: str) -> Finding:
    """Where the strict reading failed, by reading once more with positions."""
    scan = _Scan(text, max_depth)
    scan.run()
    if scan.problem is None:
        return Finding(code, f"not JSON: {printable(message)}", "", Location(file))
    message, hint, offset, path = scan.problem
    line, column = _line_column(text, offset)
    return Finding(code, message, hint, Location(file, line, column, path))


class _Scan:
    """One pass over a document that remembers where each value begins. Iterative; stops at the first problem."""

    def __init__(self, text: str, max_depth: int = 100) -> None:
        self.text, self.max_depth = text, max_depth
        self.places: dict[str, int] = {}
        self.problem: tuple[str, str, int, str] | None = None

    def run(self) -> None:
        at = _blank(self.text, 0)
        self.places[""] = at
        # One frame per open container: its path, the names seen (None for arrays), the number of items so far.
        frames: list[tuple[str, set[str] | None, list[int]]] = []
        at = self._value(at, "", frames)
        while frames and at >= 0:
            path, names, count = frames[-1]
            at = _blank(self.text, at)
            char = self.text[at : at + 1]
            if char in ("]", "}"):
                frames.pop()
                at += 1
            elif char == ",":
                at += 1
            elif not char:
                return
            elif names is None:
                inner = f"{path}/{count[0]}"
                count[0] += 1
                at = self._value(at, inner, frames)
            else:
                at = self._member(at, path, names, frames)

    def _member(self, at: int, path: str, names: set[str], frames: list[tuple[str, set[str] | None, list[int]]]) -> int:
        name, end = self._string(at)
        if end < 0:
            return -1
        inner = path + pointer((name,))
        if name in names:
            self.problem = (
                f"the key {printable(name, 60)!r} appears twice in one object",
                "remove or rename one",
                at,
                inner,
            )
            return -1
        names.add(name)
        end = _blank(self.text, end)
        if self.text[end : end + 1] != ":":
            return -1
        return self._value(_blank(self.text, end + 1), inner, frames)

    def _value(self, at: int, path: str, frames: list[tuple[str, set[str] | None, list[int]]]) -> int:
        self.places[path] = at
        char = self.text[at : at + 1]
        if char in ("{", "[") and char:
            if len(frames) >= self.max_depth:
                self.problem = (f"nested deeper than {self.max_depth} levels", "flatten it", at, path)
                return -1
            frames.append((path, set() if char == "{" else None, [0]))
            return at + 1
        if char == '"':
            return self._string(at)[1]
        found = _SCALAR.match(self.text, at)
        if not found:
            return -1
        if found[0].lstrip("-") in ("NaN", "Infinity"):
            self.problem = (f"{found[0]} is not a JSON number", "use null, or leave it out", at, path)
            return -1
        if found[0].lstrip("-")[:1].isdigit() and not _holds(found[0]):
            self.problem = ("a number too large to be held", "write it as a string", at, path)
            return -1
        return found.end()

    def _string(self, at: int) -> tuple[str, int]:
        """The string that begins at a quote, and where it ends; -1 when it is none."""
        found = _STRING.match(self.text, at)
        try:
            return (str(json.loads(found[0], strict=False)), found.end()) if found else ("", -1)
        except ValueError:
            return "", -1


def _holds(number: str) -> bool:
    try:
        _read_float(number)
        _read_int(number)
    except _Refused:
        return False
    except ValueError:
        return True  # not a number at all: the decoder's own error is better
    return True


def _blank(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _read_constant(name: str) -> NoReturn:
    raise _Refused(f"{name} is not a JSON number")


def _read_int(text: str) -> int:
    if len(text) > 4_300:
        raise _Refused("a number too large to be held")
    return int(text)


def _read_float(text: str) -> float:
    value = float(text)
    if value - value != 0.0:
        raise _Refused("a number too large to be held")
    return value


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _Refused("a key appears twice in one object")
    return value


_DECODER = json.JSONDecoder(
    object_pairs_hook=_read_object, parse_int=_read_int, parse_float=_read_float, parse_constant=_read_constant
)


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def _hint(text: str, at: int) -> str:
    """The usual slips of hand-written JSON."""
    here, before = text[at : at + 1], text[:at].rstrip()[-1:]
    if here == "'":
        return 'JSON text stands in double quotes: "…"'
    if here in ("}", "]") or (before == "," and here in ("}", "]")):
        return "remove the comma before it"
    if text[at : at + 2] in ("//", "/*") or here == "#":
        return "JSON has no comments"
    if text[at : at + 4] in ("True", "None") or text[at : at + 5] == "False":
        return "write true, false or null"
    if here in ("“", "”", "‘", "’", "，", "：", "「"):
        return "full-width or curly punctuation: use the ASCII character"
    return "" if here else "the file ends too early"
