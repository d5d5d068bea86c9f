"""Views of the host's facilities for plugins and executors: the same methods, without access to the implementation."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, Protocol, cast

from tavern_core.contract.llm import LLM, LLMAnswer, Message, StreamingLLM
from tavern_core.contract.nodes import MismatchedInput, NothingCame
from tavern_core.contract.protocols import FlowEngine, Sandbox, ToolHome
from tavern_core.kernel.views.clean_errors import clean_copy
from tavern_core.kernel.views.sealed_functions import Awaited, hidden, seal_awaitable
from tavern_core.kernel.views.values import exact


def sealed_object(facilities: object, names: Iterable[str]) -> Any:
    """An object with the methods `names` of `facilities`; neither it nor its errors lead to `facilities`.

    Its type is one that Python code cannot change: what a plugin does to its own object is seen by no other plugin or host.
    """
    methods = {name: getattr(facilities, name) for name in names}
    return SimpleNamespace(**{name: hidden(_call, one, name, one.__doc__ or "") for name, one in methods.items()})


def sealed_home(home: ToolHome) -> ToolHome:
    """`home` for an executor that is not the host's own."""
    return replace(
        home,
        service=hidden(_call, home.service, "service"),
        settings=hidden(_call, home.settings, "settings"),
        delegate=None,
        plugin_settings=hidden(_call, home.plugin_settings, "plugin_settings"),
        is_intact=hidden(_call, home.is_intact, "is_intact"),
        load=hidden(_call, home.load, "load"),
        sandbox=None if home.sandbox is None else cast(Sandbox, _Sealed(home.sandbox, _SANDBOX)),
        engine=None if home.engine is None else cast(FlowEngine, _Sealed(home.engine, _ENGINE)),
    )


def _names(protocol: type) -> frozenset[str]:
    return frozenset(name for name in vars(protocol) if not name.startswith("_"))


_SANDBOX: Final = _names(Sandbox)
_ENGINE: Final = _names(FlowEngine)


class _Sealed:
    """The members of an object that a Protocol names, looked up behind a sealed function."""

    __slots__ = ("_look",)

    def __init__(self, thing: object, names: frozenset[str]) -> None:
        self._look = hidden(_call, _HiddenObject(thing, names).look, "look")

    def __getattr__(self, name: str) -> Any:
        return self._look(name)


class _HiddenObject:
    """The object behind a sealed one; plugins never get it."""

    __slots__ = ("names", "thing")

    def __init__(self, thing: object, names: frozenset[str]) -> None:
        self.thing = thing
        self.names = names

    def look(self, name: str) -> Any:
        name = exact(name)
        if name not in self.names:
            raise AttributeError(f"there is no {name!r} here")
        value = getattr(self.thing, name)
        return hidden(_call, value, name) if callable(value) else value


def _call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    try:
        answer = function(*args, **kwargs)
        return seal_awaitable(answer, "the host") if inspect.iscoroutine(answer) else answer
    except BaseException as error:  # noqa: BLE001 - raised again below
        failed = clean_copy(error, "the host")
    function = args = kwargs = answer = None  # type: ignore[assignment]  # the traceback keeps this frame: clear its variables
    try:
        raise failed
    finally:
        del failed


def sealed_llm(model: LLM) -> LLM:
    """`model` behind methods from which it cannot be reached; it streams when `model` does."""
    return _SealedStreamingModel(model) if isinstance(model, StreamingLLM) else _SealedModel(model)


class _SealedModel:
    __slots__ = ("_complete",)

    def __init__(self, model: LLM) -> None:
        self._complete = hidden(_complete, model, "complete")

    async def complete(self, messages: Sequence[Message], /, **options: Any) -> LLMAnswer:
        """See `LLM.complete`."""
        return await self._complete(messages, options)  # type: ignore[no-any-return]


class _SealedStreamingModel(_SealedModel):
    __slots__ = ("_stream",)

    def __init__(self, model: StreamingLLM) -> None:
        super().__init__(model)
        self._stream = hidden(_stream, model, "stream")

    async def stream(self, messages: Sequence[Message], /, **options: Any) -> AsyncIterator[str | LLMAnswer]:
        """See `StreamingLLM.stream`."""
        pieces = self._stream(messages, options)
        try:
            while (piece := await pieces("next")) is not None:
                yield piece
        finally:
            await pieces("close")


def _complete(model: LLM, messages: Sequence[Message], options: dict[str, Any]) -> Awaited:
    async def work() -> LLMAnswer:
        return await model.complete(messages, **options)

    return seal_awaitable(work(), "the language model")


def _stream(model: StreamingLLM, messages: Sequence[Message], options: dict[str, Any]) -> Any:
    return hidden(_piece, _AnswerChunks(model, messages, options), "pieces")


class _AnswerChunks:
    __slots__ = ("pieces",)

    def __init__(self, model: StreamingLLM, messages: Sequence[Message], options: dict[str, Any]) -> None:
        self.pieces = model.stream(messages, **options)

    async def next(self) -> str | LLMAnswer | None:
        try:
            return await anext(self.pieces)
        except StopAsyncIteration:
            return None

    async def close(self) -> None:
        if (close := getattr(self.pieces, "aclose", None)) is not None:
            await close()


def _piece(pieces: _AnswerChunks, what: str) -> Awaited:
    return seal_awaitable(pieces.close() if what == "close" else pieces.next(), "the language model")


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
