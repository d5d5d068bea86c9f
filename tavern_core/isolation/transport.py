"""The messages between host and worker: JSON objects with a four-byte length prefix, over stream sockets.

The host reads data that hostile code may have written: the size of a frame is checked before it is read, it is JSON and
never pickle, and any error in it ends the connection with a reason.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Any, Final

from pydantic_core import from_json, to_json

from tavern_core.model import depths
from tavern_core.schema.bounded_json_copying import is_plain

HEADER: Final = struct.Struct(">I")
MOST_AT_ONCE: Final = 65_536

_A_TICK: Final = -2.0
"""Marks a channel that waits for one clock tick."""
_TICK: Final = struct.pack("ll", 0, 1)
_NO_LIMIT: Final = struct.pack("ll", 0, 0)


class BrokenChannel(Exception):
    """The other side has closed the connection, or sent invalid data."""


class PeerClosed(BrokenChannel):
    """The other side has closed the connection."""

    def __init__(self) -> None:
        super().__init__("it is gone")


class FrameTooLarge(BrokenChannel):
    """A frame exceeds its reader's limit."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"a message of {size:,} bytes; the limit is {limit:,}")
        self.size = size


class MessageTimeout(Exception):
    """No complete message arrived in time."""


def longest(output_bytes: int) -> int:
    """Maximum bytes of one frame of a worker for an answer of at most `output_bytes` characters: each may take six."""
    return 6 * output_bytes + 1_000_000


def encode(message: dict[str, Any]) -> bytes:
    """A message as one frame.

    Raises:
        ValueError, TypeError, RecursionError: the message is not JSON.
    """
    body = to_json(message)  # a third of the standard library's time, and a quarter for reading
    return HEADER.pack(len(body)) + body


def decode(body: bytes | bytearray) -> dict[str, Any]:
    """The message of a frame; its values are not checked yet (`validated_message`).

    Raises:
        BrokenChannel: not UTF-8, not JSON, nested too deep, or not an object.
    """
    try:
        message = from_json(body, allow_inf_nan=False)
    except (ValueError, RecursionError) as error:
        raise BrokenChannel(f"an invalid message: {type(error).__name__}") from error
    if type(message) is not dict:
        raise BrokenChannel("an invalid message: no object")
    return message


def validated_message(value: Any) -> Any:
    """`value` of a message, if it is JSON within the limits: no lone surrogates, no huge numbers, not too deep.

    Raises:
        BrokenChannel: it is not.
    """
    if not is_plain([value], max_depth=depths.WRAPPED):
        raise BrokenChannel("a value that is not JSON, or is nested too deep")
    return value


