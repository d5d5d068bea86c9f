"""`tavern.knowledge`: the knowledge bases of one host, searched and cited.

    kb:handbook/refunds.md#late-refunds      base, document, heading

Nothing is read or imported before the first search.
"""

from __future__ import annotations

import builtins
import hashlib
import threading
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tavern_core.errors import Finding, UsageError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.config import KnowledgeConfig
from tavern_core.model.knowledge import KB, Passage
from tavern_core.model.nearest import did_you_mean

if TYPE_CHECKING:
    from tavern_core.knowledge.index import PassageIndex, PassageRow

CODE: Final = "KNOWLEDGE_INVALID"
MOST_RESULTS: Final = 50
_START: Final = f"{KB}:"


@dataclass(frozen=True, slots=True)
class KnowledgeBase:
    """Folders of documents under one name."""

    name: str
    """The name after ``kb:`` in citations; for a base of an agent profile, it begins with ``./``."""
    folders: tuple[Path, ...]
    description: str = ""
    trusted: bool = True
    """False: every passage is untrusted, whatever its document says."""


@dataclass(frozen=True, slots=True)
class KnowledgeState:
    """A knowledge base as it is listed."""

    base: KnowledgeBase
    documents: int
    passages: int
    findings: tuple[Finding, ...] = field(default=())
    """Files that could not be read, with reasons."""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.base.name,
            "description": self.base.description,
            "trusted": self.base.trusted,
            "documents": self.documents,
            "passages": self.passages,
            "findings": [{"message": finding.located, "hint": finding.hint} for finding in self.findings],
        }


class KnowledgeBases:
    """The knowledge bases of tavern.yaml, and searches in others. Safe for threads; reads files, so async code calls it in a thread.

    Args:
        configured: the section `knowledge`, its folders absolute.
        cache: the folder of the indexes.
    """

    def __init__(self, configured: Mapping[str, KnowledgeConfig], cache: Path) -> None:
        self._bases = {
            name: KnowledgeBase(name, tuple(map(Path, entry.folders)), entry.description, entry.trusted)
            for name, entry in configured.items()
        }
        self._cache = cache
        self._indexes: dict[tuple[Path, ...], PassageIndex] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """The names of the configured bases, sorted."""
        return sorted(self._bases)

    def get(self, name: str) -> KnowledgeBase:
        """A configured base by its name, with ``kb:`` or without.

        Raises:
            UsageError: there is none (USAGE).
        """
        found = self._bases.get(name.removeprefix(_START))
        if found is None:
            known = self.names()
            hint = (
                did_you_mean(name[:200], [*known, *(f"{_START}{k}" for k in known)])
                or "add it to `knowledge:` in tavern.yaml"
            )
            raise UsageError(f"there is no knowledge base {name[:200]!r}", hint=hint)
        return found

    def list(self) -> list[KnowledgeState]:
        """Every configured base as its folders are now, by name."""
        return [self.state(self._bases[name]) for name in self.names()]

    def state(self, base: KnowledgeBase) -> KnowledgeState:
        """A base as its folders are now."""
        if not base.folders:
            hint = f"add `path: ./{base.name}` to it in tavern.yaml"
            return KnowledgeState(
                base, 0, 0, (Finding(CODE, f"knowledge base {base.name!r} has no folder", hint, None, "warning"),)
            )
        return KnowledgeState(base, *self._index(base).state())

    def search(
        self, query: str, bases: Iterable[str | KnowledgeBase] | None = None, limit: int = 5
    ) -> builtins.list[Passage]:
        """The passages that fit a query best, best first; equal scores by citation.

        Args:
            query: words in any language; it has no operators.
            bases: where to look; None: in every configured base.
            limit: at most so many, never more than 50.

        Raises:
            UsageError: there is no such base (USAGE).
        """
        limit = min(limit, MOST_RESULTS)
        if limit <= 0:
            return []
        chosen = [self.get(b) if isinstance(b, str) else b for b in (self.names() if bases is None else bases)]
        found = [_passage(base, row) for base in chosen for row in self._index(base).search(query, limit)]
        return sorted(found, key=lambda passage: (-passage.score, passage.citation))[:limit]

    def read(self, citation: str) -> builtins.list[Passage]:
        """The section that a citation names, all its parts in order; without ``#``, the document; empty: there is none.

        Args:
            citation: ``kb:base/path/file.md#heading``.

        Raises:
            UsageError: there is no such base (USAGE).
        """
        name, _, place = citation.removeprefix(_START).partition("/")
        base = self.get(name)
        path, _, anchor = place.rpartition("#")
        index = self._index(base)
        rows = (index.read(path, anchor, MOST_RESULTS) if anchor else []) or index.read(place, "", MOST_RESULTS)
        return [_passage(base, row) for row in rows]

    def close(self) -> None:
        """Close the indexes."""
        with self._lock:
            for index in self._indexes.values():
                index.close()
            self._indexes.clear()

    def _index(self, base: KnowledgeBase) -> PassageIndex:
        with self._lock:
            if (found := self._indexes.get(base.folders)) is None:
                from tavern_core.knowledge.index import PassageIndex

                key = hashlib.sha256("\0".join(map(str, base.folders)).encode("utf-8", "surrogateescape")).hexdigest()
                found = self._indexes[base.folders] = PassageIndex(base.folders, self._cache / f"{key[:16]}.sqlite")
            return found


def _passage(base: KnowledgeBase, row: PassageRow) -> Passage:
    citation = f"{_START}{base.name}/{row.path}" + (f"#{row.anchor}" if row.anchor else "")
    return Passage(citation, row.heading, row.text, row.score, base.trusted and row.trusted)
