"""The use of an outside resource by a plugin's code, with its line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Final, Literal, get_args

from tavern_core.frozen_dataclass import dataclass

UseKind = Literal[
    "read", "write", "connect", "listen", "spawn", "variable", "secret", "service", "change", "thread", "native"
]
KINDS: Final = frozenset(get_args(UseKind))
EVERYTHING: Final = "*"
"""The target of a use of everything, such as a copy of the whole environment."""


@dataclass(frozen=True, slots=True)
class ObservedUse:
    """The used resource and the line."""

    kind: UseKind
    target: str
    """In the notation of a scope: ``$data/x``, ``./x``, ``/etc/x``, ``example.org:8443``, a program, a variable, a service."""
    file: str
    """The plugin's file, relative to its folder."""
    line: int
    path: str = ""
    """For files: the absolute path."""

    @property
    def said(self) -> str:
        """For a person: ``reads /etc/passwd``."""
        if self.kind == "variable" and self.target == EVERYTHING:
            return "reads the whole environment"
        if self.kind == "spawn" and self.target == EVERYTHING:
            return "makes a copy of its own process"
        return f"{_VERBS[self.kind]} {self.target}".rstrip()

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ObservedUse | None:
        """The inverse of `to_json`; None for anything else."""
        try:
            use = cls(**{field.name: data[field.name] for field in fields(cls)})
        except (KeyError, TypeError):
            return None
        texts = (use.target, use.file, use.path)
        return (
            use if use.kind in KINDS and isinstance(use.line, int) and all(isinstance(t, str) for t in texts) else None
        )


_VERBS: Final[Mapping[str, str]] = {
    "read": "reads",
    "write": "writes",
    "connect": "connects to",
    "listen": "listens on",
    "spawn": "starts",
    "variable": "reads the variable",
    "secret": "uses the secret",
    "service": "uses the service",
    "change": "changes the service",
    "thread": "starts a thread",
    "native": "calls native code of",
}
