"""Requests of our own, beside those that the library makes on the same streams.

The library's dispatcher trusts its peer. Here an answer is not validated as a whole, because one bad tool would make
the whole list fail, and each request takes a third of the time. All other messages go on to the library: answers to its
own requests, and requests of the server.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from tavern_core.builtin.adapters.mcp.pending import WORKED_FOR, PendingRequests, ProgressCallback
from tavern_core.builtin.adapters.mcp.stdio import ReadableStream, StdioWriter
from tavern_core.errors import CallError

if TYPE_CHECKING:
    from mcp.client._transport import ReadStream, WriteStream

    from tavern_core.builtin.adapters.mcp.posts import PostTransport

_CANCEL_S: Final = 5.0


class Requester(Protocol):
    """Sends requests to a server and returns their results unchanged; raises a CallError."""

    async def request(self, method: str, params: dict[str, Any], name: str = "") -> dict[str, Any]: ...


class LibraryStream(ReadableStream):
    """The stream that the library reads: all messages except answers to our own requests."""

    def __init__(self, reading: ReadStream[SessionMessage | Exception], pending: PendingRequests) -> None:
        self._reading = reading
        self._pending = pending

    async def __anext__(self) -> SessionMessage | Exception:
        """The next message that is not ours."""
        try:
            while True:
                item = await self._reading.__anext__()
                if isinstance(item, Exception) or not self._take(item.message):
                    return item
        except BaseException:
            self._pending.finish()
            raise

    def _take(self, message: object) -> bool:
        """Take a message for one of our own requests; False: it is for none of them."""
        pending = self._pending
        if isinstance(message, JSONRPCResponse):
            return pending.take_result(message.id, message.result) or pending.is_own(message.id)
        if isinstance(message, JSONRPCError):
            return pending.take_result(message.id, MCPError.from_error_data(message.error)) or pending.is_own(
                message.id
            )
        return isinstance(message, JSONRPCNotification) and pending.take_note(
            {"method": message.method, "params": message.params}
        )

    async def aclose(self) -> None:
        """Close the stream."""
        self._pending.finish()
        await self._reading.aclose()


class McpRequests:
    """Makes our own requests.

    Args:
        posts: makes them over HTTP in the new era; None: they go through the streams.
    """

    def __init__(
        self, writing: WriteStream[SessionMessage], posts: PostTransport | None, pending: PendingRequests
    ) -> None:
        self._writing = writing
        self._posts = posts
        self._pending = pending

    async def ask(
        self,
        method: str,
        params: dict[str, Any],
        headers: dict[str, str],
        tool: str = "",
        progress: ProgressCallback | None = None,
    ) -> dict[str, Any]:
        """Make a request and wait for its result; when cancelled, notify the server.

        Args:
            tool: the tool that is called.

        Raises:
            CallError: as `failure_of` says, or why there will be no answer.
        """
        pending = self._pending
        if pending.is_over:
            raise self._not_sent()
        number, future = pending.begin(progress)
        if progress is not None:
            params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": number}}
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        posts = self._posts
        try:
            if posts is not None and (result := await posts.ask(message, headers)) is not None:
                return result
            posts = None
            await self._write(message, headers)
            if isinstance(answer := await future, Exception):
                raise answer
            return answer
        except MCPError as error:
            raise pending.failure(number, error, tool or method, tool) from None
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):  # the server cannot have read all of it
            raise self._not_sent() from None
        except asyncio.CancelledError:
            if posts is None:
                await self._cancel(number)
                pending.give_up(number)
            raise
        finally:
            pending.end(number)

    async def _write(self, message: dict[str, Any], headers: dict[str, str]) -> None:
        if isinstance(self._writing, StdioWriter):  # without the models of the library, which take a tenth of a call
            await self._writing.write(message)
            return
        request = JSONRPCRequest.model_construct(**message)
        token = WORKED_FOR.set(message["id"])
        try:
            await self._writing.send(SessionMessage(request, ClientMessageMetadata(headers=headers)))
        finally:
            WORKED_FOR.reset(token)

    def _not_sent(self) -> CallError:
        lost = self._pending.why_lost()
        lost.outcome = "none"
        return lost

    async def _cancel(self, number: int) -> None:
        """Notify the server that no one waits any more; a stuck transport does not hold the caller for ever."""
        params = {"requestId": number, "reason": "the caller has given up"}
        note = JSONRPCNotification.model_construct(jsonrpc="2.0", method="notifications/cancelled", params=params)
        with anyio.move_on_after(_CANCEL_S, shield=True):
            try:
                await self._writing.send(SessionMessage(note))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return
