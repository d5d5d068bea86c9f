"""The operation `core:LLM`, through which every request to a language model passes, and the request itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, nullcontext
from typing import Any, Final

from tavern_core.contract.llm import LLM, LLMAnswer, Message, ModelCall, StreamingLLM
from tavern_core.contract.python_targets import PythonTarget
from tavern_core.errors import OutputTooLarge, ToolFailed
from tavern_core.kernel.catalogue.call_plan import InternalOperation
from tavern_core.model.tool import ToolSpec

ASK: Final = "core:LLM"
STOPPED: Final = "stopped"
"""The finish reason of an answer that its receiver ended."""
CAPABILITY: Final = "network"
"""The capability for requests to a model, because their content leaves the host; local models do not need it."""
_QUESTION: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "model": {"type": "string"},
        "messages": {"type": "array", "items": {"type": "object"}},
        "options": {"type": "object"},
    },
    "required": ["model", "messages"],
    "additionalProperties": False,
}
_ANSWER: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "finishReason": {"type": "string"},
        "usage": {"type": "object"},
        "model": {"type": "string"},
        "toolCalls": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {name: {"type": "string"} for name in ("id", "name", "arguments")},
                "required": ["id", "name", "arguments"],
            },
        },
        "data": {},
    },
    "required": ["text", "finishReason", "usage", "model"],
}


def llm_operations(answer: Callable[..., Awaitable[dict[str, Any]]]) -> dict[bool, InternalOperation]:
    """The operation, by whether the model is local.

    Args:
        answer: called with `model`, `messages` and `options`.
    """
    return {
        is_local: InternalOperation(ToolSpec(
            ASK, "Asks a language model.", plugin="core-nodes-outside", capabilities=needed, input_schema=_QUESTION,
            output_schema=_ANSWER, impl=PythonTarget(answer),
        ))
        for is_local, needed in ((False, frozenset({CAPABILITY})), (True, frozenset[str]()))
    }  # fmt: skip


async def model_answer(
    model: LLM,
    name: str,
    messages: Sequence[Message],
    options: Mapping[str, Any],
    on_text: Callable[[str], object] | None,
    most: int,
) -> LLMAnswer:
    """The answer of a model.

    Args:
        on_text: called with each piece of the text while the model streams; True ends the request. None: do not stream.
        most: characters of a streamed answer.

    Raises:
        OutputTooLarge: it is longer (OUTPUT_TOO_LARGE).
        ToolFailed: it is no answer (TOOL_ERROR).
    """
    if on_text is None or not isinstance(model, StreamingLLM):
        return _checked(await model.complete(messages, **options), name)
    text, remaining, final_answer = list[str](), most, None
    pieces = model.stream(messages, **options)
    async with aclosing(pieces) if hasattr(pieces, "aclose") else nullcontext():  # type: ignore[type-var]
        async for piece in pieces:
            if isinstance(piece, LLMAnswer):
                final_answer = _checked(piece, name)
                continue
            text.append(_text(piece, name))
            remaining -= len(piece)
            if remaining < 0:
                raise OutputTooLarge(
                    f"the language model answers more than {most:,} characters (limits.outputBytes)",
                    hint="set max_tokens",
                    outcome="unknown",
                    limit=most,
                )
            if on_text(piece) is True:
                return LLMAnswer("".join(text), STOPPED, model=name)
    return final_answer or LLMAnswer("".join(text), model=name)


def _checked(answer: Any, name: str) -> LLMAnswer:
    if not isinstance(answer, LLMAnswer):
        raise _odd(name, f"answers {type(answer).__name__}", "`complete` returns an LLMAnswer: LLMAnswer(text)")
    if not isinstance(answer.usage, Mapping):
        raise _odd(name, f"reports the usage {answer.usage!r:.80}", 'LLMAnswer(text, usage={"input": 1, "output": 1})')
    if not all(isinstance(call, ModelCall) for call in answer.tool_calls or ()):
        raise _odd(name, "calls tools with something else than `ModelCall`", "ModelCall(id, name, arguments)")
    return answer


def _text(piece: Any, name: str) -> str:
    if not isinstance(piece, str):
        raise _odd(name, f"streams {type(piece).__name__}", "`stream` yields texts, and at last an LLMAnswer")
    return piece


def _odd(name: str, what: str, hint: str) -> ToolFailed:
    model = f"the language model {name!r}" if name else "the language model"
    return ToolFailed(f"{model} {what}", hint=hint, outcome="unknown", fixFor="operator")
