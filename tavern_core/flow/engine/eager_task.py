"""Coroutines start immediately, and get a task only when they first wait for something.

asyncio creates a task for every concurrent coroutine: 5 µs and more, for work that may never wait. Here,
the first part of a coroutine runs immediately. While it runs, `asyncio.current_task()` is a `TaskProxy`, a proxy; when the
coroutine waits, a real task takes over, and the coroutine still sees the proxy as its task, so that
`asyncio.timeout`, `TaskGroup` and anyio's cancel scopes, which store their task, keep working.

`_enter_task` and `_leave_task` are the documented extension points of asyncio for custom tasks.
"""

from __future__ import annotations

import asyncio
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextvars import Context, copy_context
from typing import Any, Generic, TypeVar

N = TypeVar("N")
Then = Callable[[N, Any, BaseException | None], None]
"""(the argument of `start`, the value, the error): called when a coroutine that had to wait has ended."""


class TaskProxy:
    """The proxy that a coroutine sees as its task: it has the methods of tasks, and forwards to the real one once it exists."""

    __slots__ = ("__weakref__", "_callbacks", "_cancelled", "_coroutine", "_is_over", "_loop", "_name", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.task: asyncio.Task[Any] | None = None
        self._loop = loop
        self._coroutine = coroutine
        self._cancelled = 0
        self._is_over = False
        self._callbacks: list[tuple[Callable[[Any], object], Context | None]] | None = None

    def cancel(self, msg: Any = None) -> bool:
        if self.task is not None:
            return self.task.cancel(msg)
        if self._is_over:
            return False
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
        return self.task.cancelled() if self.task is not None else self._is_over and self._cancelled > 0

    def done(self) -> bool:
        return self._is_over if self.task is None else self.task.done()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def get_coro(self) -> Coroutine[Any, Any, Any]:
        return self._coroutine

    def get_name(self) -> str:
        return getattr(self, "_name", "node") if self.task is None else self.task.get_name()

    def set_name(self, value: object) -> None:
        self._name = str(value)
        if self.task is not None:
            self.task.set_name(value)

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context | None = None) -> None:
        if self.task is not None:
            self.task.add_done_callback(callback, context=context)
        elif self._is_over:
            self._loop.call_soon(callback, self, context=context)
        else:
            self._callbacks = [*(self._callbacks or ()), (callback, context)]

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        if self.task is not None:
            return self.task.remove_done_callback(callback)
        kept = [each for each in self._callbacks or () if each[0] != callback]
        removed = len(self._callbacks or ()) - len(kept)
        self._callbacks = kept
        return removed

    @property
    def _must_cancel(self) -> bool:  # for anyio
        return self._cancelled > 0 if self.task is None else self.task._must_cancel  # type: ignore[attr-defined]

    @property
    def _fut_waiter(self) -> Any:  # for anyio
        return None if self.task is None else self.task._fut_waiter  # type: ignore[attr-defined]

    def become(self, task: asyncio.Task[Any]) -> None:
        """From now on, forward to `task`, including an earlier cancellation."""
        self.task = task
        if hasattr(self, "_name"):
            task.set_name(self._name)
        for callback, context in self._callbacks or ():
            task.add_done_callback(callback, context=context)
        for _ in range(self._cancelled):
            task.cancel()

    def finish(self) -> None:
        """Record that the coroutine has ended without waiting."""
        self._is_over = True
        for callback, context in self._callbacks or ():
            self._loop.call_soon(callback, self, context=context)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self.task is None:
            raise AttributeError(f"the task of a coroutine that has not waited yet has no {name!r}")
        return getattr(self.task, name)


