"""A plan with precomputed tables for running it: the sources of each step, and the fixed half of its key.

Created once per plan and shared by all its runs; immutable. The keys of the steps of one scheduler (`StepCacheKeys`)
are computed when the steps begin.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tavern_core.contract.nodes import MismatchedInput, Node
from tavern_core.flow.engine.cache_keys import fixed_key, joined_key, value_key
from tavern_core.frozen_dataclass import dataclass
from tavern_core.graph.plan import ERROR_PORT, Binding, FlowPlan, FlowStep
from tavern_core.graph.slot_compatibility import conversion, value_mismatch
from tavern_core.kernel.nodes.node_callable import NodeCode
from tavern_core.model.node import ABSENT, JSON_TYPES, Slot
from tavern_core.schema.validate import Validator, compile_output_validator

if TYPE_CHECKING:
    from pydantic import TypeAdapter


_OF_THE_HOST: Final = "core:"
_QUICK: Final[Mapping[str, type]] = {"STRING": str, "INTEGER": int, "BOOLEAN": bool, "BINARY": bytes}


@dataclass(frozen=True, slots=True)
class SingleInput:
    """An input with one edge."""

    key: str
    step: int
    output: str
    converts: tuple[str, str] | None
    """(from, to) `dataFlowType`, if the value is converted."""
    is_required: bool
    default: Any
    is_shared: bool = False
    """Another reader gets the same value."""
    is_given: bool = False
    """The value is an input of the workflow, which its caller may leave out."""


@dataclass(frozen=True, slots=True)
class ListInput:
    """An input that gets the values of several edges as a list."""

    key: str
    sources: tuple[tuple[int, str, tuple[str, str] | None], ...]
    is_required: bool
    lists: frozenset[int] = frozenset()
    """The `sources` that are lists of values."""
    is_shared: bool = False
    """Another reader gets one of the same values."""
    given: frozenset[int] = frozenset()
    """The `sources` that are inputs of the workflow, which its caller may leave out."""


@dataclass(frozen=True, slots=True)
class PreparedOutput:
    """An output of a node, with the checks of its values."""

    slot: Slot
    quick: type | None
    """Values of exactly this type fit; None: every value is checked."""
    validator: Validator | None
    adapter: TypeAdapter[Any] | None
    """Checks objects that are not plain data."""


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A step with precomputed tables."""

    step: FlowStep
    code: NodeCode | None
    single_inputs: tuple[SingleInput, ...]
    many: tuple[ListInput, ...]
    values: Mapping[str, Any]
    """Inputs without edges."""
    to_copy: tuple[str, ...]
    """The mutable ones of `values`."""
    checks: tuple[tuple[str, Slot, type | None], ...]
    """Inputs whose values may have a wrong type, and the Python type whose values always fit."""
    key: bytes
    """The fixed half of the cache key."""
    upstream: tuple[tuple[int, bytes], ...]
    """The rest of the key: steps and outputs, in a fixed order."""
    single: str
    """The only output that is not a stream, if there is exactly one; else empty."""
    batch: tuple[str, ...]
    """Outputs that are not streams."""
    outputs: Mapping[str, PreparedOutput]
    """For a node: all its outputs."""
    lazy_upstream: tuple[tuple[int, bytes], ...]
    """The same for lazy inputs."""
    has_fingerprint: bool
    is_pure: bool
    """The key determines the answer completely."""
    is_only_read: bool
    """Steps read its streams, and no step needs its other outputs."""
    is_kept: bool
    """Its answers may be cached for other runs."""
    has_streams: bool
    """Some of its outputs are streams."""
    is_quick: bool
    """A coroutine function without streams, lazy inputs, time-out, retries, adapters, class or capabilities: the fastest path."""
    may_change: bool
    """Its code may change something: all but that of the host's own nodes without effects."""

    def fresh_values(self) -> dict[str, Any]:
        """The values of the file, for one run of the node: nothing is shared between runs."""
        values = dict(self.values)
        for key in self.to_copy:
            values[key] = copy.deepcopy(values[key])
        return values


@dataclass(frozen=True, slots=True)
class PreparedPlan:
    """A prepared plan."""

    plan: FlowPlan
    works: tuple[PreparedStep, ...]
    inner: Mapping[int, PreparedPlan]
    """For group steps."""
    waits: tuple[int, ...]
    """Step → how many others it waits for."""
    readers: Mapping[int, tuple[tuple[int, str, str], ...]]
    """Step with streams → their readers: (step, its input, the output)."""
    key: bytes
    """The key of the whole plan."""


