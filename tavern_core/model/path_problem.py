"""A problem at a path of a document, and the finding that it is in the document's file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from tavern_core.errors import Finding, Location, Problem, Severity
from tavern_core.frozen_dataclass import dataclass

Path = tuple[str | int, ...]
Mark = tuple[int, int]
"""Line and column, from 1."""
MOST_FINDINGS: Final = 50
"""The maximum for one document."""
SMALLER: Final = "make it smaller: large data belong in files of their own"
FLATTER: Final = "write it flatter"
_QUOTED: Final = re.compile(r'in quotes: (?:[\w.]+: )?"([^"]*)"$')
_PLAIN: Final = re.compile(r"[^\s,\]}#]+")


class Located(Protocol):
    """A document that knows the positions of its values."""

    def locate(self, path: Sequence[str | int], *, key: bool = False) -> Location: ...

    def line(self, number: int) -> str: ...


@dataclass(frozen=True, slots=True)
class PathProblem(Problem):
    """A problem at a path of a document."""

    path: Path
    message: str
    hint: str = ""
    severity: Severity = "error"
    at_key: bool = False
    """The key is wrong, not its value; a key that does not fit a model is unknown."""
    is_missing: bool = False
    """The path names a key that must be there."""
    allowed: tuple[str, ...] = ()
    """The values that fit, where they are few."""

    @property
    def place(self) -> str:
        """The path as one writes it: ``tools.0.timeout``."""
        return ".".join(map(str, self.path))

    @property
    def located(self) -> str:
        return f"{self.place}: {self.message}" if self.path else self.message

    def below(self, path: Path) -> PathProblem:
        """The same problem, if the document is at `path` of another one."""
        return replace(self, path=(*path, *self.path))

    def finding(self, code: str, document: Located) -> Finding:
        """The problem in the file of the document."""
        hint = _as_written(document, self.hint, self.path)
        return Finding(code, self.message, hint, document.locate(self.path, key=self.at_key), self.severity)


def _as_written(document: Located, hint: str, path: Path) -> str:
    """`hint` with the spelling of the file in place of the parsed number: ``1.10`` is read as 1.1."""
    quoted, where = _QUOTED.search(hint), document.locate(path)
    if quoted is None or not where.line or not where.column:
        return hint
    written = _PLAIN.match(document.line(where.line), where.column - 1)
    return f"{hint[: quoted.start(1)]}{written[0]}{hint[quoted.end(1) :]}" if written is not None else hint
