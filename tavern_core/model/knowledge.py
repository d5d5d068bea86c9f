"""A passage of a knowledge base: what is found, shown and cited."""

from __future__ import annotations

from typing import Any, Final

from tavern_core.frozen_dataclass import dataclass

KB: Final = "kb"
"""The prefix of knowledge bases in inventories and citations."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A section of a document, or a part of a long one."""

    citation: str
    """``kb:handbook/refunds.md#late-refunds``; what follows a ``~`` is the number of the part."""
    heading: str
    """The headings above it, outermost first, joined by `` / ``; empty: there is none."""
    text: str
    score: float = 0.0
    """Its relevance to the query; comparable within one search."""
    trusted: bool = True
    """False: it comes from an outside source, and is data, never instructions."""

    def to_json(self) -> dict[str, Any]:
        """As a tool answers it; ``untrusted`` is there only if it is true."""
        found = {"citation": self.citation, "heading": self.heading, "text": self.text}
        return found if self.trusted else {**found, "untrusted": True}
