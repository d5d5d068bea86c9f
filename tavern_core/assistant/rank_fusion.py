"""Several orders of the same things become one: reciprocal rank fusion (Cormack, Clarke and Büttcher 2009), with weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.node import NodeMatch

_DAMPING: Final = 20
"""How little the first places differ; chosen on the development part of the benchmark, like the weights."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """One order of node types."""

    weight: float
    reasons: Mapping[str, str]
    """Node type → why, best first."""


def fused(evidence: Iterable[Ranking], limit: int) -> list[NodeMatch]:
    """The best `limit` node types by all evidence; equal scores by type.

    >>> [m.type for m in fused([Ranking(1.0, {"a": "x", "b": "x"}), Ranking(1.0, {"b": "y"})], 2)]
    ['b', 'a']
    """
    scores: dict[str, list[tuple[float, str]]] = {}
    for one in evidence:
        for place, (type_, why) in enumerate(one.reasons.items(), 1):
            scores.setdefault(type_, []).append((one.weight / (_DAMPING + place), why))
    totals = {type_: sum(sorted(score for score, _ in found)) for type_, found in scores.items()}
    best = sorted(totals, key=lambda type_: (-totals[type_], type_))[: max(limit, 0)]
    return [NodeMatch(type_, totals[type_], _why(scores[type_])) for type_ in best]


def _why(found: list[tuple[float, str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(why for _, why in sorted(found, key=lambda item: -item[0])))
