"""A connection to an upstream with one set of credentials: opened on first use, closed when idle, reopened.

    idle --first call--> connecting --> open --idle for a while, or closed--> idle
                             |            |
                             +--> failed <+ lost: the next call connects again, after a pause that grows

Calls that still use a lost connection end with it, unless the call that found the loss was not even sent: then they may
still be answered.

The connection belongs to one task from opening to closing; calls run in their own tasks on the same loop, the host's.
So a library that is bound to its task (cancel scopes of anyio) works, and cancelling a call ends only this call.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Literal, TypeVar

from tavern_core.contract.adapters import Connection
from tavern_core.errors import CallError, ConnectionLost
from tavern_core.model.exponential_delay import exponential_delay
from tavern_core.model.safe_printing import printed

T = TypeVar("T")
ConnectionState = Literal["idle", "connecting", "open", "failed"]
CONNECT_S: Final = 60.0
CLOSE_S: Final = 5.0
CHECK_AFTER_S: Final = 60.0
"""A connection that was unused for this long is checked before a call uses it."""
CHECK_S: Final = 5.0
FIRST_PAUSE_S: Final = 0.5
MAX_PAUSE_S: Final = 60.0


class _OpenConnection:
    """An open connection, from its opening to its closing."""

    def __init__(self, opened: asyncio.Future[Connection]) -> None:
        self.opened = opened
        self.owner: asyncio.Task[None]
        self.tasks: set[asyncio.Task[Any]] = set()
        """Calls that use it."""
        self.end = asyncio.Event()
        """Set once it is to be closed."""


class UpstreamSession:
    """A connection; see the module. All methods run on the host's loop.

    Args:
        name: the name of the upstream, for messages.
        connect: opens a connection.
        idle_s: how long an unused connection stays open.
        is_listed: whether it is a configured upstream, which commands list.
    """

    def __init__(
        self, name: str, connect: Callable[[], Awaitable[Connection]], idle_s: float, *, is_listed: bool = True
    ) -> None:
        self.state: ConnectionState = "idle"
        self.error: CallError | None = None
        """The error of the last attempt to open it, or of its loss."""
        self.latency_ms: float | None = None
        """The time of the last request."""
        self._name = name
        self._is_listed = is_listed
        self._connect = connect
        self._idle_s = idle_s
        self._held: _OpenConnection | None = None
        """The connection that is open, or being opened."""
        self._all_held: set[_OpenConnection] = set()
        """Also the connections that are lost and still used, or being closed."""
        self._failures = 0
        self._not_before = 0.0
        self._used = 0.0

    async def use(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Do some work with the open connection. If it was lost before anything began, another one is opened at once.

        Raises:
            ConnectionLost: it could not be opened (outcome ``none``), or was lost meanwhile (outcome ``unknown``)
                (CONNECTION_LOST).
            CallError: the error of the upstream.
        """
        was_open = self._held is not None and self._held.opened.done()
        held = await self._ready()
        task = asyncio.current_task()
        assert task is not None
        held.tasks.add(task)
        began = time.monotonic()
        try:
            answer = await work(held.opened.result())
            self.note_answer(began)
            self._failures = 0
            return answer
        except ConnectionLost as error:
            self._lose(held, error)
            if error.outcome != "none" or not was_open:
                raise
            self._not_before = 0.0
        except asyncio.CancelledError:
            if task not in held.tasks and task.cancelling() == 1:  # the connection was closed meanwhile
                task.uncancel()
                raise self._lost_error() from None
            if not task.cancelling():  # nobody requested that: the library abandoned the call
                lost = self._lost_error()
                self._lose(held, lost)
                raise lost from None
            raise
        finally:
            held.tasks.discard(task)
            if held is not self._held and not held.tasks:
                held.end.set()
            self._used = time.monotonic()
        return await self.use(work)

    def note_answer(self, began: float) -> None:
        """Record an answer to a request that began at `began`, on the clock of `time.monotonic`."""
        self.latency_ms = (time.monotonic() - began) * 1000

    async def close(self) -> None:
        """Close the connection; waiting requests fail with ConnectionLost."""
        for held in self._all_held:
            held.end.set()
            if not held.opened.done():
                held.owner.cancel()  # nothing is lost by it, and it could take long
        if not (owners := [held.owner for held in self._all_held]):
            return
        _, late = await asyncio.wait(owners, timeout=CLOSE_S + 1)
        for owner in late:
            owner.cancel()
        if late:
            await asyncio.wait(late, timeout=1)

    async def close_after_calls(self, within_s: float) -> None:
        """Close the connection after the calls that use it, at the latest after `within_s`."""
        self._held = None  # so the last call ends it
        if used := [held.owner for held in self._all_held if held.tasks]:
            await asyncio.wait(used, timeout=within_s)
        await self.close()

    async def _ready(self) -> _OpenConnection:
        held = self._held
        if held is None:
            if (wait := self._not_before - time.monotonic()) > 0:
                raise ConnectionLost(
                    f"{self._name} is not connected to: {self.error.message if self.error else 'it failed'}",
                    hint=f"it is tried again in {math.ceil(wait)} s"
                    + (f"; `tavern upstreams check {self._name}` tries at once" if self._is_listed else ""),
                    outcome="none",
                    retryable=True,
                    retry_after_ms=int(wait * 1000) + 1,
                )
            held = self._held = _OpenConnection(asyncio.get_running_loop().create_future())
            self._all_held.add(held)
            held.owner = asyncio.create_task(self._own(held), name=f"tavern-upstream-{self._name}")
            held.owner.add_done_callback(lambda _: self._ended(held))
        if not held.opened.done():
            await asyncio.shield(held.opened)
        if self._used and not held.tasks and time.monotonic() - self._used > CHECK_AFTER_S:
            await self._replace_if_dead(held)
            return await self._ready()
        return held

    async def _replace_if_dead(self, held: _OpenConnection) -> None:
        """Check an old connection; if it does not answer, open another one."""
        self._used = time.monotonic()
        try:
            async with asyncio.timeout(CHECK_S):
                await held.opened.result().check()
        except (CallError, TimeoutError) as error:
            if held is not self._held:  # another call has found that out, and the next connection may be open
                return
            self._lose(held, error if isinstance(error, CallError) else self._lost_error())
            held.end.set()
            self._not_before = 0.0
            await asyncio.wait([held.owner], timeout=CLOSE_S + 1)

    @property
    def was_used(self) -> bool:
        """Whether it was opened, or tried to be."""
        return self.state != "idle" or self._used > 0

    @property
    def unused_since(self) -> float | None:
        """When its last call ended; None: one is running, or about to."""
        is_used = any(held.tasks or not held.opened.done() for held in self._all_held)
        return None if is_used else self._used

    async def _own(self, held: _OpenConnection) -> None:
        """The task that owns the connection."""
        self.state = "connecting"
        connection: Connection | None = None
        try:
            async with asyncio.timeout(CONNECT_S):
                connection = await self._connect()
            self.state, self.error = "open", None
            held.opened.set_result(connection)
            await self._until_unused(held)
        except BaseException as error:
            is_given_up = held.end.is_set() and not held.opened.done()
            self._failed(held.opened, self._closed_error() if is_given_up else error)
            if isinstance(error, asyncio.CancelledError) and asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
        finally:
            self._forget(held)
            for task in list(held.tasks):
                held.tasks.discard(task)
                task.cancel()
            if connection is not None:
                await self._closed(connection)

    def _forget(self, held: _OpenConnection) -> None:
        if self._held is held:  # else it was lost, and another one is being opened
            self._held = None
            self.state = "idle" if self.state == "open" else self.state

    def _ended(self, held: _OpenConnection) -> None:
        """Clean up after the task of a connection; one that was cancelled before it began has set nothing."""
        self._all_held.discard(held)
        self._forget(held)
        if not held.opened.done():
            self._failed(held.opened, self._closed_error())

    async def _until_unused(self, held: _OpenConnection) -> None:
        """Wait until the connection is closed, or no call has used it for a while."""
        self._used = time.monotonic()  # the last use of an earlier connection does not count
        while not held.end.is_set():
            remaining = self._idle_s if held.tasks else self._used + self._idle_s - time.monotonic()
            if remaining <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(remaining):
                    await held.end.wait()

    def _failed(self, opened: asyncio.Future[Connection], error: BaseException) -> None:
        self.state = "failed"
        if isinstance(error, CallError):
            self.error = error
        elif isinstance(error, TimeoutError):
            self.error = ConnectionLost(
                f"{self._name} did not answer within {CONNECT_S:g} s of connecting", outcome="none", retryable=True
            )
        else:
            self.error = ConnectionLost(
                f"{self._name} cannot be connected to: {printed(error)}", outcome="none", retryable=True
            )
        self._pause()
        if not opened.done():
            opened.set_exception(self.error)
            opened.exception()  # marks it as retrieved: the caller may have stopped waiting

    def _lose(self, held: _OpenConnection, error: CallError) -> None:
        """Stop using a connection for further calls; one that has replaced it meanwhile stays."""
        if error.outcome != "none":
            held.end.set()
        if held is not self._held:
            return
        self.error, self.state = error, "failed"
        self._pause()
        self._held = None

    def _pause(self) -> None:
        """Delay the next attempt: short after the first failure, longer after each further one, randomised."""
        self._failures += 1
        longest = exponential_delay(self._failures, FIRST_PAUSE_S, MAX_PAUSE_S)
        self._not_before = time.monotonic() + random.uniform(longest / 2, longest)

    def _lost_error(self) -> ConnectionLost:
        return ConnectionLost(
            f"the connection to {self._name} was lost before it answered",
            hint=(f"look at `tavern upstreams show {self._name}`; " if self._is_listed else "")
            + "whether the call took effect is not known",
            outcome="unknown",
            retryable=True,
        )

    def _closed_error(self) -> ConnectionLost:
        text = f"{self._name} is not connected to: the connection was closed while it was being opened"
        return ConnectionLost(text, outcome="none", retryable=True)

    def try_at_once(self) -> None:
        """Skip the delay: the operator wants an attempt now."""
        self._not_before, self._failures = 0.0, 0

    async def _closed(self, connection: Connection) -> None:
        with suppress(Exception, SystemExit, KeyboardInterrupt):  # no Ctrl-C reaches the host's loop
            async with asyncio.timeout(CLOSE_S):
                await connection.close()
