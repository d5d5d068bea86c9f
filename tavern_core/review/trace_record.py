"""The results of a traced run of a plugin's tests, as its process recorded them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.review.audit.attribution import SourcePosition
from tavern_core.review.audit.observed_use import ObservedUse

_MOST: Final = 50_000_000
"""Bytes of the record that are read."""


@dataclass(frozen=True, slots=True)
class TraceResult:
    """The tests of a plugin, run with the audit guard on."""

    uses: tuple[ObservedUse, ...] = ()
    at_import: tuple[ObservedUse, ...] = ()
    """The resources that the import of the plugin alone used."""
    hooks: tuple[tuple[str, str], ...] = ()
    """The hooks that it implements, and ``file:line``; also those that its source does not show."""
    changes: tuple[tuple[str, SourcePosition], ...] = ()
    """The parts of the host that were the plugin's code afterwards, with their places."""
    printed: tuple[tuple[str, int], ...] = ()
    """Tests that printed too much, and how many characters."""
    collected: int = 0
    failed: int = 0
    failures: tuple[str, ...] = ()
    ended: str = ""
    """Why the run did not finish; empty if it did."""
    said: str = ""
    """The end of pytest's output."""

    @property
    def is_complete(self) -> bool:
        """True if every test ran and passed, so what was not seen was not used."""
        return not self.ended and self.collected > 0 and not self.failed


def read_record(file: Path) -> dict[str, Any]:
    """The fields of `TraceResult` in the record, without a line that a crash cut off."""
    try:
        with file.open("rb") as lines:
            rows = list(_rows(lines.read(_MOST)))
    except FileNotFoundError:
        rows = []
    found: dict[str, Any] = {"uses": [], "changes": [], "printed": []}
    for row in rows:
        match row:
            case {"use": dict(reported)} if (use := ObservedUse.from_json(reported)) is not None:
                found["uses"].append(use)
            case {"change": [str(name), str(at), int(line)]}:
                found["changes"].append((name, (at, line)))
            case {"printed": [str(test), int(count)]}:
                found["printed"].append((test, count))
            case {"done": {"collected": int(collected), "failed": int(failed), "failures": list(failures)}}:
                found |= {"collected": collected, "failed": failed, "failures": tuple(map(str, failures))}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}


def _rows(content: bytes) -> Iterator[Any]:
    for line in content.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue
