"""Coroutines begin at once, and get a task only when they first wait for something.

asyncio makes a task for every coroutine that is to run beside others: 5 µs and more, for work that may never wait. Here
the first stretch of a coroutine is run right away. While it runs, `asyncio.current_task()` is a `Standin`; when the
coroutine waits, a real task takes over, and the stand-in goes on being what the coroutine sees as its task, so that
`asyncio.timeout`, `TaskGroup` and anyio's cancel scopes, which remember their task, keep working.

`_enter_task` and `_leave_task` are the documented extension points of asyncio for those who write tasks of their own.
"""

from __future__ import annotations

import asyncio
import types
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any


class Standin:
    """What a node's coroutine sees as its task: knows what tasks know, and hands on to the real one once there is one."""

    __slots__ = ("__weakref__", "_cancelled", "_loop", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.task: asyncio.Task[Any] | None = None
        self._loop = loop
        self._cancelled = 0

    def cancel(self, msg: Any = None) -> bool:
        if self.task is not None:
            return self.task.cancel(msg)
        self._cancelled += 1
        return True

    def uncancel(self) -> int:
        if self.task is not None:
            return self.task.uncancel()
        self._cancelled = max(0, self._cancelled - 1)
        return self._cancelled

    def cancelling(self) -> int:
        return self._cancelled if self.task is None else self.task.cancelling()

    def cancelled(self) -> bool:
        return self.task is not None and self.task.cancelled()

    def done(self) -> bool:
        return self.task is not None and self.task.done()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def get_name(self) -> str:
        return "node" if self.task is None else self.task.get_name()

    def become(self, task: asyncio.Task[Any]) -> None:
        """From now on `task` is meant; a cancellation that came before reaches it."""
        self.task = task
        for _ in range(self._cancelled):
            task.cancel()

    def __getattr__(self, name: str) -> Any:
        if self.task is None:
            raise AttributeError(f"the task of a node that has not waited yet has no {name!r}")
        return getattr(self.task, name)


class Starter:
    """Starts coroutines on one loop. Use it from within one task: ``with starter: starter.start(...)``."""

    __slots__ = ("_loop", "_outer", "_spare")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._outer: Any = None
        self._spare = Standin(loop)

    def __enter__(self) -> Starter:
        self._outer = asyncio.current_task(self._loop)
        if self._outer is not None:
            _leave_task(self._loop, self._outer)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._outer is not None:
            _enter_task(self._loop, self._outer)

    def start(
        self, coroutine: Coroutine[Any, Any, Any], context: Context, then: Callable[[Any], Coroutine[Any, Any, None]]
    ) -> tuple[bool, Any]:
        """Run `coroutine` to its end or to its first wait.

        Args:
            context: its context variables.
            then: makes, of an awaitable for the rest, the coroutine that the task runs.

        Returns:
            ``(True, its value)``, or ``(False, the task that goes on with it)``.

        Raises:
            BaseException: whatever the coroutine raised before it first waited.
        """
        loop, me = self._loop, self._spare
        _enter_task(loop, me)  # type: ignore[arg-type]
        try:
            waiting = context.run(coroutine.send, None)
        except StopIteration as done:
            return True, done.value
        finally:
            _leave_task(loop, me)  # type: ignore[arg-type]
        self._spare = Standin(loop)
        task = loop.create_task(then(_rest(coroutine, waiting, me, loop)), context=context)
        me.become(task)
        return False, task


@types.coroutine
def _rest(
    coroutine: Coroutine[Any, Any, Any], waiting: Any, me: Standin, loop: asyncio.AbstractEventLoop
) -> Generator[Any, Any, Any]:
    """Drive a coroutine that waits for `waiting` to its end; it sees `me` as its task."""
    while True:
        error: BaseException | None = None
        try:
            yield waiting
        except BaseException as thrown:  # noqa: BLE001 - handed on to where it belongs
            error = thrown
        _leave_task(loop, me.task)  # type: ignore[arg-type]
        _enter_task(loop, me)  # type: ignore[arg-type]
        try:
            waiting = coroutine.send(None) if error is None else coroutine.throw(error)
        except StopIteration as done:
            return done.value
        finally:
            _leave_task(loop, me)  # type: ignore[arg-type]
            _enter_task(loop, me.task)  # type: ignore[arg-type]