class FrameChannel:
    """An end of a stream socket. Used by one thread at a time; reads frames of at most `limit` bytes."""

    __slots__ = ("_seconds", "_unread", "fd", "limit", "sock")

    def __init__(self, sock: socket.socket, limit: int) -> None:
        self.sock = sock
        self.limit = limit
        self.fd = sock.fileno()
        self._unread: bytes | bytearray = b""
        self._seconds: float | None = -1.0

    def send(self, frame: bytes, deadline: float | None = None) -> None:
        """Write a whole frame, waiting while the other side does not read.

        Args:
            deadline: on the clock of `time.perf_counter`; None: wait without limit.

        Raises:
            BrokenChannel: the other side has closed it.
            MessageTimeout: it did not read in time; the channel is unusable now.
        """
        try:
            if deadline is not None or self._seconds is not None:
                self._wait_at_most(deadline)
            self.sock.sendall(frame)
        except TimeoutError:
            raise MessageTimeout from None
        except OSError as error:
            raise PeerClosed from error

    def receive(self, deadline: float | None = None) -> dict[str, Any]:
        """Read one message. Arguments and errors as `send`; FrameTooLarge for one that is too long."""
        rest, self._unread = self._unread, b""
        try:
            if deadline is not None or self._seconds is not None:
                self._wait_at_most(deadline)
            while (message := self._complete(rest) if rest else None) is None:
                chunk = self.sock.recv(MOST_AT_ONCE)
                if not chunk:
                    raise PeerClosed
                rest = rest + chunk if len(rest) < MOST_AT_ONCE else self._long(rest + chunk, deadline)
            return message
        except TimeoutError:
            self._unread = rest
            raise MessageTimeout from None
        except OSError as error:
            raise PeerClosed from error

    def take(self) -> dict[str, Any] | None:
        """A message if a complete one has arrived; never waits. Errors as `receive`."""
        self.never_wait()
        while (message := self._complete(self._unread)) is None:
            if (chunk := self._arrived()) is None:
                return None
            if len(self._unread) >= MOST_AT_ONCE and type(self._unread) is bytes:
                self._unread = bytearray(self._unread)  # a long one: grows in place from now on
            self._unread += chunk
        self._unread = b""
        return message

    def received(self) -> bytes:
        """The received data of a streaming call, for a `FrameDecoder`; never waits. Errors as `receive`."""
        self.never_wait()
        return self._arrived() or b""

    def receive_soon(self) -> dict[str, Any] | None:
        """A message if one arrives within a tick of the kernel's clock (1 to 10 ms). Errors as `receive`.

        The time-out is the socket's own: arming a precise timer, as `select` does, may cost as much as the whole answer.
        """
        if self._seconds != _A_TICK:
            self.sock.settimeout(None)
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TICK)
            self._seconds = _A_TICK
        if (chunk := self._arrived()) is None:
            return None
        self._unread = self._unread + chunk if self._unread else chunk
        if (message := self._complete(self._unread)) is not None:
            self._unread = b""
        return message

    def _arrived(self) -> bytes | None:
        """The data that has arrived; None: nothing yet."""
        try:
            chunk = self.sock.recv(MOST_AT_ONCE)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise PeerClosed from error
        if not chunk:
            raise PeerClosed
        return chunk

    def give(self, frame: bytes) -> bytes:
        """Write as much of a frame as possible without waiting; returns the rest. Errors as `send`."""
        try:
            return frame[self.sock.send(frame, socket.MSG_DONTWAIT) :]
        except (BlockingIOError, InterruptedError):
            return frame
        except OSError as error:
            raise PeerClosed from error

    def close(self) -> None:
        self.sock.close()

    def hang_up(self) -> None:
        """Shut the connection down; waiting threads on both sides get an error. The file descriptor stays in use."""
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other side was first
            return

    def _complete(self, data: bytes | bytearray) -> dict[str, Any] | None:
        """The message in `data`, or None while it is incomplete."""
        if len(data) < HEADER.size:
            return None
        size = HEADER.unpack_from(data)[0]
        if size > self.limit:
            raise FrameTooLarge(size, self.limit)
        end = HEADER.size + size
        if len(data) < end:
            return None
        if len(data) > end:
            raise BrokenChannel("more than was requested")
        return decode(data[HEADER.size :])

    def _long(self, data: bytes | bytearray, deadline: float | None) -> bytes:
        """Read the rest of a long frame, without copying the existing part for each piece."""
        size = HEADER.unpack_from(data)[0]
        if size > self.limit:
            raise FrameTooLarge(size, self.limit)
        frame = bytearray(data)
        while len(frame) < HEADER.size + size:
            self._wait_at_most(deadline)
            chunk = self.sock.recv(MOST_AT_ONCE * 4)
            if not chunk:
                raise PeerClosed
            frame += chunk
        return bytes(frame)

    def _wait_at_most(self, deadline: float | None) -> None:
        seconds = None if deadline is None else max(deadline - time.perf_counter(), 1e-4)
        if seconds != self._seconds:
            if self._seconds == _A_TICK:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _NO_LIMIT)
            self.sock.settimeout(seconds)
            self._seconds = seconds

    def never_wait(self) -> None:
        """From now on, reading and writing never block."""
        if self._seconds != 0.0:
            if self._seconds == _A_TICK:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _NO_LIMIT)
            self.sock.setblocking(False)
            self._seconds = 0.0


class FrameDecoder:
    """Splits a stream of bytes into frames.

    Args:
        limit: maximum bytes of one frame.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = bytearray()

    @property
    def is_whole(self) -> bool:
        """True if there is no partial frame."""
        return not self._rest

    def feed(self, chunk: bytes) -> list[dict[str, Any]]:
        """The messages that `chunk` completes, in order. Raises BrokenChannel: one is too long or invalid."""
        rest, found, at = self._rest, [], 0
        rest += chunk
        while len(rest) - at >= HEADER.size:
            size = HEADER.unpack_from(rest, at)[0]
            if size > self._limit:
                raise FrameTooLarge(size, self._limit)
            end = at + HEADER.size + size
            if len(rest) < end:
                break
            found.append(decode(rest[at + HEADER.size : end]))
            at = end
        del rest[:at]
        return found
