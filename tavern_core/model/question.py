"""What a tool asks its caller while it runs: a form to fill in, a completion of the caller's model, the caller's folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final, Literal, get_args

from tavern_core.errors import UsageError
from tavern_core.frozen_dataclass import dataclass

QuestionKind = Literal["form", "completion", "roots"]
QUESTION_KINDS: Final[tuple[QuestionKind, ...]] = get_args(QuestionKind)


@dataclass(frozen=True, slots=True)
class Question:
    """One question of a running call. Made by `Question.form`, `Question.completion` and `Question.roots`."""

    kind: QuestionKind
    prompt: str = ""
    """What a person reads."""
    schema: Mapping[str, Any] = field(default_factory=dict)
    """JSON Schema of the answer to a form; empty: anything."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """What the caller's model is asked: `messages`, `maxTokens`, `systemPrompt`."""

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
            messages: the user's text, or ``{"role": ..., "content": {"type": "text", "text": ...}}``, oldest first.

        Raises:
            UsageError: `messages` is neither (USAGE).
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": {"type": "text", "text": messages}}]
        if not isinstance(messages, list) or not all(isinstance(message, Mapping) for message in messages):
            raise UsageError("a completion is asked with a text or a list of messages", hint='await ctx.complete("Hi")')
        request: dict[str, Any] = {"messages": [dict(message) for message in messages], "maxTokens": max_tokens}
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
        return cls(data["type"], prompt, dict(schema), dict(request))


def prompt_and_schema(
    given: tuple[Any, ...], prompt: str | None, schema: Mapping[str, Any] | None
) -> tuple[str, dict[str, Any]]:
    """The prompt and the schema of a question, which may be given by name and in either order.

    Raises:
        UsageError: one of them is missing, given twice or of another type (USAGE).
    """
    whole = (*given, *(one for one in (prompt, schema) if one is not None))
    texts = [one for one in whole if isinstance(one, str)]
    schemas = [one for one in whole if isinstance(one, Mapping)]
    if len(schemas) != 1 or len(texts) > 1 or len(whole) > len(texts) + 1:
        raise UsageError(
            "a question is a prompt and a JSON Schema of its answer",
            hint='await ctx.ask("How many?", {"type": "object", "properties": {"count": {"type": "integer"}}})',
        )
    return (texts[0] if texts else ""), dict(schemas[0])
