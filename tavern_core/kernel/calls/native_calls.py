"""Tool calls in the responses of model APIs, and their results in the form that the API expects.

    openai      choices[0].message.tool_calls            → {"role": "tool", "tool_call_id": …, "content": …}
                choices[0].message.function_call         → {"role": "function", "name": …, "content": …}
    responses   output[] of type function_call           → {"type": "function_call_output", "call_id": …, "output": …}
    anthropic   content[] of type tool_use               → one user message with tool_result blocks
    gemini      candidates[0].content.parts[]            → one user content with functionResponse parts

A response is a mapping, an object of the vendor's SDK, or the message inside it. Pure: nothing is called here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from tavern_core.errors import InputInvalid, UsageError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.calls.text_call_report import ToolName, failure_text, next_step, without_bytes
from tavern_core.model.message_translation import Language
from tavern_core.model.result import ToolResult
from tavern_core.schema.json_reader import NotJson, read_json
from tavern_core.schema.provider_tool_export import wire_name
from tavern_core.tam import neutralise

ProviderApi = Literal["openai", "responses", "anthropic", "gemini"]
MAX_CALLS: Final = 1_000


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A call as the model wrote it."""

    name: str
    """The tool's wire name."""
    arguments: Mapping[str, Any] | None
    """None: not a JSON object."""
    id: str = ""
    """The API's id of the call."""
    written: str = ""
    """The arguments as text, if they could not be read."""
    is_old: bool = False
    """Whether it is a `function_call`, the older form in Chat Completions."""


@dataclass(frozen=True, slots=True)
class NativeOutcome:
    """The outcome of the calls of one response."""

    api: ProviderApi | None
    """None: the response holds no call."""
    results: tuple[ToolResult, ...] = ()
    """One for each call, in the order of the response."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """To be appended to the conversation after the response."""

    @property
    def ok(self) -> bool:
        return all(result.ok for result in self.results)


def read_calls(response: Any) -> tuple[ProviderApi | None, tuple[NativeCall, ...]]:
    """The calls in a response, and the API whose format it has.

    Raises:
        UsageError: it is not a response of these APIs, or holds too many calls (USAGE).
    """
    data = _plain(response)
    if isinstance(data, Mapping):
        for api, read in _READERS.items():
            if (items := read(data)) is not None:
                found = tuple(items)
                if len(found) > MAX_CALLS:
                    raise UsageError(f"the response holds {len(found):,} tool calls; {MAX_CALLS:,} are read")
                return (api, found) if found else (None, ())
    raise UsageError(
        f"{type(response).__name__} is not a response of a model API",
        hint="pass the response or message of OpenAI, Anthropic or Gemini, as a mapping or as the object of their SDK; "
        "of a stream, what its pieces make together",
    )


def write_results(
    api: ProviderApi,
    calls: Sequence[NativeCall],
    results: Sequence[ToolResult],
    language: Language,
    name: ToolName,
) -> tuple[Mapping[str, Any], ...]:
    """The messages with the results of a model's calls. Text in them cannot be read as a call."""
    pairs = [(call, result, text_of(result, language, name)) for call, result in zip(calls, results, strict=True)]
    if api == "openai":
        return tuple(
            {"role": "function", "name": call.name, "content": text}
            if call.is_old
            else {"role": "tool", "tool_call_id": call.id, "content": text}
            for call, _, text in pairs
        )
    if api == "responses":
        return tuple({"type": "function_call_output", "call_id": call.id, "output": text} for call, _, text in pairs)
    if api == "anthropic":
        blocks = [
            {
                "type": "tool_result",
                "tool_use_id": call.id,
                "content": text,
                "is_error": not result.ok,
            }
            for call, result, text in pairs
        ]
        return ({"role": "user", "content": blocks},)
    parts = [
        {
            "functionResponse": {
                **({"id": call.id} if call.id else {}),
                "name": call.name,
                "response": {"output" if result.ok else "error": text},
            }
        }
        for call, result, text in pairs
    ]
    return ({"role": "user", "parts": parts},)


