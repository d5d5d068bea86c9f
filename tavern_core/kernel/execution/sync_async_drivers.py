"""Two ways to drive the one pipeline.

The pipeline is a coroutine. Under an event loop (`LoopMode`) it awaits async tools and moves blocking ones into worker
threads. From `invoke_sync` (`InlineMode`) the same coroutine is stepped by hand and never suspends: blocking tools run
right on the caller's thread. So there is one path of a call, not two.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from math import inf
from threading import get_ident
from typing import Any, Protocol, TypeVar

from tavern_core.kernel.execution.portal import Portal
from tavern_core.kernel.execution.threads import Owner, ThreadPool

T = TypeVar("T")
GRACE_S = 0.25
"""Time in which cancelled async work must end before the host continues without it."""


class TimeLimit(Exception):
    """The time was over. `stopped` is False if the work could not be ended, `begun` if it had not started."""

    def __init__(self, stopped: bool, begun: bool = True, goes_on: Future[Any] | None = None) -> None:
        super().__init__("time limit")
        self.stopped = stopped
        self.begun = begun
        self.goes_on = goes_on
        """Abandoned work; done when it has ended."""


class StoreTimeout(TimeLimit):
    """The time was over before the store answered; the tool has not begun. `is_asked`: the store may still do it."""

    def __init__(self, is_asked: bool) -> None:
        super().__init__(stopped=True, begun=False)
        self.is_asked = is_asked


class CancelledWhileRunning(asyncio.CancelledError):
    """The caller was cancelled, and the awaited work continues in a thread: `goes_on` is done when that has ended."""

    def __init__(self, goes_on: Future[Any]) -> None:
        super().__init__()
        self.goes_on = goes_on


class CancelledBeforeStart(asyncio.CancelledError):
    """The caller was cancelled before the work started."""

    begun = False


def has_begun(error: BaseException) -> bool:
    """Whether the work that `error` ended had begun; an executor reports that it had not by ``error.begun = False``."""
    return getattr(error, "begun", True) is not False


class ExecutionMode(Protocol):
    """Runs blocking calls and awaitables. `seconds` is the time left, None: no limit; `owner` owns the work."""

    async def blocking(
        self, function: Callable[..., Any], *args: Any, seconds: float | None, owner: Owner = None
    ) -> Any:
        """Run a tool's sync work."""
        ...

    async def guarded(
        self, function: Callable[..., Any], *args: Any, seconds: float | None, owner: Owner = None
    ) -> Any:
        """Run sync work that must not hold up the caller longer than `seconds`: a hook."""
        ...

    def awaited(self, awaitable: Awaitable[Any], seconds: float | None) -> Awaitable[Any]:
        """Wait for async work."""
        ...

    async def until(self, future: Future[Any], seconds: float | None) -> bool:
        """Wait until `future` is done, without cancelling it; False if it is not done within `seconds`."""
        ...

    async def pause(self, seconds: float) -> None:
        """Wait this many seconds."""
        ...


class LoopMode:
    """Runs code under a running event loop."""

    def __init__(self, tools: ThreadPool, hooks: ThreadPool) -> None:
        self._tools = tools
        self._hooks = hooks

    async def blocking(
        self, function: Callable[..., Any], *args: Any, seconds: float | None, owner: Owner = None
    ) -> Any:
        return await in_thread(self._tools, function, args, seconds, owner)

    async def guarded(
        self, function: Callable[..., Any], *args: Any, seconds: float | None, owner: Owner = None
    ) -> Any:
        return await in_thread(self._hooks, function, args, seconds, owner)

    def awaited(self, awaitable: Awaitable[Any], seconds: float | None) -> Awaitable[Any]:
        return awaitable if seconds is None else wait_bounded(awaitable, seconds)

    async def until(self, future: Future[Any], seconds: float | None) -> bool:
        return await wait_until_settled(future, seconds)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class InlineMode:
    """Runs code without an event loop, on the thread of the caller."""

    def __init__(self, hooks: ThreadPool, portal: Portal) -> None:
        self._hooks = hooks
        self._portal = portal

    async def blocking(
        self, function: Callable[..., Any], *args: Any, seconds: float | None, owner: Owner = None
    ) -> Any:
        return function(*args)

    async def guarded(
        self, function: Callable[..., Any], *args: Any, seconds: float | None, owner: Owner = None
    ) -> Any:
        future = self._hooks.submit(function, *args, owner=owner)
        try:
            return future.result(seconds)
        except TimeoutError:
            if future.done():
                raise  # the hook's own TimeoutError
            raise TimeLimit(stopped=self._hooks.abandon(future)) from None

    async def awaited(self, awaitable: Awaitable[Any], seconds: float | None) -> Any:
        return self._portal.run_anywhere(_waited(awaitable, seconds))

    async def until(self, future: Future[Any], seconds: float | None) -> bool:
        return bool(wait([future], seconds).done)

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - stepped by hand, on the caller's own thread


