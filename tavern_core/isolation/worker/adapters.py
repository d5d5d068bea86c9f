"""The adapters of an isolated plugin in its worker: the host opens connections and uses them by number.

Adapters have the same contract here as in the host. A worker has no sockets and starts no programs: the host does both
for it (`lent_upstream.py`), with the rights of the upstream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from tavern_core.contract.adapters import Adapter, Connection
from tavern_core.contract.tool_context import ToolContext
from tavern_core.contract.upstream_tool_json import tool_json, tool_of
from tavern_core.errors import CallError, ConnectionLost
from tavern_core.isolation.worker.host_client import HostClient, running
from tavern_core.isolation.worker.lent_upstream import HostSide, LentUpstream
from tavern_core.isolation.worker.running_call import WorkerCalls
from tavern_core.isolation.worker.streams import in_thread
from tavern_core.model.call import ToolCall
from tavern_core.model.result import ToolResult

T = TypeVar("T")
DESK: Final = "-adapters"
"""The name under which the host calls `WorkerAdapters`; no service of a plugin can have it."""


class WorkerAdapters:
    """The adapters of one plugin and the connections that they opened.

    Args:
        calls: registers the running calls, so that they can report progress and ask questions.
    """

    def __init__(self, host_client: HostClient, calls: WorkerCalls) -> None:
        self._host_client = host_client
        self._calls = calls
        self._adapters: dict[str, Adapter] = {}
        self._open: dict[int, Connection] = {}

    def offered(self, adapters: Mapping[str, Adapter]) -> list[Any]:
        """The adapters as described to the host: (kind, schema of its settings, targets)."""
        self._adapters.update(adapters)
        return [[kind, dict(one.settings), sorted(one.targets)] for kind, one in adapters.items()]

    async def connect(self, number: int, kind: str, facts: Mapping[str, Any]) -> None:
        self._open[number] = await self._adapters[kind].connect(LentUpstream(self._host_client, number, facts))

    async def list_tools(self, number: int, etag: str) -> Any:
        listing = await self._of(number).list_tools(etag)
        if listing is None:
            return None
        tools = [tool_json(tool) for tool in listing.tools]
        return [tools, listing.ttl_ms, listing.etag, dict(listing.left_out), listing.description, listing.version]

    async def invoke(
        self, number: int, tool: Mapping[str, Any], arguments: Mapping[str, Any], call: Mapping[str, Any]
    ) -> Any:
        self._calls.begin(str(call["id"]), running.get(), call["left"])  # it ends with the request
        made = LentCall(HostSide(self._host_client, number), tool, arguments, call)
        answer = await self._of(number).invoke(tool_of(tool), arguments, made)
        if not isinstance(answer, ToolResult):
            return ["value", answer]
        data = answer.to_json()
        return ["result", {key: data[key] for key in ("ok", "value", "content", "evidence", "error", "meta")}]

    async def check(self, number: int) -> None:
        await self._of(number).check()

    async def close(self, number: int) -> None:
        if (connection := self._open.pop(number, None)) is not None:
            await connection.close()

    def _of(self, number: int) -> Connection:
        if (connection := self._open.get(number)) is None:
            raise ConnectionLost("the process of the adapter was started anew", outcome="none", retryable=True)
        return connection


class LentCall:
    """`contract.adapters.UpstreamCall` in a worker.

    Args:
        facts: the host's description of the call (`proxy_adapters.py`).
    """

    def __init__(
        self, host: HostSide, tool: Mapping[str, Any], arguments: Mapping[str, Any], facts: Mapping[str, Any]
    ) -> None:
        from tavern_core.isolation.codec import unpack_context

        context = unpack_context(facts["context"])
        self.call = ToolCall(str(tool["name"]), arguments, context, facts["id"], facts["purpose"], facts["key"])
        self.context = ToolContext(self.call.id)
        self.key: str | None = facts["key"]
        self.is_again = facts["again"] is True
        self.resume_point = str(facts["resumePoint"])
        self._host = host

    @property
    def will_be_resumed(self) -> bool:
        try:
            return self._host.request("will_be_resumed", self.call.id) is True
        except CallError:  # the host has ended
            return True

    async def keep_resume_point(self, text: str, *, only_followed: bool = False) -> None:
        await self._host.request_later("keep_point", self.call.id, text, only_followed)

    async def ask(self, message: str, schema: Mapping[str, Any], name: str = "answer") -> Mapping[str, Any] | None:
        return await self.context.ask(message, schema, key=name)

    async def in_thread(self, function: Callable[..., T], *args: Any) -> T:
        found: T = await in_thread(function, *args)
        return found