def prepare(plan: FlowPlan) -> PreparedPlan:
    """Prepare a plan and the groups in it, each once."""
    done: dict[int, PreparedPlan] = {}
    stack = [plan]
    while stack:  # groups before their containers, without recursion
        top = stack[-1]
        missing = [step.plan for step in top.steps if step.plan is not None and id(step.plan) not in done]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        if id(top) not in done:
            done[id(top)] = _prepared(top, {s.index: done[id(s.plan)] for s in top.steps if s.plan is not None})
    return done[id(plan)]


def _prepared(plan: FlowPlan, inner: Mapping[int, PreparedPlan]) -> PreparedPlan:
    takers = Counter((s.step, s.key) for step in plan.steps for b in (*step.bindings, *step.lazy) for s in b.sources)
    shared = frozenset(output for output, count in takers.items() if count > 1)
    used = frozenset(step for step, _ in takers)
    interface = frozenset(step.index for step in plan.steps if step.kind == "input")
    works = tuple(
        _work(step, inner[step.index].key if step.index in inner else b"", shared, used, interface)
        for step in plan.steps
    )
    readers: dict[int, list[tuple[int, str, str]]] = {}
    for step in plan.steps:
        for binding in step.streams:
            for source in binding.sources:
                readers.setdefault(source.step, []).append((step.index, binding.key, source.key))
    key = joined_key(b"plan", [work.key + repr(work.upstream).encode() for work in works])
    frozen = {step: tuple(those) for step, those in readers.items()}
    return PreparedPlan(plan, works, inner, tuple(step.waits for step in plan.steps), frozen, key)


def _work(
    step: FlowStep, inside: bytes, shared: frozenset[tuple[int, str]], used: frozenset[int], interface: frozenset[int]
) -> PreparedStep:
    code = step.spec.impl if isinstance(step.spec.impl, NodeCode) else None
    ones, many = [], []
    for binding in step.bindings:
        is_shared = step.kind != "output" and any((source.step, source.key) in shared for source in binding.sources)
        if binding.slot.multi:
            many.append(many_of(binding, step, is_shared, interface))
        else:
            ones.append(_one(binding, step, is_shared, interface))
    batch_keys = [key for key, slot in step.outputs.items() if not slot.is_stream]
    batch = tuple(key for key in batch_keys if key != ERROR_PORT or key in step.spec.outputs)
    fingerprint = code is not None and code.cls is not None and code.cls.fingerprint is not Node.fingerprint
    return PreparedStep(
        step,
        code,
        tuple(ones),
        tuple(many),
        step.values,
        tuple(key for key, value in step.values.items() if isinstance(value, dict | list | set | bytearray)),
        tuple(
            (key, slot, _fitting(slot))
            for key, slot in step.inputs.items()
            if _can_mismatch(slot) and key not in step.values
        ),
        fixed_key(step, inside),
        (*_feeds(step.bindings, "="), *_feeds(step.streams, "~")),
        batch[0] if len(batch) == 1 else "",
        batch,
        {key: _gives(key, slot, code) for key, slot in step.outputs.items()} if step.kind == "node" else {},
        tuple(_feeds(step.lazy, "?")),
        fingerprint,
        not fingerprint and not step.streams and not step.spec.streams and (step.kind == "input" or _is_kept(step)),
        bool(step.listeners) and step.index not in used,
        _is_kept(step),
        step.spec.streams,
        _is_quick(step, code),
        step.kind == "node" and (step.spec.has_effects or not step.type.startswith(_OF_THE_HOST)),
    )


def _feeds(bindings: Iterable[Binding], mark: str) -> Iterator[tuple[int, bytes]]:
    """The sources of inputs: the step of each, and the place of its value."""
    for binding in bindings:
        for source in binding.sources:
            yield source.step, f"{binding.key}{mark}{source.key}".encode("utf-8", "surrogatepass")


def _is_quick(step: FlowStep, code: NodeCode | None) -> bool:
    """Whether nothing but a plain async function runs: no attempts, limits, streams or checks."""
    timeout = step.exec.timeout_ms or step.spec.timeout_ms
    return (
        step.kind == "node" and code is not None and code.form == "async" and code.cls is None and not code.adapters
        and not step.streams and not step.lazy and timeout is None and not step.exec.retry.times
        and step.exec.on_error == "fail" and step.bypass is None and not step.spec.streams
        and not step.spec.capabilities
    )  # fmt: skip


