"""The process of a worker: fork, confinement, messages, end, exit report."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, Protocol

from tavern_core.box.fork_server import EXIT
from tavern_core.box.fork_server_client import ForkedChild, ending
from tavern_core.box.policy import BoxPolicy
from tavern_core.box.write_broker import WriteBroker
from tavern_core.errors import Outcome, UpstreamError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.isolation.transport import MOST_AT_ONCE, BrokenChannel, FrameDecoder, PeerClosed, encode, longest
from tavern_core.isolation.worker_epoll_thread import EpollThread
from tavern_core.isolation.worker_fork_job import CONFINED
from tavern_core.isolation.worker_fork_server import worker_server
from tavern_core.isolation.worker_output import WorkerOutput
from tavern_core.model.config import HostConfig

MOST_CALLS: Final = 128
"""Calls of one kind that run in one worker at the same time; also limited by its open files."""
HANG_UP_S: Final = 0.7
"""Time in seconds in which a worker that has hung up must die by itself."""
TURN_S: Final = 0.005
"""Time that a short message waits for another thread that is sending."""
DEATH_S: Final = 1.0
"""Time in seconds to wait for the exit report of a worker."""
END_S: Final = 5.0
"""Time in seconds to wait for the death of a killed worker."""
_SEND_TIMEOUT: Final = struct.pack("ll", 5, 0)
"""Time that a message may wait for a worker that does not read, as a timeval."""
CALL_ENDLESS: Final = "a call in it did not end in time"
STOPPED: Final = "the plugin was stopped"
ON_PURPOSE: Final = (CALL_ENDLESS, STOPPED, "the fork server died")
"""Reasons to kill a worker that are not its fault."""


class BoxMissing(Exception):
    """The worker could not be confined."""

    def __init__(self, layer: str, reason: str) -> None:
        super().__init__(f"{layer}: {reason}")
        self.layer, self.reason = layer, reason


class WorkerLost(UpstreamError):
    """The worker died during a call."""


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """The limits of a worker."""

    answer_bytes: int
    """Maximum bytes of one message of the worker."""
    artifact_bytes: int
    calls: int
    """Maximum connections of each kind."""
    start_s: float
    """The time limit for importing the plugin."""
    hook_s: float
    """The time limit for a callback of the plugin."""

    @classmethod
    def of(cls, config: HostConfig) -> WorkerLimits:
        """The limits that tavern.yaml sets."""
        return cls(
            answer_bytes=longest(config.limits.output_bytes),
            artifact_bytes=config.artifacts.max_bytes,
            calls=min(config.limits.threads * 4, MOST_CALLS),
            start_s=config.isolation.start_timeout_ms / 1000,
            hook_s=config.limits.hook_timeout_ms / 1000,
        )


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The common settings of a plugin's workers."""

    plugin: str
    """The plugin's name, for messages."""
    limits: WorkerLimits
    watch: EpollThread
    """Watches its unsolicited messages."""
    printed: WorkerOutput
    """The target of the workers' output."""


class WorkerListener(Protocol):
    """Gets the unsolicited messages of its workers, and is notified of their deaths; in the watching thread."""

    def on_message(self, worker: Any, message: dict[str, Any]) -> None:
        """Handle a request or message of a worker."""

    def on_death(self, worker: Any) -> None:
        """Handle the death of a worker; called once for each."""


@dataclass(frozen=True, slots=True)
class Spawned:
    """A forked process, and the host's ends of its channels."""

    process: ForkedChild
    output: int
    side: socket.socket
    connection: socket.socket
    """The first one; a sync one."""


def spawn(request: Mapping[str, Any]) -> Spawned:
    """Fork the process of a worker. Raises PluginError: it could not be forked (PLUGIN_FAILED)."""
    own_side, side = socket.socketpair()
    own_output, output = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(output, True)
    host_end, connection = socket.socketpair()
    try:
        forked = worker_server.spawn(request, [output, side.fileno(), connection.fileno()])
    except BaseException:
        host_end.close()
        own_side.close()
        os.close(own_output)
        raise
    finally:
        side.close()
        connection.close()
        os.close(output)
    return Spawned(forked, own_output, own_side, host_end)


