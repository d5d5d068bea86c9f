"""The requests of one connection that wait for their answers, and why some of them will get none.

It exists before the streams do: these pass results to it, and note failures of requests and of the connection.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final

import anyio
from mcp.shared.exceptions import MCPError

from tavern_core.builtin.adapters.mcp.failures import failure_of
from tavern_core.errors import CallError, ConnectionLost

_FIRST_ID: Final = 1_000_000
"""The library counts its own from 1."""

ProgressCallback = Callable[[float, float | None, str], None]
"""``progress(done, total, message)``."""
WORKED_FOR: Final[ContextVar[int | None]] = ContextVar("WORKED_FOR", default=None)
"""The request for which the library acts, also when it requests the rest of an answer that broke off."""
PendingAnswer = asyncio.Future[dict[str, Any] | MCPError | CallError]
"""Errors are results: one that comes while the request is still being written is not retrieved by anyone."""


class PendingRequests:
    """Our own requests; the library keeps those that it makes on the same streams.

    Args:
        name: of the upstream.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._ids = itertools.count(_FIRST_ID)
        self._waiting: dict[object, tuple[PendingAnswer, ProgressCallback | None]] = {}
        self._failures: dict[int, CallError] = {}
        """Request → why it has no answer, as the transport knows; kept no longer than the request."""
        self._transfers: dict[int, anyio.CancelScope] = {}
        """Request → the scope in which the transport waits on its behalf."""
        self._is_negotiated = False
        self.is_over = False
        """There will be no more answers."""
        self.lost: CallError | None = None
        """Why the connection has ended; the first reason counts."""

    def begin(self, progress: ProgressCallback | None) -> tuple[int, PendingAnswer]:
        """Number a request that is about to be made."""
        number = next(self._ids)
        answer: PendingAnswer = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer, progress
        return number, answer

    def end(self, number: int) -> None:
        """Forget a request that has its answer, or whose caller has given up."""
        del self._waiting[number]
        self._failures.pop(number, None)
        self._transfers.pop(number, None)

    def give_up(self, number: int) -> None:
        """Let the transport stop waiting for an answer whose caller has given up; the answer may never end."""
        if (transfer := self._transfers.get(number)) is not None:
            transfer.cancel()

    def transfer(self, number: object) -> anyio.CancelScope:
        """The scope for a transport that waits for the server on behalf of a request.

        It is cancelled as soon as no one awaits the answer.
        """
        scope = anyio.CancelScope()
        if isinstance(number, int) and number in self._waiting:
            self._transfers[number] = scope
        elif self.is_own(number):
            scope.cancel()
        return scope

    def is_awaited(self, number: object) -> bool:
        """Whether one of our own requests with this number waits for its answer."""
        return isinstance(number, int) and number in self._waiting

    @staticmethod
    def is_own(number: object) -> bool:
        """Whether this is the number of one of our own requests, also of one for which no one waits any more."""
        return isinstance(number, int) and number >= _FIRST_ID

    def take_result(self, number: object, result: dict[str, Any] | MCPError) -> bool:
        """Take the answer to a request; False: none of ours waits for it."""
        waiting = self._waiting.get(number) if isinstance(number, int) else None
        if waiting is None:
            return False
        if not waiting[0].done():
            waiting[0].set_result(result)
        return True

    def take_note(self, message: Mapping[str, Any]) -> bool:
        """Take a notification; False: it is about none of our requests."""
        if message.get("method") != "notifications/progress":
            return False
        params = message.get("params")
        token = params.get("progressToken") if isinstance(params, dict) else None
        waiting = self._waiting.get(token) if isinstance(token, int) else None
        if waiting is not None and waiting[1] is not None and isinstance(params, dict):
            _report(params, waiting[1])
        return True

    def note_failure(self, number: int, error: CallError) -> None:
        """Note why one request has no answer, where the transport knows more than it can say."""
        if not self._is_negotiated or self.is_awaited(number):
            self._failures[number] = error

    def note_loss(self, error: CallError) -> None:
        """Note how the transport lost the connection."""
        if not isinstance(error, ConnectionLost):
            error = ConnectionLost(error.message, hint=error.hint, outcome="unknown", retryable=True)
        self.note_end(error)

    def note_end(self, error: CallError) -> CallError:
        """Note why the connection has ended; returns the first reason."""
        self.lost = self.lost or error
        return self.lost

    def negotiated(self) -> None:
        """Note that the version is agreed on: from now on, only failures of our own requests are noted."""
        self._failures.clear()
        self._is_negotiated = True

    def last_failure(self) -> CallError | None:
        """The failure that was noted last."""
        return next(reversed(self._failures.values()), None)

    def failure(self, number: int, error: MCPError, what: str, tool: str) -> CallError:
        """The error of a request for a JSON-RPC error; see `failure_of`."""
        failure = self._failures.get(number) or failure_of(error, what, tool)
        if tool and not failure.hint and failure.outcome == "unknown":
            failure.hint = "look there whether it took effect before you call again"
        return failure

    def finish(self) -> None:
        """Note that there will be no more answers, and let all waiting requests fail."""
        self.is_over = True
        for answer, _ in self._waiting.values():
            if not answer.done():
                answer.set_result(self.why_lost())

    def why_lost(self) -> CallError:
        """A fresh error for each request that waits."""
        reason = self.lost or ConnectionLost(f"the connection to {self._name} was closed", retryable=True)
        return type(reason)(reason.message, hint=reason.hint, outcome="unknown", retryable=reason.retryable)


def _report(params: Mapping[str, Any], progress: ProgressCallback) -> None:
    done, total, message = params.get("progress"), params.get("total"), params.get("message")
    if isinstance(done, int | float) and not isinstance(done, bool):
        known_total = total if isinstance(total, int | float) and not isinstance(total, bool) else None
        progress(done, known_total, message if isinstance(message, str) else "")
