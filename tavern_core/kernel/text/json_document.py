"""Strict JSON as data with places: the same interface as a YAML document.

The data comes from the standard library's parser. Only when a place is asked for, or something was refused, the text is
scanned a second time for lines and columns: a valid file costs no extra time.

Refused, each with its place: duplicate keys, NaN and Infinity, lone surrogates, several values, and anything beyond the
limits. A byte order mark is allowed. No function here raises on content or opens a file.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from tavern_core.errors import Finding, Location
from tavern_core.kernel.text.document_limits import FLATTER, LARGEST_FILE, MOST_FINDINGS, MOST_NODES, SMALLER
from tavern_core.kernel.text.yaml_dialect import Mark
from tavern_core.kernel.text.yaml_reader import Document, text_of
from tavern_core.model import depths
from tavern_core.model.path_problem import Path

_TOKEN: Final = re.compile(r'[ \t\r\n,:]+|("(?:[^"\\]|\\.)*(?:"|\\?\Z))|([\[\]{}])|([^\s,:\[\]{}"]+)', re.DOTALL)
"""Something at nearly every character, the string that never ends included: what is broken costs no second look."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_LONGEST_INTEGER: Final = 100


class JsonDocument(Document):
    """What one JSON text holds."""

    def _read_marks(self) -> Mapping[Path, tuple[Mark, Mark]]:
        return _scan(self.text)[0]

    def line(self, number: int) -> str:
        """Line `number` (from 1) without its end; empty where there is none. JSON knows no line ends of Unicode."""
        lines = self.text.split("\n")
        return lines[number - 1].rstrip("\r") if 0 < number <= len(lines) else ""


def _read_quickly(text: str) -> tuple[Any, bool]:
    """The data; and whether there was something in it that only `_scan` can name."""
    odd: list[object] = []

    def members_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            odd.append(pairs)
        return members

    def integer(digits: str) -> int:
        if len(digits) <= _LONGEST_INTEGER:
            return int(digits)
        odd.append(digits)
        return 0

    data = json.loads(text, object_pairs_hook=members_of, parse_constant=odd.append, parse_int=integer)
    return data, bool(odd)


def _not_json(error: json.JSONDecodeError, file: str, code: str) -> Finding:
    said = error.msg.removesuffix(" at").removesuffix(" starting")
    where = Location(file, error.lineno, error.colno)
    return Finding(code, f"not JSON: {said[:1].lower()}{said[1:]}", _hint(error), where)


def read_json(
    text: str | bytes,
    file: str,
    *,
    code: str = "TOOL_FILE_INVALID",
    largest: int = LARGEST_FILE,
    most_values: int = MOST_NODES,
) -> JsonDocument:
    """Read one JSON value.

    Args:
        text: characters, or bytes in UTF-8 (with or without a byte order mark).
        file: the name shown in findings.
        code: the error code that findings carry.
        largest: bytes of the text.
        most_values: values in it.
    """
    found = text_of(text, file, code, largest)
    if isinstance(found, Finding):
        return JsonDocument(file, "", None, (found,), code)
    try:
        data, is_odd = _read_quickly(found)
    except json.JSONDecodeError as error:
        return JsonDocument(file, found, None, (_not_json(error, file, code),), code)
    except RecursionError:
        wrong = Finding(code, f"nested deeper than {depths.VALUE}", FLATTER, Location(file))
        return JsonDocument(file, found, None, (wrong,), code)
    plain = JsonDocument(file, found, None)
    findings = [
        # What is too large has no better place than its file, and looking for one would read all of it again.
        Finding(code, message, hint, Location(file) if hint is SMALLER else plain.locate(path))
        for path, message, hint in _refusals(data, most_values)
    ]
    if is_odd:
        findings += [
            Finding(code, message, hint, Location(file, *mark, ".".join(map(str, path))))
            for path, mark, message, hint in _scan(found)[1]
        ]
    return JsonDocument(file, found, data, tuple(findings[:MOST_FINDINGS]), code)


def _hint(error: json.JSONDecodeError) -> str:
    rest = error.doc[error.pos : error.pos + 2]
    if error.msg.startswith("Expecting property name") and rest[:1] == "}":
        return "delete the comma before }"
    if error.msg.startswith("Expecting value") and rest[:1] == "]" and error.doc[: error.pos].rstrip().endswith(","):
        return "delete the comma before ]"
    if rest[:1] == "'":
        return "JSON strings are in double quotes"
    if error.doc.startswith(("True", "False", "None"), error.pos):
        return "write true, false or null"
    if rest[:1] in ("“", "”", "‘", "’", "，", "：", "「"):
        return "full-width or curly punctuation: use the ASCII character"
    if not rest:
        return "the file ends too early"
    if rest == "//" or rest == "/*" or rest[:1] == "#":
        return "JSON has no comments"
    if error.msg == "Extra data":
        return "keep one JSON value in the file"
    if error.msg.startswith("Expecting ',' delimiter"):
        return "a comma or a closing bracket is missing before this place"
    if error.msg.startswith("Unterminated string"):
        return 'close the string with "'
    if error.msg.startswith("Invalid control character"):
        return "write line breaks in strings as \\n and tabs as \\t"
    if error.msg.startswith("Invalid \\\\"):
        return "write a backslash as \\\\"
    return "compare this place with the lines around it; every value is text in double quotes, a number, true, false, null, [...] or {...}"


