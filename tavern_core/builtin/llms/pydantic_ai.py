"""Models of the library pydantic-ai (extra ``llm``): Anthropic, Google, Bedrock and the other APIs that it speaks.

PydanticAILLM("anthropic:claude-sonnet-4-5")
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tavern_core.contract.exchange import not_installed
from tavern_core.contract.llm import LLMAnswer, Message, ModelCall
from tavern_core.contract.structured_answers import schema_validator, structured
from tavern_core.errors import BudgetExceeded, InputInvalid, ToolFailed, UpstreamError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters


class PydanticAILLM:
    """A model of pydantic-ai; see `contract.llm.StreamingLLM`.

    Args:
        model: ``provider:model`` as the library knows it, or one of its objects.
        key: returns the key when it is needed; empty: the library looks for it in the provider's environment variable.
        options: defaults of the options.
    """

    kind = "pydantic-ai"

    def __init__(
        self,
        model: str | Model,
        *,
        key: Callable[[], str] = str,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._named, self._key, self._options = model, key, dict(options or {})
        self._model: Model | None = None

    async def complete(self, messages: Sequence[Message], /, **options: Any) -> LLMAnswer:
        """See `LLM.complete`.

        Raises:
            UpstreamError: the model cannot be reached, refuses or fails (UPSTREAM_ERROR).
            BudgetExceeded: it accepts no more requests for now (BUDGET_EXCEEDED).
            ToolFailed: the extra is not installed, or the library knows no such model (TOOL_ERROR).
            InputInvalid: a message or an option cannot be sent (INPUT_SCHEMA_INVALID).
        """
        merged, validator = self._merged(options)
        with self._errors():
            from pydantic_ai.direct import model_request

            settings, parameters = _settings(merged)
            response = await model_request(
                self._loaded_model(), _messages(messages), model_settings=settings, model_request_parameters=parameters
            )
        return _answer(response, validator)

    async def stream(self, messages: Sequence[Message], /, **options: Any) -> AsyncIterator[str | LLMAnswer]:
        """See `StreamingLLM.stream`. Raises as `complete`."""
        merged, validator = self._merged(options)
        with self._errors():
            from pydantic_ai.direct import model_request_stream
            from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta

            settings, parameters = _settings(merged)
            async with model_request_stream(
                self._loaded_model(), _messages(messages), model_settings=settings, model_request_parameters=parameters
            ) as response:
                async for event in response:
                    text = ""
                    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                        text = event.part.content
                    elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                        text = event.delta.content_delta
                    if text:
                        yield text
                response_so_far = response.get()
        yield _answer(response_so_far, validator)

    def _merged(self, options: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        merged = {key: value for key, value in {**self._options, **options}.items() if value is not None}
        return merged, None if merged.get("schema") is None else schema_validator(merged["schema"])

    def _loaded_model(self) -> Model:
        if self._model is None:
            from pydantic_ai.models import infer_model
            from pydantic_ai.providers import infer_provider, infer_provider_class

            key = self._key().strip()

            def provider(name: str) -> Any:
                return infer_provider_class(name)(api_key=key) if key else infer_provider(name)  # type: ignore[call-arg]

            self._model = infer_model(self._named, provider)
        return self._model

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert the exceptions of the library into errors of a call."""
        try:
            from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UnexpectedModelBehavior, UserError
        except ImportError:
            raise not_installed("models of the kind pydantic-ai need pydantic-ai-slim", "llm") from None
        try:
            yield
        except ModelHTTPError as error:
            message = f"{error.model_name} answers {error.status_code}: {str(error.body or '')[:400]}"
            if error.status_code == 429:
                raise BudgetExceeded(
                    message, hint="ask again later, or less often", retryable=True, limit="of the API"
                ) from None
            raise UpstreamError(message, retryable=error.status_code >= 500) from None
        except ModelAPIError as error:
            raise UpstreamError(f"{error.model_name} failed: {error}", retryable=True, outcome="unknown") from None
        except UnexpectedModelBehavior as error:
            raise UpstreamError(f"the model answered something unexpected: {error}", outcome="unknown") from None
        except (UserError, ImportError, ValueError) as error:
            raise ToolFailed(
                f"pydantic-ai cannot use {self._named!r:.100}: {error}",
                hint="see `model` and `key` in tavern.yaml, and the extra of pydantic-ai for this provider",
                fixFor="operator",
            ) from None


