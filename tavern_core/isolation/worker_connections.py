"""The connections to a worker: each socket carries one call at a time, so answers need no sorting and do not delay each other."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Literal

from tavern_core.errors import UpstreamError
from tavern_core.isolation.transport import FrameChannel
from tavern_core.isolation.worker_process import Spawned, WorkerListener, WorkerProcess, WorkerSettings
from tavern_core.kernel.execution.portal import COPIED_HINT, fork_problem
from tavern_core.kernel.execution.sync_async_drivers import CancelledBeforeStart, TimeLimit

ConnectionKind = Literal["sync", "loop"]
"""Whether the worker serves a connection in its own thread or on its event loop."""
MOST_IDLE: Final = 4
"""Idle connections of one kind that stay open."""


class Undelivered(Exception):
    """The worker had ended before it got the request, so nothing ran."""


class WorkerConnections(WorkerProcess):
    """A process with connections, which are passed to it on demand."""

    def __init__(self, settings: WorkerSettings, listener: WorkerListener, spawned: Spawned) -> None:
        super().__init__(settings, listener, spawned)
        self._most = settings.limits.calls
        self._idle: dict[ConnectionKind, list[FrameChannel]] = {
            "sync": [FrameChannel(spawned.connection, self._limit)],
            "loop": [],
        }
        self._open: dict[ConnectionKind, int] = {"sync": 1, "loop": 0}
        self._free = threading.Condition(self._lock)
        self._busy: set[FrameChannel] = set()

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

    def take_now(self, kind: ConnectionKind) -> FrameChannel | None:
        """A connection, if one is available without waiting."""
        return self._taken(kind, self.send_now)

    def _taken(self, kind: ConnectionKind, send: Callable[[dict[str, Any], int], bool | None]) -> FrameChannel | None:
        if os.getpid() != self._host:
            text = fork_problem(self._host, f"the worker of {self.plugin}")
            raise UpstreamError(text, hint=COPIED_HINT, outcome="none")
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
        host_end, worker_end = socket.socketpair()
        channel = FrameChannel(host_end, self._limit)
        reported = send({"connection": kind}, worker_end.fileno())
        worker_end.close()
        if reported is False:
            host_end.close()
            with self._lock:
                self._open[kind] -= 1
            return None
        with self._lock:
            self._busy.add(channel)
            is_dead = self.is_over
        if is_dead:
            self.drop(channel, kind)
            raise Undelivered
        return channel

    def take(self, kind: ConnectionKind, deadline: float | None) -> FrameChannel:
        """A connection; waits if all are in use.

        Raises:
            Undelivered: the worker is dead.
            TimeLimit: none was free in time.
        """
        while (channel := self._taken(kind, self.send)) is None:
            with self._free:
                if not self._idle[kind] and not self.is_over and self._open[kind] >= self._most:
                    seconds = None if deadline is None else deadline - time.perf_counter()
                    if (seconds is not None and seconds <= 0) or not self._free.wait(seconds):
                        raise TimeLimit(stopped=True, begun=False)
        return channel

    async def take_later(self, kind: ConnectionKind) -> FrameChannel:
        """`take` under an event loop, while its caller waits."""
        taking = asyncio.get_running_loop().run_in_executor(None, self.take, kind, None)
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:  # the thread still waits for one, which is not needed any more
            taking.add_done_callback(lambda done: None if done.exception() else self.give_back(done.result(), kind))
            raise CancelledBeforeStart from None

    def give_back(self, channel: FrameChannel, kind: ConnectionKind) -> None:
        """Return the connection of an answered call, so that the next call can use it."""
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

    def drop(self, channel: FrameChannel, kind: ConnectionKind) -> None:
        """Discard an unusable connection: data of its call may still arrive, or it is broken."""
        with self._lock:
            self._busy.discard(channel)
            self._open[kind] -= 1
            self._free.notify()
        channel.close()