if sys.version_info >= (3, 12):

    def running_task() -> asyncio.Task[Any] | None:
        """The task that runs on this thread; None: there is none."""
        loop = asyncio._get_running_loop()
        return None if loop is None else asyncio.current_task(loop)

else:  # there, asyncio asks the operating system for the process id at each look-up: a twentieth of a plain call
    _current_tasks: dict[Any, asyncio.Task[Any]] = asyncio.tasks._current_tasks  # type: ignore[attr-defined]
    _latest: Any = types.SimpleNamespace(_thread_id=None)
    """The event loop that was found last. It says on which thread it runs; None while it does not run."""

    def running_task() -> asyncio.Task[Any] | None:
        """The task that runs on this thread; None: there is none."""
        loop = _latest
        return _current_tasks.get(loop) if loop._thread_id == get_ident() else _looked_up()

    def _looked_up() -> asyncio.Task[Any] | None:
        global _latest
        loop: Any = asyncio._get_running_loop()
        if hasattr(loop, "_thread_id"):
            _latest = loop
        return None if loop is None else asyncio.current_task(loop)

    def _in_child() -> None:  # where no loop runs, whatever the loop of the parent says
        global _latest
        _latest = types.SimpleNamespace(_thread_id=None)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_in_child)


def cancellations() -> int:
    """Number of cancellations of the task that runs now; 0 without a task.

    Compare it with the count at the entry: a task that is cancelled may still call tools in a
    `finally`, and before Python 3.13 a TaskGroup that fails leaves its own cancellation counted. A cancellation that was requested and
    not delivered yet does not count.
    """
    task = running_task()  # None: stepped by hand
    return 0 if task is None or not (count := task.cancelling()) else count - getattr(task, "_must_cancel", False)


