"""The interfaces between the parts of the engine: a run and its schedulers, as the parts below them need them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol

from tavern_core.flow.engine.channel import Channel
from tavern_core.flow.engine.concurrency import RunConcurrency
from tavern_core.flow.engine.node_outputs import Outputs
from tavern_core.flow.engine.plan_tables import PreparedPlan, PreparedStep, StepCacheKeys
from tavern_core.flow.engine.streams import StepStreams
from tavern_core.flow.node_facilities import NodeFacilities
from tavern_core.kernel.calls.running_call import Frame
from tavern_core.kernel.execution.threads import Owner
from tavern_core.model.call import CallContext
from tavern_core.model.run import NodeError, NodeState


class NodeCache(Protocol):
    """Answers of earlier runs; see `RunCache`."""

    sizes: dict[str, int]

    @property
    def has_anew(self) -> bool: ...

    def is_anew(self, path: str) -> bool: ...

    def find(
        self, run: RunPart, path: str, key: bytes, work: PreparedStep, is_pure: bool
    ) -> tuple[Outputs, bytes] | None: ...

    def store(
        self, run: RunPart, path: str, key: bytes, work: PreparedStep, outputs: Outputs, is_pure: bool
    ) -> bytes: ...

    def must_make(self, path: str, work: PreparedStep, outputs: Outputs, is_marked: bool) -> bool: ...

    def make(
        self, run: RunPart, path: str, key: bytes, work: PreparedStep, outputs: Outputs, is_pure: bool
    ) -> None: ...


class NodeInterceptor(Protocol):
    """Hooks around every node; see `NodeHooks`."""

    @property
    def is_before(self) -> bool: ...

    async def before(
        self, run: RunPart, path: str, work: PreparedStep, inputs: dict[str, Any]
    ) -> tuple[dict[str, Any], bool]: ...

    async def after(self, path: str, work: PreparedStep, outputs: Outputs) -> None: ...


class RunPart(Protocol):
    """A run, for the parts below it."""

    id: str
    turn: str
    """Its id; for a resumed run, a new one each time, because its new outputs differ from earlier ones."""
    context: CallContext
    reads: Mapping[str, None] | None
    changes: int
    """How many nodes, and calls of them, may have changed something since it began or was resumed."""
    outer: Frame | None
    facilities: NodeFacilities
    around: NodeInterceptor | None
    cache: NodeCache | None
    concurrency: RunConcurrency | None
    """Its limits, if it has any."""
    grace: float
    is_cancelled: bool
    is_left: bool
    """End it, with open questions."""
    targets: tuple[str, ...]
    mask: Callable[[Any], Any]

    async def in_thread(
        self,
        function: Callable[..., Any],
        named: Mapping[str, Any],
        *args: Any,
        owner: Owner = None,
        left: list[Future[Any]] | None = None,
    ) -> Any: ...

    async def ask(self, path: str, number: int, schema: Mapping[str, Any], prompt: str) -> Any: ...

    def check_stalled(self) -> None: ...

    def emit(self, kind: str, path: str, data: Mapping[str, Any] | None = None) -> float: ...

    def node_ended(
        self, state: NodeState, path: str, began: float = 0.0, outputs: Outputs | int | None = None
    ) -> None: ...

    def failed(self, error: NodeError, is_repeated: bool, began: float) -> None: ...

    def progress(self, path: str, done: float, total: float, text: str) -> None: ...

    def chunk(self, path: str, number: int, chunks: Mapping[str, Any]) -> None: ...


class SchedulerPart(Protocol):
    """A scheduler, for the parts below it."""

    prefix: str
    results: dict[str, Any]
    fatal: list[NodeError]
    depends: StepCacheKeys
    streams: StepStreams
    unsettled: set[int]

    @property
    def run(self) -> RunPart: ...

    @property
    def prepared(self) -> PreparedPlan: ...

    out: Mapping[str, Channel] | None

    def child(
        self, inner: PreparedPlan, prefix: str, given: Mapping[str, Any], out: Mapping[str, Channel] | None = None
    ) -> SchedulerPart: ...

    async def drive(self) -> None: ...

    async def need(self, number: int, key: str) -> Any: ...

    def is_only_read(self, number: int) -> bool: ...

    def without_slots(self, number: int) -> AbstractAsyncContextManager[None]: ...

    def idling(self, number: int) -> AbstractContextManager[None]: ...

    def recall(
        self, number: int, work: PreparedStep, inputs: Mapping[str, Any], changed: bytes = b""
    ) -> Outputs | None: ...

    def begin(self, number: int) -> None: ...

    def hold_for(self, number: int, threads: list[Future[Any]]) -> None: ...
