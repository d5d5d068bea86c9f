"""Runs the steps of one plan: starts each step when all of its inputs are there.

    waiting ──(all inputs are there)──> queued ──> running ──> complete | cached | skipped | error
                                                       └──(the run is cancelled)──> interrupted

A step starts immediately, and gets a task only when it first waits (`eager_task.py`). Nothing recurses; a chain of 10,000
steps is processed by one loop, which yields to the event loop now and then. Groups run their plan in their own
scheduler, in the same run.

Whatever a node raises is an error of that node, even a SystemExit or a CancelledError without a request to cancel. Only a
KeyboardInterrupt ends the run and is raised in its caller.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final
from weakref import WeakSet

from tavern_core.contract.nodes import MismatchedInput, NothingCame, Skip
from tavern_core.flow.engine.cache_keys import joined_key, value_key
from tavern_core.flow.engine.channel import Channel, ReleaseSlots
from tavern_core.flow.engine.concurrency import RunConcurrency, StepSlots
from tavern_core.flow.engine.eager_task import EagerStarter
from tavern_core.flow.engine.node_context import RunningNode
from tavern_core.flow.engine.node_errors import GroupFailed, node_error
from tavern_core.flow.engine.node_inputs import inputs_of, items_of
from tavern_core.flow.engine.node_outputs import SKIPPED, Outputs, SettledAnswer, outputs_of
from tavern_core.flow.engine.node_runner import collect, perform
from tavern_core.flow.engine.node_value_encoding import copy_containers, deep_copy, private
from tavern_core.flow.engine.plan_tables import (
    PreparedPlan,
    PreparedStep,
    StepCacheKeys,
    check_inputs,
    followers,
    many_of,
)
from tavern_core.flow.engine.protocols import NodeCache, RunPart
from tavern_core.flow.engine.streams import StepStreams
from tavern_core.flow.engine.subworkflows import run_group
from tavern_core.graph.order import reachable
from tavern_core.graph.plan import ERROR_PORT
from tavern_core.graph.slot_compatibility import value_mismatch
from tavern_core.kernel.nodes.annotation_coercion import adapt, adapt_value
from tavern_core.kernel.nodes.node_callable import has_not_begun
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.node import ABSENT
from tavern_core.model.run import NodeError

BATCH: Final = 256
"""Steps that are started before the event loop can do other work."""


class Scheduler:
    """The steps of one plan in one run.

    Args:
        prefix: path of its group, with a slash at the end; empty for the workflow itself.
        given: values of the interface inputs, defaults filled in.
        wanted: the steps to begin; including the steps that they need, except lazy ones.
        out: of a group: its own streams, which get the streams of its plan.
    """

    def __init__(
        self, run: RunPart, prepared: PreparedPlan, prefix: str, given: Mapping[str, Any], wanted: frozenset[int],
        out: Mapping[str, Channel] | None = None,
    ) -> None:  # fmt: skip
        self.run = run
        self.concurrency = run.concurrency
        self.prepared = prepared
        self.prefix = prefix
        self.given = given
        self.out = out
        self.results: dict[str, Any] = {}
        """The inputs of `GroupOutput` nodes."""
        count = len(prepared.works)
        self.missing_inputs = list(prepared.waits)
        self.outputs: list[Outputs | None] = [None] * count
        self.depends = StepCacheKeys(prepared, given)
        self.streams = StepStreams(prepared, given, self._rest_of)
        self.failed: dict[int, NodeError] = {}
        self.fatal: list[NodeError] = []
        """Errors that nothing in this scheduler handled."""
        self.busy = 0
        """Started steps that are not done."""
        self._wanted = bytearray(count)
        self._ready: deque[int] = deque()
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._began: dict[int, float] = {}
        """Running steps → their start."""
        self._slots: dict[int, StepSlots] = {}
        self._admitted: set[int] = set()
        self._threads: dict[int, list[Future[Any]]] = {}
        self._recalled: set[int] = set()
        self._revived: set[int] = set()
        """Steps with a cached answer that run anyway, because a reader needs their streams."""
        self._impure: set[int] = set()
        """Steps whose answers no other run may reuse."""
        self.unsettled: set[int] = set()
        """Steps that failed, groups in which a step failed, and steps that requested a value from one of these: if the run is
        resumed, they run again."""
        self._behind_anew: set[int] | None = None
        """Steps that must run again, and those that need or may request a value from one of these; None: not looked for yet."""
        self._made: set[int] = set()
        """Steps whose large answer was prepared for storing."""
        self._begun: set[int] = set()
        self._interrupt: BaseException | None = None
        """What `drive` raises as soon as it can."""
        self._is_stopping = False
        self._is_over = False
        self._waiters: dict[int, list[asyncio.Future[None]]] = {}
        self._idle: set[int] = set()
        """Steps that wait for the answer of a person, or for a lazy input."""
        self._inside: WeakSet[Scheduler] = WeakSet()
        """The schedulers of its groups."""
        self._wake: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._starter = EagerStarter[int](self._loop, self._waited_step_ended)
        self._context = contextvars.copy_context()
        self._want(wanted if len(wanted) < count else range(count))

    # Starting steps ------------------------------------------------------------------------------------------------------

    def _want(self, steps: Any) -> None:
        for step in steps:
            self._wanted[step] = 1
        for step in sorted(steps):
            if self.missing_inputs[step] == 0 and self.outputs[step] is None:
                self.queue(step)

    def queue(self, step: int) -> None:
        """Queue a step that can begin."""
        self._ready.append(step)
        work = self.prepared.works[step]
        if work.step.streams:
            self.streams.pause(step, -1)  # it can read soon, and may block its writers
        self.run.emit("queued", self.prefix + work.step.id)
        self.wake()

    def _admit(self, step: int) -> None:
        """Begin a queued step that has its slots now."""
        self.busy -= 1
        self._admitted.add(step)
        self._ready.append(step)
        self.wake()

    def wake(self) -> None:
        """Wake the scheduler after a change."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def child(
        self, inner: PreparedPlan, prefix: str, given: Mapping[str, Any], out: Mapping[str, Channel] | None = None
    ) -> Scheduler:
        """A scheduler for the workflow of a group.

        Args:
            out: the targets of its output streams; None: they are collected.
        """
        child = Scheduler(self.run, inner, prefix, given, inner.plan.wanted, out)
        self._inside.add(child)
        return child

    def is_stalled(self) -> bool:
        """Whether only questions, and steps that wait for their answers, are left."""
        if self._ready or self.busy > len(self._tasks):
            return False  # the rest is queued
        works, stuck = self.prepared.works, set(self._idle)
        for number in self._tasks:
            inside = [
                scope
                for scope in self._inside
                if not scope._is_over and scope.prefix.startswith(f"{self.prefix}{works[number].step.id}/")
            ]
            if inside and all(scope.is_stalled() for scope in inside):
                stuck.add(number)
        while more := {
            number for number in self._tasks.keys() - stuck
            if any(source.step in stuck for binding in works[number].step.streams for source in binding.sources)
        }:  # fmt: skip
            stuck |= more
        return stuck >= self._tasks.keys()

    @contextmanager
    def idling(self, number: int) -> Iterator[None]:
        """Mark a step as idle while it waits for something external."""
        self._idle.add(number)
        self.run.check_stalled()
        try:
            yield
        finally:
            self._idle.discard(number)

    async def drive(self) -> None:
        """Run until nothing can begin and nothing runs. If cancelled, it ends running steps before it raises."""
        try:
            while True:
                if self._interrupt is not None:
                    raise self._interrupt
                if self.run.is_cancelled:
                    await self._loop.create_future()  # nothing begins any more; the cancellation will arrive
                elif self._ready:
                    with self._starter:
                        self._start_some()
                    if self._ready:
                        await asyncio.sleep(0)
                elif self.busy:
                    self._wake = self._loop.create_future()
                    await self._wake
                else:
                    self._is_over = True
                    return
        except BaseException:
            await self._stop()
            raise

    def _start_some(self) -> None:
        ready, room = self._ready, BATCH
        while ready and room and not self.run.is_cancelled:  # steps that become ready start in the same turn
            room -= 1
            self._start(ready.popleft())

    async def _stop(self) -> None:
        """End every running step; steps that never began are interrupted, too."""
        self._is_stopping = True
        idle = set(self._idle)
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        until = self._loop.time() + self.run.grace
        while waiting := [task for task in tasks if not task.done()]:
            if (remaining := until - self._loop.time()) <= 0:
                break  # it continues without us and is not reported any more
            with suppress(asyncio.CancelledError):  # a second cancellation changes nothing, because we are ending
                await asyncio.wait(waiting, timeout=remaining)
        self._is_over = True
        for number, work in enumerate(self.prepared.works):
            if self.run.is_left and (number in idle or number not in self._began or work.step.kind != "node"):
                continue  # it waits, or has not begun
            if self._wanted[number] and self.outputs[number] is None and number not in self.failed:
                self.run.node_ended("interrupted", self.prefix + work.step.id, self._began.get(number, 0.0))
        self.streams.end_all(asyncio.CancelledError())
        for slots in self._slots.values():
            slots.leave()

    # One step ------------------------------------------------------------------------------------------------------------

    def _start(self, number: int) -> None:
        work, run = self.prepared.works[number], self.run
        self.busy += 1
        try:
            if work.step.streams and number not in self._admitted:
                if self._recalled and self._is_lost(number, work):
                    return  # it returns when there is something to read
                readers = self.streams.readers(number)
                for reader in readers:
                    reader.siblings = readers
            inputs = inputs_of(work, self.outputs, self.streams)
            if inputs is None:
                self._done(number, SKIPPED, "skipped")
                return
            if self.concurrency is not None and not self._has_slots(number, work, self.concurrency):
                return  # it is queued, and returns
            if work.step.kind != "node" or work.step.bypass is not None:
                self._start_special(number, work, inputs)
                return
            around = run.around
            if around is None or not around.is_before:
                if (found := self.recall(number, work, inputs)) is not None:
                    self._done(number, found, "cached", is_marked=True)
                    return
                self.begin(number)
            if work.is_quick and around is None:
                code = work.code
                assert code is not None
                if work.checks:
                    check_inputs(work, inputs)
                if code.context:
                    inputs[code.context] = RunningNode(run, self, number, work)
                body: Coroutine[Any, Any, Any] = code.function(**inputs)
            else:
                body = perform(self, number, work, inputs)
            is_done, answer = self._starter.start(body, self._context.copy(), number)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a node may raise anything; that is its result
            self._fail(number, work, error)
            return
        if is_done:
            self._answered(number, work, answer)
        else:
            self._tasks[number] = answer

    def _is_lost(self, number: int, work: PreparedStep) -> bool:
        """If streams of a step are missing because their writers have cached answers, use its own cached answer, or run them again."""
        sources = {source.step for binding in work.step.streams for source in binding.sources}
        lost = [step for step in sources if step in self._recalled and step not in self.streams.opened]
        if not lost:
            return False
        if not work.has_fingerprint and (found := self.recall(number, work, {})) is not None:
            if work.step.kind == "output":
                self.results.update(found)
            self._done(number, found, "cached", is_marked=True)
            return True
        self.busy -= 1
        for writer in lost:
            self.missing_inputs[number] += 1
            if writer not in self._revived:
                self._revived.add(writer)
                self._begun.discard(writer)
                self.queue(writer)
        return True

    def _has_slots(self, number: int, work: PreparedStep, concurrency: RunConcurrency) -> bool:
        if number in self._admitted:
            self._admitted.discard(number)
            return True
        slots = concurrency.slots_of(work, partial(self._admit, number))
        if slots is None:
            return True
        self._slots[number] = slots
        return concurrency.take(slots)

    def _rest_of(self, number: int) -> ReleaseSlots | None:
        return None if self.concurrency is None else partial(self.without_slots, number)

    @asynccontextmanager
    async def without_slots(self, number: int) -> AsyncIterator[None]:
        """Release the slots of a step while it waits for other nodes; it blocks no stream meanwhile."""
        slots = self._slots.get(number)
        if slots is None:
            yield
        else:
            async with slots.released():
                yield

    def hold_for(self, number: int, threads: list[Future[Any]]) -> None:
        """Hold the slots of an ended step while its unstoppable code continues in threads, until these have ended."""
        self._threads[number] = [thread for thread in threads if not thread.done()]

    def _give_back(self, slots: StepSlots, threads: Sequence[Future[Any]]) -> None:
        if threads:
            loop = self._loop
            threads[-1].add_done_callback(lambda _: _call_on(loop, slots.leave))
        else:
            slots.leave()

    def _waited_step_ended(self, number: int, answer: Any, error: BaseException | None) -> None:
        """Finish a step that had to wait."""
        self._tasks.pop(number, None)
        if self._is_over or (self._is_stopping and error is not None):
            return  # it is interrupted, or was abandoned
        work = self.prepared.works[number]
        try:
            if isinstance(error, KeyboardInterrupt):
                self._interrupt = error
                self.wake()
            elif error is not None:
                self._fail(number, work, error)
            else:
                self._answered(number, work, answer)
        except BaseException as broken:  # noqa: BLE001 - an error of the engine itself must not leave the run waiting
            self._interrupt = broken
            self.wake()

    def begin(self, number: int) -> None:
        """Record that a step runs from now on."""
        work = self.prepared.works[number]
        self._began[number] = self.run.emit("running", self.prefix + work.step.id)
        if work.may_change:
            self.run.changes += 1
        if self.streams.open(number, lambda reader: self.outputs[reader] is not None):
            self._release(number, work.step.listeners)

    def _start_special(self, number: int, work: PreparedStep, inputs: dict[str, Any]) -> None:
        """Start a step without node code: a bypassed one, the interface, a group."""
        kind = work.step.kind
        self.depends.marks[number] = self.depends.key(work)
        if work.step.bypass is not None:
            self._done(number, self._bypassed(work, inputs), "complete", is_marked=True)
        elif kind == "input":
            self.depends.interface(number, work)
            self._done(number, self.given, "complete", is_marked=True)
        elif kind == "output" and not work.step.streams:
            check_inputs(work, inputs)
            self.results.update(inputs)
            self._done(number, {}, "complete", is_marked=True)
        else:
            self.begin(number)
            body = collect(self, work, inputs) if kind == "output" else run_group(self, number, work, inputs)
            is_done, answer = self._starter.start(body, self._context.copy(), number)
            if is_done:
                self._answered(number, work, answer)
            else:
                self._tasks[number] = answer

    def _bypassed(self, work: PreparedStep, inputs: Mapping[str, Any]) -> Outputs:
        bypass = work.step.bypass
        if bypass == "mute" or bypass is None:
            return SKIPPED
        found: dict[str, Any] = dict.fromkeys(work.batch, Skip)
        found.update({key: inputs[source] for key, source in bypass.outputs.items() if source in inputs})
        return found | copy_containers(
            {key: value for key, value in bypass.defaults.items() if found.get(key, Skip) is Skip}
        )

    # Inputs --------------------------------------------------------------------------------------------------------------

    async def need(self, number: int, key: str) -> Any:
        """The value of a lazy input of step `number`; its sources start now.

        Raises:
            MismatchedInput: there is no such input, or its value does not fit.
            NothingCame: its source has no value; a node that does not catch this is skipped.
        """
        work = self.prepared.works[number]
        step, adapters = work.step, work.code.adapters if work.code is not None else {}
        binding = next((b for b in step.lazy if b.key == key), None)
        slot = step.inputs.get(key)
        if binding is None:
            found = step.values.get(key, ABSENT)  # including defaults
            if slot is None:
                raise MismatchedInput(key, f"{step.type} has no input {key!r}", did_you_mean(key, step.inputs))
            return None if found is ABSENT else adapt_value(adapters, key, private(found), MismatchedInput)
        sources = [source.step for source in binding.sources]
        self._want({s for s in reachable(self.prepared.plan.needs, sources) if not self._wanted[s]})
        if any(self.outputs[source] is None for source in sources):
            with self.streams.paused(number):
                await self._rested(number, sources)
        many = many_of(binding, step, is_shared=True)
        values = [private(value) for value in items_of(many, self.outputs)]
        if self.unsettled:
            behind = reachable(self.prepared.plan.needs, sources)
            if not self.unsettled.isdisjoint(behind):
                self.unsettled.add(number)
                self._impure.add(number)
        if not values and (not binding.slot.multi or many.is_required):
            if any(self.prepared.works[source].step.kind != "input" for source in sources):
                raise NothingCame(key)
            values = [None if binding.slot.default is ABSENT else private(binding.slot.default)]
        asked = values if binding.slot.multi else values[0]
        if why := value_mismatch(binding.slot, asked):
            raise MismatchedInput(key, why)
        return adapt_value(adapters, key, asked, MismatchedInput)

    async def _rested(self, number: int, sources: list[int]) -> None:
        async with self.without_slots(number):
            with self.idling(number):
                for source in sources:
                    while self.outputs[source] is None:
                        waiter = self._loop.create_future()
                        self._waiters.setdefault(source, []).append(waiter)
                        await waiter

    def is_only_read(self, number: int) -> bool:
        """True if only the streams of a step are needed."""
        work = self.prepared.works[number]
        return work.is_only_read and (bool(self.prefix) or work.step.id not in self.run.targets)

    # Results -------------------------------------------------------------------------------------------------------------

    def _recall_key(
        self, number: int, work: PreparedStep, inputs: Mapping[str, Any], changed: bytes
    ) -> tuple[bytes, bool]:
        """The key under which the answer of a step is stored, and whether other runs may reuse it."""
        key, is_pure = self.depends.key(work), not work.step.streams
        if work.lazy_upstream:
            key, is_known = self.depends.with_lazy(key, work)
            is_pure = is_pure and is_known
        if changed:
            key = joined_key(key, [changed])
        if work.has_fingerprint:
            assert work.code is not None
            assert work.code.cls is not None
            private_inputs = deep_copy(inputs)
            adapt(work.code.adapters, private_inputs, MismatchedInput)
            fingerprint = work.code.cls().fingerprint(RunningNode(self.run, self, number, work), **private_inputs)
            key = joined_key(key, [value_key(fingerprint)])
        return key, is_pure

    def recall(
        self, number: int, work: PreparedStep, inputs: Mapping[str, Any], changed: bytes = b""
    ) -> Outputs | None:
        """The answer of an earlier run, if one is stored under the same key.

        Args:
            changed: a key of the inputs as changed by a hook.
        """
        run = self.run
        if run.cache is None or number in self._revived:
            return None
        key, is_pure = self._recall_key(number, work, inputs, changed)
        path = self.prefix + work.step.id
        self.depends.keys[number] = key
        if is_anew := bool(work.lazy_upstream) and run.cache.has_anew and self._may_request_anew(work, run.cache):
            is_pure = False
        found = None if is_anew else run.cache.find(run, path, key, work, is_pure)
        if (
            found is not None
            and work.has_streams
            and not found[0].keys() >= set(work.batch)
            and not self.is_only_read(number)
        ):
            found = None  # it was stopped, and now its other outputs are needed
        if found is None:
            # The reader of a stream begins before its writer has ended, and must already know its dependencies.
            self.depends.marks[number] = (
                joined_key(key, [run.turn.encode(), path.encode()]) if work.has_streams else key
            )
            if not is_pure:
                self._impure.add(number)
            return None
        self._recalled.add(number)
        self.depends.marks[number] = found[1]
        return found[0]

    def _may_request_anew(self, work: PreparedStep, cache: NodeCache) -> bool:
        """Whether a lazy input of a step may depend on a node that must run again."""
        if self._behind_anew is None:
            works = self.prepared.works
            starts = [number for number, each in enumerate(works) if cache.is_anew(self.prefix + each.step.id)]
            self._behind_anew = reachable(followers(works), starts)
        return not self._behind_anew.isdisjoint(step for step, _ in work.lazy_upstream)

    def _answered(self, number: int, work: PreparedStep, answer: Any) -> None:
        how = answer.how if isinstance(answer, SettledAnswer) else ""
        if how == "recalled":
            self._done(number, answer.outputs, "cached", is_marked=True)
            return
        if how == "unread":
            if (
                self.run.cache is not None and number not in self._revived
            ):  # its other outputs are missing: see `recall`
                path, key = self.prefix + work.step.id, self.depends.keys[number]
                self.run.cache.store(self.run, path, key, work, {}, False)
            self._done(number, answer.outputs, "complete", is_marked=True)
            return
        try:
            if work.step.kind != "node":
                outputs = answer
                if work.step.kind == "output" and self.out is None and self.run.cache is not None:
                    path, key = self.prefix + work.step.id, self.depends.key(work)
                    self.run.cache.store(self.run, path, key, work, outputs, False)
            else:
                outputs = answer.outputs if how else outputs_of(work, answer)
        except Exception as error:  # noqa: BLE001 - an answer may be anything, and inspecting it may raise
            self._fail(number, work, error)
            return
        is_skipped = outputs is SKIPPED and bool(work.batch)
        self._done(number, outputs, "skipped" if is_skipped else "complete", is_marked=work.step.kind != "node")

    def _done(self, number: int, outputs: Outputs, state: Any, is_marked: bool = False) -> None:
        """Finish a step with its outputs."""
        run, work = self.run, self.prepared.works[number]
        path, cache = self.prefix + work.step.id, run.cache
        size: Outputs | int | None = None if state == "skipped" else outputs
        if cache is not None and size is not None:
            if number in self._made:
                size = cache.sizes[path]
            elif cache.must_make(path, work, outputs, is_marked):
                self._make(number, work, outputs, state, is_marked)
                return
        self.outputs[number] = outputs
        if not is_marked and cache is not None and state == "complete":
            if number in self.unsettled:
                self._mark_own(number, work)
            elif number not in self._revived:
                is_pure = number not in self._impure
                key = self.depends.keys[number]
                self.depends.marks[number] = cache.store(run, path, key, work, outputs, is_pure)
        elif state == "skipped":
            self._mark_own(number, work)
        run.node_ended(state, path, self._began.pop(number, 0.0), size)
        self._step_ended(number, work)

    def _make(self, number: int, work: PreparedStep, outputs: Outputs, state: Any, is_marked: bool) -> None:
        """Let a thread prepare large outputs for storing, and finish the step after that."""
        cache, path, is_pure = self.run.cache, self.prefix + work.step.id, number not in self._impure

        async def made() -> None:
            assert cache is not None
            try:
                key = self.depends.keys[number]
                await self._loop.run_in_executor(None, cache.make, self.run, path, key, work, outputs, is_pure)
                self._tasks.pop(number, None)
                if not (self._is_over or self._is_stopping):
                    self._made.add(number)
                    self._done(number, outputs, state, is_marked)
            except asyncio.CancelledError:
                raise
            except BaseException as broken:  # noqa: BLE001 - an error of the engine itself must not leave the run waiting
                self._interrupt = broken
                self.wake()

        self._tasks[number] = self._loop.create_task(made())

    def _mark_own(self, number: int, work: PreparedStep) -> None:
        """Mark the result of this step as valid only in this run."""
        self.depends.join(number, [self.run.turn.encode(), self.prefix.encode(), work.step.id.encode()])

    def _fail(self, number: int, work: PreparedStep, error: BaseException) -> None:
        """Finish a step with an error; its branch is skipped unless the file says otherwise."""
        run, how = self.run, work.step.exec
        if isinstance(error, NothingCame) or any(reader.is_skipped for reader in self.streams.readers(number)):
            self.streams.end(number, error, is_handled=True)
            self._done(number, SKIPPED, "skipped")
            return
        is_function = work.code is not None and work.code.cls is None  # a class may have answered `needs` before
        if work.may_change and is_function and number in self._began and has_not_begun(error):
            run.changes -= 1
        found = node_error(error, self.prefix + work.step.id, work)
        found = replace(
            found, message=run.mask(found.message), hint=run.mask(found.hint), details=run.mask(dict(found.details))
        )
        self.failed[number] = found
        self.unsettled.add(number)
        self.outputs[number] = SKIPPED
        self._mark_own(number, work)
        if how.on_error == "default":
            self.outputs[number] = {**dict.fromkeys(work.batch, Skip), **copy_containers(how.defaults)}
        elif how.on_error == "port":
            self.outputs[number] = {**dict.fromkeys(work.batch, Skip), ERROR_PORT: found.to_caller()}
        if how.on_error == "fail":
            self.fatal.append(found)
            if isinstance(error, GroupFailed):
                self.outputs[number] = {**dict.fromkeys(work.batch, Skip), **error.outputs}
        run.failed(found, isinstance(error, GroupFailed), self._began.pop(number, 0.0))
        self.streams.end(number, error)
        self._step_ended(number, work)

    def _step_ended(self, number: int, work: PreparedStep) -> None:
        self.busy -= 1
        step = work.step
        self.streams.end(number)
        if self._slots and (slots := self._slots.pop(number, None)) is not None:
            self._give_back(slots, self._threads.pop(number, ()))
        if self._is_stopping:
            return
        missing, wanted = self.missing_inputs, self._wanted
        if number in self._revived:
            return  # it ran only for its streams; steps that wait for its end have already begun
        for after in step.after:
            missing[after] -= 1
            if missing[after] == 0 and wanted[after]:
                self.queue(after)
        if step.listeners:
            self._release(number, step.listeners)
        if self._waiters:
            for waiter in self._waiters.pop(number, ()):
                if not waiter.done():
                    waiter.set_result(None)
        self.wake()

    def _release(self, number: int, listeners: tuple[int, ...]) -> None:
        if number in self._begun:
            return
        self._begun.add(number)
        for listener in listeners:
            self.missing_inputs[listener] -= 1
            if self.missing_inputs[listener] == 0 and self._wanted[listener] and self.outputs[listener] is None:
                self.queue(listener)


def _call_on(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop may be closed, so nothing waits any more
        loop.call_soon_threadsafe(function)
