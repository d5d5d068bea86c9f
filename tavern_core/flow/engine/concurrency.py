"""Limits of one run: how many nodes run at the same time, in total, per type, per resource.

A step acquires a slot of each of its pools at once or none, so there are no deadlocks. Steps without free slots wait in
a queue by their number; a step that rested and returns has an old number and comes first. Steps with the same pools
share one queue, so each turn checks only a few heads, however many wait.

    waiting ──(a slot of every pool, lowest number first)──> running ──(a node waits for another)──> resting ──> waiting
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from tavern_core.flow.engine.plan_tables import PreparedStep
from tavern_core.graph.plan import FlowStep


class SlotPool:
    """A number of slots."""

    __slots__ = ("free",)

    def __init__(self, room: int) -> None:
        self.free = room


class SlotQueue:
    """The steps that wait for the same pools."""

    __slots__ = ("pools", "queue")

    def __init__(self, pools: tuple[SlotPool, ...]) -> None:
        self.pools = pools
        self.queue: list[tuple[int, int, StepSlots]] = []

    @property
    def has_room(self) -> bool:
        for pool in self.pools:  # noqa: SIM110 - called for each node, and a generator takes three times as long
            if pool.free <= 0:
                return False
        return True


class StepSlots:
    """The slots of one step."""

    __slots__ = ("_is_released", "concurrency", "is_dropped", "is_held", "line", "number", "then")

    def __init__(self, concurrency: RunConcurrency, line: SlotQueue, number: int, then: Callable[[], None]) -> None:
        self.concurrency = concurrency
        self.line = line
        self.number = number
        self.then = then
        self.is_held = False
        self.is_dropped = False
        self._is_released = 0

    def leave(self) -> None:
        """Release it, or stop waiting for it."""
        self.is_dropped = True
        self.concurrency.free(self)

    @asynccontextmanager
    async def released(self) -> AsyncIterator[None]:
        """Release the slots while the node waits for others; afterwards wait for slots again.

        An interrupted node gets its slots back at once, because it must run to its end.
        """
        self._is_released += 1
        if self._is_released == 1:
            self.concurrency.free(self)
        try:
            yield
        except BaseException:
            self._is_released -= 1
            if not self._is_released and not self.is_dropped:
                self.concurrency.take_without_waiting(self)
            raise
        self._is_released -= 1
        if not self._is_released and not self.is_dropped:
            await self._again()

    async def _again(self) -> None:
        back = asyncio.get_running_loop().create_future()

        def let_in() -> None:
            if not back.done():
                back.set_result(None)

        self.then = let_in
        if self.concurrency.take(self):
            return
        try:
            await back
        except BaseException:
            if not self.is_held and not self.is_dropped:
                self.concurrency.take_without_waiting(self)
            raise


class RunConcurrency:
    """The limits of one run.

    Args:
        total: nodes at the same time; None: no limit.
        types: node type → nodes of it at the same time; in addition to the type's own limit.
        resources: resource tag → nodes with it at the same time.
    """

    def __init__(self, total: int | None, types: Mapping[str, int], resources: Mapping[str, int]) -> None:
        self._types = {name: SlotPool(room) for name, room in types.items()}
        self._resources = {name: SlotPool(room) for name, room in resources.items()}
        self._common = SlotQueue((SlotPool(total),)) if total is not None else None
        """The queue of steps that only the total limits."""
        self._lines: dict[tuple[SlotPool, ...], SlotQueue] = (
            {} if self._common is None else {self._common.pools: self._common}
        )
        self._waiting = 0
        """Number of queued slots."""
        self._count = 0

    def slots_of(self, work: PreparedStep, then: Callable[[], None]) -> StepSlots | None:
        """The slots of a step, not acquired yet; None if no limit applies.

        Args:
            then: called when they were acquired after waiting.
        """
        step = work.step
        if step.kind != "node" or step.bypass is not None:  # groups hold no slots, but their nodes do
            return None
        pools, line = () if self._common is None else self._common.pools, self._common
        if step.spec.limit is not None or step.type in self._types or step.spec.resource in self._resources:
            pools = self._of(step, pools)
            line = self._lines.get(pools)
            if line is None:
                line = self._lines[pools] = SlotQueue(pools)
        if line is None:
            return None
        self._count += 1
        return StepSlots(self, line, self._count, then)

    def take(self, slots: StepSlots) -> bool:
        """Acquire it now, or queue for it."""
        line = slots.line
        if line.has_room and (not line.queue or slots.number < line.queue[0][0]):
            self.take_without_waiting(slots)
            return True
        self._waiting += 1
        heapq.heappush(line.queue, (slots.number, id(slots), slots))
        return False

    def take_without_waiting(self, slots: StepSlots) -> None:
        """Acquire it even without a free slot."""
        slots.is_held = True
        for pool in slots.line.pools:
            pool.free -= 1

    def free(self, slots: StepSlots) -> None:
        """Release it, and start waiting steps."""
        if slots.is_held:
            slots.is_held = False
            for pool in slots.line.pools:
                pool.free += 1
            if self._waiting:
                self._admit()

    def _admit(self) -> None:
        while True:
            best: SlotQueue | None = None
            for line in self._lines.values():
                queue = line.queue
                while queue and (queue[0][2].is_dropped or queue[0][2].is_held):
                    heapq.heappop(queue)
                    self._waiting -= 1
                if queue and line.has_room and (best is None or queue[0][0] < best.queue[0][0]):
                    best = line
            if best is None:
                return
            _, _, slots = heapq.heappop(best.queue)
            self._waiting -= 1
            self.take_without_waiting(slots)
            slots.then()

    def _of(self, step: FlowStep, common: tuple[SlotPool, ...]) -> tuple[SlotPool, ...]:
        pools = [*common]
        if (type_pool := self._types.get(step.type)) is None and step.spec.limit is not None:
            type_pool = self._types.setdefault(step.type, SlotPool(step.spec.limit))
        if type_pool is not None:
            pools.append(type_pool)
        if step.spec.resource and (shared := self._resources.get(step.spec.resource)) is not None:
            pools.append(shared)
        return tuple(pools)
