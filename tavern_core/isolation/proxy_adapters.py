"""The host's proxies of adapters that run in a worker; each operation is a request to `worker/adapters.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tavern_core.contract.adapters import Listing, Target, Upstream, UpstreamCall, UpstreamTool, tool_json, tool_of
from tavern_core.errors import ConnectionLost, UpstreamError, call_error_of
from tavern_core.frozen_dataclass import dataclass
from tavern_core.isolation.codec import pack_context
from tavern_core.isolation.supervisor import Supervisor
from tavern_core.isolation.transport import validated_message
from tavern_core.isolation.worker.adapters import DESK
from tavern_core.isolation.worker.facilities import packed_arguments
from tavern_core.model.result import ToolResult


@dataclass(frozen=True, slots=True)
class ProxyAdapter:
    """An adapter for one kind of upstream."""

    supervisor: Supervisor
    kind: str
    settings: Mapping[str, Any]
    targets: frozenset[Target]

    async def connect(self, upstream: Upstream) -> ProxyConnection:
        facts = {
            "name": upstream.name,
            "url": upstream.url,
            "command": list(upstream.command),
            "package": upstream.package,
            "folder": None if upstream.folder is None else str(upstream.folder),
            "settings": dict(upstream.settings),
            "headers": dict(upstream.headers),
            "idempotencyHeader": upstream.idempotency_header,
            "base": str(upstream.path("")),
        }
        number = self.supervisor.lent_upstreams.lend(upstream)
        try:
            await _ask(self.supervisor, "connect", number, self.kind, facts)
        except BaseException:
            await self.supervisor.lent_upstreams.take_back(number)
            raise
        return ProxyConnection(self.supervisor, number)


@dataclass(frozen=True, slots=True)
class ProxyConnection:
    """A connection, identified by a number on both sides."""

    supervisor: Supervisor
    number: int

    async def list_tools(self, etag: str = "") -> Listing | None:
        answer = await _ask(self.supervisor, "list_tools", self.number, etag)
        if answer is None:
            return None
        try:
            tools, ttl_ms, etag, left_out, description, version = answer
            listed = tuple(tool_of(tool) for tool in tools)
            return Listing(listed, ttl_ms, str(etag), dict(left_out), str(description), str(version))
        except (TypeError, ValueError, KeyError) as error:
            raise UpstreamError(f"the adapter listed its tools in a way that makes no sense: {error!r}") from error

    async def invoke(self, tool: UpstreamTool, arguments: Mapping[str, Any], call: UpstreamCall) -> Any:
        facts = {
            "id": call.call.id,
            "purpose": call.call.purpose,
            "key": call.key,
            "again": call.is_again,
            "context": pack_context(call.call.context),
            "left": call.context.seconds_left,
            "resumePoint": call.resume_point,
        }
        with self.supervisor.lent_upstreams.lending(self.number, call):
            answer = await _ask(self.supervisor, "invoke", self.number, tool_json(tool), dict(arguments), facts)
        try:
            kind, data = answer
            return _result(data) if kind == "result" else data
        except (TypeError, ValueError, KeyError) as error:
            raise UpstreamError(f"the adapter answered in a way that makes no sense: {error!r}") from error

    async def check(self) -> None:
        await _ask(self.supervisor, "check", self.number)

    async def close(self) -> None:
        try:
            await _ask(self.supervisor, "close", self.number)
        finally:
            await self.supervisor.lent_upstreams.take_back(self.number)


def proxy_adapter(supervisor: Supervisor, offered: Any) -> tuple[str, ProxyAdapter]:
    """The kind and the adapter that a worker described."""
    kind, settings, targets = offered
    return str(kind), ProxyAdapter(supervisor, str(kind), dict(settings), frozenset(targets))


async def _ask(supervisor: Supervisor, method: str, *args: Any) -> Any:
    request = packed_arguments(DESK, method, args, {})
    try:
        return validated_message(await supervisor.request_later("service", request, "loop", f"adapter {method}"))
    except UpstreamError as error:
        if "worker" not in error.details:
            raise
        raise ConnectionLost(error.message, hint=error.hint, outcome=error.outcome, retryable=True) from error


def _result(data: Mapping[str, Any]) -> ToolResult:
    if (error := data["error"]) is not None:
        raise call_error_of(str(error["kind"]))(
            str(error["message"]),
            hint=str(error["fix"]),
            retryable=error["retryable"] is True,
            outcome=error["outcome"],
        )
    return ToolResult(True, data["value"], content=tuple(data["content"]), meta=dict(data["meta"]))
