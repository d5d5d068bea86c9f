"""A stream as the node that reads it holds it: chunks, without access to the run or to the streams of other nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

from tavern_core.contract.nodes import MismatchedInput, NothingCame
from tavern_core.kernel.views.clean_errors import clean_copy
from tavern_core.kernel.views.sealed_awaitable import Awaited, seal_awaitable
from tavern_core.kernel.views.sealed_functions import hidden


class StreamReader(Protocol):
    """The run's end of a stream."""

    async def __anext__(self) -> Any: ...

    def leave(self) -> None: ...


class ReadStream(AsyncIterator[Any]):
    """An async iterator of chunks."""

    __slots__ = ("_ask",)

    def __init__(self, reader: StreamReader) -> None:
        self._ask = hidden(_ask, reader, "ask")

    def __aiter__(self) -> ReadStream:
        return self

    async def __anext__(self) -> Any:
        chunk, is_over, error = await self._ask(True)
        if is_over:
            raise StopAsyncIteration
        if error is not None:
            raise error
        return chunk

    async def aclose(self) -> None:
        """Stop reading; the writer no longer waits for it."""
        self._ask(False)


def _ask(reader: StreamReader, goes_on: object, /) -> Awaited | None:
    if goes_on:
        return seal_awaitable(_next(reader), "the stream")
    reader.leave()
    return None


async def _next(reader: StreamReader) -> tuple[Any, bool, BaseException | None]:
    """The next chunk; whether the stream has ended; the error that ended it."""
    try:
        return await reader.__anext__(), False, None
    except StopAsyncIteration:
        return None, True, None
    except Exception as error:  # noqa: BLE001 - raised again in the node
        if isinstance(
            error, MismatchedInput | NothingCame
        ):  # the engine wants to see it again when it comes out of the node
            error.__traceback__ = error.__context__ = error.__cause__ = None
            return None, False, error
        return None, False, clean_copy(error, "the stream")
