"""The implementation of isolated plugins' tools: they are prepared and called in the worker."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tavern_core.contract.protocols import BoundTool
from tavern_core.contract.python_targets import BindsItself
from tavern_core.contract.trace_context import trace_headers
from tavern_core.errors import UpstreamError
from tavern_core.isolation.codec import CALLS, Codec, SharedObjects, pack_tool, preview_key, unpack_tool
from tavern_core.isolation.supervisor import Supervisor
from tavern_core.isolation.transport import BrokenChannel, validated_message
from tavern_core.isolation.worker_client import PendingRequest, WorkerClient
from tavern_core.isolation.worker_connections import ConnectionKind, Undelivered
from tavern_core.kernel.plugins.remote_plugin_interface import DescribesItself
from tavern_core.kernel.plugins.tool_spec_reading import DRAFT
from tavern_core.model.call import ToolCall
from tavern_core.model.tool import ToolSpec

_running_loop = asyncio._get_running_loop


def reported_tool(supervisor: Supervisor, report: Any, made: FactoryCall | None = None) -> ToolSpec:
    """A tool as described by the worker; a tool without code of the plugin stays as it is.

    Args:
        made: for a tool of a factory, the factory.
    """
    spec = unpack_tool(report["tool"])
    if (key := report["key"]) is None:
        return replace(spec, impl=DRAFT) if report.get("draft") else spec
    return replace(
        spec, impl=RemoteTool(supervisor, str(key), factory_call=made, has_preview=report.get("preview") is True)
    )


class FactoryCall:
    """A factory of the plugin and the caller of its tools, so that a new worker can make them again.

    Args:
        worker: the worker that made them.
    """

    def __init__(self, factory: str, context: Mapping[str, Any], worker: WorkerClient) -> None:
        self.factory = factory
        self.context = context
        self.worker = worker


class RemoteTool(BindsItself, DescribesItself):
    """A tool in its worker.

    Args:
        key: its key in the worker; empty for a handler.
        handler: ``module:name``, for a tool file's.
        factory_call: its factory, for a tool of a factory.
        has_preview: whether it can describe a call instead of making it.
        is_preview: whether this is the preview itself.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        key: str,
        handler: str | None = None,
        factory_call: FactoryCall | None = None,
        *,
        has_preview: bool = False,
        is_preview: bool = False,
    ) -> None:
        self.supervisor = supervisor
        self.key = key
        self.handler = handler
        self.factory_call = factory_call
        self.has_preview = has_preview
        self.is_preview = is_preview
        if factory_call is not None and not is_preview:
            weakref.finalize(self, factory_call.worker.dropped.append, key)

    @property
    def preview(self) -> RemoteTool | None:
        if not self.has_preview:
            return None
        return RemoteTool(self.supervisor, self.key, self.handler, self.factory_call, is_preview=True)

    def described(self, draft: ToolSpec) -> ToolSpec:
        """The complete tool of a handler whose tool file has no parameters.

        Raises:
            PluginError: there is no such object in the plugin, or it is not a tool.
        """
        request = {"target": self.handler, "tool": pack_tool(draft)}
        report = validated_message(self.supervisor.request("handler", request, seconds=self.supervisor.hook_s))
        self.supervisor.remember({"do": "handler", **request})
        return reported_tool(self.supervisor, report)

    def bind(self, tool: ToolSpec) -> BoundTool:
        """Let the worker prepare it, so that errors are reported now and not at the first call.

        Raises:
            TavernError: as from the executor.
        """
        binding = _Binding(self, tool)
        self.supervisor.with_worker(binding.prepare)
        # Not blocking, because it waits for no code of this process and chooses how to wait itself.
        return BoundTool(
            binding.run, is_async=False, blocking=False, wants_call=binding.wants_call, stoppable=True,
            wants_control=binding.wants_control, stop=self.supervisor.stop,
            place="in the worker process of its plugin",
        )  # fmt: skip


