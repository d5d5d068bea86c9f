"""Models behind the Chat Completions API of OpenAI, which most providers and local servers speak, on httpx2.

    OpenAILLM("http://127.0.0.1:11434/v1", "qwen3")

The address is the operator's own configuration, so it may be any, also on this machine.
"""

from __future__ import annotations

import asyncio
import codecs
import functools
import json
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import field
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tavern_core.builtin.llms.openai.answers import Completion, refusal, written_messages
from tavern_core.contract.exchange import failures, http_library
from tavern_core.contract.llm import DEADLINE, LLMAnswer, Message
from tavern_core.contract.structured_answers import schema_validator, structured
from tavern_core.errors import CallError, CallTimeout, InputInvalid, OutputTooLarge, ToolFailed, UpstreamError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.exponential_delay import exponential_delay

if TYPE_CHECKING:
    import httpx2

_FIRST_PAUSE_S: Final = 0.4
_LARGEST_REFUSAL: Final = 64_000
_SHORTEST_SECRET: Final = 4
_NEEDS: Final = "models of the kind openai need"
_END: Final = "[DONE]"
"""The data of the last event of a stream."""
_OURS: Final = frozenset({"model", "messages", "stream", "stream_options", "response_format", "n"})
"""Options that the adapter sets itself."""


