"""A language model of one plugin as another one uses it: it completes and yields chunks, and exposes nothing else of the model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from tavern_core.contract.llm import LLM, LLMAnswer, Message, StreamingLLM
from tavern_core.kernel.views.sealed_awaitable import Awaited, seal_awaitable
from tavern_core.kernel.views.sealed_functions import hidden


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