def _settings(merged: Mapping[str, Any]) -> tuple[Any, ModelRequestParameters]:
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.output import OutputObjectDefinition
    from pydantic_ai.tools import ToolDefinition

    settings = {key: value for key, value in merged.items() if key not in ("tools", "schema", "stop")}
    if (stop := merged.get("stop")) is not None:
        settings["stop_sequences"] = [stop] if isinstance(stop, str) else list(stop)
    functions = [_part(_part(tool), "function") for tool in merged.get("tools") or ()]
    tools = [
        ToolDefinition(
            name=str(function.get("name")),
            description=function.get("description"),
            parameters_json_schema=dict(function.get("parameters") or {"type": "object", "properties": {}}),
        )
        for function in functions
    ]
    schema = merged.get("schema")
    if schema is None:
        return settings, ModelRequestParameters(function_tools=tools)
    output = OutputObjectDefinition(json_schema=dict(schema), name="answer")
    return settings, ModelRequestParameters(
        function_tools=tools, output_mode="native", output_object=output, allow_text_output=True
    )


def _messages(messages: Sequence[Message]) -> list[ModelMessage]:
    from pydantic_ai import messages as library

    converted: list[ModelMessage] = []
    names: dict[str, str] = {}
    """Call → tool: the library names the tool in its answer, too."""
    for message in messages:
        role, content = message.get("role"), str(message.get("content") or "")
        if role == "assistant":
            parts: list[Any] = [library.TextPart(content)] if content else []
            for call in message.get("toolCalls") or ():
                names[call["id"]] = call["name"]
                parts.append(library.ToolCallPart(call["name"], call["arguments"], call["id"]))
            converted.append(library.ModelResponse(parts=parts))
            continue
        if role == "system":
            part: Any = library.SystemPromptPart(content)
        elif role == "user":
            part = library.UserPromptPart(content)
        elif role == "tool":
            call_id = str(message.get("toolCallId"))
            part = library.ToolReturnPart(names.get(call_id, ""), content, call_id)
        else:
            raise InputInvalid(f"a message has the role {role!r:.40}", hint="use system, user, assistant or tool")
        if converted and isinstance(converted[-1], library.ModelRequest):
            converted[-1] = library.ModelRequest(parts=[*converted[-1].parts, part])
        else:
            converted.append(library.ModelRequest(parts=[part]))
    return converted


def _part(value: Any, key: str = "") -> Mapping[str, Any]:
    found = value.get(key) if key else value
    if not isinstance(found, Mapping):
        raise InputInvalid(
            "a tool is not in the format of OpenAI", hint='{"type": "function", "function": {"name": …}}'
        )
    return found


def _answer(response: ModelResponse, validator: Any) -> LLMAnswer:
    from pydantic_ai.messages import TextPart, ToolCallPart

    text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    calls = tuple(
        ModelCall(part.tool_call_id, part.tool_name, _arguments(part.args))
        for part in response.parts
        if isinstance(part, ToolCallPart)
    )
    finish = {"tool_call": "tool_calls"}.get(reason := response.finish_reason or "", reason)
    finish = finish or ("tool_calls" if calls else "stop")
    data = None if validator is None or calls else structured(text, validator, finish)
    usage = {"input": response.usage.input_tokens, "output": response.usage.output_tokens}
    return LLMAnswer(text, finish, usage, response.model_name or "", calls, data)


def _arguments(written: Any) -> str:
    return written if isinstance(written, str) else json.dumps(written or {}, ensure_ascii=False)
