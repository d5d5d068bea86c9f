"""Accepts connections: a limited number at a time, and for all calls together."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Final

_RESTS_S: Final = 0.1
"""Delay before the next attempt if there are no descriptors."""


class ConnectionListener:
    """Accepts connections while there are free slots; the others wait in the system's own queue.

    Not with `sock_accept`, which would lose a connection, unclosed, if its task is cancelled while accepting.

    Args:
        most: connections at the same time.
        begin: serves one; it is over when its task is.
    """

    def __init__(
        self, listening: socket.socket, most: int, begin: Callable[[socket.socket], asyncio.Task[None]]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._begin = begin
        self._room = most
        listening.setblocking(False)
        self._open()

    def close(self) -> None:
        """Stop accepting."""
        self._loop.remove_reader(self._listening)
        self._listening.close()

    def _open(self) -> None:
        if self._listening.fileno() >= 0 and self._room > 0:
            self._loop.add_reader(self._listening, self._come)

    def _come(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except (BlockingIOError, ConnectionError):  # it was closed again
            return
        except OSError:
            self._loop.remove_reader(self._listening)
            self._loop.call_later(_RESTS_S, self._open)
            return
        self._room -= 1
        if not self._room:
            self._loop.remove_reader(self._listening)

        def leave(_: asyncio.Task[None]) -> None:
            connection.close()  # of a task that was cancelled before it started
            self._room += 1
            self._open()

        self._begin(connection).add_done_callback(leave)


class ConnectionSlots:
    """A number of slots that all threads share."""

    def __init__(self, most: int) -> None:
        self._lock = threading.Lock()
        self._left = most

    def take(self) -> bool:
        with self._lock:
            self._left -= (is_free := self._left > 0)
        return is_free

    def leave(self) -> None:
        with self._lock:
            self._left += 1
