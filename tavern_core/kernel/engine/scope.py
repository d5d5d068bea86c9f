"""One plan being run: a queue of steps that can begin, and what became of those that did.

    waiting ──(all it needs is there)──> queued ──> running ──> complete | cached | skipped | error
                                                       └──(the run is cancelled)──> interrupted

A step is started right away, and gets a task only when it first waits (`eager.py`). Nothing recurses; a chain of 10,000
steps is worked off by one loop, which gives way to the event loop now and then. Groups run their plan in a scope of their
own, below the same run.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from tavern_core.contract.nodes import Node, Skip
from tavern_core.graph.order import behind
from tavern_core.graph.plan import ERROR_PORT
from tavern_core.graph.slots import converted
from tavern_core.kernel.engine.answers import SKIPPED, Outputs, outputs_of
from tavern_core.kernel.engine.channel import Channel, Reader
from tavern_core.kernel.engine.eager import Starter
from tavern_core.kernel.engine.groups import run_group
from tavern_core.kernel.engine.keys import joined_key, value_key
from tavern_core.kernel.engine.parts import RunPart
from tavern_core.kernel.engine.perform import collect, perform
from tavern_core.kernel.engine.prepared import Prepared, Work
from tavern_core.kernel.engine.trouble import GroupFailed, MisfitInput, node_error
from tavern_core.model.node import ABSENT
from tavern_core.model.run import NodeError

BATCH: Final = 256
"""Steps that are started before other work of the event loop gets its turn."""


class Scope:
    """The steps of one plan in one run.

    Args:
        prefix: path of the group it stands for, with a slash behind; empty for the workflow itself.
        given: values of the interface inputs, defaults filled in.
        wanted: the steps to begin; those that they need, lazy ones left out, are among them.
    """

    def __init__(self, run: RunPart, prepared: Prepared, prefix: str, given: Mapping[str, Any], wanted: frozenset[int]) -> None:
        self.run = run
        self.is_limited = run.is_limited
        self.prepared = prepared
        self.prefix = prefix
        self.given = given
        self.results: dict[str, Any] = {}
        """What `GroupOutput` nodes were given."""
        count = len(prepared.works)
        self.left = list(prepared.waits)
        self.outputs: list[Outputs | None] = [None] * count
        self.marks: list[bytes] = [b""] * count
        self.failed: dict[int, NodeError] = {}
        self.fatal: list[NodeError] = []
        """Errors that nothing in this scope caught."""
        self.busy = 0
        """Steps that were begun and are not done."""
        self._wanted = bytearray(count)
        self._ready: deque[int] = deque()
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._begun: set[int] = set()
        self._readers: dict[tuple[int, str], list[Reader]] = {}
        self._channels: dict[int, dict[str, Channel]] = {}
        self._waiters: dict[int, list[asyncio.Future[None]]] = {}
        self._wake: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._starter = Starter(self._loop)
        self._context = contextvars.copy_context()
        self._want(wanted if len(wanted) < count else range(count))

    # What begins ---------------------------------------------------------------------------------------------------------

    def _want(self, steps: Any) -> None:
        for step in steps:
            self._wanted[step] = 1
        for step in sorted(steps):
            if self.left[step] == 0 and self.outputs[step] is None:
                self.queue(step)

    def queue(self, step: int) -> None:
        """A step can begin."""
        self._ready.append(step)
        self.run.note("queued", self.prefix + self.prepared.works[step].step.id)
        self.rouse()

    def requeue(self, step: int) -> None:
        """A step that stood in a queue for a limit can begin now."""
        self.busy -= 1
        self._ready.append(step)
        self.rouse()

    def rouse(self) -> None:
        """Something changed while the scope waited."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def child(self, inner: Prepared, prefix: str, given: Mapping[str, Any]) -> Scope:
        """A scope for what a group stands for."""
        return Scope(self.run, inner, prefix, given, inner.plan.wanted)

    async def drive(self) -> None:
        """Run until nothing can begin and nothing runs. Cancelled, it ends what runs before it raises."""
        try:
            while True:
                if self._ready:
                    with self._starter:
                        self._start_some()
                    if self._ready:
                        await asyncio.sleep(0)
                elif self.busy:
                    self._wake = self._loop.create_future()
                    await self._wake
                else:
                    return
        except BaseException:
            await self._stop()
            raise

    def _start_some(self) -> None:
        ready, room = self._ready, BATCH
        while ready and room:  # what one step makes ready is started in the same turn
            room -= 1
            self._start(ready.popleft())

    async def _stop(self) -> None:
        """End every running step; those that never began are interrupted, too."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self.run.grace)
        for number, work in enumerate(self.prepared.works):
            if self._wanted[number] and self.outputs[number] is None and number not in self.failed:
                self.run.settle("interrupted", self.prefix + work.step.id)
        for channels in self._channels.values():
            for channel in channels.values():
                channel.close()

    # One step ------------------------------------------------------------------------------------------------------------

    def _start(self, number: int) -> None:
        work, run = self.prepared.works[number], self.run
        self.busy += 1
        if self.is_limited and not run.enter(self, number, work):
            return  # it stands in a queue, and comes back
        try:
            inputs = self._inputs(work)
            if inputs is None:
                self._done(number, SKIPPED, "skipped")
                return
            if work.step.kind != "node" or work.step.bypass is not None:
                self._start_special(number, work, inputs)
                return
            if self._from_cache(number, work, inputs):
                return
            path = self.prefix + work.step.id
            run.note("running", path)
            self._begin_streams(number)
            if work.is_quick and run.around is None:
                code = work.code
                assert code is not None
                if work.checks:
                    run.check(work, inputs)
                if code.context:
                    inputs[code.context] = run.context_of(self, number, work)
                body: Coroutine[Any, Any, Any] = code.function(**inputs)
            else:
                body = perform(self, number, work, inputs)
            is_done, answer = self._starter.start(body, self._context.copy(), self._then(number))
        except Exception as error:  # noqa: BLE001 - a node may raise anything; it is its answer
            self._fail(number, work, error)
            return
        except asyncio.CancelledError as error:
            self._fail(number, work, error)
            return
        if is_done:
            self._answered(number, work, answer)
        else:
            self._tasks[number] = answer

    def _then(self, number: int) -> Any:
        async def wait(rest: Coroutine[Any, Any, Any]) -> None:
            work = self.prepared.works[number]
            try:
                answer = await rest
            except Exception as error:  # noqa: BLE001 - a node may raise anything; it is its answer
                self._tasks.pop(number, None)
                self._fail(number, work, error)
            except asyncio.CancelledError as error:
                self._tasks.pop(number, None)
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                self._fail(number, work, error)  # the node cancelled itself
            else:
                self._tasks.pop(number, None)
                self._answered(number, work, answer)

        return wait

    def _start_special(self, number: int, work: Work, inputs: dict[str, Any]) -> None:
        """Steps that run no code of a node: bypassed ones, the interface, groups."""
        kind = work.step.kind
        self.marks[number] = self._key(number, work)
        if work.step.bypass is not None:
            self._done(number, self._bypassed(work, inputs), "complete", is_marked=True)
        elif kind == "input":
            self.marks[number] = joined_key(work.key, [value_key(self.given)])
            self._done(number, self.given, "complete", is_marked=True)
        elif kind == "output" and not work.step.streams:
            self.results.update(inputs)
            self._done(number, {}, "complete", is_marked=True)
        else:
            self.run.note("running", self.prefix + work.step.id)
            body = collect(self, work, inputs) if kind == "output" else run_group(self, number, work, inputs)
            is_done, answer = self._starter.start(body, self._context.copy(), self._then(number))
            if is_done:
                self._answered(number, work, answer)
            else:
                self._tasks[number] = answer

    def _bypassed(self, work: Work, inputs: Mapping[str, Any]) -> Outputs:
        bypass = work.step.bypass
        if bypass == "mute" or bypass is None:
            return SKIPPED
        found: dict[str, Any] = dict.fromkeys(work.batch, Skip)
        found.update({key: inputs[source] for key, source in bypass.outputs.items() if source in inputs})
        return found | {key: value for key, value in bypass.defaults.items() if found.get(key, Skip) is Skip}

    # What it is given ----------------------------------------------------------------------------------------------------

    def _inputs(self, work: Work) -> dict[str, Any] | None:
        """The inputs of a step; None when it is to be skipped: a needed value will never come, or none of all came."""
        inputs = work.fresh_values()
        outputs, came, missed = self.outputs, 0, 0
        for one in work.ones:
            value = outputs[one.step].get(one.output, Skip)  # type: ignore[union-attr]
            if value is Skip:
                missed += 1
                if one.is_required and work.step.kind == "node":
                    return None
                if one.default is not ABSENT:
                    inputs[one.key] = one.default
                continue
            came += 1
            inputs[one.key] = value if one.converts is None else converted(value, *one.converts)
        for many in work.many:
            values = [
                value if converts is None else converted(value, *converts)
                for step, key, converts in many.sources
                if (value := outputs[step].get(key, Skip)) is not Skip  # type: ignore[union-attr]
            ]
            came, missed = came + len(values), missed + len(many.sources) - len(values)
            if not values and many.is_required:
                return None
            inputs[many.key] = values
        for binding in work.step.streams:
            readers = self._readers.get((work.step.index, binding.key))
            if not readers:
                return None
            inputs[binding.key] = readers if binding.slot.multi else readers[0]
        if missed and not came and not work.step.streams and work.step.kind != "output":
            return None
        return inputs

    async def need(self, number: int, key: str) -> Any:
        """The value of a lazy input of step `number`; what it depends on is begun now."""
        step = self.prepared.works[number].step
        binding = next((b for b in step.lazy if b.key == key), None)
        if binding is None:
            slot = step.inputs.get(key)
            found = step.values.get(key, slot.default if slot is not None else ABSENT)
            if slot is None:
                raise MisfitInput(key, f"{step.type} has no input {key!r}")
            return None if found is ABSENT else found
        sources = [source.step for source in binding.sources]
        new = {s for s in behind(self.prepared.plan.needs, sources) if not self._wanted[s]}
        self._want(new)
        for source in sources:
            while self.outputs[source] is None:
                waiter = self._loop.create_future()
                self._waiters.setdefault(source, []).append(waiter)
                with self.run.resting(self.prepared.works[number]):
                    await waiter
        values = [
            converted(value, source.type, binding.slot.type)
            for source in binding.sources
            if (value := self.outputs[source.step].get(source.key, Skip)) is not Skip  # type: ignore[union-attr]
        ]
        if binding.slot.multi:
            return values
        return values[0] if values else None

    def _begin_streams(self, number: int) -> None:
        """Open the streams of a step and let its readers begin."""
        readers = self.prepared.readers.get(number)
        if not readers:
            return
        channels: dict[str, Channel] = {}
        for reader, key, output in readers:
            channel = channels.setdefault(output, Channel())
            self._readers.setdefault((reader, key), []).append(channel.reader())
        self._channels[number] = channels
        self._release(number, self.prepared.works[number].step.listeners)

    def channels(self, number: int) -> Mapping[str, Channel]:
        """The open streams of a step by output."""
        return self._channels.get(number, {})

    # What became of it ---------------------------------------------------------------------------------------------------

    def _key(self, number: int, work: Work) -> bytes:
        marks, extra = self.marks, []
        for step, place in work.upstream:
            extra.append(marks[step])
            extra.append(place.encode())
        return joined_key(work.key, extra) if extra else work.key

    def mark(self, number: int, parts: list[bytes]) -> None:
        """Note what the answer of a group depends on besides its own key."""
        self.marks[number] = joined_key(self.marks[number], parts)

    def digest(self) -> bytes:
        """What the outputs of this plan depend on, as one hash."""
        ends = [self.marks[work.step.index] for work in self.prepared.works if work.step.kind == "output"]
        return joined_key(self.prepared.key, ends)

    def _from_cache(self, number: int, work: Work, inputs: Mapping[str, Any]) -> bool:
        """Take the answer of an earlier run, where one is kept under the same key."""
        run = self.run
        if run.cache is None:
            return False
        key = self._key(number, work)
        if work.code is not None and work.code.cls is not None and work.code.cls.fingerprint is not Node.fingerprint:
            seen = work.code.cls().fingerprint(run.context_of(self, number, work), **inputs)
            key = joined_key(key, [value_key(seen)])
        found = run.cache.find(self.prefix + work.step.id, key, work, inputs, run)
        if found is None:
            self.marks[number] = key
            return False
        outputs, self.marks[number] = found
        self._done(number, outputs, "cached", is_marked=True)
        return True

    def _answered(self, number: int, work: Work, answer: Any) -> None:
        try:
            outputs = answer if work.step.kind != "node" else outputs_of(work, answer)
        except Exception as error:  # noqa: BLE001 - an answer may be anything, and asking it may raise
            self._fail(number, work, error)
            return
        is_skipped = outputs is SKIPPED and bool(work.batch)
        self._done(number, outputs, "skipped" if is_skipped else "complete", is_marked=work.step.kind != "node")

    def _done(self, number: int, outputs: Outputs, state: Any, is_marked: bool = False) -> None:
        """A step is over, with what it gave."""
        run, work = self.run, self.prepared.works[number]
        self.outputs[number] = outputs
        if not is_marked and run.cache is not None and state == "complete":
            self.marks[number] = run.cache.keep(self.prefix + work.step.id, self.marks[number], work, outputs, run)
        run.settle(state, self.prefix + work.step.id)
        self._over(number, work)

    def _fail(self, number: int, work: Work, error: BaseException) -> None:
        """A step is over, with an error; its branch is skipped unless the file says otherwise."""
        run, how = self.run, work.step.exec
        found = node_error(error, self.prefix + work.step.id, work)
        self.failed[number] = found
        self.outputs[number] = SKIPPED
        if how.on_error == "default":
            self.outputs[number] = {**dict.fromkeys(work.batch, Skip), **how.defaults}
        elif how.on_error == "port":
            self.outputs[number] = {**dict.fromkeys(work.batch, Skip), ERROR_PORT: found.to_json()}
        if how.on_error == "fail":
            self.fatal.append(found)
            if isinstance(error, GroupFailed):
                self.outputs[number] = {**dict.fromkeys(work.batch, Skip), **error.outputs}
        run.failed(found, is_told=isinstance(error, GroupFailed))
        for channel in self.channels(number).values():
            channel.close(error)
        self._over(number, work)

    def _over(self, number: int, work: Work) -> None:
        self.busy -= 1
        step = work.step
        if self._channels:
            for channel in self._channels.pop(number, {}).values():
                channel.close()
        if step.streams:
            for binding in step.streams:
                for reader in self._readers.get((number, binding.key), ()):
                    reader.leave()
        if self.is_limited:
            self.run.leave(work)
        left, wanted = self.left, self._wanted
        for after in step.after:
            left[after] -= 1
            if left[after] == 0 and wanted[after]:
                self.queue(after)
        if step.listeners:
            self._release(number, step.listeners)
        if self._waiters:
            for waiter in self._waiters.pop(number, ()):
                if not waiter.done():
                    waiter.set_result(None)
        self.rouse()

    def _release(self, number: int, listeners: tuple[int, ...]) -> None:
        if number in self._begun:
            return
        self._begun.add(number)
        for listener in listeners:
            self.left[listener] -= 1
            if self.left[listener] == 0 and self._wanted[listener]:
                self.queue(listener)