@dataclass(frozen=True, slots=True)
class OpenAILLM:
    """A model behind an OpenAI-compatible API; see `contract.llm.StreamingLLM`."""

    base_url: str
    """``https://host/v1``; requests go to ``/chat/completions`` below it."""
    model: str = ""
    """Its name there; empty: the API has only one."""
    key: Callable[[], str] = str
    """Returns the key when it is needed; empty: none."""
    headers: Callable[[], Mapping[str, str]] = dict
    """Returns further headers when they are needed."""
    timeout_s: float = 120.0
    """Seconds that the API may take for a whole answer, or for the next piece of a streamed one."""
    max_bytes: int = 32_000_000
    """Limit for one answer."""
    retries: int = 3
    """Further attempts after 429 and 5xx, as long as nothing was received."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of the options."""
    kind: ClassVar[str] = "openai"

    @property
    def _who(self) -> str:
        return self.base_url.rstrip("/")

    async def complete(self, messages: Sequence[Message], /, **options: Any) -> LLMAnswer:
        """See `LLM.complete`.

        Raises:
            UpstreamError: it cannot be reached, refuses, breaks off, or answers something else (UPSTREAM_ERROR).
            BudgetExceeded: it accepts no more requests for now (BUDGET_EXCEEDED), with `retry_after_ms` if it says when.
            CallTimeout, OutputTooLarge: the answer took too long, or is too large (TIMEOUT, OUTPUT_TOO_LARGE).
            InputInvalid: an option cannot be set (INPUT_SCHEMA_INVALID).
        """
        body, validator = self._body(messages, options)
        completion = Completion(self._who)
        async with self._response(body) as response:
            async with self._limit():
                content = b"".join([chunk async for chunk in self._chunks(response)])
            completion.add(self._parsed(content))
        completion.check_choice()
        return self._finished(completion, validator)

    async def stream(self, messages: Sequence[Message], /, **options: Any) -> AsyncIterator[str | LLMAnswer]:
        """See `StreamingLLM.stream`. Raises as `complete`."""
        body, validator = self._body(messages, options)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        completion = Completion(self._who)
        async with self._streaming(body) as response, aclosing(self._events(response)) as events:
            async for data in events:
                if data == _END:
                    completion.end()
                elif text := completion.add(self._parsed(data)):
                    yield text
        if not completion.finish:
            raise UpstreamError(
                f"{self._who} broke off in the middle of the answer", hint="ask again", retryable=True, outcome="unknown",
                reason="broken off",
            )  # fmt: skip
        yield self._finished(completion, validator)

    def _body(self, messages: Sequence[Message], options: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """The request, and the validator of a structured answer."""
        settings = {key: value for key, value in {**self.options, **options}.items() if value is not None}
        schema = settings.pop("schema", None)
        if reserved := sorted(_OURS & settings.keys()):
            raise InputInvalid(
                f"the option {reserved[0]!r} is set by the host",
                hint="use `schema` for structured answers; leave out the others",
            )
        body = {**({"model": self.model} if self.model else {}), "messages": written_messages(messages), **settings}
        if schema is None:
            return body, None
        validator = schema_validator(schema)
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        return body, validator

    @staticmethod
    def _finished(completion: Completion, validator: Any) -> LLMAnswer:
        if validator is None or completion.has_calls:
            return completion.answer()
        return completion.answer(structured(completion.text, validator, completion.finish))

    @asynccontextmanager
    async def _streaming(self, body: dict[str, Any]) -> AsyncIterator[httpx2.Response]:
        """`_response`; a server that does not know `stream_options` is asked without them, and reports no usage."""
        async with AsyncExitStack() as stack:
            try:
                response = await stack.enter_async_context(self._response(body))
            except UpstreamError as error:
                if "stream_options" not in error.message:
                    raise
                del body["stream_options"]
                response = await stack.enter_async_context(self._response(body))
            yield response

    @asynccontextmanager
    async def _response(self, body: Mapping[str, Any]) -> AsyncIterator[httpx2.Response]:
        """A response with status 200, whose body has not been read. Leaving closes the connection."""
        httpx2 = http_library(_NEEDS)
        key, headers = self.key().strip(), dict(self.headers())
        all_headers = {"accept-encoding": "identity", **({"authorization": f"Bearer {key}"} if key else {}), **headers}
        if not all(value.isascii() and value.isprintable() for value in all_headers.values()):
            raise ToolFailed(
                f"the key or a header for {self._who} is not plain ASCII in one line",
                hint="correct `key` or `headers` of the model in tavern.yaml",
                fixFor="operator",
            )
        content = json.dumps(body, ensure_ascii=False).encode("utf-8", "backslashreplace")
        timeout = httpx2.Timeout(self.timeout_s)
        try:
            with failures(self._who, "unknown", repeatable=True):
                async with httpx2.AsyncClient(
                    headers=all_headers, timeout=timeout, verify=_tls(), trust_env=False
                ) as client:
                    request = client.build_request(
                        "POST",
                        f"{self._who}/chat/completions",
                        content=content,
                        headers={"content-type": "application/json"},
                    )
                    response = await self._send_until_accepted(client, request, bool(key))
                    try:
                        yield response
                    finally:
                        await response.aclose()
        except CallError as error:
            raise _without((key, *headers.values()), error) from None

    async def _send_until_accepted(
        self, client: httpx2.AsyncClient, request: httpx2.Request, has_key: bool
    ) -> httpx2.Response:
        """The response of the first attempt that is not refused."""
        attempt, end = 0, DEADLINE.get()
        while True:
            async with self._limit():
                response = await client.send(request, stream=True)
            if response.status_code == 200:
                return response
            content = b""
            try:
                async with self._limit():
                    async for chunk in response.aiter_raw():
                        content += chunk
                        if len(content) > _LARGEST_REFUSAL:
                            break
            finally:
                await response.aclose()
            error = refusal(response.status_code, response.headers, content, self._who, self.model, has_key=has_key)
            attempt += 1
            pause = (error.retry_after_ms or 0) / 1000 or random.uniform(
                0, exponential_delay(attempt, _FIRST_PAUSE_S, inf)
            )
            remaining_s = self.timeout_s if end is None else end - time.perf_counter()
            if not error.retryable or attempt > self.retries or pause >= remaining_s:
                raise error
            await asyncio.sleep(pause)

    @asynccontextmanager
    async def _limit(self) -> AsyncIterator[None]:
        """Limit the time of what is awaited inside."""
        try:
            async with asyncio.timeout(self.timeout_s):
                yield
        except TimeoutError:
            raise CallTimeout(
                f"{self._who} was silent for {self.timeout_s:g} s (timeoutMs of the model)",
                hint="raise timeoutMs, or ask for a shorter answer",
                outcome="unknown",
                limit="timeoutMs of the model",
            ) from None

    async def _chunks(self, response: httpx2.Response) -> AsyncIterator[bytes]:
        """The bytes of the body without a byte order mark, up to the limit of their size; only UTF-8 is accepted."""
        if response.headers.get("content-encoding", "identity") != "identity":
            raise UpstreamError(
                f"{self._who} compresses its answers, which was not asked for",
                hint="turn compression off in the server, or in the proxy before it",
                outcome="unknown",
            )
        size, decoder = 0, codecs.getincrementaldecoder("utf-8-sig")()
        async for chunk in response.aiter_raw():
            size += len(chunk)
            if size > self.max_bytes:
                raise OutputTooLarge(
                    f"{self._who} answered more than {self.max_bytes:,} bytes",
                    hint="set max_tokens, or raise maxBytes of the model",
                    outcome="unknown",
                    limit=self.max_bytes,
                )
            try:
                text = decoder.decode(chunk)
            except UnicodeDecodeError:
                raise UpstreamError(
                    f"{self._who} answered with bytes that are not UTF-8",
                    hint="see that `baseUrl` is that of an OpenAI-compatible API",
                    outcome="unknown",
                ) from None
            yield text.encode()

    async def _events(self, response: httpx2.Response) -> AsyncGenerator[str | bytes]:
        """The data of each event, up to and including ``[DONE]``; comments do not reset the time limit."""
        httpx2 = http_library(_NEEDS)
        if "text/event-stream" not in response.headers.get("content-type", "").lower():
            async with self._limit():  # a server that cannot stream answers with the whole completion
                content = b"".join([chunk async for chunk in self._chunks(response)])
            yield content
            return
        checked = httpx2.Response(
            200, headers=response.headers, content=self._chunks(response), request=response.request
        )
        async with aclosing(aiter(httpx2.EventSource(checked, self.max_bytes))) as events:
            while True:
                async with self._limit():
                    event = await anext(events, None)
                if event is None:
                    return
                yield event.data
                if event.data == _END:
                    return

    def _parsed(self, data: bytes | str) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            quoted = data[:200] if isinstance(data, str) else data[:200].decode("utf-8", "replace")
            raise UpstreamError(
                f"{self._who} answered with something that is not JSON: {error}",
                hint="see that `baseUrl` is that of an OpenAI-compatible API",
                outcome="unknown",
                start=quoted,
            ) from None


def _without(secrets: Sequence[str], error: CallError) -> CallError:
    """The error without the key and the headers that were sent: an API may repeat them."""

    def clean(value: Any) -> Any:
        for secret in secrets:
            if isinstance(value, str) and len(secret) >= _SHORTEST_SECRET:
                value = value.replace(secret, "***")
        return value

    return type(error)(
        clean(error.message),
        hint=clean(error.hint),
        retryable=error.retryable,
        outcome=error.outcome,
        retry_after_ms=error.retry_after_ms,
        **{name: clean(value) for name, value in error.details.items()},
    )


@functools.cache
def _tls() -> Any:
    """The system's certificates; reading them is slow."""
    return http_library(_NEEDS).create_ssl_context(trust_env=False)
