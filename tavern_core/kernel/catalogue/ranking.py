"""Ranking in plain Python: BM25 over weighted words.

For what is too small for a database (the worked examples of one manual) and for a Python whose SQLite has no FTS5.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_SATURATION: Final = 1.2  # k1 and b of BM25, the values that FTS5 uses
_LENGTH_WEIGHT: Final = 0.75


@dataclass(frozen=True, slots=True)
class _Document:
    weights: dict[str, float]
    length: float


class WordIndex:
    """Documents as bags of weighted words. Not safe for threads; its owner locks."""

    def __init__(self) -> None:
        self._documents: dict[str, _Document] = {}
        self._holders: dict[str, set[str]] = {}
        self._length = 0.0

    def __len__(self) -> int:
        return len(self._documents)

    def add(self, key: str, fields: Iterable[tuple[Iterable[str], float]]) -> None:
        """Put a document in, or replace it: its words field by field, each field with its weight."""
        self.remove(key)
        weights: dict[str, float] = {}
        for words, weight in fields:
            for word in words:
                weights[word] = weights.get(word, 0.0) + weight
        document = self._documents[key] = _Document(weights, sum(weights.values()))
        self._length += document.length
        for word in weights:
            self._holders.setdefault(word, set()).add(key)

    def remove(self, key: str) -> None:
        """Take a document out; unknown keys are fine."""
        if (old := self._documents.pop(key, None)) is None:
            return
        self._length -= old.length
        for word in old.weights:
            holders = self._holders[word]
            holders.discard(key)
            if not holders:
                del self._holders[word]

    def count(self, word: str) -> int:
        """How many documents hold `word`."""
        return len(self._holders.get(word, ()))

    def completions(self, start: str, most: int) -> list[str]:
        """Up to `most` indexed words that begin with `start`, in order."""
        return sorted(word for word in self._holders if word.startswith(start))[:most]

    def rank(self, words: Iterable[str]) -> list[tuple[str, float]]:
        """(key, score) of every document that holds one of `words`, best first, equal scores by key."""
        scores: dict[str, float] = {}
        average = self._length / max(len(self._documents), 1) or 1.0
        for word in words:
            holders = self._holders.get(word, ())
            rarity = math.log(1 + (len(self._documents) - len(holders) + 0.5) / (len(holders) + 0.5))
            for key in holders:
                document = self._documents[key]
                often = document.weights[word]
                length = 1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * document.length / average
                gain = rarity * often * (_SATURATION + 1) / (often + _SATURATION * length)
                scores[key] = scores.get(key, 0.0) + gain
        return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
