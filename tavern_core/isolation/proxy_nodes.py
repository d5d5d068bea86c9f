"""The nodes of an isolated plugin, as the engine sees them: functions and classes that call the worker."""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import Any, ClassVar, Final

from tavern_core.contract.nodes import Final as Ends
from tavern_core.contract.nodes import MismatchedInput, Node, NothingCame
from tavern_core.errors import InputInvalid, UpstreamError, sayable
from tavern_core.frozen_dataclass import dataclass
from tavern_core.isolation.codec import Codec
from tavern_core.isolation.node_codec import ANSWERS, ENDED, NO_END, VALUES
from tavern_core.isolation.stream_calls import StreamingRequest, begin_node
from tavern_core.isolation.supervisor import Supervisor
from tavern_core.isolation.transport import validated_message
from tavern_core.isolation.worker_connections import ConnectionKind
from tavern_core.isolation.worker_process import WorkerLost
from tavern_core.kernel.nodes.node_callable import CallForm, NodeCode
from tavern_core.kernel.nodes.node_serialization import unpack_node
from tavern_core.kernel.views.facility_views import ReadStream
from tavern_core.model.node import NodeSpec

CONTEXT: Final = "tavern_node_context"
"""The parameter that gets the context: a name that no slot has."""
ASKED_S: Final = 1.0
"""Time limit in seconds of `fingerprint`, `validate` and `upgrade` of a class: the host's event loop waits for them."""
LONGEST_WORD: Final = 1_000
_tokens: Final = itertools.count(1)


def proxy_node(supervisor: Supervisor, described: Mapping[str, Any]) -> NodeSpec:
    """A node type as described by the worker."""
    if described["code"] is None:
        return unpack_node(described["node"], None)
    form, context, takes_all, names_outputs, where, methods = described["code"]
    spec = unpack_node(described["node"], None)
    yields, reads = form in ("stream", "sync_stream"), any(slot.is_stream for slot in spec.inputs.values())
    kind: ConnectionKind = "loop" if form == "async" else "sync"
    remote = _RemoteNode(
        supervisor,
        spec.type,
        kind,
        yields=yields,
        is_streaming=yields or reads or spec.dynamic_slots,
        has_effects=spec.has_effects,
    )
    shape: CallForm = "stream" if yields else "async"
    cls = None if methods is None else _far_class(remote, frozenset(map(str, methods)))
    code = NodeCode(
        lambda **inputs: remote.run(inputs), shape, CONTEXT if context else "", {}, cls, takes_all=takes_all is True, names_outputs=names_outputs is True,
        where=str(where),
    )  # fmt: skip
    return unpack_node(described["node"], code)


