"""Rankers, which plugins contribute with `tavern_register_rankers`: further evidence for the search for node types."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol, runtime_checkable

from tavern_core.frozen_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class NodeDocument:
    """A node type as text, for a ranker."""

    id: str
    """The node type."""
    text: str
    """Its name, description, category and ports."""


@runtime_checkable
class Ranker(Protocol):
    """Orders node types by a request, for example by the distance of vectors.

    Its order is one piece of evidence among others (reciprocal rank fusion); it cannot remove a node type.
    """

    def rank(
        self, query: str, documents: Sequence[NodeDocument], limit: int
    ) -> Sequence[str] | Awaitable[Sequence[str]]:
        """The ids of the best documents, best first; sync or async, within the time limit of hooks.

        Args:
            query: the request of the user, and the steps of the plan, in any language.
            documents: all node types. As long as none changes, this is the same object: vectors may be kept for it.
            limit: more ids are ignored.
        """
        ...
