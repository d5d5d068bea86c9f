"""One answer of the search for node types."""

from __future__ import annotations

from typing import Any

from tavern_core.frozen import dataclass


@dataclass(frozen=True, slots=True)
class NodeMatch:
    """A node type that a request may need."""

    type: str
    """The full id, ``namespace:Type``."""
    score: float
    """Comparable within one answer only; larger is better."""
    why: tuple[str, ...] = ()
    """The evidence, strongest first."""

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, "score": round(self.score, 6), "why": list(self.why)}
