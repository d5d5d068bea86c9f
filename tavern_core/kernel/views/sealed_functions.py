"""Functions that hide the function they call, and awaitables that hide their target.

A Python function exposes everything: its closure, its globals, its defaults, and as a bound method its object. The callable
that `functools.lru_cache` makes is written in C and keeps the function it calls in a field that no attribute reads. With
``maxsize=0`` it caches nothing: it calls through, at a cost of some 40 ns.

A coroutine shows its frame, and with it every variable of the service's method; a future shows its callbacks, a task
its coroutine. So async work is stepped from behind a sealed function, in the task of the waiter, and the futures it
waits for are replaced by others without a reference to them.

None of it hides what any Python code in the process can reach: `gc`, running frames, `ctypes`, `sys.modules`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Generator
from types import MethodType
from typing import Any, Final, cast

from tavern_core.kernel.views.clean_errors import clean_copy

_LIKE: Final = functools.lru_cache(maxsize=0)(len)
_SEALED: Final[Any] = type(_LIKE)
"""Called directly: `lru_cache` would also copy the function's metadata, to be removed again at five times the cost."""
_COUNTS: Final = type(_LIKE.cache_info())


def hidden(
    function: Callable[..., Any], holder: object, name: str = "", doc: str = "", **said: Any
) -> Callable[..., Any]:
    """``function(holder, ...)`` as a callable from which neither `function` nor `holder` can be reached.

    Args:
        name, doc: name and docstring of the callable.
        said: further attributes; plain data, because they are public.
    """
    sealed: Callable[..., Any] = _SEALED(MethodType(function, holder), 0, False, _COUNTS)
    vars(sealed).update(__name__=name, __qualname__=name, __doc__=doc, __module__="tavern", **said)
    return sealed


class Awaited:
    """The awaitable of a view's async method: ``await view.fetch("key")``. Hides the insides of the coroutine."""

    __slots__ = ("_step",)

    def __init__(self, step: Callable[[str, Any], Any]) -> None:
        self._step = step

    def __await__(self) -> Awaited:
        return self

    def __iter__(self) -> Awaited:
        return self

    def __next__(self) -> Any:
        return self._step("send", None)

    def send(self, value: Any) -> Any:
        """Continue."""
        return self._step("send", None)

    def throw(self, kind: Any, value: Any = None, trace: Any = None) -> Any:
        """Continue with an error, for example a cancellation."""
        error = kind if isinstance(kind, BaseException) else value if isinstance(value, BaseException) else kind()
        return self._step("throw", error)

    def close(self) -> None:
        """Close the awaitable."""
        self._step("close", None)


def _same(value: Any) -> Any:
    return value


def seal_awaitable(work: Awaitable[Any], who: str, take: Callable[[Any], Any] = _same) -> Awaited:
    """`work` as an awaitable for code that must not see it.

    Args:
        who: the part that failed, for messages.
        take: converts the answer for the caller; may raise.
    """
    return Awaited(hidden(_step, _SealedWork(work, take, who), "step"))


class _SealedWork:
    __slots__ = ("steps", "take", "who")

    def __init__(self, work: Awaitable[Any], take: Callable[[Any], Any], who: str) -> None:
        iterator = work if hasattr(work, "send") else work.__await__()
        self.steps = cast(Generator[Any, Any, Any], iterator)
        self.take = take
        self.who = who


def _step(work: _SealedWork, how: str, error: BaseException | None) -> Any:
    failed: BaseException | None = None
    answer: Any = None
    done = False
    try:
        if how == "close":
            return work.steps.close() if hasattr(work.steps, "close") else None
        if how == "throw" and error is not None:
            thrown = clean_copy(error, work.who)  # not the caller's own: it would collect the frames it passes
            if not hasattr(work.steps, "throw"):
                raise thrown
            return _waits_for(work.steps.throw(thrown))
        return _waits_for(work.steps.send(None) if hasattr(work.steps, "send") else next(work.steps))
    except StopIteration as end:
        try:
            answer, done = work.take(end.value), True
        except BaseException as refused:  # noqa: BLE001 - raised again below
            failed = clean_copy(refused, work.who)
    except BaseException as caught:  # noqa: BLE001 - raised again below
        failed = clean_copy(caught, work.who)
    work = thrown = error = None  # type: ignore[assignment]  # the traceback keeps this frame: clear its variables
    try:
        if done:
            raise StopIteration(answer)
        assert failed is not None
        raise failed
    finally:
        del failed, answer


def _waits_for(waited: Any) -> Any:
    """The future that the event loop waits for instead of `waited`, which may be a task and expose its coroutine."""
    if waited is None:  # asyncio.sleep(0)
        return None
    if not asyncio.isfuture(waited):
        raise RuntimeError(f"it waits for a {type(waited).__name__}, which no event loop knows")
    notified: asyncio.Future[None] = waited.get_loop().create_future()
    waited._asyncio_future_blocking = False  # as the loop's task would say when it begins to wait

    def over(_: Any) -> None:
        if not notified.done():
            notified.set_result(None)

    waited.add_done_callback(over)
    notified.add_done_callback(hidden(_given_up, waited, "given_up"))
    notified._asyncio_future_blocking = True
    return notified


def _given_up(waited: asyncio.Future[Any], notified: asyncio.Future[None]) -> None:
    if notified.cancelled():
        waited.cancel()
