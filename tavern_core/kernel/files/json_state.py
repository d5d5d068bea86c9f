"""A small JSON file of the host's own: ``{"version": 1, <name>: {...}}``, shared by processes.

A corrupt file loses its values but never prevents a start: it reads as empty, a finding says what is wrong and where, and the next
change renames the corrupt file and writes a new one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Final

from tavern_core.errors import Finding, Location, StateDamaged
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.files.atomic_file import keep_aside, read_text, write_atomic
from tavern_core.kernel.files.file_lock import locked
from tavern_core.kernel.text.document import LARGEST_FILE

FORMAT: Final = 1
_CODE: Final = StateDamaged.code
Values = dict[str, Any]
Signature = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class JsonState:
    """The content of the file.

    Args:
        values: the mapping under the file's one name.
        findings: why `values` is empty although there is a file.
        signature: changes whenever the file is replaced; (0, 0, 0) for no file.
    """

    values: Values = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    signature: Signature = (0, 0, 0)


class JsonStateFile:
    """The file at `path` whose mapping is called `name`."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self._name = name
        self._current: JsonState | None = None

    def signature(self) -> Signature:
        """A cheap check: was the file replaced?"""
        try:
            now = self.path.stat()
        except OSError:
            return (0, 0, 0)
        return now.st_mtime_ns, now.st_size, now.st_ino

    def read(self) -> JsonState:
        """The content of the file; never raises."""
        signature = self.signature()
        try:
            text = read_text(self.path, LARGEST_FILE)
        except StateDamaged as error:
            return JsonState(findings=(self._finding(error.message, error.hint),), signature=signature)
        return JsonState() if text is None else replace(self._parse(text), signature=signature)

    def current(self) -> JsonState:
        """`read`, but only after the file was replaced; until then, the same object."""
        state = self._current
        if state is None or state.signature != self.signature():
            state = self._current = self.read()
        return state

    def change(self, make: Callable[[Values], Values]) -> JsonState:
        """Replace the values by ``make(values as they are now)``, under the lock.

        Raises:
            StateDamaged: it cannot be locked or written; it is unchanged (STATE_DAMAGED).
        """
        with locked(self.path):
            before = self.read()
            values = make(dict(before.values))
            text = self._render(values)
            findings: tuple[Finding, ...] = ()
            if before.findings:
                aside = keep_aside(self.path)
                findings = (self._finding(f"the corrupt file was renamed to {aside.name}", "", "warning"),)
            write_atomic(self.path, text)
            return JsonState(values, (*before.findings, *findings), self.signature())

    def _render(self, values: Values) -> str:
        """The file's text. What could not be read back is never written."""
        content = {"version": FORMAT, self._name: dict(sorted(values.items()))}
        text = json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
        if findings := self._parse(text).findings:
            raise StateDamaged(f"{self.path} is not written: {findings[0]}", hint=findings[0].hint, path=str(self.path))
        return text

    def _parse(self, text: str) -> JsonState:
        from tavern_core.kernel.text.json_document import read_json

        document = read_json(text, str(self.path), code=_CODE)
        if document.findings:
            return JsonState(findings=document.findings)
        data = document.data
        if not isinstance(data, dict) or data.get("version") != FORMAT:
            return JsonState(
                findings=(self._finding(f'must begin with {{"version": {FORMAT}', "was it written by a newer host?"),)
            )
        values = data.get(self._name, {})
        if not isinstance(values, dict):
            return JsonState(findings=(Finding(_CODE, "must be a mapping", "", document.locate([self._name])),))
        return JsonState(values)

    def _finding(self, message: str, hint: str, severity: Any = "error") -> Finding:
        return Finding(_CODE, message, hint, Location(str(self.path)), severity)
