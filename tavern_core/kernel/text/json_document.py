"""Strict JSON as data with places: the same interface as a YAML document.

Refused, each with its place: what `schema/json_reader` refuses, half surrogates, and anything beyond the limits. A byte order mark is
allowed. No function here raises on content or opens a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tavern_core.errors import Finding
from tavern_core.kernel.text.document import LARGEST_FILE, MOST_NODES, LocatedDocument, text_of
from tavern_core.model.path_problem import Mark, Path
from tavern_core.schema.json_reader import Scan, read_located

_LONGEST_INTEGER: Final = 100  # as in YAML


class JsonDocument(LocatedDocument):
    """The content of a JSON text."""

    def _read_marks(self) -> Mapping[Path, tuple[Mark, Mark]]:
        return Scan(self.text).marks

    def line(self, number: int) -> str:
        """Line `number` (from 1) without its end; empty where there is none. JSON knows no line ends of Unicode."""
        lines = self.text.split("\n")
        return lines[number - 1].rstrip("\r") if 0 < number <= len(lines) else ""


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
    data, findings = read_located(found, file, code, most_values, _LONGEST_INTEGER)
    return JsonDocument(file, found, data, tuple(findings), code)
