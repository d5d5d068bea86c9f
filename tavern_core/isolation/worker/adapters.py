"""The adapters of an isolated plugin in its worker: the host opens connections and uses them by number.

Adapters have the same contract here as in the host. A worker has no sockets and starts no programs: the host does both
for it (`isolation/lent_upstreams.py`), with the rights of the upstream.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from tavern_core.contract.adapters import Adapter, Connection, tool_json, tool_of
from tavern_core.contract.tool_context import ToolContext
from tavern_core.errors import CallError, ConnectionLost, ToolFailed
from tavern_core.isolation.worker.host_client import HostClient, running
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


class LentUpstream:
    """`contract.adapters.Upstream` in a worker: its facts are known here, its operations are done by the host.

    Args:
        number: the number of the connection.
        facts: the host's description of the upstream (`proxy_adapters.py`).
    """

    def __init__(self, host_client: HostClient, number: int, facts: Mapping[str, Any]) -> None:
        self._host = HostSide(host_client, number)
        self.name: str = facts["name"]
        self.url: str = facts["url"]
        self.command: tuple[str, ...] = tuple(facts["command"])
        self.package: str = facts["package"]
        self.folder: Path | None = None if facts["folder"] is None else Path(facts["folder"])
        self.settings: Mapping[str, Any] = facts["settings"]
        self.headers: Mapping[str, str] = facts["headers"]
        self.idempotency_header: str | None = facts["idempotencyHeader"]
        self.log = logging.getLogger(f"tavern.upstream.{self.name}")
        self._base = Path(facts["base"])
        self._locks = itertools.count(1)

    def changed(self) -> None:
        self._host.request("changed")

    def path(self, written: str) -> Path:
        return (self._base / Path(written).expanduser()).absolute()

    def http(self, url: str = "", *, timeout_s: float = 30.0, max_bytes: int = 64_000_000) -> Any:
        try:
            import httpx2
        except ImportError:
            raise ToolFailed(
                "upstreams with a url need httpx2, which is not installed", hint="pip install 'tavern-core[http]'"
            ) from None
        host, client = self._host, self._host.request("client", url, timeout_s, max_bytes)

        class Transport(httpx2.AsyncBaseTransport):
            async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
                body = b64encode(await request.aread()).decode()
                times = dict(request.extensions.get("timeout", {}))
                headers = request.headers.multi_items()
                kind, *answer = await host.request_later(
                    "fetch", client, request.method, str(request.url), headers, body, times
                )
                if kind == "failed":
                    known = getattr(httpx2, answer[0], None)
                    is_error = isinstance(known, type) and issubclass(known, httpx2.HTTPError)
                    raise (known if is_error and known is not None else httpx2.TransportError)(answer[1])
                status, headers, content = answer
                return httpx2.Response(status, headers=[tuple(one) for one in headers], content=b64decode(content))

            async def aclose(self) -> None:
                await host.request_later("close", client)

        return httpx2.AsyncClient(
            transport=Transport(),
            base_url=url or self.url,
            timeout=timeout_s,
            trust_env=False,
            follow_redirects=False,
        )

    async def start(self) -> LentProcess:
        return LentProcess(self._host, await self._host.request_later("start"))

    def load(self, name: str) -> str | None:
        found: str | None = self._host.request("load", name)
        return found

    def save(self, name: str, text: str | None) -> None:
        self._host.request("save", name, text)

    @asynccontextmanager
    async def lock(self, name: str) -> AsyncIterator[None]:
        number = next(self._locks)
        try:
            await self._host.request_later("lock", number, name)
            yield
        finally:  # the lock may have been acquired after the wait was cancelled
            await self._host.request_later("unlock", number)


class LentProcess:
    """`contract.adapters.Process` in a worker."""

    def __init__(self, host: HostSide, number: int) -> None:
        self._host = host
        self._number = number

    async def write(self, data: bytes) -> None:
        await self._host.request_later("write", self._number, b64encode(data).decode())

    async def lines(self, most: int) -> AsyncIterator[bytes]:
        while True:
            yield b64decode(await self._host.request_later("line", self._number, most))

    @property
    def errors(self) -> str:
        return str(self._host.request("errors", self._number))

    async def close(self, grace_s: float = 2.0) -> None:
        await self._host.request_later("stop", self._number, grace_s)


class HostSide:
    """Sends the operations of one connection to the host."""

    def __init__(self, host_client: HostClient, number: int) -> None:
        self._host_client = host_client
        self._number = number
        self._tokens = itertools.count(1)

    def request(self, operation: str, *given: Any) -> Any:
        """Send an operation and wait for the answer."""
        token = next(self._tokens)
        return self._host_client.request(
            "upstream", connection=self._number, token=token, operation=operation, given=given
        )

    async def request_later(self, operation: str, *given: Any) -> Any:
        """The same on an event loop; cancelling it also cancels the operation in the host."""
        number, token = self._number, next(self._tokens)
        try:
            return await self._host_client.request_later(
                "upstream", connection=number, token=token, operation=operation, given=given
            )
        except asyncio.CancelledError:
            self._host_client.send("give_up", connection=number, token=token)
            raise
