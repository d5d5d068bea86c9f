"""Requests of our own, beside those that the library makes on the same streams.

Its dispatcher counts on a peer that is known. Here an answer is taken as it comes, without being validated as a whole (one bad tool would
cost the list), and each request costs a third. Everything else that is read goes on to the library: its own answers, and what the server asks.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import anyio
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from tavern_core.builtin.adapters.mcp.stdio import Incoming, Outgoing, Readable
from tavern_core.errors import CallError

if TYPE_CHECKING:
    from mcp.client._transport import ReadStream, WriteStream

    from tavern_core.builtin.adapters.mcp.posts import Posts

_FIRST_ID: Final = 1_000_000
"""The library counts its own from 1."""
_CANCEL_S: Final = 5.0

Progress = Callable[[float, float | None, str], None]
"""``progress(done, total, message)``."""
_Answer = asyncio.Future[dict[str, Any] | MCPError | CallError]
"""Errors are results: one that comes while the request is still being written is not retrieved by anyone."""


class Requests(Readable):
    """The stream that the library reads; `ask` makes requests.

    Args:
        reason: makes the error of the requests that wait when the stream ends.
        failures: number of a request → why it has no answer; kept no longer than the request.
    """

    def __init__(
        self,
        reading: ReadStream[SessionMessage | Exception],
        writing: WriteStream[SessionMessage],
        reason: Callable[[], CallError],
        failures: dict[int, CallError],
    ) -> None:
        self._reading = reading
        self._writing = writing
        self._reason = reason
        self._failures = failures
        self._ids = itertools.count(_FIRST_ID)
        self._waiting: dict[object, tuple[_Answer, Progress | None]] = {}
        self._is_over = False
        self.posts: Posts | None = None
        """Makes requests over HTTP in the new era; None: they go through the streams."""
        if isinstance(reading, Incoming):
            reading.take = self._take_result
            reading.is_awaited = self.is_awaited

    async def ask(
        self,
        method: str,
        params: dict[str, Any],
        headers: dict[str, str],
        failed: Callable[[int, MCPError], CallError],
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Make a request and wait for its result; when cancelled, notify the server.

        Args:
            failed: makes the error of the call of a JSON-RPC error, with the number of the request.

        Raises:
            CallError: what `failed` says, or why there will be no answer.
        """
        if self._is_over:
            lost = self._reason()
            lost.outcome = "none"  # nothing was sent
            raise lost
        number = next(self._ids)
        future: _Answer = asyncio.get_running_loop().create_future()
        self._waiting[number] = future, progress
        if progress is not None:
            params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": number}}
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        posts = self.posts
        try:
            if posts is not None:
                if (result := await posts.ask(message, headers, self._take_note)) is not None:
                    return result
                posts = None
            if isinstance(self._writing, Outgoing):  # without the models of the library, which take a tenth of a call
                await self._writing.write(message)
            else:
                request = JSONRPCRequest.model_construct(jsonrpc="2.0", id=number, method=method, params=params)
                await self._writing.send(SessionMessage(request, ClientMessageMetadata(headers=headers)))
            if isinstance(answer := await future, Exception):
                raise answer
            return answer
        except MCPError as error:
            raise failed(number, error) from None
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            lost = self._reason()
            lost.outcome = "none"  # the server cannot have read all of it
            raise lost from None
        except asyncio.CancelledError:
            if posts is None:
                await self._cancel(number)
            raise
        finally:
            del self._waiting[number]
            self._failures.pop(number, None)

    def is_awaited(self, number: object) -> bool:
        """Whether one of our own requests with this number waits for its answer."""
        return isinstance(number, int) and number in self._waiting

    async def _cancel(self, number: int) -> None:
        """Notify the server that no one waits any more; a stuck transport does not hold the caller for ever."""
        params = {"requestId": number, "reason": "the caller has given up"}
        note = JSONRPCNotification.model_construct(jsonrpc="2.0", method="notifications/cancelled", params=params)
        with anyio.move_on_after(_CANCEL_S, shield=True):
            try:
                await self._writing.send(SessionMessage(note))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return

    def end(self) -> None:
        """There will be no more answers."""
        self._is_over = True
        for future, _ in self._waiting.values():
            if not future.done():
                future.set_result(self._reason())

    async def __anext__(self) -> SessionMessage | Exception:
        """The next message that is not ours."""
        try:
            while True:
                item = await self._reading.__anext__()
                if isinstance(item, Exception) or not self._take(item.message):
                    return item
        except BaseException:
            self.end()
            raise

    def _take_result(self, number: object, result: dict[str, Any]) -> bool:
        """Whether a result is for one of our own requests."""
        waiting = self._waiting.get(number) if isinstance(number, int) else None
        if waiting is None:
            return False
        if not waiting[0].done():
            waiting[0].set_result(result)
        return True

    def _take(self, message: object) -> bool:
        """Whether a message is for one of our own requests."""
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            if (waiting := self._waiting.get(message.id)) is None:
                return isinstance(message.id, int) and message.id >= _FIRST_ID  # no one waits any more
            if not waiting[0].done():
                if isinstance(message, JSONRPCResponse):
                    waiting[0].set_result(message.result)
                else:
                    waiting[0].set_result(MCPError.from_error_data(message.error))
            return True
        return isinstance(message, JSONRPCNotification) and self._take_note(
            {"method": message.method, "params": message.params}
        )

    def _take_note(self, message: Mapping[str, Any]) -> bool:
        """Whether a notification is for one of our own requests."""
        if message.get("method") != "notifications/progress":
            return False
        params = message.get("params")
        token = params.get("progressToken") if isinstance(params, dict) else None
        waiting = self._waiting.get(token) if isinstance(token, int) else None
        if waiting is not None and waiting[1] is not None and isinstance(params, dict):
            _report(params, waiting[1])
        return True

    async def aclose(self) -> None:
        """Close what is read."""
        self.end()
        await self._reading.aclose()


def _report(params: Mapping[str, Any], progress: Progress) -> None:
    done, total, message = params.get("progress"), params.get("total"), params.get("message")
    if isinstance(done, int | float) and not isinstance(done, bool):
        known = total if isinstance(total, int | float) and not isinstance(total, bool) else None
        progress(done, known, message if isinstance(message, str) else "")
