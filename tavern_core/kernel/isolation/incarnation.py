"""A worker that can be asked: the lanes to its process, and the calls on them.

A lane is a socket that carries one call at a time. A sync caller writes its request and waits in the kernel for the answer:
no thread of the host has to hand it over. Under an event loop the answer of what has been quick lately is waited for in the
same way, for a tick of the clock at most, because that costs less than the loop's own machinery; all else is left to the loop.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from tavern_core.errors import OutputTooLarge, UpstreamError
from tavern_core.kernel.calls.pipeline import Frame, current
from tavern_core.kernel.isolation.failures import unpack_error
from tavern_core.kernel.isolation.frames import (
    BrokenChannel,
    Channel,
    FrameTooLarge,
    Gone,
    TooLate,
    encode,
)
from tavern_core.kernel.isolation.printed import Printed
from tavern_core.kernel.isolation.watching import Watch
from tavern_core.kernel.isolation.worker_process import CALL_ENDLESS, WorkerProcess
from tavern_core.kernel.running.modes import TimeLimit

Kind = Literal["sync", "loop"]
GRACE_S: Final = 0.2
"""How long a cancelled call may take to end before its process is killed; less than the pipeline waits."""
MOST_IDLE: Final = 4
"""Lanes of one kind that are kept open while nobody needs them."""
QUICK_S: Final = 200e-6
"""An answer within this time, in seconds, is a quick one."""
TRUSTED: Final = 5
"""Quick answers in a row after which an event loop waits for the next one itself."""


class Undelivered(Exception):
    """The worker was gone before it got the request: nothing of it has run."""


class Later:
    """A request whose answer did not come at once."""

    __slots__ = ("began", "channel", "error", "frame", "kind", "number", "what")

    def __init__(self, kind: Kind, number: int, frame: bytes, what: str) -> None:
        self.kind = kind
        self.number = number
        self.frame = frame
        """What of it is not written yet."""
        self.what = what
        self.channel: Channel | None = None
        self.error: BrokenChannel | None = None
        self.began = time.perf_counter()


class Incarnation(WorkerProcess):
    """A process that can be asked.

    Args:
        limit: most bytes of one answer.
        lanes: most lanes of each kind.
    """

    def __init__(
        self,
        plugin: str,
        watch: Watch,
        *,
        limit: int,
        lanes: int,
        on_message: Callable[[Incarnation, dict[str, Any]], None],
        on_death: Callable[[Incarnation], None],
        printed: Printed,
    ) -> None:
        super().__init__(
            plugin, watch, on_message=lambda message: on_message(self, message), on_death=lambda: on_death(self), printed=printed
        )
        self.dropped: list[str] = []
        """Keys of made tools that nobody uses any more."""
        self.knows_context: Any = None
        """The context of the plugin that it was told of."""
        self.watches = 0
        """Settings it wants to be told of."""
        self.frames: dict[int, Frame | None] = {}
        """Number of a call that is under way → in whose name the pipeline runs it."""
        self._limit = limit
        self._most = lanes
        self._numbers = itertools.count(1)
        self._idle: dict[Kind, list[Channel]] = {"sync": [], "loop": []}
        self._open: dict[Kind, int] = {"sync": 0, "loop": 0}
        self._free = threading.Condition(self._lock)
        self._busy: set[Channel] = set()
        self._quick: dict[str, int] = {}
        """What is called → how often in a row it answered quickly."""

    def first_lane(self, sock: socket.socket) -> None:
        self._idle["sync"].append(Channel(sock, self._limit))
        self._open["sync"] = 1

    def hang_up(self) -> None:
        with self._lock:
            idle = [channel for channels in self._idle.values() for channel in channels]
            self._idle = {"sync": [], "loop": []}
            busy = list(self._busy)
            self._free.notify_all()
        for channel in busy:
            channel.hang_up()  # a child of the plugin may still hold the other end
        for channel in idle:
            channel.close()

    @staticmethod
    def deadline(seconds: float | None = None) -> float | None:
        """When a call has to end, on the clock of `time.perf_counter`.

        Args:
            seconds: None: when the call that is running has to, if it has a deadline.
        """
        if seconds is not None:
            return time.perf_counter() + seconds
        frame = current.get()
        return None if frame is None else frame[1]

    # Calls ----------------------------------------------------------------------------------------------------------------

    def ask(self, do: str, given: Mapping[str, Any], kind: Kind = "sync", deadline: float | None = None) -> Any:
        """Send a request and wait for the answer.

        Args:
            deadline: on the clock of `time.perf_counter`.

        Raises:
            Undelivered: the worker was dead before.
            TimeLimit: the time was over; the work was stopped.
            Exception: what the code of the plugin raised, or UpstreamError when the worker died (UPSTREAM_ERROR).
        """
        number = next(self._numbers)
        frame = encode({"id": number, "do": do, **given})
        channel = self._take(kind, deadline)
        self.frames[number] = current.get()
        delivered = False
        try:
            channel.send(frame, deadline)
            delivered = True
            answer = channel.receive(deadline)
        except TooLate:
            self._stop_sync(channel, kind, number)
            raise TimeLimit(stopped=True) from None
        except BrokenChannel as error:
            self._mourn_gone(error)
            raise self._broken(channel, kind, error, delivered) from error
        except BaseException:  # the caller is interrupted
            self._stop_sync(channel, kind, number)
            raise
        finally:
            del self.frames[number]
        return self._answer(channel, kind, number, answer)

    def ask_soon(self, do: str, given: Mapping[str, Any], kind: Kind, what: str) -> Any:
        """Send a request under an event loop: the answer where it comes at once, else a `Later` to be awaited by `finish`.

        Args:
            what: what is called; what has been quick lately is waited for here and now.

        Raises:
            Undelivered: the worker was dead before.
        """
        number = next(self._numbers)
        later = Later(kind, number, encode({"id": number, "do": do, **given}), what)
        if (channel := self._take_now(kind)) is None:
            return later
        later.channel = channel
        self.frames[number] = current.get()
        try:
            later.frame = channel.give(later.frame)
            if later.frame or self._quick.get(what, 0) < TRUSTED or (answer := channel.soon()) is None:
                return later
        except BrokenChannel as error:
            later.error = error
            return later
        del self.frames[number]
        return self._answer(channel, kind, number, answer)

    async def finish(self, later: Later) -> Any:
        """The answer to a request that was not answered at once, within the caller's own time limit.

        The cancellation of the caller ends the work. Raises as `ask`, except TimeLimit.
        """
        loop, kind, number, channel = asyncio.get_running_loop(), later.kind, later.number, later.channel
        if channel is None:
            channel = await loop.run_in_executor(None, self._take, kind, None)
            self.frames[number] = current.get()
        delivered = later.error is None and not later.frame
        try:
            if later.error is not None:
                raise later.error
            if later.frame:
                await loop.sock_sendall(channel.sock, later.frame)
                delivered = True
            answer = await _arrival(channel)
        except (BrokenChannel, OSError) as error:
            broken = error if isinstance(error, BrokenChannel) else Gone()
            await loop.run_in_executor(None, self._mourn_gone, broken)
            raise self._broken(channel, kind, broken, delivered) from error
        except BaseException:
            await self._stop_later(channel, kind, number)
            raise
        finally:
            del self.frames[number]
        is_quick = time.perf_counter() - later.began < QUICK_S
        self._quick[later.what] = self._quick.get(later.what, 0) + 1 if is_quick else 0
        return self._answer(channel, kind, number, answer)

    async def ask_later(self, do: str, given: Mapping[str, Any], kind: Kind, what: str) -> Any:
        """`ask_soon` and `finish` in one."""
        answer = self.ask_soon(do, given, kind, what)
        return await self.finish(answer) if isinstance(answer, Later) else answer

    def _answer(self, channel: Channel, kind: Kind, number: int, answer: dict[str, Any]) -> Any:
        if answer.get("id") != number:
            self._drop(channel, kind)
            self.kill("it answered what it was not asked")
            raise UpstreamError(f"the worker of {self.plugin} {self.fate()}", outcome="unknown")
        self._give_back(channel, kind)
        if "ok" in answer:
            return answer["ok"]
        try:
            error = unpack_error(answer.get("error"))
        except Exception as problem:
            self.kill("it sent a damaged error")
            raise UpstreamError(f"the worker of {self.plugin} sent a damaged error", outcome="unknown") from problem
        raise error

    def _mourn_gone(self, error: BrokenChannel) -> None:
        """Wait until a worker is dead whose channel broke; whoever does so need not wait again to say how it ended."""
        if isinstance(error, FrameTooLarge):
            self.kill("its answer was too large")
        elif not isinstance(error, Gone):
            self.kill(f"it sent {error}")
        self._mourn()

    def _broken(self, channel: Channel, kind: Kind, error: BrokenChannel, delivered: bool) -> Exception:
        """What a caller is told whose channel broke."""
        self._drop(channel, kind)
        if isinstance(error, FrameTooLarge):
            return OutputTooLarge(
                f"{self.plugin} answered {error}", hint="ask for less, or raise limits.outputBytes", outcome="unknown",
                limit=self._limit, size=error.size,
            )  # fmt: skip
        return self.lost() if delivered else Undelivered()

    def _stop_sync(self, channel: Channel, kind: Kind, number: int) -> None:
        """End a call that nobody waits for any more: gently, and then with its process."""
        self.tell({"cancel": number})
        try:
            channel.receive(time.perf_counter() + GRACE_S)
        except (TooLate, BrokenChannel):
            self._drop(channel, kind)
            self.kill(CALL_ENDLESS)
        else:
            self._give_back(channel, kind)

    async def _stop_later(self, channel: Channel, kind: Kind, number: int) -> None:
        self.tell({"cancel": number})
        try:
            await _arrival(channel, GRACE_S)
        except (TooLate, BrokenChannel, asyncio.CancelledError):
            self._drop(channel, kind)
            self.kill(CALL_ENDLESS)
        else:
            self._give_back(channel, kind)

    # Lanes ----------------------------------------------------------------------------------------------------------------

    def _take_now(self, kind: Kind) -> Channel | None:
        """A lane, if one may be had without waiting."""
        with self._lock:
            if self.is_over:
                raise Undelivered
            if self._idle[kind]:
                channel = self._idle[kind].pop()
                self._busy.add(channel)
                return channel
            if self._open[kind] >= self._most:
                return None
            self._open[kind] += 1
        own, its = socket.socketpair()
        channel = Channel(own, self._limit)
        self.tell({"lane": kind}, its.fileno())
        its.close()
        with self._lock:
            self._busy.add(channel)
            gone = self.is_over
        if gone:
            self._drop(channel, kind)
            raise Undelivered
        return channel

    def _take(self, kind: Kind, deadline: float | None) -> Channel:
        while (channel := self._take_now(kind)) is None:
            with self._free:
                if not self._idle[kind] and not self.is_over and self._open[kind] >= self._most:
                    seconds = None if deadline is None else deadline - time.perf_counter()
                    if (seconds is not None and seconds <= 0) or not self._free.wait(seconds):
                        raise TimeLimit(stopped=True)
        return channel

    def _give_back(self, channel: Channel, kind: Kind) -> None:
        with self._lock:
            self._busy.discard(channel)
            keep = not self.dead.is_set() and len(self._idle[kind]) < MOST_IDLE
            if keep:
                self._idle[kind].append(channel)
            else:
                self._open[kind] -= 1
            self._free.notify()
        if not keep:
            channel.close()

    def _drop(self, channel: Channel, kind: Kind) -> None:
        with self._lock:
            self._busy.discard(channel)
            self._open[kind] -= 1
            self._free.notify()
        channel.close()


async def _arrival(channel: Channel, seconds: float | None = None) -> dict[str, Any]:
    """The next message, waited for by the event loop.

    Args:
        seconds: for how long at most. Not `asyncio.timeout`: that cancels the task, which may be under cancellation already.

    Raises:
        TooLate: it was not there in time.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[dict[str, Any]] = loop.create_future()

    def look() -> None:
        if arrived.done():
            return
        try:
            if (message := channel.take()) is not None:
                arrived.set_result(message)
        except BrokenChannel as error:
            arrived.set_exception(error)

    def give_up() -> None:
        if not arrived.done():
            arrived.set_exception(TooLate())

    timer = None if seconds is None else loop.call_later(seconds, give_up)
    loop.add_reader(channel.fd, look)
    try:
        return await arrived
    finally:
        loop.remove_reader(channel.fd)
        if timer is not None:
            timer.cancel()