def _refusals(data: Any, most_values: int) -> list[tuple[Path, str, str]]:
    """What is JSON by its letters and still refused: too deep, too much, infinite, not writable as UTF-8."""
    found: list[tuple[Path, str, str]] = []
    if not isinstance(data, dict | list):
        return [((), *why)] if (why := _scalar_refusal(data)) else found
    count = 1
    stack: list[tuple[Path, Any]] = [((), data)]
    while stack and len(found) < MOST_FINDINGS:
        path, value = stack.pop()
        count += len(value)
        if count > most_values:  # before anything is put aside for each of them
            return [((), f"more than {most_values:,} values", SMALLER)]
        if len(path) >= depths.VALUE:
            return [(path, f"nested deeper than {depths.VALUE}", FLATTER)]
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if type(key) is str and not key.isascii() and _SURROGATE.search(key) is not None:
                found.append((path, "a key holds half of a surrogate pair", "write the character itself"))
            if type(item) is dict or type(item) is list:
                stack.append(((*path, key), item))
            elif why := _scalar_refusal(item):
                found.append(((*path, key), *why))
    return found[:MOST_FINDINGS]


def _scalar_refusal(value: Any) -> tuple[str, str] | None:
    if type(value) is str:
        if not value.isascii() and _SURROGATE.search(value) is not None:
            return "the text holds half of a surrogate pair", "write the character itself"
    elif type(value) is float and not math.isfinite(value):
        return "the number is too large", "put it in quotes, or write a smaller one"
    return None


def _scan(text: str) -> tuple[dict[Path, tuple[Mark, Mark]], list[tuple[Path, Mark, str, str]]]:
    """Marks by path of a text (of what is there of it, when it is broken), and what is wrong at which mark: twice given keys, odd numbers."""
    marks: dict[Path, tuple[Mark, Mark]] = {}
    wrong: list[tuple[Path, Mark, str, str]] = []
    stack: list[tuple[Path, dict[str, Mark] | None]] = []  # per open container: its path, and a mapping's keys so far
    key: tuple[str, Mark] | None = None
    index: list[int] = []
    line, start, seen = 1, 0, 0  # places are counted on from the last token: linear in the text
    for token in _TOKEN.finditer(text):
        if token.lastindex is None:
            continue
        at = token.start()
        if (breaks := text.count("\n", seen, at)) > 0:
            line, start = line + breaks, text.rfind("\n", seen, at) + 1
        seen, mark = at, (line, at - start + 1)
        string, bracket, word = token.groups()
        if bracket in ("]", "}"):
            if stack:
                stack.pop()
                index.pop()
            continue
        keys = stack[-1][1] if stack else None
        if string is not None and keys is not None and key is None:
            name = _unquoted(string)
            if (first := keys.get(name)) is not None:
                message = f"the key {name!r:.80} is here twice, first at line {first[0]}, column {first[1]}"
                wrong.append(((*stack[-1][0], name), mark, message, "keep one of them"))
            keys.setdefault(name, mark)
            key = (name, mark)
            continue
        path: Path = ()
        if stack:
            path = (*stack[-1][0], index[-1] if key is None else key[0])
            index[-1] += 1
        marks[path] = (mark if key is None else key[1], mark)
        key = None
        if bracket is not None:
            if len(stack) >= depths.VALUE:
                break
            stack.append((path, {} if bracket == "{" else None))
            index.append(0)
        elif word in ("NaN", "Infinity", "-Infinity"):
            wrong.append((path, mark, f"{word} is not JSON", "write a finite number or null"))
        elif word is not None and len(word) > _LONGEST_INTEGER and word.lstrip("-").isdigit():
            wrong.append((path, mark, f"a number of {len(word):,} digits", "put it in quotes"))
    return marks, wrong[:MOST_FINDINGS]


def _unquoted(string: str) -> str:
    """The text of a JSON string; of a broken one the text between its quotes."""
    try:
        return str(json.loads(string, strict=False))
    except ValueError:
        return string[1:-1]
