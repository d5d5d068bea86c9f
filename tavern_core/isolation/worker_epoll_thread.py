"""The thread that watches all workers of a host: their requests, their output, and their end."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from collections.abc import Callable

log = logging.getLogger("tavern.isolation")


class EpollThread:
    """Calls callbacks for readable file descriptors. Starts its thread with the first one, ends it with `close`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._epoll: select.epoll | None = None
        self._wake = -1
        self._thread: threading.Thread | None = None

    def add(self, fd: int, callback: Callable[[], None]) -> None:
        """Register `callback`, which runs in the watching thread whenever `fd` is readable or has ended."""
        with self._lock:
            if self._epoll is None:
                self._epoll = select.epoll()
                self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                self._epoll.register(self._wake, select.EPOLLIN)
                self._thread = threading.Thread(
                    target=self._run, args=(self._epoll,), name="tavern-workers", daemon=True
                )
                self._thread.start()
            self._callbacks[fd] = callback
            self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Unregister; call it before `fd` is closed."""
        with self._lock:
            if self._callbacks.pop(fd, None) is not None and self._epoll is not None:
                with contextlib.suppress(OSError):
                    self._epoll.unregister(fd)

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            thread, epoll, self._thread, self._epoll = self._thread, self._epoll, None, None
            self._callbacks.clear()
            if thread is None or epoll is None:
                return
            os.eventfd_write(self._wake, 1)
        if thread is not threading.current_thread():
            thread.join(5)
        os.close(self._wake)

    def _run(self, epoll: select.epoll) -> None:
        with epoll:
            while True:
                for fd, _ in epoll.poll():
                    with self._lock:
                        if self._epoll is not epoll:
                            return
                        callback = self._callbacks.get(fd)
                    if callback is None:
                        continue
                    try:
                        callback()
                    except Exception:
                        log.exception("looking after a worker failed")
                        self.remove(fd)
