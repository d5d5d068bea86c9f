"""Answers of an OpenAI-compatible API: a whole completion or the chunks of one, and refusals."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tavern_core.contract.exchange import retry_after_ms
from tavern_core.contract.llm import LLMAnswer, Message, ModelCall
from tavern_core.errors import BudgetExceeded, CallError, UpstreamError

_LONGEST_QUOTE: Final = 400


def written_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages in the form of the API."""
    return [_written(message) for message in messages]


def _written(message: Message) -> dict[str, Any]:
    converted = {key: value for key, value in message.items() if key not in ("toolCalls", "toolCallId")}
    if calls := message.get("toolCalls"):
        converted["tool_calls"] = [
            {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
            for c in calls
        ]
    if (call := message.get("toolCallId")) is not None:
        converted["tool_call_id"] = call
    return converted


class _ToolCallParts:
    """A tool call whose parts arrive one after the other."""

    def __init__(self) -> None:
        self.id = ""
        self.name: list[str] = []
        self.arguments: list[str] = []


class Completion:
    """An answer that is put together from one whole completion or from chunks.

    Args:
        who: the address, for messages.
    """

    def __init__(self, who: str) -> None:
        self._who = who
        self._text: list[str] = []
        self._half = ""
        """The first half of a character whose other half may be in the next piece."""
        self._calls: list[_ToolCallParts] = []
        self._at: dict[int, _ToolCallParts] = {}
        """Index of a piece → the call that it belongs to."""
        self._usage: dict[str, int] = {}
        self._model = ""
        self.finish = ""
        """Why the model stopped; empty: it has not stopped yet."""

    def add(self, value: Any) -> str:
        """Add a completion or a chunk; returns the text in it.

        Raises:
            UpstreamError: it is an error object, or neither a completion nor a chunk (UPSTREAM_ERROR).
        """
        if not isinstance(value, Mapping):
            raise self._odd("no object")
        error = value.get("error")
        if not error and "choices" not in value and ("message" in value or "detail" in value):
            error = value  # some servers send the error object itself
        if error:
            raise UpstreamError(
                f"{self._who} reports an error: {message_of(error)}",
                hint="ask again",
                retryable=True,
                outcome="unknown",
            )
        self._model = str(value.get("model") or self._model)
        has_usage = self._add_usage(value.get("usage"))
        choices = value.get("choices")
        if choices is None and has_usage:
            return ""  # some servers send the usage in a chunk of its own
        if not isinstance(choices, list):
            raise self._odd("no `choices`")
        if not choices:
            return ""
        choice = choices[0]
        part = (choice.get("delta") or choice.get("message") or {}) if isinstance(choice, Mapping) else None
        if not isinstance(part, Mapping):
            raise self._odd("a choice without a message")
        self.finish = str(choice.get("finish_reason") or self.finish)
        calls = part.get("tool_calls") or []
        if not isinstance(calls, list):
            raise self._odd("`tool_calls` that are not a list")
        for position, call in enumerate(calls):
            self._add_call(position, call)
        text = self._half + (_text_of(part.get("content")) or _text_of(part.get("refusal")))
        self._half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        text = _whole(text.removesuffix(self._half))
        self._text.append(text)
        return text

    def end(self) -> None:
        """Mark the end of a stream whose server may not say why the model stopped. Raises UpstreamError (UPSTREAM_ERROR)."""
        self.check_choice()
        self.finish = self.finish or "stop"

    def _add_usage(self, usage: Any) -> bool:
        if not isinstance(usage, Mapping):
            return False
        for name, key in (("input", "prompt_tokens"), ("output", "completion_tokens")):
            if type(count := usage.get(key)) is int and count >= 0:
                self._usage[name] = count
        return True

    def _add_call(self, position: int, call: Any) -> None:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise self._odd("a tool call without a function")
        index = found if type(found := call.get("index")) is int else position
        id_ = str(call.get("id") or "")
        parts = self._at.get(index)
        if parts is None or (function.get("name") and parts.id and id_ not in ("", parts.id)):
            parts = self._at[index] = _ToolCallParts()  # some servers give every call of an answer the index 0
            self._calls.append(parts)
        parts.id = parts.id or id_
        if (name := str(function.get("name") or "")) != "".join(parts.name):  # some servers repeat it in each piece
            parts.name.append(name)
        arguments = function.get("arguments")
        if arguments is not None:
            parts.arguments.append(arguments if isinstance(arguments, str) else json.dumps(arguments))

    def answer(self, data: Any = None) -> LLMAnswer:
        """The answer so far."""
        calls = tuple(
            ModelCall(call.id or f"call_{index}", _whole("".join(call.name)), _whole("".join(call.arguments)))
            for index, call in enumerate(self._calls)
        )
        return LLMAnswer(self.text, self.finish or "stop", self._usage, self._model, calls, data)

    def check_choice(self) -> None:
        """Raise UpstreamError if no completion has arrived (UPSTREAM_ERROR)."""
        if not (self.finish or self.text or self._calls):
            raise self._odd("no choice")

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text) + _whole(self._half)

    @property
    def has_calls(self) -> bool:
        """Whether the model calls tools."""
        return bool(self._calls)

    def _odd(self, what: str) -> UpstreamError:
        return UpstreamError(
            f"{self._who} answered with something that is not a chat completion: {what}",
            hint="see that `baseUrl` is that of an OpenAI-compatible API; it often ends in /v1",
            outcome="unknown",
        )


def _text_of(content: Any) -> str:
    if isinstance(content, list):  # parts, as some servers send them
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""


def _whole(text: str) -> str:
    """The text with the halves of its characters joined, as some servers send them; a lone half is replaced."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def refusal(status: int, headers: Mapping[str, str], body: bytes, who: str, model: str, *, has_key: bool) -> CallError:
    """The error of a status that is not 200."""
    try:
        message = message_of(json.loads(body))
    except (ValueError, RecursionError):
        message = body[:_LONGEST_QUOTE].decode("utf-8", "replace")
    wait = retry_after_ms(headers)
    if status in (401, 403):
        hint = (
            "see that the reference in `key` leads to a valid key"
            if has_key
            else "add the key by reference: `key: {$env: NAME}`"
        )
        return UpstreamError(
            f"{who} refuses the key ({status}): {message}", hint=hint, outcome="none", reason="unauthorized"
        )
    if status == 404:
        return UpstreamError(
            f"{who} does not know the model {model!r} (404): {message}",
            hint="see that `model` is one that the API lists, and that `baseUrl` is right; it often ends in /v1",
            outcome="none",
            reason="not found",
        )
    if status == 429:
        return BudgetExceeded(
            f"{who} accepts no more requests for now (429): {message}",
            hint="ask again later, or less often",
            retryable=True,
            retry_after_ms=wait,
            outcome="none",
            limit="of the API",
        )
    if status >= 500 or status == 408:
        return UpstreamError(
            f"{who} failed ({status}): {message}", hint="ask again", retryable=True, retry_after_ms=wait, outcome="none"
        )
    hint = (
        "write the address it leads to as `baseUrl`" if 300 <= status < 400 else "correct the messages or the options"
    )
    return UpstreamError(f"{who} refuses the request ({status}): {message}", hint=hint, outcome="none")


def message_of(error: Any) -> str:
    """The text of ``{"error": {"message": …}}``, ``{"error": "…"}``, ``{"message": …}`` or ``{"detail": …}``."""
    for key in ("error", "message", "detail"):
        if isinstance(error, Mapping) and key in error:
            return message_of(error[key])
    return (error if isinstance(error, str) else json.dumps(error, default=str))[:_LONGEST_QUOTE]