class WorkerProcess(ABC):
    """The process of a worker."""

    def __init__(self, settings: WorkerSettings, listener: WorkerListener, spawned: Spawned) -> None:
        self.plugin = settings.plugin
        self.killed_because = ""
        self.dead = threading.Event()
        self.status: int | None = None
        self._limit = settings.limits.answer_bytes
        self._listener = listener
        self._handle, self._status = spawned.process.handle, spawned.process.status
        self._output, self._side = spawned.output, spawned.side
        self._host = os.getpid()
        self._watch = settings.watch
        self._printed = settings.printed
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._decoder = FrameDecoder(self._limit)
        self._patience: threading.Timer | None = None

    @abstractmethod
    def hang_up(self) -> None:
        """End the waits of callers with an error; called when the worker is dead."""

    # Start and end --------------------------------------------------------------------------------------------------------

    def confined(self, policy: str, seconds: float) -> tuple[str, ...]:
        """Wait until it is confined; the applied layers of its box.

        Raises:
            BoxMissing: a layer of the box is missing.
            UpstreamError: it died before that (UPSTREAM_ERROR).
        """
        self._watch.add(self._output, self._on_output)
        try:
            layers = self._await_box(time.perf_counter() + seconds, policy)
        except PeerClosed:
            self._watch.add(self._status.fileno(), self._on_exit)
            text = f"the worker of {self.plugin} {self.exit_description()} before it began"
            raise UpstreamError(text, printed=self._printed.end()) from None
        except BaseException:
            self.kill("it did not start")
            self._watch.add(self._status.fileno(), self._on_exit)
            raise
        # Not before, because its last message is on the side channel.
        self._watch.add(self._status.fileno(), self._on_exit)
        self._side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
        self._watch.add(self._side.fileno(), self._on_messages)
        return layers

    def _await_box(self, deadline: float, policy: str) -> tuple[str, ...]:
        """Wait for the first byte on the side channel: whether it is confined. Raises PeerClosed: it died first."""
        received, stream = b"", FrameDecoder(self._limit)
        while True:
            self._side.settimeout(max(deadline - time.perf_counter(), 1e-3))
            try:
                chunk, passed, _, _ = socket.recv_fds(self._side, MOST_AT_ONCE, 1)
            except TimeoutError:
                raise UpstreamError(
                    f"the worker of {self.plugin} did not start in time", hint="isolation.startTimeoutMs is the limit"
                ) from None
            except OSError:
                chunk, passed = b"", []
            for descriptor in passed:
                os.set_inheritable(descriptor, False)
                WriteBroker(descriptor, BoxPolicy.from_json(policy)).begin()
            if not chunk:
                raise PeerClosed
            if not received:
                received, chunk = chunk[:1], chunk[1:]
            if messages := stream.feed(chunk):
                break
        self._side.settimeout(None)
        if received != CONFINED:
            raise BoxMissing(str(messages[0].get("layer")), str(messages[0].get("reason")))
        return tuple(str(layer) for layer in messages[0].get("layers") or ())

    def kill(self, why: str) -> None:
        """End the process now; its running calls fail. Not for a forked copy of the host, which does not own it."""
        if os.getpid() != self._host:
            return
        with self._lock:  # closing the handle also takes the lock, so that no other process is hit
            if self.dead.is_set():
                return
            self.killed_because = self.killed_because or why
            with contextlib.suppress(OSError):  # it is already dead
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def end(self, why: str) -> None:
        """`kill`, and wait until it is dead and all of its descriptors are closed."""
        if os.getpid() == self._host:
            self.kill(why)
            self.dead.wait(END_S)

    @property
    def is_over(self) -> bool:
        """True if it must not be called any more: it is dead, or about to die."""
        return bool(self.killed_because) or self.dead.is_set()

    @property
    def was_stopped(self) -> bool:
        """True if it was ended on purpose: a deadline, a cancellation, the end of the plugin."""
        return self.killed_because in ON_PURPOSE

    def exit_description(self) -> str:
        """The end of the process, in words that follow its name; waits until it is known."""
        self.dead.wait(DEATH_S)
        return self.how_it_died()

    def how_it_died(self) -> str:
        """`exit_description`, as far as known now."""
        if self.killed_because:
            return f"was stopped: {self.killed_because}"
        if self.status is None:
            return "is gone"
        return f"was ended by {ending(self.status)}" if self.status < 0 else f"exited with code {self.status}"

    def _on_exit(self) -> None:
        """Handle the exit status, in the watching thread."""
        reported = self._status.recv(EXIT.size)
        if len(reported) == EXIT.size:
            self.status = EXIT.unpack(reported)[0]
        else:  # the fork server died, and its workers with it
            self.kill("the fork server died")
        self._on_output()
        self._listener.on_death(self)  # first, so that code that sees its death also sees the consequences
        if self._patience is not None:
            self._patience.cancel()
        with self._lock:
            self.dead.set()
            os.close(self._handle)
        self.hang_up()
        self._watch.remove(self._output)
        os.close(self._output)
        for line in (self._side, self._status):
            self._watch.remove(line.fileno())
            line.close()

    # Unsolicited messages -------------------------------------------------------------------------------------------------

    def _on_output(self) -> None:
        try:
            chunk = os.read(self._output, MOST_AT_ONCE)
        except BlockingIOError:
            return
        if not chunk:
            self._watch.remove(self._output)
        elif not self._printed.take(chunk):
            self.kill("it printed too much")

    def _on_messages(self) -> None:
        try:
            chunk = self._side.recv(MOST_AT_ONCE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:  # it died before it had read everything
            chunk = b""
        try:
            messages = self._decoder.feed(chunk) if chunk else None
        except BrokenChannel as error:
            self._watch.remove(self._side.fileno())
            self.kill(f"it sent {error}")
            return
        if messages is None:
            self._watch.remove(self._side.fileno())
            self._patience = threading.Timer(
                HANG_UP_S, self._report_end
            )  # usually it is dying, and its exit status will arrive
            self._patience.daemon = True
            self._patience.start()
            return
        for message in messages:
            self._listener.on_message(self, message)

    def send(self, message: dict[str, Any], fd: int | None = None) -> None:
        """Send a message on the side channel, from a thread that may block. A worker that does not read is killed."""
        try:
            frame = encode(message)
            with self._writing:
                sent = self._side.send(frame) if fd is None else socket.send_fds(self._side, [frame], [fd])
                if sent < len(frame):
                    self._side.sendall(frame[sent:])
        except (BrokenPipeError, ConnectionResetError):
            pass  # it closed the connection or died: `_on_messages` detects that, with a better reason
        except OSError:
            self.kill("it did not listen")

    def send_now(self, message: dict[str, Any], fd: int | None = None) -> bool:
        """Send a short message, hardly waiting; False: not possible, as it does not read, or other threads are sending.

        For event loops and for callers whose time is over, which no worker may block.
        """
        frame = encode(message)
        if not self._writing.acquire(timeout=TURN_S):
            return False
        try:
            if socket.send_fds(self._side, [frame], [] if fd is None else [fd], socket.MSG_DONTWAIT) < len(frame):
                self.kill("it did not listen")
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            pass  # it closed the connection or died: `_on_messages` detects that, with a better reason
        except OSError:
            self.kill("it did not listen")
        finally:
            self._writing.release()
        return True

    def _report_end(self) -> None:
        """Handle the end of a channel: the process is dying, or is killed."""
        if not self.dead.wait(HANG_UP_S):
            self.kill("it hung up")
            self.dead.wait(DEATH_S)

    def lost(self, outcome: Outcome = "unknown") -> WorkerLost:
        """The error for a caller whose worker died.

        Args:
            outcome: what the call may have changed.
        """
        fate = self.exit_description()
        output = self._printed.end()
        error = WorkerLost(
            f"the worker of {self.plugin} {fate}",
            hint=f"tavern plugins info {self.plugin}",
            outcome=outcome,
            worker=fate,
        )
        if output:
            error.details["printed"] = output
        if self.status is not None and not self.killed_because:
            error.details["exitCode" if self.status >= 0 else "signal"] = abs(self.status)
        return error
