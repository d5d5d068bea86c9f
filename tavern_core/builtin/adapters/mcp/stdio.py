"""MCP over the standard streams of a program: one message a line."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Final, Self

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCResponse
from pydantic_core import to_json

from tavern_core.builtin.adapters.mcp.message_parser import NotAMessage, answered_by, message_of, read_json
from tavern_core.builtin.adapters.mcp.pending import PendingRequests
from tavern_core.contract.adapters import Process
from tavern_core.errors import CallError, ConnectionLost, OutputTooLarge, UpstreamError

MOST_GARBAGE: Final = 1_000
"""Maximum lines that are not messages: some servers print what they do. A program that writes more is not a server."""
MOST_UNASKED: Final = 500
"""Messages in a second that no one asked for; and ten times as many without an answer in between."""
GRACE_S: Final = 2.0
"""Seconds that a server may take to end after its input has ended; one that broke the protocol has none."""
_TURN: Final = 64
"""Messages after which others have their turn, however quickly they come."""


class StdioStream:
    """The methods that the library expects of each of its streams."""

    async def aclose(self) -> None:
        """Nothing to do: the program is closed by its connection."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class ReadableStream(StdioStream, ABC):
    """The methods that the library expects of a stream that it reads."""

    def __aiter__(self) -> Self:
        return self

    @abstractmethod
    async def __anext__(self) -> SessionMessage | Exception:
        """The next message; raises StopAsyncIteration."""

    async def receive(self) -> SessionMessage | Exception:
        """The next message; raises EndOfStream."""
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise anyio.EndOfStream from None


class StdioReader(ReadableStream):
    """The messages that a program writes; ends when the program ends.

    Args:
        pending: takes the results of requests that the library does not know of.
    """

    def __init__(self, process: Process, most: int, pending: PendingRequests) -> None:
        self._lines = process.lines(most)
        self._pending = pending
        self.is_lost = False
        self._garbage = 0
        self._count = 0
        self._unasked = 0
        self._in_a_row = 0
        self._second = 0.0

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            while True:
                line = await anext(self._lines)
                self._count += 1
                if self._count % _TURN == 0:
                    await asyncio.sleep(0)
                if (message := await self._message(line)) is not None:
                    return SessionMessage(message)
        except CallError as error:
            self.is_lost = True
            self._pending.note_loss(error)
            raise StopAsyncIteration from None

    async def _message(self, line: bytes) -> Any:
        value = None
        try:
            value = await read_json(line)
            result = value.get("result") if type(value) is dict else None
            if type(result) is dict and self._pending.take_result(value.get("id"), result):
                self._in_a_row = 0
                return None
            message = message_of(value)
        except NotAMessage as error:
            why = UpstreamError(f"the answer is not MCP: {error}", outcome="unknown")
            return self._unreadable(answered_by(line, value), why)
        except OutputTooLarge as error:
            return self._unreadable(answered_by(line), error)
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            self._count_answer(message.id)
        else:
            self._count_unasked()
        return message

    def _count_answer(self, number: object) -> None:
        """Count an answer. One that no one waits for, such as a late one, counts like an unasked message."""
        self._in_a_row = 0 if self._pending.is_awaited(number) else self._in_a_row + 1
        self._check_bounds()

    def _unreadable(self, number: int | None, why: CallError) -> JSONRPCError | None:
        """The error for the request that an unreadable line answers; None if it answers none."""
        if number is not None:
            self._count_answer(number)
            self._pending.note_failure(number, why)
            error = ErrorData(code=PARSE_ERROR, message=why.message)
            return JSONRPCError.model_construct(jsonrpc="2.0", id=number, error=error)
        self._garbage += 1
        if self._garbage > MOST_GARBAGE:
            raise ConnectionLost(
                f"the server wrote more than {MOST_GARBAGE:,} lines that are not messages", outcome="unknown"
            )
        return None

    def _count_unasked(self) -> None:
        now = time.monotonic()
        if now - self._second >= 1:
            self._second, self._unasked = now, 0
        self._unasked += 1
        self._in_a_row += 1
        self._check_bounds()

    def _check_bounds(self) -> None:
        if self._unasked > MOST_UNASKED or self._in_a_row > 10 * MOST_UNASKED:
            raise ConnectionLost(
                f"the server sent too many messages that were not asked for: {self._unasked:,} in a second, {self._in_a_row:,} in a row",
                outcome="unknown",
            )


class StdioWriter(StdioStream):
    """Writes messages to a program."""

    def __init__(self, process: Process, pending: PendingRequests) -> None:
        self._process = process
        self._pending = pending

    async def send(self, item: SessionMessage, /) -> None:
        """Write a message; raises BrokenResourceError if the program has ended."""
        await self.write(item.message.model_dump(by_alias=True, mode="json", exclude_unset=True))

    async def write(self, message: Mapping[str, Any]) -> None:
        """Write a message that is plain JSON; raises as `send`."""
        try:
            await self._process.write(to_json(message) + b"\n")
        except CallError as error:
            self._pending.note_loss(error)
            raise anyio.BrokenResourceError from error


@asynccontextmanager
async def stdio_streams(
    process: Process, most: int, pending: PendingRequests
) -> AsyncIterator[tuple[StdioReader, StdioWriter, None]]:
    """(stream to read, stream to write, None); closes the program at the end."""
    incoming = StdioReader(process, most, pending)
    try:
        yield incoming, StdioWriter(process, pending), None
    finally:
        with anyio.CancelScope(shield=True):
            await process.close(0.0 if incoming.is_lost else GRACE_S)
