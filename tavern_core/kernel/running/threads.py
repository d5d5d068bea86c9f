"""Worker threads for sync code that may block: tools and hooks.

Daemon threads, unlike those of `concurrent.futures`: a tool that never returns must not keep the process from ending.
A worker that is stuck stays counted (its slot stays charged), so the limit is a real one.
"""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_Item = tuple["Future[Any]", Callable[[], Any]]


class Workers:
    """At most `limit` threads, started when needed, each running one thing at a time.

    Args:
        limit: most threads at once; further work waits.
        name: prefix of the thread names.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._started = 0
        self._closed = False

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run `function(*args)` in a worker, with the caller's context variables; the Future carries the answer.

        Raises:
            RuntimeError: after `close`.
        """
        future: Future[Any] = Future()
        context = contextvars.copy_context()
        with self._lock:
            if self._closed:
                raise RuntimeError("the host is closed")
            self._queue.put((future, lambda: context.run(function, *args)))
            if not self._idle.acquire(blocking=False) and self._started < self._limit:
                self._started += 1
                threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()
        return future

    def close(self) -> None:
        """Let idle workers end; busy ones end after what they are doing."""
        with self._lock:
            self._closed = True
            for _ in range(self._started):
                self._queue.put(None)

    def _work(self) -> None:
        while (item := self._next()) is not None:
            future, run = item
            if future.set_running_or_notify_cancel():
                try:
                    answer = run()
                except BaseException as error:  # noqa: BLE001 - handed to whoever waits; the worker lives on
                    future.set_exception(error)
                else:
                    future.set_result(answer)
                    del answer
            del item, future, run  # what one call held must not live until the next

    def _next(self) -> _Item | None:
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            self._idle.release()
            return self._queue.get()