def text_of(result: ToolResult, language: Language, name: ToolName = wire_name) -> str:
    """A result as text for a model: the content and what to do with a job, or the error and a repair for the model."""
    if result.error is not None:
        return failure_text(result.error, language)
    texts = [
        str(b["text"]) if b.get("type") == "text" else json.dumps(without_bytes(b), ensure_ascii=False)
        for b in result.content
    ]
    return neutralise("\n".join([*texts, *filter(None, (next_step(result, language, name),))]))


def _plain(response: Any) -> Any:
    if callable(dump := getattr(response, "model_dump", None)):
        return dump(mode="json", by_alias=True, exclude_none=True)
    return response


def _openai(data: Mapping[str, Any]) -> Iterable[NativeCall] | None:
    message = data
    if isinstance(choices := data.get("choices"), list | tuple):
        choice = _mapping(choices[0]) if choices else {}
        if "message" not in choice and "delta" in choice:
            return None  # a chunk of a stream
        message = _mapping(choice.get("message"))
    elif "tool_calls" not in data and data.get("role") != "assistant":
        return None
    if isinstance(message.get("content"), list) and "tool_calls" not in message:
        return None  # a message of Anthropic
    calls = message.get("tool_calls") or ()
    if not calls and (old := _mapping(message.get("function_call"))):
        return [replace(_call(old.get("name"), old.get("arguments"), ""), is_old=True)]
    functions = ((_mapping(call), _mapping(_mapping(call).get("function"))) for call in _list(calls))
    return [_call(function.get("name"), function.get("arguments"), call.get("id")) for call, function in functions]


def _responses(data: Mapping[str, Any]) -> Iterable[NativeCall] | None:
    return _items(data.get("output"), "function_call", "arguments", "call_id")


def _anthropic(data: Mapping[str, Any]) -> Iterable[NativeCall] | None:
    return _items(data.get("content"), "tool_use", "input", "id")


def _items(written: Any, type_: str, arguments: str, call_id: str) -> Iterable[NativeCall] | None:
    if not isinstance(written, list):
        return None
    items = (_mapping(item) for item in written)
    return [_call(i.get("name"), i.get(arguments), i.get(call_id)) for i in items if i.get("type") == type_]


def _gemini(data: Mapping[str, Any]) -> Iterable[NativeCall] | None:
    content = data
    if isinstance(candidates := data.get("candidates"), list):
        content = _mapping(_mapping(candidates[0]).get("content")) if candidates else {}
    elif "promptFeedback" in data:  # the prompt was refused, so there are no candidates
        return ()
    elif not isinstance(data.get("parts"), list):
        return None
    parts = (_mapping(part) for part in _list(content.get("parts")))
    asked = (_mapping(part.get("functionCall", part.get("function_call"))) for part in parts)
    return [_call(call.get("name"), call.get("args", {}), call.get("id")) for call in asked if call]


_READERS: Final[Mapping[ProviderApi, Callable[[Mapping[str, Any]], Iterable[NativeCall] | None]]] = {
    "openai": _openai,
    "responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
}


def read_arguments(written: str) -> dict[str, Any] | None:
    """A call's arguments as a model wrote them; None: not a JSON object."""
    try:
        arguments = read_json(written or "{}")
    except NotJson:
        return None
    return arguments if isinstance(arguments, dict) else None


def not_an_object(tool: str, written: str) -> InputInvalid:
    """The error of a call whose arguments are not an object."""
    return InputInvalid(
        f"{tool}: the arguments are not a JSON object: {written[:200]}",
        hint='write the arguments as one JSON object with each key once, such as {} or {"text": "…"}',
        fixFor="caller",
    )


def _call(name: Any, arguments: Any, call_id: Any) -> NativeCall:
    arguments = "" if arguments is None else arguments  # some servers write a call without arguments like this
    found = read_arguments(arguments) if isinstance(arguments, str) else arguments
    written = arguments if isinstance(arguments, str) else repr(arguments)
    if not isinstance(found, Mapping):
        return NativeCall(str(name or ""), None, str(call_id or ""), written[:2000])
    return NativeCall(str(name or ""), found, str(call_id or ""))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
