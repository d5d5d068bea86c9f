"""The MCP server for one client over stdin and stdout, as `tavern mcp` runs it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TextIO, cast

import anyio
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError
from pydantic_core import from_json

from tavern_core.kernel.execution.threads import ThreadPool
from tavern_core.server.mcp.service import ListPages, McpService

if TYPE_CHECKING:
    from tavern_core.host import Tavern
    from tavern_core.kernel.access.tokens import Token


_START: Final = r'\{"jsonrpc": ?"2\.0", ?"id": ?("(?:[^"\\]|\\.)*"|-?\d{1,20}), ?'
"""The beginning of a request or its answer, as most libraries write it; the group is its id."""
_REQUEST: Final = re.compile(_START)
_ANSWER: Final = re.compile(rf'{_START}"(?:result|error)":')
_STREAM: Final = "subscriptions/listen"
"""The request whose answer comes when its client ends it."""
_CANCELLED: Final = "notifications/cancelled"
"""The notification that withdraws a request, which then has no answer."""


class _LineWriter:
    """The stream to which the library writes messages, one a line. It puts in the pages of lists."""

    def __init__(self, stream: TextIO, pages: ListPages, threads: ThreadPool) -> None:
        stream.flush()
        # Without a buffer: its lock would be held as long as the client reads nothing.
        self._stream = getattr(stream.buffer, "raw", stream.buffer)
        self._pages = pages
        self._threads = threads
        self._turn = threading.Lock()
        self.unanswered: set[int | str] = set()
        """Ids of the requests that have no answer yet."""
        self._answered = anyio.Event()

    async def write(self, text: str) -> None:
        line = text.encode("utf-8", "surrogatepass")
        await asyncio.wrap_future(self._threads.submit(self._write, self._pages.put_in(line)))
        if (found := _ANSWER.match(text)) is not None:
            self.unanswered.discard(json.loads(found[1]))
            answered, self._answered = self._answered, anyio.Event()
            answered.set()

    async def drained(self) -> None:
        """Wait until every request is answered."""
        while self.unanswered:
            await self._answered.wait()

    async def flush(self) -> None:
        pass  # nothing is kept in a buffer

    def _write(self, line: bytes) -> None:
        remaining = memoryview(line)
        with self._turn:  # an error about a line of the client may come while an answer waits for its reader
            while remaining:
                if written := self._stream.write(remaining):
                    remaining = remaining[written:]
                else:  # it does not block, and the client has not read yet
                    select.select([], [self._stream], [])


class _MessageReader:
    """The stream from which the library reads messages.

    The library drops a line that is not a message; here its sender gets an error and does not wait for ever.
    """

    def __init__(self, stream: BinaryIO, lines: _LineWriter, threads: ThreadPool, most: int, drain_s: float) -> None:
        self._stream = stream
        self._lines = lines
        self._threads = threads
        self._most = most
        self._drain_s = drain_s

    def __aiter__(self) -> _MessageReader:
        return self

    async def __anext__(self) -> str:
        while piece := await self._piece():
            line, is_whole = piece.decode("utf-8", "replace"), True
            while len(piece) > self._most and not piece.endswith(b"\n"):  # the rest of what is too long is not kept
                piece, is_whole = await self._piece(), False
            answer = None
            if not is_whole:
                answer = await self._too_long(line)
            elif not line.isspace():
                if (message := _message(line)) is not None:
                    self._note(message)
                    return line
                answer = await self._refuse(line)
            if answer is not None:
                return answer
        with anyio.move_on_after(self._drain_s):
            await self._lines.drained()  # requests that were piped into the program are answered
        raise StopAsyncIteration

    async def _piece(self) -> bytes:
        """The next line, or so much of it as a request may have."""
        return await asyncio.wrap_future(self._threads.submit(self._stream.readline, self._most + 1))

    async def _too_long(self, line: str) -> str | None:
        """As `_refuse`, with the beginning of a line that is too long."""
        beginning, request_id = _REQUEST.match(line), None
        with suppress(ValueError):  # what looks like an id is not JSON
            request_id = json.loads(beginning[1]) if beginning else None
        message = f"The line is longer than mcp.bodyBytes allows: {self._most:,} bytes"
        error = _error(request_id, INVALID_REQUEST, message)
        if _ANSWER.match(line):
            return error
        await self._lines.write(error)
        return None

    async def _refuse(self, line: str) -> str | None:
        """Answer a line that is not a message, if its sender waits for an answer.

        An invalid answer of the client is returned as an error, because else our own request would wait for ever.
        """
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            await self._lines.write(_error(None, PARSE_ERROR, "Parse error"))
            return None
        members: dict[str, Any] = data if isinstance(data, dict) else {}
        error = _error(members.get("id"), INVALID_REQUEST, "The line is not one JSON-RPC request or notification")
        if "method" not in members and members.keys() & {"result", "error"}:
            return error
        if "id" in members or not isinstance(members.get("method"), str):  # else it was a notification
            await self._lines.write(error)
        return None

    def _note(self, message: JSONRPCMessage) -> None:
        """Record which requests wait for an answer."""
        if isinstance(message, JSONRPCRequest):
            if message.method != _STREAM:
                self._lines.unanswered.add(message.id)
        elif isinstance(message, JSONRPCNotification) and message.method == _CANCELLED:
            request_id = (message.params or {}).get("requestId")
            if isinstance(request_id, int | str):
                self._lines.unanswered.discard(request_id)


def _message(line: str) -> JSONRPCMessage | None:
    """The message in a line; None: it is not one."""
    try:
        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError:
        return None
    # The library reads a request whose id is neither text nor a whole number as a notification.
    return None if isinstance(message, JSONRPCNotification) and "id" in from_json(line) else message


def _error(request_id: Any, code: int, message: str) -> str:
    """An error as the answer to a request; to an unknown one if that is no id."""
    valid_id = None if isinstance(request_id, bool) or not isinstance(request_id, int | str) else request_id
    return json.dumps({"jsonrpc": "2.0", "id": valid_id, "error": {"code": code, "message": message}}) + "\n"


@contextmanager
def _on_sigterm(end: Callable[[], object]) -> Iterator[None]:
    """While the context is open, SIGTERM calls `end`, unless the program has a handler of its own."""
    is_free = sys.platform != "win32" and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not is_free or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, end)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


@contextmanager
def _own_stdin() -> Iterator[BinaryIO]:
    """Stdin for this client alone: processes that tools start have an empty one."""
    try:
        is_a_descriptor = sys.stdin.fileno() == 0
    except OSError:
        is_a_descriptor = False
    if not is_a_descriptor:  # the program has put another stream there
        yield cast(BinaryIO, sys.stdin.buffer)
        return
    private, empty = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    try:
        yield os.fdopen(private, "rb", closefd=False)  # a thread may still read from it
    finally:
        os.dup2(private, 0)


async def serve(tavern: Tavern, holder: Token, output: TextIO | None) -> None:
    """See `tavern_core.server.mcp.serve_stdio`."""
    service = McpService(tavern)

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncIterator[Token]:
        async with service.changes.watching():
            yield holder

    async def while_valid(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """A token of the host may be revoked, or end, while its client is there."""
        if ctx.request_id is not None and holder.created and not await tavern.tokens.still_holds(holder):
            raise MCPError(INVALID_REQUEST, "the token of this client is not valid any more")
        return await call_next(ctx)

    server = service.server(lifespan)
    server.middleware.append(while_valid)
    # Daemon threads: neither a client that sends nothing nor one that reads nothing keeps the process from ending.
    threads = ThreadPool(2, "tavern-mcp-stdio")
    lines = _LineWriter(output or sys.stdout, service.pages, threads)
    task, terminated = asyncio.current_task(), asyncio.Event()
    assert task is not None

    def end() -> None:
        terminated.set()
        task.cancel()

    with _on_sigterm(end), _own_stdin() as stdin:
        requests = _MessageReader(
            stdin, lines, threads, tavern.config.mcp.body_bytes, tavern.config.limits.drain_ms / 1000
        )
        try:
            async with stdio_server(cast(Any, requests), cast(Any, lines)) as (reading, writing):
                await server.run(reading, writing, server.create_initialization_options())
        except (asyncio.CancelledError, BaseExceptionGroup) as error:
            if terminated.is_set():
                raise SystemExit(128 + signal.SIGTERM) from None  # the program closes the host
            if task.cancelling():  # the library may report that no one took the last message
                raise asyncio.CancelledError from error
            if isinstance(error, asyncio.CancelledError) or error.split(BrokenPipeError)[1] is not None:
                raise  # else the client reads no more: it went away
        finally:
            threads.close()
