"""An event loop in a background thread, so that sync callers can run async plugins.

Started on first use; a host that is only used with `await` never has one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from tavern_core.errors import ConnectionLost, UsageError

T = TypeVar("T")
COPIED_HINT = "open a separate host in the forked process"


def fork_problem(owner: int, what: str = "this host") -> str:
    """The problem of a copy of what process `owner` has opened."""
    return f"{what} belongs to process {owner}, and this is a forked copy of it"


class Portal:
    """Runs coroutines on its own loop, from any thread but its own.

    Args:
        name: of its thread.
    """

    def __init__(self, name: str = "tavern-portal") -> None:
        self._name = name
        self._copied_from = 0
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._begun: set[concurrent.futures.Future[Any]] = set()
        """The calls without an answer so far."""
        self._beside: Portal | None = None

    def run_anywhere(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """`run`, also from the portal's own thread, which then waits for a second one: for a hook of a plugin within its time limit.

        Never run work here that waits for the portal's own loop: it would wait for ever.
        """
        if threading.current_thread() is not self._thread:
            return self.run(coroutine)
        self._beside = self._beside or Portal(f"{self._name}-beside")
        return self._beside.run_anywhere(coroutine)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine` on the portal's loop and wait for its answer.

        A KeyboardInterrupt while waiting cancels it and waits until it has ended.

        Raises:
            UsageError: called from the portal's own thread, or after `close` (USAGE).
            ConnectionLost: the portal was closed before the coroutine ended (CONNECTION_LOST).
        """
        future = self.begin(coroutine)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            if self._closed:
                raise closed_error() from None
            raise
        except (KeyboardInterrupt, SystemExit):
            future.cancel()
            concurrent.futures.wait([future], timeout=5)
            raise

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run `coroutine` on the portal's loop; returns a future for its answer.

        Raises:
            UsageError: called from the portal's own thread, or after `close` (USAGE).
        """
        try:
            loop = self._ready()
            future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except (UsageError, RuntimeError):  # it is closed, or no thread can be started
            coroutine.close()
            raise
        self._begun.add(future)
        future.add_done_callback(self._begun.discard)
        if loop.is_closed():  # meanwhile
            _refuse(future)
        return future

    def loop(self) -> asyncio.AbstractEventLoop:
        """The portal's loop, from any thread, its own too.

        Raises:
            UsageError: after `close` (USAGE).
        """
        known = self._loop
        return known if known is not None and not self._copied_from else self._ready()

    def close(self) -> None:
        """Cancel what still runs and end the thread."""
        if self._beside is not None:
            self._beside.close()
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        if threading.current_thread() is not thread:
            thread.join(timeout=5)

    def check(self) -> None:
        """Check that the host is usable. Raises UsageError: it is closed, or an `os.fork` copy (USAGE)."""
        if self._closed:
            raise UsageError("this host is closed", hint="open another with Tavern.open(...)")
        self.check_owner()

    def check_owner(self) -> None:
        """Check the owner of the host. Raises UsageError: it is a copy by `os.fork` of an open one (USAGE)."""
        if self._copied_from:
            raise UsageError(fork_problem(self._copied_from), hint=COPIED_HINT)

    def become_copy(self, owner: int) -> None:
        """In a forked child: only its memory was copied.

        Args:
            owner: the process that it belongs to.
        """
        self._lock = threading.Lock()
        self._copied_from = owner

    def _ready(self) -> asyncio.AbstractEventLoop:
        if threading.current_thread() is self._thread:
            raise UsageError(
                "a sync call from inside the host's own event loop would wait for itself",
                hint="use `await` and the async method",
            )
        self.check()
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(loop, self._begun), name=self._name, daemon=True)
                self._loop = loop
                self._thread.start()
            return self._loop


def _ran_to_its_end(loop: asyncio.AbstractEventLoop) -> bool:
    """Run the loop until it is stopped; False when a task threw a KeyboardInterrupt or SystemExit out of it.

    asyncio passes these to the waiter of the task *and* ends the loop. Ctrl-C cannot reach this thread: they are
    raised by a plugin, and all other calls go on.
    """
    try:
        loop.run_forever()
    except (KeyboardInterrupt, SystemExit):
        return False
    return True


def _serve(loop: asyncio.AbstractEventLoop, begun: set[concurrent.futures.Future[Any]]) -> None:
    asyncio.set_event_loop(loop)
    try:
        while not _ran_to_its_end(loop):
            continue
        remaining = asyncio.all_tasks(loop)
        for task in remaining:
            task.cancel()
        if remaining:
            loop.run_until_complete(asyncio.wait(remaining, timeout=2))
        for task in asyncio.all_tasks(loop):  # those that swallow their cancellation
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with suppress(BaseException):
                task.get_coro().close()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
        for future in list(begun):
            _refuse(future)


def _refuse(future: concurrent.futures.Future[Any]) -> None:
    with suppress(concurrent.futures.InvalidStateError):  # it is answered, or was cancelled meanwhile
        future.set_exception(closed_error())


def closed_error() -> ConnectionLost:
    """The error of a call that has no answer when the host is closed."""
    return ConnectionLost("the host was closed before there was an answer", outcome="unknown")
