"""The client of a worker: calls on the connections to its process.

A sync caller writes its request and blocks in a system call until the answer:
no thread of the host has to pass it on. Under an event loop, a target that was quick lately is waited for in the
same way, for at most one clock tick, because that costs less than the loop's own overhead; all others use the loop.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from tavern_core.errors import OutputTooLarge, UpstreamError
from tavern_core.isolation.error_codec import unpack_error
from tavern_core.isolation.transport import (
    BrokenChannel,
    FrameChannel,
    FrameTooLarge,
    MessageTimeout,
    PeerClosed,
    encode,
)
from tavern_core.isolation.worker_connections import ConnectionKind, Undelivered, WorkerConnections
from tavern_core.isolation.worker_process import CALL_ENDLESS, Spawned, WorkerListener, WorkerSettings
from tavern_core.kernel.calls.running_call import Frame, current
from tavern_core.kernel.execution.sync_async_drivers import TimeLimit

GRACE_S: Final = 0.2
"""Time in which a cancelled call must end before its process is killed; less than the pipeline waits."""
QUICK_S: Final = 200e-6
"""An answer within this time, in seconds, counts as quick."""
TRUSTED: Final = 5
"""Quick answers in a row after which an event loop waits for the next one itself."""


class PendingRequest:
    """A request without an immediate answer."""

    __slots__ = ("began", "channel", "error", "frame", "kind", "number", "what")

    def __init__(self, kind: ConnectionKind, number: int, frame: bytes, what: str) -> None:
        self.kind = kind
        self.number = number
        self.frame = frame
        """The part of the frame that is not written yet."""
        self.what = what
        self.channel: FrameChannel | None = None
        self.error: BrokenChannel | None = None
        self.began = time.perf_counter()


class WorkerClient(WorkerConnections):
    """A worker process with calls."""

    def __init__(self, settings: WorkerSettings, listener: WorkerListener, spawned: Spawned) -> None:
        super().__init__(settings, listener, spawned)
        self.dropped: list[str] = []
        """Keys of unused factory tools."""
        self.watches = 0
        """Settings that it watches."""
        self.frames: dict[int, Frame | None] = {}
        """Number of a running call → the frame of its caller in the pipeline."""
        self._numbers = itertools.count(1)
        self._stopped: set[int] = set()
        """Numbers of calls that were ended by others than their callers."""
        self._quick: dict[str, int] = {}
        """Target → number of quick answers in a row."""

    @staticmethod
    def deadline(seconds: float | None = None) -> float | None:
        """The end of a call's time, on the clock of `time.perf_counter`.

        Args:
            seconds: None: the deadline of the running call, if it has one.
        """
        if seconds is not None:
            return time.perf_counter() + seconds
        frame = current.get()
        return None if frame is None else frame.deadline

    # Calls ----------------------------------------------------------------------------------------------------------------

    def request(
        self, do: str, given: Mapping[str, Any], kind: ConnectionKind = "sync", deadline: float | None = None
    ) -> Any:
        """Send a request and wait for the answer.

        Args:
            deadline: on the clock of `time.perf_counter`.

        Raises:
            Undelivered: the worker had already died.
            TimeLimit: the time was over; the work was stopped.
            Exception: the error of the plugin's code, or UpstreamError if the worker died (UPSTREAM_ERROR).
        """
        number = next(self._numbers)
        frame = encode({"id": number, "do": do, **given})
        channel = self.take(kind, deadline)
        self.frames[number] = current.get()
        delivered = False
        try:
            channel.send(frame, deadline)
            delivered = True
            answer = channel.receive(deadline)
        except MessageTimeout:
            self._stop_sync(channel, kind, number)
            raise TimeLimit(stopped=True, begun=delivered) from None
        except BrokenChannel as error:
            self.report_end(error)
            lost = self.error_of_channel(channel, kind, error, delivered)
            if number in self._stopped:
                self._stopped.discard(number)
                raise asyncio.CancelledError from error
            raise lost from error
        except BaseException:  # the caller is interrupted
            self._stop_sync(channel, kind, number)
            raise
        finally:
            del self.frames[number]
        if number not in self._stopped:
            return self._answered(channel, kind, number, answer)
        self._stopped.discard(number)
        with suppress(Exception):
            self._answered(channel, kind, number, answer)
        raise asyncio.CancelledError

    def stop(self, call_id: str) -> bool:
        """End a call, by its id, for which a thread waits; False: there is none."""
        numbers = [
            number for number, frame in list(self.frames.items()) if frame is not None and frame.call_id == call_id
        ]
        self._stopped.update(numbers)
        for number in numbers:
            self.send_now({"cancel": number})
        timer = threading.Timer(GRACE_S, self._stop_for_good, [numbers])
        timer.daemon = True
        timer.start()
        return bool(numbers)

    def _stop_for_good(self, numbers: list[int]) -> None:
        if any(number in self.frames for number in numbers):
            self.kill(CALL_ENDLESS)

    def request_soon(self, do: str, given: Mapping[str, Any], kind: ConnectionKind, what: str) -> Any:
        """Send a request under an event loop: returns the answer if it is immediate, else a `PendingRequest` for `finish`.

        Args:
            what: the target; one that was quick lately is waited for here.

        Raises:
            Undelivered: the worker had already died.
        """
        pending = self.begin_request(do, given, kind, what)
        if (channel := pending.channel) is None or pending.error is not None:
            return pending
        try:
            if pending.frame or self._quick.get(what, 0) < TRUSTED or (answer := channel.receive_soon()) is None:
                return pending
        except BrokenChannel as error:
            pending.error = error
            return pending
        del self.frames[pending.number]
        return self._answered(channel, kind, pending.number, answer)

    def begin_request(self, do: str, given: Mapping[str, Any], kind: ConnectionKind, what: str = "") -> PendingRequest:
        """Send a request under an event loop without waiting. Raises as `request_soon`."""
        number = next(self._numbers)
        pending = PendingRequest(kind, number, encode({"id": number, "do": do, **given}), what)
        if (channel := self.take_now(kind)) is None:
            return pending
        pending.channel = channel
        self.frames[number] = current.get()
        try:
            pending.frame = channel.give(pending.frame)
        except BrokenChannel as error:
            pending.error = error
        return pending

    async def finish(self, pending: PendingRequest) -> Any:
        """The answer to a request without an immediate answer, within the caller's own time limit.

        Cancelling the caller ends the work. Raises as `request`, except TimeLimit.
        """
        loop, kind, number, channel = asyncio.get_running_loop(), pending.kind, pending.number, pending.channel
        if channel is None:
            channel = await self.take_later(kind)
            self.frames[number] = current.get()
        delivered = pending.error is None and not pending.frame
        try:
            if pending.error is not None:
                raise pending.error
            if pending.frame:
                channel.never_wait()
                await loop.sock_sendall(channel.sock, pending.frame)
                delivered = True
            answer = await _arrival(channel)
        except (BrokenChannel, OSError) as error:
            broken = error if isinstance(error, BrokenChannel) else PeerClosed()
            await loop.run_in_executor(None, self.report_end, broken)
            raise self.error_of_channel(channel, kind, broken, delivered) from error
        except BaseException:
            await self._stop_later(channel, kind, number)
            raise
        finally:
            del self.frames[number]
        is_quick = time.perf_counter() - pending.began < QUICK_S
        self._quick[pending.what] = self._quick.get(pending.what, 0) + 1 if is_quick else 0
        return self._answered(channel, kind, number, answer)

    async def request_later(self, do: str, given: Mapping[str, Any], kind: ConnectionKind, what: str) -> Any:
        """`request_soon` and `finish` in one."""
        answer = self.request_soon(do, given, kind, what)
        return await self.finish(answer) if isinstance(answer, PendingRequest) else answer

    def _answered(self, channel: FrameChannel, kind: ConnectionKind, number: int, answer: dict[str, Any]) -> Any:
        if answer.get("id") != number:
            self.drop(channel, kind)
            self.kill("it sent an answer without a request")
            raise UpstreamError(f"the worker of {self.plugin} {self.exit_description()}", outcome="unknown")
        self.give_back(channel, kind)
        return self.value_of(answer)

    def value_of(self, answer: dict[str, Any]) -> Any:
        """The value of an answer. Raises the contained error."""
        if "ok" in answer:
            return answer["ok"]
        try:
            error = unpack_error(answer.get("error"))
        except Exception as problem:
            self.kill("it sent an invalid error")
            raise UpstreamError(f"the worker of {self.plugin} sent an invalid error", outcome="unknown") from problem
        if isinstance(error, PermissionError):
            error.add_note(
                f"{self.plugin} runs in a box that holds it to what it was granted; `tavern plugins review {self.plugin}` shows what that is"
            )
        raise error

    def report_end(self, error: BrokenChannel) -> None:
        """Wait, after a broken channel, until the worker has died, so that its end is known."""
        if isinstance(error, FrameTooLarge):
            self.kill("its answer was too large")
        elif not isinstance(error, PeerClosed):
            self.kill(f"it sent {error}")
        self._report_end()

    def error_of_channel(
        self, channel: FrameChannel, kind: ConnectionKind, error: BrokenChannel, delivered: bool
    ) -> Exception:
        """The error for a caller whose channel broke."""
        self.drop(channel, kind)
        if isinstance(error, FrameTooLarge):
            return OutputTooLarge(
                f"{self.plugin} answered {error}", hint="ask for less, or raise limits.outputBytes", outcome="unknown",
                limit=self._limit, size=error.size,
            )  # fmt: skip
        return self.lost() if delivered else Undelivered()

    def _stop_sync(self, channel: FrameChannel, kind: ConnectionKind, number: int) -> None:
        """End an abandoned call: gently, and then with its process."""
        self.send_now({"cancel": number})
        try:
            channel.receive(time.perf_counter() + GRACE_S)
        except (MessageTimeout, BrokenChannel):
            self.drop(channel, kind)
            self.kill(CALL_ENDLESS)
        else:
            self.give_back(channel, kind)

    async def _stop_later(self, channel: FrameChannel, kind: ConnectionKind, number: int) -> None:
        self.send_now({"cancel": number})
        try:
            await _arrival(channel, GRACE_S)
        except (MessageTimeout, BrokenChannel, asyncio.CancelledError):
            self.drop(channel, kind)
            self.kill(CALL_ENDLESS)
        else:
            self.give_back(channel, kind)


async def _arrival(channel: FrameChannel, seconds: float | None = None) -> dict[str, Any]:
    """The next message, waited for by the event loop.

    Args:
        seconds: the maximum time. Not `asyncio.timeout`: that cancels the task, which may be under cancellation already.

    Raises:
        MessageTimeout: it did not arrive in time.
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
            arrived.set_exception(MessageTimeout())

    timer = None if seconds is None else loop.call_later(seconds, give_up)
    loop.add_reader(channel.fd, look)
    try:
        return await arrived
    finally:
        loop.remove_reader(channel.fd)
        if timer is not None:
            timer.cancel()