class EagerStarter(Generic[N]):
    """Starts coroutines on one loop. Use it within one task: ``with starter: starter.start(...)``."""

    __slots__ = ("_loop", "_outer", "_then")

    def __init__(self, loop: asyncio.AbstractEventLoop, then: Then[N]) -> None:
        self._loop = loop
        self._then = then
        self._outer: Any = None

    def __enter__(self) -> EagerStarter[N]:
        self._outer = asyncio.current_task(self._loop)
        if self._outer is not None:
            _leave_task(self._loop, self._outer)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._outer is not None:
            _enter_task(self._loop, self._outer)

    def start(self, coroutine: Coroutine[Any, Any, Any], context: Context, name: N) -> tuple[bool, Any]:
        """Run `coroutine` to its end or to its first wait.

        Args:
            context: its context variables.
            name: passed to `then` if it ends later.

        Returns:
            ``(True, its value)``, or ``(False, the task that continues it)``.

        Raises:
            BaseException: any error of the coroutine before its first wait.
        """
        loop = self._loop
        me = TaskProxy(loop, coroutine)
        _enter_task(loop, me)  # type: ignore[arg-type]
        try:
            waiting = context.run(coroutine.send, None)
        except StopIteration as done:
            me.finish()
            if me._cancelled:
                raise asyncio.CancelledError from None  # as for a task that was cancelled and then returned
            return True, done.value
        except BaseException:
            me.finish()
            raise
        finally:
            _leave_task(loop, me)  # type: ignore[arg-type]
        task = loop.create_task(_Rest(coroutine, waiting, me, self._then, name), context=context)
        me.become(task)
        return False, task


class _Rest(Coroutine[Any, Any, None], Generic[N]):
    """The rest of a started coroutine that waits for `waiting`, as the coroutine of a task.

    Not a generator: a task that is cancelled before its first step throws into its coroutine immediately, and a generator
    that has not begun would end there, without passing the cancellation to the wrapped coroutine.
    """

    __slots__ = ("__name__", "__qualname__", "_coroutine", "_has_begun", "_me", "_name", "_then", "_waiting")

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], waiting: Any, me: TaskProxy, then: Then[N], name: N
    ) -> None:
        self._coroutine, self._waiting, self._me, self._then, self._name = coroutine, waiting, me, then, name
        self._has_begun = False
        self.__name__ = self.__qualname__ = getattr(coroutine, "__qualname__", "node")

    def send(self, value: Any) -> Any:
        if not self._has_begun:
            self._has_begun = True
            waiting, self._waiting = self._waiting, None
            if waiting is not None:
                return waiting
        return self._step(self._coroutine.send, value)

    def throw(self, kind: Any, value: Any = None, trace: Any = None, /) -> Any:
        error = value if isinstance(value, BaseException) else kind if isinstance(kind, BaseException) else kind()
        if not self._has_begun:
            self._has_begun = True
            waiting, self._waiting = self._waiting, None
            if isinstance(error, asyncio.CancelledError) and waiting is not None and waiting.cancel(*error.args[:1]):
                return waiting  # as a task does: cancel the awaited future, which informs the coroutine (anyio reads the text)
        return self._step(self._coroutine.throw, error)

    def _step(self, move: Callable[[Any], Any], argument: Any) -> Any:
        me, task = self._me, self._me.task
        loop = me._loop
        _leave_task(loop, task)  # type: ignore[arg-type]
        _enter_task(loop, me)  # type: ignore[arg-type]
        try:
            return move(argument)
        except StopIteration as done:
            value, error = done.value, None
        except BaseException as raised:  # noqa: BLE001 - passed on below
            value, error = None, raised
        finally:
            _leave_task(loop, me)  # type: ignore[arg-type]
            _enter_task(loop, task)  # type: ignore[arg-type]
        try:
            self._then(self._name, value, error)
            if isinstance(error, asyncio.CancelledError):
                raise error
        finally:
            del error
        raise StopIteration

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, None]:
        raise TypeError("only a task drives this")


async def together(coroutines: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run coroutines side by side, with a task only for those that wait. The first error cancels the others.

    Raises:
        BaseException: the first error, itself rather than a group around it.
    """
    loop = asyncio.get_running_loop()
    answers: dict[int, Any] = {}
    errors: list[BaseException] = []
    tasks: list[asyncio.Task[Any]] = []

    def ended(at: int, value: Any, error: BaseException | None) -> None:
        answers[at] = value
        if error is not None:
            errors.append(error)
            for task in tasks:
                task.cancel()

    waiting = list(coroutines)
    with EagerStarter[int](loop, ended) as starter:
        for at, coroutine in enumerate(waiting):
            if errors:
                coroutine.close()
                continue
            try:
                is_done, answer = starter.start(coroutine, copy_context(), at)
            except BaseException as error:  # noqa: BLE001 - raised below, when the others have ended
                ended(at, None, error)
                continue
            if is_done:
                answers[at] = answer
            else:
                tasks.append(answer)
    try:
        if tasks:
            await asyncio.wait(tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise
    if errors:
        raise errors[0]
    return [answers[at] for at in range(len(waiting))]