def step_by_hand(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends to its end, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("the pipeline suspended without an event loop")


@types.coroutine
def wait_bounded(awaitable: Awaitable[T], seconds: float) -> Generator[Any, Any, T]:
    """Await `awaitable` for at most `seconds`; then cancel it, and continue without it if it does not end.

    The coroutine is driven in the caller's own task: one that never suspends costs no timer and no task, which
    `asyncio.wait_for` and `asyncio.timeout` do (4 and 2 µs). One that swallows its cancellation moves to its
    own task and is left behind, which they cannot do.

    Raises:
        TimeLimit: the time was over; `stopped` is False when the work goes on.
    """
    work = awaitable if isinstance(awaitable, Coroutine) else _as_coroutine(awaitable)
    try:
        waiting = work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    alarms, before, others_at = 0, cancellations(), inf
    ours = False  # whether the cancellation that the work sees is ours

    def ring() -> None:
        nonlocal alarms
        alarms += 1
        task.cancel()

    timer = loop.call_later(max(seconds, 0), ring)
    try:
        while True:
            try:
                yield waiting
            except asyncio.CancelledError as cancelled:
                if not alarms:
                    others_at = loop.time()
                elif others_at < loop.time() - GRACE_S:
                    before, others_at = (
                        task.cancelling() - 1,
                        inf,
                    )  # the work consumed it, as a failing TaskGroup does
                ours = alarms > 0 and task.uncancel() <= before  # else the caller itself is being cancelled
                if ours and alarms == 1:
                    timer = loop.call_later(GRACE_S, ring)
                waiting = work.throw(cancelled)
                if ours and alarms > 1:
                    # From Python 3.12 on, a task takes no generator.
                    rest = loop.create_task(_as_coroutine(_left_behind(work, waiting)))
                    rest.add_done_callback(_look)
                    raise TimeLimit(stopped=False, goes_on=_end_of(rest)) from None
            except BaseException as error:  # noqa: BLE001 - thrown in by the event loop; the work's own business
                waiting = work.throw(error)
            else:
                waiting = work.send(None)
    except StopIteration as done:
        if ours:
            raise TimeLimit(stopped=True) from None
        return done.value  # type: ignore[no-any-return]
    except asyncio.CancelledError as cancelled:
        if ours:
            goes_on = getattr(cancelled, "goes_on", None)  # in a thread, which cannot be stopped
            raise TimeLimit(stopped=goes_on is None, begun=has_begun(cancelled), goes_on=goes_on) from None
        raise
    except TimeLimit:
        raise
    except Exception as error:
        if ours:  # its answer to the cancellation
            raise TimeLimit(stopped=True, begun=has_begun(error)) from error
        raise
    finally:
        timer.cancel()


@types.coroutine
def _left_behind(work: Coroutine[Any, Any, Any], waiting: Any) -> Generator[Any, Any, Any]:
    """Drive a coroutine that is already running to its end."""
    while True:
        try:
            yield waiting
        except BaseException as error:  # noqa: BLE001 - passed on to its owner
            step = partial(work.throw, error)
        else:
            step = partial(work.send, None)
        try:
            waiting = step()
        except StopIteration as done:
            return done.value


def _end_of(task: asyncio.Task[Any]) -> Future[Any]:
    """A future that is done when `task` has ended, however it ended; may be awaited on any thread."""
    ended: Future[Any] = Future()
    task.add_done_callback(lambda _: ended.set_result(None))
    return ended


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def wait_until_settled(future: Future[Any], seconds: float | None) -> bool:
    """Wait until work of another thread is done, without changing it; False if it is not done within `seconds`.

    `asyncio.wrap_future` would copy its state from one future to the other, and costs twice as much.
    """
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    def wake_from_there(_: object) -> None:
        with suppress(RuntimeError):  # the loop has been closed meanwhile
            loop.call_soon_threadsafe(wake)

    future.add_done_callback(wake_from_there)
    timer = None if seconds is None else loop.call_later(max(seconds, 0), wake)
    try:
        await waiter
    finally:
        if timer is not None:
            timer.cancel()
    return future.done()


def _look(task: asyncio.Future[Any]) -> None:
    """Retrieve the outcome of abandoned work, so that asyncio does not report it as never retrieved."""
    if not task.cancelled():
        task.exception()


async def _waited(awaitable: Awaitable[Any], seconds: float | None) -> Any:
    return await awaitable if seconds is None else await wait_bounded(awaitable, seconds)


async def in_thread(
    workers: ThreadPool, function: Callable[..., Any], args: tuple[Any, ...], seconds: float | None, owner: Owner
) -> Any:
    """Run sync code in a worker thread and wait for it.

    Raises:
        TimeLimit: the time was over; `stopped` is True only when it had not started.
        CancelledBeforeStart: the caller was cancelled before there was a thread for it.
    """
    work = workers.submit(caught, function, args, owner=owner)
    try:
        if not await wait_until_settled(work, seconds):
            waited = workers.abandon(work)
            raise TimeLimit(stopped=waited, begun=not waited, goes_on=None if waited else work)
    except asyncio.CancelledError:
        if workers.abandon(work):
            raise CancelledBeforeStart from None
        raise CancelledWhileRunning(work) from None
    answer, error = work.result()
    if error is not None:
        raise error
    return answer


def caught(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, BaseException | None]:
    """The answer or the error as a value: a Future refuses some errors (StopIteration) and would never be done."""
    try:
        return function(*args), None
    except StopIteration as error:
        return None, RuntimeError(f"StopIteration: {error.value!r}")
    except BaseException as error:  # noqa: BLE001 - raised again in the waiter
        return None, error
