"""A language model as nodes and plugins get it: each request goes through `Models.ask`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from tavern_core.contract.llm import LLMAnswer, Message

Ask = Callable[[Sequence[Message], Mapping[str, Any], Callable[[str], object] | None], Awaitable[LLMAnswer]]
"""(messages, options, receiver of the pieces of the text)"""


class GovernedLLM:
    """One model for one caller."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def complete(self, messages: Sequence[Message], /, **options: Any) -> LLMAnswer:
        """See `LLM.complete`."""
        return await self._ask(messages, options, None)


class GovernedStreamingLLM(GovernedLLM):
    """The same for a model that streams."""

    async def stream(self, messages: Sequence[Message], /, **options: Any) -> AsyncIterator[str | LLMAnswer]:
        """The pieces of the text. Closing the iterator cancels the request."""
        pieces: asyncio.Queue[str | None] = asyncio.Queue()

        async def work() -> None:
            try:
                await self._ask(messages, options, pieces.put_nowait)
            finally:
                pieces.put_nowait(None)

        asking = asyncio.create_task(work())
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
            await asking
        finally:
            asking.cancel()
            await asyncio.wait([asking])
