"""What is wrong at a path of a document that was read."""

from __future__ import annotations

from typing import Literal, NamedTuple

Path = tuple[str | int, ...]


class PathProblem(NamedTuple):
    """One thing wrong at a path of a document; the document knows where in the file that is (`YamlDocument.locate`)."""

    path: Path
    message: str
    hint: str = ""
    severity: Literal["error", "warning", "info"] = "error"
    at_key: bool = False

    def below(self, path: Path) -> PathProblem:
        """The same, where the document stands at `path` of another one."""
        return self._replace(path=(*path, *self.path))
