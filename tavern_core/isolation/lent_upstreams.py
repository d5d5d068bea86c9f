"""The upstreams that adapters of an isolated plugin use: one `contract.adapters.Upstream` per connection, by number.

The worker has no sockets and starts no programs. It sends operations, and the host performs them with the rights of the
upstream. Bytes cross as base64; the answer to an HTTP request crosses as a whole.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Any, Final

from tavern_core.contract.adapters import Process, Upstream, UpstreamCall
from tavern_core.errors import CallError, ConnectionLost, ToolFailed

MOST_OPEN: Final = 64
"""Clients, programs and locks of one connection."""
_MOST_GIVEN_UP: Final = 1_000
_ENDING_S: Final = 2.0
"""Time in which the operations of a connection must end when it is closed."""
_OWN_HEADERS: Final = frozenset({"host", "connection", "accept-encoding", "content-length", "transfer-encoding"})
"""Headers that the host's client sets itself."""


class LentUpstreams:
    """The lent upstreams of one plugin. Coroutines run on the host's loop, where connections open and close."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._numbers = itertools.count(1)
        self._lent: dict[int, _LentConnection] = {}
        self._running: dict[tuple[int, int], asyncio.Task[Any]] = {}
        self._calls: dict[tuple[int, str], UpstreamCall] = {}
        self._cancelled: dict[tuple[int, str], UpstreamCall] = {}

    @contextmanager
    def lending(self, number: int, call: UpstreamCall) -> Iterator[None]:
        """Let a connection ask questions about a running call.

        A cancelled call stays available until the connection is closed, because its adapter may still be ending it.
        """
        key = number, call.call.id
        self._calls[key] = call
        try:
            yield
        except asyncio.CancelledError:
            if len(self._cancelled) >= _MOST_GIVEN_UP:
                del self._cancelled[next(iter(self._cancelled))]
            self._cancelled[key] = call
            raise
        finally:
            self._calls.pop(key, None)

    def lend(self, upstream: Upstream) -> int:
        """Let a new connection use `upstream`; return its number."""
        self._loop = asyncio.get_running_loop()
        number = next(self._numbers)
        self._lent[number] = _LentConnection(upstream)
        return number

    async def take_back(self, number: int) -> None:
        """Close everything that a connection opened, because the connection is closed."""
        if (lent := self._lent.pop(number, None)) is None:
            return
        for calls in (self._calls, self._cancelled):
            for key in [key for key in calls if key[0] == number]:
                del calls[key]
        running = [task for (of, _), task in self._running.items() if of == number]
        for task in running:
            task.cancel()
        if running:  # they use what is closed next
            await asyncio.wait(running, timeout=_ENDING_S)
        await lent.close()

    def begin(self, number: int, token: int, operation: str, given: Sequence[Any]) -> concurrent.futures.Future[Any]:
        """Begin an operation of a connection, from any thread; see `answer`."""
        if self._loop is None:
            raise _closed()
        work = self.answer(number, token, operation, given)
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the host is closed
            work.close()
            raise _closed() from None

    async def answer(self, number: int, token: int, operation: str, given: Sequence[Any]) -> Any:
        """Perform an operation of a connection.

        Args:
            token: identifies the request for `give_up`.

        Raises:
            ConnectionLost: the connection is closed (CONNECTION_LOST).
            CallError: the operation failed.
        """
        if (lent := self._lent.get(number)) is None:
            raise _closed()
        if token in lent.given_up:
            raise ToolFailed("it was given up")
        task = asyncio.current_task()
        assert task is not None
        self._running[number, token] = task
        try:
            if operation in ("keep_point", "will_be_resumed"):
                return await self._about_call(number, operation, given)
            return await lent.answer(operation, given)
        finally:
            self._running.pop((number, token), None)

    async def _about_call(self, number: int, operation: str, arguments: Sequence[Any]) -> bool | None:
        key = number, str(arguments[0])
        if (call := self._calls.get(key) or self._cancelled.get(key)) is None:
            raise ToolFailed("the call has ended")
        if operation == "will_be_resumed":
            return call.will_be_resumed
        await call.keep_resume_point(str(arguments[1]), only_followed=arguments[2] is True)
        return None

    def give_up(self, number: int, token: int) -> None:
        """Cancel a request whose caller no longer waits, from any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the host is closed
                self._loop.call_soon_threadsafe(self._give_up, number, token)

    def _give_up(self, number: int, token: int) -> None:
        if (task := self._running.get((number, token))) is not None:
            task.cancel()
        elif (lent := self._lent.get(number)) is not None:  # the request may not have begun yet
            if len(lent.given_up) >= _MOST_GIVEN_UP:
                lent.given_up.clear()
            lent.given_up.add(token)


