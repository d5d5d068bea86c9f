"""A connection to an MCP server, and the requests of a host over it.

connected(upstream) → McpConnection
    SessionTask: a task of its own enters the transport and the session, and leaves them again: what breaks in it breaks nothing else
    McpConnection: calls come from other tasks of the loop, and wait for the answer to their own request
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from mcp.client.session import ClientRequestContext, ClientSession, IncomingMessage
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    encode_header_value,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp.shared.message import SessionMessage
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
    Implementation,
    ListRootsResult,
    Root,
    ServerNotification,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from tavern_core.builtin.adapters.mcp.asking import MOST_ROUNDS, RunningCalls, answers_to
from tavern_core.builtin.adapters.mcp.content import result_of
from tavern_core.builtin.adapters.mcp.failures import failure_of, text_of
from tavern_core.builtin.adapters.mcp.listing import McpDocuments, read_tools, watch_list
from tavern_core.builtin.adapters.mcp.pending import PendingRequests, ProgressCallback
from tavern_core.builtin.adapters.mcp.requests import LibraryStream, McpRequests
from tavern_core.builtin.adapters.mcp.stdio import stdio_streams
from tavern_core.builtin.adapters.mcp.tasks import EXTENSION, result_of_task
from tavern_core.contract.adapters import Listing, Upstream, UpstreamCall, UpstreamTool
from tavern_core.contract.exchange import header_of_key
from tavern_core.contract.trace_context import trace_headers
from tavern_core.errors import CallError, ConnectionLost, TavernError, UpstreamError
from tavern_core.model.result import ToolResult

logging.getLogger("mcp.client").addHandler(logging.NullHandler())  # what goes wrong is an error of the upstream

if TYPE_CHECKING:
    from mcp.client._transport import WriteStream

    from tavern_core.builtin.adapters.mcp.login import Show

LIST_S: Final = 60.0
CHECK_S: Final = 10.0
PERSON_S: Final = 300.0
"""Additional seconds for connecting if a person logs in."""
CLOSE_S: Final = 10.0
_STATE_ONLY_S: Final = (0.05, 1.0)
"""Seconds between rounds in which a server asks nothing and only wants to be called again: at first, at most."""
_CAPABILITIES: Final[Mapping[str, Any]] = {"elicitation": {"form": {}, "url": {}}, "extensions": {EXTENSION: {}}}


async def connected(upstream: Upstream, show: Show | None = None) -> McpConnection:
    """See `Adapter.connect`.

    Args:
        show: shows a person the address to log in; None: no person can log in.
    """
    return await SessionTask(upstream, show).opened()


class SessionTask:
    """The task that a session belongs to: it enters transport and session, and leaves them again."""

    def __init__(self, upstream: Upstream, show: Show | None) -> None:
        self._upstream = upstream
        self._show = show
        self._most = int(upstream.settings.get("maxMessageBytes", 16_000_000))
        self._roots = tuple(upstream.settings.get("roots", ()))
        self._pending = PendingRequests(upstream.name)
        self._calls = RunningCalls()
        self._info = Implementation(name="tavern_core", version=version("tavern-core"))
        self._ready: asyncio.Future[McpConnection] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._serve(), name=f"mcp {upstream.name}")

    async def opened(self) -> McpConnection:
        """Wait for the connection; if it fails, what was opened is closed."""
        try:
            seconds = self._upstream.settings.get("connectTimeoutMs", 60_000) / 1000
            seconds += 0 if self._show is None else PERSON_S
            async with asyncio.timeout(seconds):
                return await asyncio.shield(self._ready)
        except TimeoutError:
            await self.close()
            raise UpstreamError(
                f"{self._upstream.name} does not answer within {seconds:g} s", retryable=True
            ) from self._pending.lost
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Leave the session."""
        self._closing.set()
        if (task := self._task).done():
            return
        try:
            if self._ready.done():
                await asyncio.wait([task], timeout=CLOSE_S)
        finally:  # also if no one waits any longer for a server that does not let go
            task.cancel()
        await asyncio.wait([task], timeout=CLOSE_S)

    async def _serve(self) -> None:
        """Enter the session, wait for its end, leave it; nothing that happens in it leaves this task."""
        try:
            async with AsyncExitStack() as opened:
                reading, writing, posts = await opened.enter_async_context(await self._transport())
                session = await opened.enter_async_context(
                    self._new_session(LibraryStream(reading, self._pending), writing)
                )
                await self._negotiate(session)
                is_modern = session.protocol_version in MODERN_PROTOCOL_VERSIONS
                requests = McpRequests(writing, posts if is_modern else None, self._pending)
                connection = McpConnection(self._upstream, self, session, requests, self._calls, self._meta(session))
                async with watch_list(session, self._upstream.changed):
                    self._ready.set_result(connection)
                    await self._closing.wait()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - an ExceptionGroup of whatever a transport met
            self._end(self._reason(error))
        finally:
            self._end(ConnectionLost(f"the connection to {self._upstream.name} was closed", outcome="unknown"))

    def _end(self, error: CallError) -> None:
        """Remember why it ended."""
        lost = self._pending.note_end(error)
        if not self._ready.done():
            lost.outcome = "none"
            self._ready.set_exception(lost)
            self._ready.exception()  # marks it as retrieved: the caller may have stopped waiting

    def _reason(self, error: BaseException) -> CallError:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, CallError):
            return error
        name = self._upstream.name
        if isinstance(error, MCPError):
            return failure_of(error, f"{name} cannot be connected to")
        if isinstance(error, TavernError):  # of its settings, such as the certificate
            return UpstreamError(error.message, hint=error.hint, code=error.code)
        return ConnectionLost(f"the connection to {name} broke: {error!r:.300}", outcome="unknown", retryable=True)

    async def _transport(self) -> AbstractAsyncContextManager[Any]:
        if self._upstream.command:
            return stdio_streams(await self._upstream.start(), self._most, self._pending)
        from tavern_core.builtin.adapters.mcp.http import http_streams

        return http_streams(self._upstream, self._most, self._pending, self._show)

    def _new_session(self, reading: LibraryStream, writing: WriteStream[SessionMessage]) -> ClientSession:
        return ClientSession(
            reading,
            writing,
            elicitation_callback=self._calls.elicit,
            list_roots_callback=self._list_roots if self._roots else None,
            message_handler=self._on_message,
            client_info=self._info,
            extensions={EXTENSION: {}},
        )

    async def _list_roots(self, context: ClientRequestContext) -> ListRootsResult:
        return ListRootsResult(roots=[Root.model_validate({"uri": root}) for root in self._roots])

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, ServerNotification) and isinstance(message, ToolListChangedNotification):
            self._upstream.changed()

    async def _negotiate(self, session: ClientSession) -> None:
        """Agree on the new era if the server supports it, else on the old one."""
        pending = self._pending
        try:
            await session.discover()
        except (MCPError, ValidationError, RuntimeError) as error:
            if pending.lost is not None:
                raise pending.lost from error
            try:
                await session.initialize()
            except MCPError as refused:
                # A server that began slowly may have taken the new era for settled meanwhile.
                if refused.code != UNSUPPORTED_PROTOCOL_VERSION:
                    raise (pending.lost or pending.last_failure() or refused) from error
                await session.discover()
            except (ValidationError, RuntimeError) as wrong:  # no answer to that request, or an unknown version
                raise UpstreamError(f"{self._upstream.name} answers with what is not MCP: {_flaw(wrong)}") from None
        pending.negotiated()

    def _meta(self, session: ClientSession) -> dict[str, Any]:
        """The metadata about the client in each request; empty in the old era."""
        if session.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return {}
        return {
            PROTOCOL_VERSION_META_KEY: session.protocol_version,
            CLIENT_INFO_META_KEY: self._info.model_dump(by_alias=True, mode="json", exclude_none=True),
            CLIENT_CAPABILITIES_META_KEY: {**_CAPABILITIES, **({"roots": {}} if self._roots else {})},
        }


