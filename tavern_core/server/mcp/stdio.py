"""One client over stdin and stdout: what `tavern mcp` serves."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TextIO, cast

import anyio
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_REQUEST, PARSE_ERROR, JSONRPCRequest, jsonrpc_message_adapter
from pydantic import ValidationError

from tavern_core.server.mcp.service import Pages, Service

if TYPE_CHECKING:
    from tavern_core.host import Tavern
    from tavern_core.kernel.access.tokens import Token


_ANSWER: Final = re.compile(r'\{"jsonrpc":"2\.0","id":(?:"(?:[^"\\]|\\.)*"|-?\d+),"(?:result|error)":')
_STREAM: Final = "subscriptions/listen"
"""The request whose answer comes when its client ends it."""
_CANCELLED: Final = "notifications/cancelled"
"""What takes a request back, which then has no answer."""


class _Lines:
    """Where the library writes messages, one a line: pages of lists are put in here."""

    def __init__(self, stream: TextIO, pages: Pages) -> None:
        self._stream = stream.buffer
        self._pages = pages
        self.answers = 0
        """Answers to requests that were written."""
        self.answered = anyio.Event()
        """Set when the next one is written."""

    async def write(self, text: str) -> None:
        line = text.encode("utf-8", "surrogatepass")
        await anyio.to_thread.run_sync(self._write, self._pages.put_in(line))
        if _ANSWER.match(text):
            self.answers += 1
            answered, self.answered = self.answered, anyio.Event()
            answered.set()

    async def flush(self) -> None:
        pass  # each line is flushed where it is written

    def _write(self, line: bytes) -> None:
        self._stream.write(line)
        self._stream.flush()


class _Requests:
    """Where the library reads messages. It drops a line that is none; here its sender gets an error, and does not wait for ever."""

    def __init__(self, stream: BinaryIO, lines: _Lines, drain_s: float) -> None:
        self._stream = stream
        self._lines = lines
        self._drain_s = drain_s
        self._asked = 0

    def __aiter__(self) -> _Requests:
        return self

    async def __anext__(self) -> str:
        while line := (await anyio.to_thread.run_sync(self._stream.readline)).decode("utf-8", "replace"):
            if line.isspace():
                continue
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValidationError:
                if (refusal := _refusal(line)) is not None:
                    await self._lines.write(refusal)
            else:
                method = getattr(message, "method", "")
                self._asked += isinstance(message, JSONRPCRequest) and method != _STREAM
                self._asked -= method == _CANCELLED
                return line
        with anyio.move_on_after(self._drain_s):  # what was piped into the program is answered
            while self._lines.answers < self._asked:
                await self._lines.answered.wait()
        raise StopAsyncIteration


def _refusal(line: str) -> str | None:
    """The answer to a line that is no message; None: no one waits for one."""
    code, message, request_id = PARSE_ERROR, "Parse error", None
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        pass
    else:
        code, message = INVALID_REQUEST, "The line is not one JSON-RPC request or notification"
        if isinstance(data, dict):
            request_id = data.get("id")
            if "id" not in data and isinstance(data.get("method"), str):
                return None
        if isinstance(request_id, bool) or not isinstance(request_id, int | str):
            request_id = None
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}) + "\n"


@contextmanager
def _own_stdin() -> Iterator[BinaryIO]:
    """Stdin for this client alone: what tools start finds an empty one."""
    try:
        is_a_descriptor = sys.stdin.fileno() == 0
    except OSError:
        is_a_descriptor = False
    if not is_a_descriptor:  # the program has put another stream there
        yield cast(BinaryIO, sys.stdin.buffer)
        return
    private, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        yield os.fdopen(private, "rb", closefd=False)  # a thread may still read from it
    finally:
        os.dup2(private, 0)


async def serve(tavern: Tavern, holder: Token, output: TextIO | None) -> None:
    """See `tavern_core.server.mcp.serve_stdio`."""
    service = Service(tavern, tavern.config.mcp)

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncIterator[Token]:
        async with service.watching():
            yield holder

    async def while_valid(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """A token of the host may be revoked, or end, while its client is there."""
        if ctx.request_id is not None and holder.created and not await tavern.tokens.still_holds(holder):
            raise MCPError(INVALID_REQUEST, "the token of this client is not valid any more")
        return await call_next(ctx)

    server = service.server(lifespan)
    server.middleware.append(while_valid)
    lines = _Lines(output or sys.stdout, service.pages)
    with _own_stdin() as stdin:
        requests = _Requests(stdin, lines, tavern.config.limits.drain_ms / 1000)
        async with stdio_server(cast(Any, requests), cast(Any, lines)) as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())