class _LentConnection:
    """The upstream of one connection."""

    def __init__(self, upstream: Upstream) -> None:
        self.given_up: set[int] = set()
        self._upstream = upstream
        self._numbers = itertools.count(1)
        self._clients: dict[int, Any] = {}
        self._locks: dict[int, AbstractAsyncContextManager[None]] = {}
        self._programs: dict[int, tuple[Process, AsyncIterator[bytes] | None]] = {}
        self._reading: dict[int, asyncio.Task[bytes]] = {}

    async def _lock(self, number: int, name: str) -> None:
        _room(self._locks)
        lock = self._upstream.lock(name)
        await lock.__aenter__()
        self._locks[number] = lock

    async def _unlock(self, number: int) -> None:
        if (held := self._locks.pop(number, None)) is not None:
            await held.__aexit__(None, None, None)

    async def answer(self, operation: str, given: Sequence[Any]) -> Any:
        match operation:
            case "changed":
                return self._upstream.changed()
            case "load":
                return await asyncio.to_thread(self._upstream.load, str(given[0]))
            case "save":
                text = None if given[1] is None else str(given[1])
                return await asyncio.to_thread(self._upstream.save, str(given[0]), text)
            case "lock":
                return await self._lock(int(given[0]), str(given[1]))
            case "unlock":
                return await self._unlock(int(given[0]))
            case "client":
                return await self._client(str(given[0]), float(given[1]), int(given[2]))
            case "fetch":
                return await _fetched(_of(self._clients, given[0]), given[1:])
            case "close":
                if (client := self._clients.pop(int(given[0]), None)) is not None:
                    await client.aclose()
                return None
            case "start":
                _room(self._programs)
                number = next(self._numbers)
                self._programs[number] = await self._upstream.start(), None
                return number
            case "write":
                return await _of(self._programs, given[0])[0].write(b64decode(given[1]))
            case "line":
                return b64encode(await self._line(int(given[0]), int(given[1]))).decode()
            case "errors":
                return _of(self._programs, given[0])[0].errors
            case "stop":
                return await self._stop(int(given[0]), float(given[1]))
        raise ToolFailed(f"an upstream does not offer {operation!r:.80}")

    async def close(self) -> None:
        """Close its clients and end its programs."""
        clients, self._clients = self._clients, {}
        with suppress(Exception):
            for client in clients.values():
                await client.aclose()
        while self._locks:
            await self._locks.popitem()[1].__aexit__(None, None, None)
        for number in list(self._programs):
            with suppress(CallError):
                await self._stop(number, 0.5)

    async def _client(self, url: str, timeout_s: float, max_bytes: int) -> int:
        _room(self._clients)
        client = await asyncio.to_thread(self._upstream.http, url, timeout_s=timeout_s, max_bytes=max_bytes)
        number = next(self._numbers)
        self._clients[number] = client
        return number

    async def _line(self, number: int, most: int) -> bytes:
        """The next line of a program. If the reader is cancelled while it waits, the next reader gets the line."""
        process, lines = _of(self._programs, number)
        if lines is None:
            lines = process.lines(most)
            self._programs[number] = process, lines
        if (reading := self._reading.get(number)) is None:
            reading = self._reading[number] = asyncio.ensure_future(_next(lines))
        line = await asyncio.shield(reading)
        self._reading.pop(number, None)
        return line

    async def _stop(self, number: int, grace_s: float) -> None:
        if (known := self._programs.pop(number, None)) is not None:
            await known[0].close(min(max(grace_s, 0.0), 10.0))
        if (reading := self._reading.pop(number, None)) is not None:
            reading.cancel()
            await asyncio.wait([reading])


async def _fetched(client: Any, arguments: Sequence[Any]) -> list[Any]:
    """Send one request: ``["ok", status, headers, body]``, or ``["failed", name of the error, text]``."""
    import httpx2

    method, url, headers, body, times = arguments
    sent = [(str(name), str(value)) for name, value in headers if str(name).lower() not in _OWN_HEADERS]
    timeout = httpx2.Timeout(**{key: _seconds(times, key) for key in ("connect", "read", "write", "pool")})
    try:
        request = client.build_request(str(method), str(url), headers=sent, content=b64decode(body), timeout=timeout)
        response = await client.send(request)
    except httpx2.HTTPError as error:
        return ["failed", type(error).__name__, str(error)[:500]]
    pairs = [[name, value] for name, value in response.headers.multi_items()]
    return ["ok", response.status_code, pairs, b64encode(response.content).decode()]


def _closed() -> ConnectionLost:
    return ConnectionLost("this connection has been closed", outcome="none", retryable=True)


def _seconds(times: Mapping[str, Any], key: str) -> float | None:
    value = times.get(key)
    return None if value is None else float(value)


async def _next(lines: AsyncIterator[bytes]) -> bytes:
    return await anext(lines)


def _of(known: Mapping[int, Any], number: Any) -> Any:
    if (found := known.get(int(number))) is None:
        raise ConnectionLost("it has been closed", outcome="none", retryable=True)
    return found


def _room(known: Mapping[int, Any]) -> None:
    if len(known) >= MOST_OPEN:
        raise ToolFailed(
            f"one connection of an adapter opens at most {MOST_OPEN} of these", hint="close those of before"
        )