class _Binding:
    """A tool that was prepared in a worker; prepared again in the next one if that one has died."""

    def __init__(self, remote: RemoteTool, tool: ToolSpec) -> None:
        self._remote = remote
        self._supervisor = remote.supervisor
        self._name = tool.name
        self._tool = pack_tool(tool)
        self._key = remote.key or f"handler {remote.handler} {tool.name}"
        self._bound_key = self._key
        self._home: WorkerClient | None = None
        self._kind: ConnectionKind = "sync"
        self.wants_call = self.wants_control = False

    def run(self, arguments: Any, call: ToolCall | None) -> Any:
        """The answer, or an awaitable under an event loop."""
        request = {"args": arguments}
        if headers := trace_headers():
            request["trace"] = headers
        if self.wants_call and call is not None:
            request["call"] = CALLS.encode(call)
            if self.wants_control and (deadline := WorkerClient.deadline()) is not None:
                request["left"] = max(deadline - time.perf_counter(), 0)
        if _running_loop() is None:
            return _result(self._supervisor.with_worker(lambda worker: self._call(worker, request)))
        worker = self._supervisor.worker_client
        if worker is None or worker is not self._home or worker.is_over:
            return self._call_later(request)
        request["key"] = self._bound_key
        try:
            answer = worker.request_soon("call", request, self._kind, self._name)
        except Undelivered:
            return self._call_later(request)
        return self._finish(worker, answer, request) if isinstance(answer, PendingRequest) else self._answered(answer)

    async def _finish(self, worker: WorkerClient, pending: PendingRequest, given: dict[str, Any]) -> Any:
        try:
            return self._answered(await worker.finish(pending))
        except Undelivered:
            return await self._call_later(given)

    def _answered(self, packed: Any) -> Any:
        self._supervisor.works()
        return _result(packed)

    def _call(self, worker: WorkerClient, given: dict[str, Any]) -> Any:
        if worker is not self._home:
            self.prepare(worker)
        given["key"] = self._bound_key
        return worker.request("call", given, self._kind, worker.deadline())

    async def _call_later(self, request: dict[str, Any]) -> Any:
        async def ask(worker: WorkerClient) -> Any:
            if worker is not self._home:
                await asyncio.get_running_loop().run_in_executor(None, self.prepare, worker)
            request["key"] = self._bound_key
            return await worker.request_later("call", request, self._kind, self._name)

        return _result(await self._supervisor.with_worker_later(ask))

    def prepare(self, worker: WorkerClient) -> None:
        """Prepare it in a worker. Raises TavernError: it cannot be called."""
        deadline = worker.deadline(self._supervisor.hook_s)
        made, key = self._remote.factory_call, self._key
        if made is not None and worker is not made.worker:
            again = validated_message(
                worker.request("make", {"factory": made.factory, "context": made.context}, deadline=deadline)
            )
            keys = [item["key"] for item in again or () if unpack_tool(item["tool"]).name == self._name]
            if not keys or type(keys[0]) is not str:
                raise UpstreamError(f"{self._name} is no longer offered", outcome="none")
            key = keys[0]
        is_preview = self._remote.is_preview
        request = {"key": key, "tool": self._tool, "handler": self._remote.handler, "preview": is_preview}
        is_async, wants_call, wants_control = worker.request("bind", request, deadline=deadline)
        self._kind, self.wants_call = "loop" if is_async is True else "sync", wants_call is True
        self.wants_control = wants_control is True
        self._key, self._bound_key, self._home = key, preview_key(key) if is_preview else key, worker


def _result(packed: Any) -> Any:
    """The answer of a tool; the pipeline checks its value, as for every tool."""
    if type(packed) is list and len(packed) == 2 and packed[0] == "json":
        return packed[1]
    return unpacked(packed)


def unpacked(packed: Any, known: SharedObjects = MappingProxyType({}), codec: Codec = CALLS) -> Any:
    """A value of a worker. Raises UpstreamError: it is invalid (UPSTREAM_ERROR)."""
    try:
        return codec.decode(validated_message(packed), known)
    except (ValueError, BrokenChannel) as error:
        raise UpstreamError(f"an isolated plugin sent {error}", outcome="unknown") from error