class McpConnection(McpDocuments):
    """`contract.adapters.Connection` and `contract.adapters.Documents`.

    Args:
        task: the task to which the session belongs.
        meta: the metadata about the client in each request; empty in the old era.
    """

    def __init__(
        self,
        upstream: Upstream,
        task: SessionTask,
        session: ClientSession,
        requests: McpRequests,
        calls: RunningCalls,
        meta: Mapping[str, Any],
    ) -> None:
        self._upstream = upstream
        self._task = task
        self._session = session
        self._requests = requests
        self._calls = calls
        self._meta = meta
        self._roots = tuple(upstream.settings.get("roots", ()))
        self._headers: dict[str, Mapping[tuple[str, ...], str]] = {}
        """Tool → the arguments that the server also wants as headers."""

    @property
    def _is_modern(self) -> bool:
        return bool(self._meta)

    async def close(self) -> None:
        """See `Connection.close`."""
        await self._task.close()

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        name: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        progress: ProgressCallback | None = None,
        tool: str = "",
    ) -> dict[str, Any]:
        """Send a request to the server and return its result unchanged.

        Args:
            name: what the request is about, for the header of the new era.
            tool: the tool that is called.

        Raises:
            CallError: as `failure_of` says.
        """
        if meta := {**self._meta, **trace_headers()}:
            params = {**params, "_meta": meta}
        sent = {} if self._upstream.command else self._http_headers(method, name, headers or {})
        return await self._requests.ask(method, params, sent, tool, progress)

    def _http_headers(self, method: str, name: str, headers: Mapping[str, str]) -> dict[str, str]:
        sent = {**headers, MCP_PROTOCOL_VERSION_HEADER: self._session.protocol_version or ""}
        if self._is_modern:
            sent[MCP_METHOD_HEADER] = method
            if name:
                sent[MCP_NAME_HEADER] = encode_header_value(name)
        return sent

    async def list_tools(self, etag: str = "") -> Listing | None:
        """See `Connection.list_tools`."""
        try:
            async with asyncio.timeout(LIST_S):
                listing = await read_tools(self)
        except TimeoutError:
            raise UpstreamError(f"the list of tools is not complete after {LIST_S:g} s", retryable=True) from None
        self._headers = {}
        info = self._session.server_info
        forwards = bool(self._upstream.idempotency_header and not self._upstream.command)
        return replace(
            listing,
            tools=[replace(tool, forwards_key=True) for tool in listing.tools] if forwards else listing.tools,
            description=text_of(self._session.instructions),
            version=text_of(info.version) if info is not None else "",
        )

    async def invoke(self, tool: UpstreamTool, arguments: Mapping[str, Any], call: UpstreamCall) -> Any:
        """See `Connection.invoke`."""
        with self._calls.running(call) as running:
            result = await self._call(tool, arguments, call)
            running.check()
            return await self._answer(result, tool, call)

    async def _answer(self, result: dict[str, Any], tool: UpstreamTool, call: UpstreamCall) -> ToolResult:
        kind = result.get("resultType", "complete")
        if kind == "task" or (kind == "complete" and "task" in result and "content" not in result):
            result = await result_of_task(result, tool.name, call, self, self._roots)
        elif kind != "complete":
            raise UpstreamError(
                f"{tool.name}: the server answers with {kind!r:.60}, which is unknown", outcome="unknown"
            )
        return await result_of(result, tool.name, call)

    async def _call(self, tool: UpstreamTool, arguments: Mapping[str, Any], call: UpstreamCall) -> dict[str, Any]:
        """Send ``tools/call``, and again after each round of questions from the server."""

        wants_headers = self._is_modern and not self._upstream.command
        headers: dict[str, str] = {}
        if call.key and self._upstream.idempotency_header:
            headers[self._upstream.idempotency_header] = header_of_key(call.key)
        if wants_headers:
            headers |= mcp_param_headers(self._header_map(tool), arguments)
        extra: dict[str, Any] = {"task": {}} if tool.data.get("task") and not self._is_modern else {}
        delay, rounds = _STATE_ONLY_S[0], 0
        while True:
            params = {"name": tool.name, "arguments": dict(arguments), **extra}
            result = await self.request(
                "tools/call", params, tool.name, headers=headers, progress=call.context.progress, tool=tool.name
            )
            if result.get("resultType") != "input_required":
                return result
            extra = {}
            if isinstance(state := result.get("requestState"), str):
                extra["requestState"] = state
            if requests := result.get("inputRequests"):
                rounds += 1
                if rounds > MOST_ROUNDS:
                    raise UpstreamError(f"{tool.name}: the server asks again and again", outcome="unknown")
                extra["inputResponses"] = await answers_to(requests, call, self._roots)
            else:
                await asyncio.sleep(delay)
                delay = min(delay * 2, _STATE_ONLY_S[1])

    def _header_map(self, tool: UpstreamTool) -> Mapping[tuple[str, ...], str]:
        """The arguments that the server also wants as headers."""
        if (header_map := self._headers.get(tool.name)) is None:
            header_map = self._headers[tool.name] = x_mcp_header_map(dict(tool.input_schema))
        return header_map

    async def check(self) -> None:
        """See `Connection.check`."""
        try:
            async with asyncio.timeout(CHECK_S):
                await self.request("server/discover" if self._is_modern else "ping", {})
        except TimeoutError:
            raise UpstreamError(f"no answer within {CHECK_S:g} s", retryable=True) from None
        except UpstreamError as error:
            if "rpcCode" not in error.details:  # a server that refuses the request is there; not every one knows `ping`
                raise


def _flaw(error: ValidationError | RuntimeError) -> str:
    """The reason why an answer is invalid, without its content."""
    if isinstance(error, RuntimeError):
        return str(error)[:300]
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:300]
