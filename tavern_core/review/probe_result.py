"""What is tried in a probe, and what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from tavern_core.frozen import dataclass
from tavern_core.review.audit.observed_use import Use

SAFE: Final = frozenset({"good", "raised"})
UNSAFE: Final = frozenset({"crashed", "hung"})


@dataclass(frozen=True, slots=True)
class Import:
    """What is imported of a plugin."""

    name: str
    module: str = ""
    """Of an installed package; empty: what is in `folder`."""
    folder: Path | None = None
    """Where its files are."""
    has_code: bool = True
    """Whether there is a package to import."""
    nodes: str = ""
    """`nodes.entry` of its manifest."""
    handlers: tuple[str, ...] = ()
    """``module:name`` of the functions that its tool files name."""


@dataclass(frozen=True, slots=True)
class Probe:
    """How the import ended; ``unknown``: it could not be tried. `said` is for a person: what happened, and where if that is known."""

    outcome: Literal["good", "raised", "crashed", "hung", "unknown"]
    said: str = ""
    notes: tuple[str, ...] = ()
    """What it did besides: started threads or processes."""
    uses: tuple[Use, ...] = ()
    """What its code used meanwhile; only with the audit guard."""
    hooks: tuple[tuple[str, str], ...] = ()
    """Hook → ``file:line`` of what implements it; only with the audit guard."""

    @property
    def is_safe(self) -> bool:
        """True when it is known that the host survives the import."""
        return self.outcome in SAFE

    @property
    def is_unsafe(self) -> bool:
        """True when it is known that it does not."""
        return self.outcome in UNSAFE