@dataclass(frozen=True, slots=True)
class _RemoteNode:
    """A node type in its worker.

    Args:
        yields: it returns its answer in chunks.
        talks: it yields, or may read streams.
        has_effects: whether it may change something.
    """

    supervisor: Supervisor
    type: str
    kind: ConnectionKind
    yields: bool
    is_streaming: bool
    has_effects: bool
    dropped_objects: list[int] = field(default_factory=list)
    """Objects whose run has ended, which the worker may remove."""

    def run(self, inputs: dict[str, Any], one: Mapping[str, Any] | None = None) -> Any:
        """Run it: returns an async generator of its chunks, or a coroutine of its answer.

        Args:
            one: for a class: the object.
        """
        return self.chunks(inputs, one) if self.yields else self.answer(inputs, one)

    async def answer(self, inputs: dict[str, Any], one: Mapping[str, Any] | None = None) -> Any:
        """Run it; returns its answer.

        Raises:
            Exception: the error of its code; MismatchedInput for a value that does not fit.
        """
        with self.request(inputs, None, one) as request, self._failures():
            if not self.is_streaming:
                return self._decoded(
                    ANSWERS,
                    validated_message(await self.supervisor.request_later("node", request, self.kind, self.type)),
                )
            talk = await self._begin_stream(request)
            try:
                return self._decoded(ANSWERS, validated_message(await talk.answer()))
            finally:
                await talk.stop()

    async def chunks(self, inputs: dict[str, Any], one: Mapping[str, Any] | None = None) -> AsyncGenerator[Any, None]:
        """Run it; yields its chunks, and then its `Final`. Raises as `answer`."""
        with self.request(inputs, None, one) as request, self._failures():
            talk = await self._begin_stream({**request, "yields": True})
            try:
                async for chunk in talk.chunks():
                    yield self._decoded(ANSWERS, chunk)
                end = validated_message(await talk.answer())
                if end == NO_END:
                    raise NothingCame("a lazy input")
                final = None if end == ENDED else self._decoded(ANSWERS, end)
                if not isinstance(final, Ends | None):
                    raise UpstreamError(f"{self.type} of an isolated plugin sent no end of a stream", outcome="unknown")
            finally:
                await talk.stop()
        if final is not None:
            yield final

    def ask_now(self, given: Mapping[str, Any]) -> Any:
        """Call the class, blocking the current thread for a short time at most."""
        packed = validated_message(
            self.supervisor.request(
                "node_asked", {"type": self.type, **given}, seconds=min(self.supervisor.hook_s, ASKED_S)
            )
        )
        return self._decoded(VALUES, packed)

    @contextmanager
    def request(
        self, inputs: dict[str, Any], ctx: Any, one: Mapping[str, Any] | None = None
    ) -> Iterator[dict[str, Any]]:
        """The request; while it is in use, the node may use its context.

        Args:
            ctx: the context if it is not among the inputs.
            one: for a class: the object.
        """
        ctx = inputs.pop(CONTEXT, ctx)
        token = next(_tokens)
        streams: list[AsyncIterator[Any]] = []
        request: dict[str, Any] = {"type": self.type, "token": token, **(one or {})}
        request["inputs"] = {key: _said(value, streams) for key, value in inputs.items()}
        if self.is_streaming:
            request["streams"] = streams
        if one is not None and self.dropped_objects:
            request["drop"], self.dropped_objects[:] = self.dropped_objects[:], []
        if ctx is not None:
            request["context"] = _facts(ctx)
            self.supervisor.nodes[token] = ctx, asyncio.get_running_loop()
        try:
            yield request
        finally:
            self.supervisor.nodes.pop(token, None)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Report failures like those of a node in the host."""
        try:
            yield
        except InputInvalid as error:
            if "slot" not in error.details:
                raise
            raise MismatchedInput(str(error.details["slot"]), str(error.details.get("why")), error.hint) from None
        except WorkerLost as error:
            if not self.has_effects:  # so the run may try again
                error.outcome = "none"
            raise

    async def _begin_stream(self, given: dict[str, Any]) -> StreamingRequest:
        streams = given["streams"]
        request = {**given, "streams": len(streams)}
        return await self.supervisor.with_worker_later(lambda worker: begin_node(worker, request, streams))  # type: ignore[no-any-return]

    def _decoded(self, codec: Codec, packed: Any) -> Any:
        try:
            return codec.decode(packed)
        except ValueError as error:
            raise UpstreamError(f"{self.type} of an isolated plugin sent {error}", outcome="unknown") from error


class _ProxyNode(Node):
    """The class form; each object here has one in the worker."""

    remote: ClassVar[_RemoteNode]

    def __init__(self) -> None:
        self.one = {"object": next(_tokens), "fresh": True}

    def run(self, **inputs: Any) -> Any:
        return self.remote.run(inputs, self.one)


async def _needs(self: _ProxyNode, ctx: Any, **inputs: Any) -> list[str]:
    remote, one = self.remote, self.one
    if one["fresh"]:
        weakref.finalize(self, remote.dropped_objects.append, one["object"])
    with remote.request(inputs, ctx, one) as request:
        wanted = validated_message(
            await remote.supervisor.request_later("node_needs", request, remote.kind, remote.type)
        )
    self.one = {**one, "fresh": False}
    return [str(key) for key in wanted]


def _fingerprint(self: _ProxyNode, ctx: Any, **inputs: Any) -> Any:
    with self.remote.request(inputs, ctx) as given:
        return self.remote.ask_now({"method": "fingerprint", **given})


def _validate(cls: type[_ProxyNode], inputs: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    said = cls.remote.ask_now({"method": "validate", "arguments": [dict(inputs), dict(config)]})
    return [sayable(str(text), LONGEST_WORD) for text in said]


def _upgrade(cls: type[_ProxyNode], node: Mapping[str, Any], version: int) -> dict[str, Any]:
    return dict(cls.remote.ask_now({"method": "upgrade", "arguments": [dict(node), version]}))


_METHODS: Final[Mapping[str, Any]] = {
    "needs": _needs, "fingerprint": _fingerprint, "validate": classmethod(_validate), "upgrade": classmethod(_upgrade),
}  # fmt: skip
"""The optional methods of a class, called in the worker; missing methods are not called."""


def _far_class(far: _RemoteNode, methods: frozenset[str]) -> type[Node]:
    own = {name: method for name, method in _METHODS.items() if name in methods}
    return type(far.type.rpartition(":")[2], (_ProxyNode,), {"remote": far, **own})


def _said(value: Any, streams: list[AsyncIterator[Any]]) -> list[Any]:
    """A value for the worker; for a stream, its number."""
    if isinstance(value, ReadStream):
        streams.append(value)
        return ["stream", len(streams) - 1]
    if isinstance(value, list) and value and all(isinstance(part, ReadStream) for part in value):
        streams += value
        return ["streams", list(range(len(streams) - len(value), len(streams)))]
    return VALUES.encode(value)


def _facts(ctx: Any) -> dict[str, Any]:
    return {
        "run": ctx.run_id, "path": ctx.path, "type": ctx.type, "config": VALUES.encode(dict(ctx.config))[1], "mode": ctx.mode,
        "attempt": ctx.attempt,
    }  # fmt: skip
