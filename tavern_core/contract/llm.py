"""Language models, which plugins contribute with `tavern_register_llms` and nodes use: one small Protocol.

A model takes messages and returns text. Streaming, tools and vendors are left to the plugin that contributes the model.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol, runtime_checkable

from tavern_core.frozen import dataclass

Message = Mapping[str, Any]
"""``{"role": "system" | "user" | "assistant", "content": text}``"""


@dataclass(frozen=True, slots=True)
class LLMAnswer:
    """The answer of a model."""

    text: str
    finish_reason: str = "stop"
    usage: Mapping[str, int] = field(default_factory=dict)
    """Tokens: input, output."""
    model: str = ""


@runtime_checkable
class LLM(Protocol):
    """A language model."""

    async def complete(self, messages: Sequence[Message], /, **options: Any) -> LLMAnswer:
        """Answer a conversation.

        Args:
            messages: oldest first.
            options: temperature, max_tokens and other options of the model.

        Raises:
            CallError: the model cannot be reached or refuses (UPSTREAM_ERROR, BUDGET_EXCEEDED …).
        """
        ...


@runtime_checkable
class StreamingLLM(LLM, Protocol):
    """A model that can stream its answer."""

    def stream(self, messages: Sequence[Message], /, **options: Any) -> AsyncIterator[str]:
        """The pieces of the answer."""
        ...


class ScriptedLLM:
    """A fake model that returns fixed texts. For tests, examples and work without a network.

    Args:
        answers: texts that are returned in order, the last one repeatedly; or a function of the messages.
    """

    def __init__(self, answers: Sequence[str] | Callable[[Sequence[Message]], str | Awaitable[str]]) -> None:
        self._answers = answers
        self.asked: list[tuple[Message, ...]] = []
        """The messages that it got, in order."""

    async def complete(self, messages: Sequence[Message], /, **options: Any) -> LLMAnswer:
        self.asked.append(tuple(messages))
        if callable(self._answers):
            said = self._answers(messages)
            text = said if isinstance(said, str) else await said
        else:
            text = self._answers[min(len(self.asked), len(self._answers)) - 1] if self._answers else ""
        return LLMAnswer(text, model="scripted")

    async def stream(self, messages: Sequence[Message], /, **options: Any) -> AsyncIterator[str]:
        answer = await self.complete(messages, **options)
        for at in range(0, len(answer.text), 16):
            yield answer.text[at : at + 16]
