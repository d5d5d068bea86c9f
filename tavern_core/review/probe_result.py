"""The request of a probe, and its result."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from tavern_core.frozen_dataclass import dataclass
from tavern_core.review.audit.observed_use import ObservedUse

SAFE: Final = frozenset({"good", "raised"})
UNSAFE: Final = frozenset({"crashed", "hung"})


@dataclass(frozen=True, slots=True)
class PluginImport:
    """The imports of a plugin."""

    name: str
    module: str = ""
    """The module of an installed package; empty: the modules in `folder`."""
    folder: Path | None = None
    """The folder of its files."""
    has_code: bool = True
    """Whether there is a package to import."""
    nodes: str = ""
    """`nodes.entry` of its manifest."""
    handlers: tuple[str, ...] = ()
    """``module:name`` of the functions that its tool files name."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The end of the import; ``unknown``: it could not be probed. `said`: what happened, and where, if known."""

    outcome: Literal["good", "raised", "crashed", "hung", "unknown"]
    said: str = ""
    notes: tuple[str, ...] = ()
    """Side effects: it started threads or processes."""
    uses: tuple[ObservedUse, ...] = ()
    """What its code used; only with the audit guard."""
    hooks: tuple[tuple[str, str], ...] = ()
    """Hook → ``file:line`` of what implements it; only with the audit guard."""

    @property
    def is_safe(self) -> bool:
        """True if the host is known to survive the import."""
        return self.outcome in SAFE

    @property
    def is_unsafe(self) -> bool:
        """True if it is known not to."""
        return self.outcome in UNSAFE
