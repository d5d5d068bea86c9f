"""Language models, which plugins contribute with `tavern_register_llms` and nodes use: one small Protocol.

A model takes messages and returns text, and perhaps tool calls. Its adapter translates them for its API.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import field
from inspect import isawaitable
from typing import Any, Final, Protocol, runtime_checkable

from tavern_core.errors import ToolFailed
from tavern_core.frozen_dataclass import dataclass

Message = Mapping[str, Any]
"""``{"role": "system" | "user" | "assistant" | "tool", "content": text}``.

An assistant's message with calls has ``toolCalls: [{"id", "name", "arguments"}]``; the answer to one is
``{"role": "tool", "toolCallId": id, "content": text}``. Adapters translate this into the format of their API.
"""


DEADLINE: Final[ContextVar[float | None]] = ContextVar("tavern_model_deadline", default=None)
"""The deadline of the current request's caller, in `time.perf_counter`; None: none. Adapters do not wait longer."""

MOST_PRICE: Final = 1e9
"""The highest valid price of a million tokens."""
MOST_TOKENS: Final = 10**12


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A native tool call in the answer of a model, as written."""

    id: str
    name: str
    """The wire name of the tool (`Tavern.tool_id` finds the tool)."""
    arguments: str
    """The text of the arguments; it should be a JSON object, but a model may write anything."""


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a model, per million tokens."""

    input: float
    output: float
    currency: str = "USD"

    def of(self, tokens_in: int, tokens_out: int) -> float:
        """The cost of so many tokens, in `currency`."""
        return (tokens_in * self.input + tokens_out * self.output) / 1_000_000


def price_of(model: object) -> Price | None:
    """The price of a model; None if it has no valid one."""
    price = getattr(model, "price", None)
    if not isinstance(price, Price) or not isinstance(price.currency, str):
        return None
    amounts = price.input, price.output
    return price if all(isinstance(a, int | float) and 0 <= a <= MOST_PRICE for a in amounts) else None


def count_of(usage: Mapping[str, Any], name: str) -> int | None:
    """A number of tokens that a model reports; None: it is missing, or no model can have used it."""
    count = usage.get(name)
    return count if type(count) is int and 0 <= count <= MOST_TOKENS else None


@dataclass(frozen=True, slots=True)
class LLMAnswer:
    """The answer of a model."""

    text: str
    finish_reason: str = "stop"
    """stop, length, tool_calls, content_filter, or the word of the API."""
    usage: Mapping[str, int] = field(default_factory=dict)
    """Tokens: input, output."""
    model: str = ""
    tool_calls: tuple[ModelCall, ...] = ()
    data: Any = None
    """The structured answer, if a `schema` was requested."""


@runtime_checkable
class LLM(Protocol):
    """A language model.

    It may have these attributes: `price` (a `Price`), `context_tokens` (size of its window), `kind` (for lists), and `is_local`:
    True if its requests do not leave the host's machine, so that they need no permission for the network.
    """

    async def complete(self, messages: Sequence[Message], /, **options: Any) -> LLMAnswer:
        """Answer a conversation.

        Args:
            messages: oldest first.
            options: ``temperature``, ``max_tokens``, ``stop`` (texts at which it stops), ``tools`` (tools in the format of
                OpenAI), ``schema`` (JSON Schema of a structured answer), and further options of the model.

        Raises:
            CallError: the model cannot be reached or refuses (UPSTREAM_ERROR, BUDGET_EXCEEDED …).
        """
        ...


@runtime_checkable
class StreamingLLM(LLM, Protocol):
    """A model that can stream its answer."""

    def stream(self, messages: Sequence[Message], /, **options: Any) -> AsyncIterator[str | LLMAnswer]:
        """The pieces of the text; at last the whole as an `LLMAnswer`, if it has usage or calls to report.

        Closing the iterator cancels the request. Nodes and plugins that stream get only the pieces.
        """
        ...


ScriptedAnswer = str | LLMAnswer | Mapping[str, Any] | list[Any]
"""Text, an answer, or JSON, which is answered as text."""


class ScriptedLLM:
    """A fake model with fixed answers. For tests, examples and work without a network.

    Args:
        answers: returned in order, the last one repeatedly; or a function of the messages.
    """

    kind = "scripted"
    is_local = True

    def __init__(
        self,
        answers: Sequence[ScriptedAnswer] | Callable[[Sequence[Message]], ScriptedAnswer | Awaitable[ScriptedAnswer]],
    ) -> None:
        self._answers = answers
        self.asked: list[tuple[Message, ...]] = []
        """The messages of each request, in order."""

    async def complete(self, messages: Sequence[Message], /, **options: Any) -> LLMAnswer:
        self.asked.append(tuple(messages))
        if callable(self._answers):
            returned: Any = self._answers(messages)
            answer: Any = await returned if isawaitable(returned) else returned
        else:
            answer = self._answers[min(len(self.asked), len(self._answers)) - 1] if self._answers else ""
        if isinstance(answer, Mapping | list):
            answer = json.dumps(answer, ensure_ascii=False)
        if not isinstance(answer, str | LLMAnswer):
            raise ToolFailed(
                f"the function that stands for a model returned {type(answer).__name__}",
                hint="return the text of the answer, JSON, or an LLMAnswer",
            )
        return LLMAnswer(answer, model="scripted") if isinstance(answer, str) else answer

    async def stream(self, messages: Sequence[Message], /, **options: Any) -> AsyncIterator[str | LLMAnswer]:
        answer = await self.complete(messages, **options)
        for at in range(0, len(answer.text), 16):
            yield answer.text[at : at + 16]
        yield answer


def answer_json(answer: LLMAnswer) -> dict[str, Any]:
    """An answer as JSON."""
    written: dict[str, Any] = {
        "text": answer.text,
        "finishReason": answer.finish_reason,
        "usage": dict(answer.usage),
        "model": answer.model,
    }
    if answer.tool_calls:
        written["toolCalls"] = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in answer.tool_calls]
    if answer.data is not None:
        written["data"] = answer.data
    return written


def answer_of(written: Mapping[str, Any]) -> LLMAnswer:
    """The answer that `answer_json` wrote."""
    calls = tuple(ModelCall(c["id"], c["name"], c["arguments"]) for c in written.get("toolCalls") or ())
    return LLMAnswer(
        written["text"], written["finishReason"], written["usage"], written["model"], calls, written.get("data")
    )
