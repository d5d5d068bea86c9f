"""Limits of one run: how many nodes at a time, of one type, of one resource. What finds no room stands in a queue, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from tavern_core.kernel.engine.parts import ScopePart
from tavern_core.kernel.engine.prepared import Work


class Gate:
    """Room for so many at a time."""

    __slots__ = ("free", "queue")

    def __init__(self, room: int) -> None:
        self.free = room
        self.queue: deque[tuple[ScopePart, int, Work]] = deque()


class Gates:
    """The limits of one run.

    Args:
        total: nodes at a time; None: no limit.
        types: node type → nodes of it at a time; beside what a type says itself.
        resources: resource tag → nodes with it at a time.
    """

    def __init__(self, total: int | None, types: Mapping[str, int], resources: Mapping[str, int]) -> None:
        self._total = Gate(total) if total is not None else None
        self._types = {name: Gate(room) for name, room in types.items()}
        self._resources = {name: Gate(room) for name, room in resources.items()}

    def enter(self, scope: ScopePart, number: int, work: Work) -> bool:
        """Take a place in every gate of a step; False: one is full, and the step stands in its queue."""
        gates = self._of(work)
        full = next((gate for gate in gates if gate.free <= 0), None)
        if full is not None:
            full.queue.append((scope, number, work))
            for gate in gates:
                if gate.free > 0:
                    _call_next(gate)  # this one's turn there is somebody else's now
            return False
        self.retake(work)
        return True

    def leave(self, work: Work) -> None:
        """Give the places back, and let those at the head of the queues try."""
        for gate in self._of(work):
            gate.free += 1
            if gate.free > 0:
                _call_next(gate)

    def retake(self, work: Work) -> None:
        """Take the places without asking: of a node that only rested."""
        for gate in self._of(work):
            gate.free -= 1

    def _of(self, work: Work) -> list[Gate]:
        step = work.step
        if step.kind != "node" or step.streams:  # a reader must not wait for the place that its writer holds
            return []
        gates = [] if self._total is None else [self._total]
        if (own := self._types.get(step.type)) is None and step.spec.limit is not None:
            own = self._types.setdefault(step.type, Gate(step.spec.limit))
        if own is not None:
            gates.append(own)
        if step.spec.resource and (shared := self._resources.get(step.spec.resource)) is not None:
            gates.append(shared)
        return gates


def _call_next(gate: Gate) -> None:
    if gate.queue:
        scope, number, _ = gate.queue.popleft()
        scope.requeue(number)
