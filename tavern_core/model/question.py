"""Questions of a running tool to its caller: a form to fill in, a completion of its model, its folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final, Literal, get_args

from tavern_core.errors import UsageError
from tavern_core.frozen_dataclass import dataclass

QuestionKind = Literal["form", "completion", "roots"]
_MESSAGE_HINT: Final = 'await ctx.complete("Hi"), or ctx.complete([{"role": "user", "content": "Hi"}])'
QUESTION_KINDS: Final[tuple[QuestionKind, ...]] = get_args(QuestionKind)


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a running call. Made by `Question.form`, `Question.completion` and `Question.roots`."""

    kind: QuestionKind
    prompt: str = ""
    """The text for a person."""
    schema: Mapping[str, Any] = field(default_factory=dict)
    """JSON Schema of the answer to a form; empty: anything."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """The request to the caller's model: `messages`, `maxTokens`, `systemPrompt`."""

    @classmethod
    def form(cls, prompt: str, schema: Mapping[str, Any]) -> Question:
        """Ask a person for values; the answer is a mapping, or None when they decline.

        Args:
            schema: of an object whose properties are text, numbers, booleans and choices.
        """
        return cls("form", prompt, dict(schema))

    @classmethod
    def completion(
        cls, messages: str | list[Mapping[str, Any]], *, max_tokens: int = 1000, system: str = ""
    ) -> Question:
        """Ask the caller's language model; the answer is ``{"role", "content", "model", "stopReason"}``.

        Args:
            messages: the user's text, or ``{"role": "user", "content": text or content blocks}``, oldest first.

        Raises:
            UsageError: `messages` is neither (USAGE).
        """
        request: dict[str, Any] = {"messages": _messages(messages), "maxTokens": max_tokens}
        if system:
            request["systemPrompt"] = system
        return cls("completion", request=request)

    @classmethod
    def roots(cls) -> Question:
        """Ask for the folders that the caller works in; the answer is a list of ``{"uri", "name"}``."""
        return cls("roots")

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"type": self.kind, "prompt": self.prompt}
        if self.schema:
            data["schema"] = dict(self.schema)
        if self.request:
            data["request"] = dict(self.request)
        return data

    @classmethod
    def from_json(cls, data: object) -> Question:
        """The inverse of `to_json`. Raises UsageError: it is not a question (USAGE)."""
        if not isinstance(data, Mapping) or data.get("type") not in QUESTION_KINDS:
            raise UsageError(f"a question is one of {', '.join(QUESTION_KINDS)}")
        prompt, schema, request = data.get("prompt", ""), data.get("schema", {}), data.get("request", {})
        if not (isinstance(prompt, str) and isinstance(schema, Mapping) and isinstance(request, Mapping)):
            raise UsageError("a question has a prompt, and a mapping as its schema or request")
        if data["type"] == "completion":
            request = {**request, "messages": _messages(request.get("messages"))}
        return cls(data["type"], prompt, dict(schema), dict(request))


_ROLES: Final = ("user", "assistant")
_BYTES: Final = ("data", "mimeType")
_PARTS: Final[Mapping[str, tuple[str, ...]]] = {"text": ("text",), "image": _BYTES, "audio": _BYTES}


def _messages(messages: object) -> list[dict[str, Any]]:
    """The messages of a completion, with content blocks in the place of texts."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, list):
        raise UsageError("a completion is asked with a text or a list of messages", hint=_MESSAGE_HINT)
    return [_message(message, f"message {number}") for number, message in enumerate(messages, 1)]


def _message(message: object, place: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or message.get("role") not in _ROLES:
        raise UsageError(f"{place} of a completion has no role: one of {', '.join(_ROLES)}", hint=_MESSAGE_HINT)
    content = message.get("content")
    if isinstance(content, str):
        content = {"type": "text", "text": content}
    if not all(map(_is_block, content if isinstance(content, list) else [content])):
        raise UsageError(f"the content of {place} of a completion is neither text nor a block", hint=_MESSAGE_HINT)
    return {**message, "content": content}


def _is_block(block: object) -> bool:
    if not isinstance(block, Mapping) or not isinstance(kind := block.get("type"), str):
        return False
    return all(isinstance(block.get(key), str) for key in _PARTS.get(kind, ()))


def prompt_and_schema(
    given: tuple[Any, ...], prompt: str | None, schema: Mapping[str, Any] | None
) -> tuple[str, dict[str, Any]]:
    """The prompt and the schema of a question, which may be given by name and in either order.

    Raises:
        UsageError: one of them is missing, given twice or of another type (USAGE).
    """
    arguments = (*given, *(argument for argument in (prompt, schema) if argument is not None))
    texts = [argument for argument in arguments if isinstance(argument, str)]
    schemas = [argument for argument in arguments if isinstance(argument, Mapping)]
    if len(schemas) != 1 or len(texts) > 1 or len(arguments) > len(texts) + 1:
        raise UsageError(
            "a question is a prompt and a JSON Schema of its answer",
            hint='await ctx.ask("How many?", {"type": "object", "properties": {"count": {"type": "integer"}}})',
        )
    return (texts[0] if texts else ""), dict(schemas[0])
