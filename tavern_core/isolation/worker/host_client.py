"""Requests of a worker to its host: settings, secrets, services; from any of its threads and tasks, several at the same time."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, Final

from tavern_core.errors import ConnectionLost, ToolFailed
from tavern_core.isolation.error_codec import unpack_error
from tavern_core.isolation.transport import encode

running: Final[ContextVar[int]] = ContextVar("tavern_worker_call", default=0)
"""The number of the call in which code of the plugin runs; 0 outside of calls."""


class HostClient:
    """The worker's end of the side channel.

    Args:
        longest: maximum bytes of one request; the host refuses longer ones.
    """

    def __init__(self, side: socket.socket, longest: int) -> None:
        self._side = side
        self.longest = longest
        self._writing = threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}

    def request(self, what: str, **given: Any) -> Any:
        """Send a request and wait for the answer.

        Raises:
            TavernError: the error of the host.
            ConnectionLost: the host has ended (CONNECTION_LOST).
        """
        return self._sent(what, given).result()

    async def request_later(self, what: str, **given: Any) -> Any:
        """`ask` for code on an event loop."""
        return await asyncio.wrap_future(self._sent(what, given))

    def send(self, what: str, **given: Any) -> None:
        """Send a message without an answer; messages that cannot be sent are dropped."""
        try:
            self._write({"send": what, **given})
        except (OSError, ValueError, TypeError, RecursionError, ToolFailed):
            return

    def answered(self, message: dict[str, Any]) -> None:
        """Handle an answer of the host."""
        waiting = self._waiting.pop(message.get("id", 0), None)
        if waiting is None:
            return
        if "error" in message:
            waiting.set_exception(unpack_error(message["error"]))
        else:
            waiting.set_result(message.get("ok"))

    def _sent(self, what: str, arguments: dict[str, Any]) -> Future[Any]:
        number, future = next(self._numbers), Future[Any]()
        future.set_running_or_notify_cancel()
        self._waiting[number] = future
        try:
            self._write({"id": number, "ask": what, "call": running.get(), **arguments})
        except OSError as error:
            self._waiting.pop(number, None)
            raise ConnectionLost("the host is gone") from error
        except BaseException:
            self._waiting.pop(number, None)
            raise
        return future

    def _write(self, message: dict[str, Any]) -> None:
        frame = encode(message)
        if len(frame) > self.longest:
            raise ToolFailed(
                f"the arguments take {len(frame):,} bytes; at most {self.longest:,} cross to the host at once",
                hint="pass less at a time, or raise limits.outputBytes", fixFor="operator", limit=self.longest, size=len(frame),
            )  # fmt: skip
        with self._writing:
            self._side.sendall(frame)
