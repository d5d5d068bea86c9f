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
    """The key is what is wrong, not its value; one that does not fit a model is unknown."""
    is_missing: bool = False
    """The path names a key that must be there."""
    allowed: tuple[str, ...] = ()
    """The values that fit, where they are few."""

    def below(self, path: Path) -> PathProblem:
        """The same, where the document is at `path` of another one."""
        return self._replace(path=(*path, *self.path))
