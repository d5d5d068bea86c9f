"""Asks a store on behalf of a call: at once, or in a worker thread if it is slow."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from tavern_core.contract.stores import RecordStore
from tavern_core.errors import InternalError, StateDamaged, TavernError
from tavern_core.kernel.execution.sync_async_drivers import ExecutionMode, StoreTimeout, TimeLimit

T = TypeVar("T")


async def ask(
    mode: ExecutionMode,
    records: RecordStore,
    method: Callable[..., Any],
    *args: Any,
    seconds: float | None = None,
    undo: Callable[[Any], Any] | None = None,
) -> Any:
    """The answer of a store: at once if it is quick, else from a worker thread.

    Args:
        seconds: how long the caller waits for a slow store; None: as long as the store takes.
        undo: gets an answer that arrived after the caller had stopped waiting.

    Raises:
        InternalError: the store cannot be used; the call had no effect yet (INTERNAL).
        StoreTimeout: a slow store did not answer in time.
    """
    if records.is_quick:
        return at_once(method, *args)
    try:
        return await ask_raising(mode, records, method, *args, seconds=seconds, undo=undo)
    except StateDamaged as error:
        raise _unusable(error) from error


async def ask_raising(
    mode: ExecutionMode,
    records: RecordStore,
    method: Callable[..., T],
    *args: Any,
    seconds: float | None = None,
    undo: Callable[[T], Any] | None = None,
) -> T:
    """`ask`, with the store's own errors."""
    if records.is_quick:
        return method(*args)
    lock, answers, is_gone = threading.Lock(), list[T](), False

    def work() -> T:
        answer = method(*args)
        with lock:
            answers.append(answer)
            is_late = is_gone
        if is_late:
            take_back(answer)
        return answer

    def take_back(answer: T) -> None:
        if undo is not None:
            with suppress(TavernError):
                undo(answer)

    try:
        return await mode.guarded(work, seconds=seconds)  # type: ignore[no-any-return]
    except (TimeLimit, asyncio.CancelledError) as error:
        with lock:
            is_gone = True
            early = [*answers]
        for answer in early:
            take_back(answer)
        if isinstance(error, TimeLimit):
            raise StoreTimeout(is_asked=not error.stopped) from None
        raise


def at_once(method: Callable[..., Any], *args: Any) -> Any:
    """`ask`, for a store that is quick."""
    try:
        return method(*args)
    except StateDamaged as error:
        raise _unusable(error) from error


def _unusable(error: StateDamaged) -> InternalError:
    return InternalError(f"the state of this host cannot be used: {error.message}", hint=error.hint)