def _gives(key: str, slot: Slot, code: NodeCode | None) -> PreparedOutput:
    is_all = slot.schema is None or slot.schema == {"type": JSON_TYPES[slot.type]}
    validator = (
        compile_output_validator(slot.schema, name=key) if slot.schema is not None and slot.type != "BINARY" else None
    )
    return PreparedOutput(
        slot, _QUICK.get(slot.type) if is_all else None, validator, code.answers.get(key) if code is not None else None
    )


def _is_kept(step: FlowStep) -> bool:
    wanted = step.exec.cache
    return step.kind == "node" and (wanted != "none" if wanted is not None else step.spec.cache)


def _one(binding: Binding, step: FlowStep, is_shared: bool, interface: frozenset[int]) -> SingleInput:
    source, slot = binding.sources[0], binding.slot
    return SingleInput(
        slot.key, source.step, source.key, conversion(source.type, slot.type), slot.is_required(step.config),
        slot.default, is_shared, source.step in interface,
    )  # fmt: skip


def many_of(binding: Binding, step: FlowStep, is_shared: bool, interface: frozenset[int] = frozenset()) -> ListInput:
    """All edges of an input."""
    slot = binding.slot
    sources = tuple((s.step, s.key, conversion(s.type, slot.type)) for s in binding.sources)
    lists = frozenset(at for at, source in enumerate(binding.sources) if source.is_list and slot.multi)
    given = frozenset(at for at, source in enumerate(binding.sources) if source.step in interface)
    return ListInput(slot.key, sources, slot.is_required(step.config), lists, is_shared, given)


def _can_mismatch(slot: Slot) -> bool:
    return not slot.lazy and not slot.is_stream and (slot.type not in ("WILDCARD", "CONVERTIBLE_ANY") or slot.is_closed)


def _fitting(slot: Slot) -> type | None:
    """The type whose values always fit; None if there is none."""
    if slot.multi or slot.is_closed or slot.config.keys() & {"min", "max"}:
        return None
    return {"STRING": str, "INTEGER": int, "BOOLEAN": bool}.get(slot.type)


def check_inputs(work: PreparedStep, inputs: Mapping[str, Any], *, is_changed: bool = False) -> None:
    """Check that the values fit the inputs.

    Args:
        is_changed: a hook changed them, so values that were checked with the plan must be checked again.

    Raises:
        MismatchedInput: one does not.
    """
    if is_changed:
        _check_changed(work, inputs)
    for key, slot, fitting in work.checks:
        value = inputs.get(key, ABSENT)
        if type(value) is fitting or value is ABSENT:
            continue
        if why := value_mismatch(slot, value):
            raise MismatchedInput(key, why)


def _check_changed(work: PreparedStep, inputs: Mapping[str, Any]) -> None:
    step = work.step
    for key, value in inputs.items():
        slot = step.inputs.get(key)
        if slot is None:
            if not step.spec.dynamic_slots:
                raise MismatchedInput(key, f"{step.type} has no such input")
        elif _can_mismatch(slot) and (why := value_mismatch(slot, value)):
            raise MismatchedInput(key, why)
    for key, slot in step.inputs.items():
        if key not in inputs and not slot.lazy and not slot.is_stream and slot.is_required(step.config):
            raise MismatchedInput(key, "is required and was taken away")


def followers(works: Sequence[PreparedStep]) -> list[list[int]]:
    """Step → the steps that need it or may request it."""
    found: list[list[int]] = [[] for _ in works]
    for work in works:
        for step, _ in (*work.upstream, *work.lazy_upstream):
            found[step].append(work.step.index)
    return found


class StepCacheKeys:
    """The keys and content keys of one scheduler.

    A key identifies the values of the file and the sources of a step's answer; a content key its own answer, in the
    keys of later steps.
    """

    def __init__(self, prepared: PreparedPlan, given: Mapping[str, Any]) -> None:
        self._prepared = prepared
        self._given = given
        self._structure: dict[int, tuple[bytes, bool]] = {}
        self.keys = [b""] * len(prepared.works)
        self.marks = [b""] * len(prepared.works)

    def key(self, work: PreparedStep) -> bytes:
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
        """Record that an interface node has provided the inputs of the workflow."""
        self.marks[number] = joined_key(work.key, [value_key(self._given)])

    def join(self, number: int, parts: list[bytes]) -> None:
        """Let the outputs of a step also depend on `parts`."""
        self.marks[number] = joined_key(self.marks[number], parts)

    def digest(self) -> bytes:
        """A hash of everything that the outputs of the plan depend on."""
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
