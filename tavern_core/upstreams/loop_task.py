"""Runs work in a task of the host's loop, for a caller on any loop.

Written by hand, because `asyncio.run_coroutine_threadsafe` and `wrap_future` add two futures with locks, and code that
waits for the end of a task is resumed a turn of the loop later, or never if the task swallows its cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar

from tavern_core.kernel.execution.portal import closed_error
from tavern_core.upstreams.session import CLOSE_S

T = TypeVar("T")


class LoopTask(Generic[T]):
    """Runs the work once `answer` is awaited, which happens once.

    Args:
        loop: the loop of the host.
    """

    __slots__ = ("_answers", "_caller_loop", "_errors", "_is_given_up", "_loop", "_task", "_waiter", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        self._work = work
        self._loop = loop
        self._caller_loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] = self._caller_loop.create_future()
        self._task: asyncio.Task[None] | None = None
        self._answers: list[T] = []
        self._errors: list[BaseException] = []
        self._is_given_up = False
        """The caller was cancelled."""

    async def answer(self) -> T:
        """Return the result of the work or raise its error; cancelling the caller cancels the work."""
        if self._loop is self._caller_loop:
            self._begin()
        else:
            self._loop.call_soon_threadsafe(self._begin)
        try:
            await self._waiter
        except asyncio.CancelledError:  # a deadline is thrown into the coroutine, and does not reach the work by itself
            await self._give_up()
            raise
        if self._errors:
            raise self._errors[0]
        return self._answers[0]

    async def _give_up(self) -> None:
        self._is_given_up = True
        if self._loop is self._caller_loop:
            self._cancel()
            if self._task is not None:
                await asyncio.wait([self._task], timeout=CLOSE_S)  # it may have to stop something
            return
        with suppress(RuntimeError):  # the host's loop has been closed
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._ended)

    async def _run(self) -> None:
        assert self._task is not None
        self._task.remove_done_callback(self._ended)  # it would cost a turn of the loop
        try:
            self._answers.append(await self._work)
        except GeneratorExit:
            self._errors.append(closed_error())
            self._wake()
            raise
        except asyncio.CancelledError as error:
            is_ours = self._is_given_up or not self._task.cancelling()  # else the host ends what is left when it closes
            self._errors.append(error if is_ours else closed_error())
        except BaseException as error:  # noqa: BLE001 - the caller gets it as it is, and the loop goes on
            self._errors.append(error)
        self._wake()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not self._answers and not self._errors:  # it was cancelled before it began
            self._work.close()
            self._errors.append(asyncio.CancelledError() if self._is_given_up else closed_error())
            self._wake()

    def _wake(self) -> None:
        if self._loop is self._caller_loop:
            self._notify()
            return
        with suppress(RuntimeError):  # the caller's loop has been closed
            self._caller_loop.call_soon_threadsafe(self._notify)

    def _notify(self) -> None:
        if not self._waiter.done():
            self._waiter.set_result(None)
