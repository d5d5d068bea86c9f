"""What a traced run of a plugin's tests has shown, as its process wrote it down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tavern_core.frozen import dataclass
from tavern_core.review.audit.attribution import Place
from tavern_core.review.audit.observed_use import Use

_MOST: Final = 50_000_000
"""Bytes of the record that are read."""


@dataclass(frozen=True, slots=True)
class Traced:
    """The tests of a plugin, run with the audit guard on."""

    uses: tuple[Use, ...] = ()
    at_import: tuple[Use, ...] = ()
    """What merely importing the plugin used."""
    hooks: tuple[tuple[str, str], ...] = ()
    """The hooks that it implements, and ``file:line``; also those that no reader of its source sees."""
    changes: tuple[tuple[str, Place], ...] = ()
    """What of the host was the plugin's code afterwards, and where that is."""
    printed: tuple[tuple[str, int], ...] = ()
    """Tests in which too much was printed, and how many characters."""
    collected: int = 0
    failed: int = 0
    troubles: tuple[str, ...] = ()
    ended: str = ""
    """Why the run did not come to its end; empty when it did."""
    said: str = ""
    """The end of what pytest printed."""

    @property
    def is_complete(self) -> bool:
        """True when every test ran and passed: what was not seen was not used by them."""
        return not self.ended and self.collected > 0 and not self.failed


def read_record(file: Path) -> dict[str, Any]:
    """The fields of `Traced` that the record tells; a line that was cut off by a crash is left out."""
    try:
        with file.open("rb") as lines:
            rows = list(_rows(lines.read(_MOST)))
    except FileNotFoundError:
        rows = []
    found: dict[str, Any] = {"uses": [], "changes": [], "printed": []}
    for row in rows:
        match row:
            case {"use": dict(told)} if (use := Use.from_json(told)) is not None:
                found["uses"].append(use)
            case {"change": [str(name), str(at), int(line)]}:
                found["changes"].append((name, (at, line)))
            case {"printed": [str(test), int(count)]}:
                found["printed"].append((test, count))
            case {"done": {"collected": int(collected), "failed": int(failed), "troubles": list(troubles)}}:
                found |= {"collected": collected, "failed": failed, "troubles": tuple(map(str, troubles))}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}


def _rows(content: bytes) -> Iterator[Any]:
    for line in content.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue
