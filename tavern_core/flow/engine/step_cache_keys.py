"""Hashes of what each step of a scheduler depends on (`cache_keys.py`): computed when the steps begin.

key            identifies the file's values and the sources of a step's answer
content key    identifies its own answer, in the keys of later steps
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tavern_core.flow.engine.cache_keys import joined_key, value_key
from tavern_core.flow.engine.plan_tables import PreparedPlan, PreparedStep


def followers(works: Sequence[PreparedStep]) -> list[list[int]]:
    """Step → the steps that need it or may request it."""
    found: list[list[int]] = [[] for _ in works]
    for work in works:
        for step, _ in (*work.upstream, *work.lazy_upstream):
            found[step].append(work.step.index)
    return found


class StepCacheKeys:
    """The keys and content keys of one scheduler."""

    def __init__(self, prepared: PreparedPlan, given: Mapping[str, Any]) -> None:
        self._prepared = prepared
        self._given = given
        self._structure: dict[int, tuple[bytes, bool]] = {}
        self.keys = [b""] * len(prepared.works)
        self.marks = [b""] * len(prepared.works)

    def key(self, number: int, work: PreparedStep) -> bytes:
        """The key of a step whose sources have ended (or, for streams, begun), without lazy ones."""
        marks, extra = self.marks, []
        for step, place in work.upstream:
            extra.append(marks[step])
            extra.append(place)
        if work.step.streams and any(
            self._prepared.works[s.step].step.kind == "group" for b in work.step.streams for s in b.sources
        ):
            extra.append(value_key(object()))  # the outputs of a group depend on its nodes, which still run
        return joined_key(work.key, extra) if extra else work.key

    def with_lazy(self, key: bytes, work: PreparedStep) -> tuple[bytes, bool]:
        """`key` with the dependencies of the lazy inputs, and whether these determine their values."""
        parts = [self._structure_of(step) for step, _ in work.lazy_upstream]
        joined = [mark + place for (mark, _), (_, place) in zip(parts, work.lazy_upstream, strict=True)]
        return joined_key(key, joined), all(is_pure for _, is_pure in parts)

    def interface(self, number: int, work: PreparedStep) -> None:
        """An interface node has provided the inputs of the workflow."""
        self.marks[number] = joined_key(work.key, [value_key(self._given)])

    def join(self, number: int, parts: list[bytes]) -> None:
        """The outputs of a step also depend on `parts`."""
        self.marks[number] = joined_key(self.marks[number], parts)

    def digest(self) -> bytes:
        """One hash of everything that the outputs of the plan depend on."""
        ends = [self.marks[work.step.index] for work in self._prepared.works if work.step.kind == "output"]
        return joined_key(self._prepared.key, ends)

    def _structure_of(self, number: int) -> tuple[bytes, bool]:
        """The dependencies of a step that may never run, and whether an equal key always means an equal value."""
        stack = [number]
        known = self._structure
        while stack:
            work = self._prepared.works[stack[-1]]
            feeds = [*work.upstream, *work.lazy_upstream]
            if missing := [step for step, _ in feeds if step not in known]:
                stack.extend(missing)
                continue
            index = stack.pop()
            if index in known:
                continue
            parts = [known[step][0] + place for step, place in feeds]
            if work.step.kind == "input":
                parts.append(value_key(self._given))
            is_pure = work.is_pure and all(known[step][1] for step, _ in feeds)
            known[index] = joined_key(work.key, parts), is_pure
        return known[number]
