"""Language models for nodes and plugins: each request passes the pipeline of tool calls, with its permissions, hooks, budget and record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from tavern_core.contract.core_services import LLMS, Llms
from tavern_core.contract.llm import LLM, LLMAnswer, Message, ModelCall, StreamingLLM
from tavern_core.contract.targets import PythonTarget
from tavern_core.errors import ToolFailed, call_error_of
from tavern_core.kernel.catalogue.plan import Inner
from tavern_core.model.call import CallContext
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.result import ToolResult
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.kernel.plugins.contributions import Contributions

Invoke = Callable[[str, Mapping[str, Any] | None, CallContext | None, str], Coroutine[Any, Any, ToolResult]]
"""(tool, arguments, context, purpose): a call through the one pipeline."""
ASK: Final = "core:LLM"
STOPPED: Final = "stopped"
"""The finish reason of an answer that its receiver ended."""
CAPABILITY: Final = "network"
"""The capability for requests to a model, because their content leaves the host."""
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
        "toolCalls": {"type": "array"},
        "data": {},
    },
    "required": ["text", "finishReason", "usage", "model"],
}
_tell: ContextVar[Callable[[str], object] | None] = ContextVar("tavern_pieces", default=None)
"""The receiver of the pieces of the current answer."""


_is_beneath: ContextVar[bool] = ContextVar("tavern_beneath", default=False)
"""Whether the request comes from the plugin that replaces the service."""


class Models:
    """The language models of plugins.

    Args:
        invoke: the pipeline.
    """

    def __init__(self, contributions: Contributions, invoke: Invoke) -> None:
        self._contributions = contributions
        self.invoke = invoke
        """A call through the pipeline."""
        self.spec = ToolSpec(
            ASK, "Asks a language model.", plugin="core-nodes-outside", capabilities=frozenset({CAPABILITY}), input_schema=_QUESTION,
            output_schema=_ANSWER, impl=PythonTarget(self._answer),
        )  # fmt: skip

    @property
    def replacement(self) -> Llms | None:
        """The replacement of the service `llms`; None if there is none."""
        if self._contributions.is_builtin(self._contributions.owner("services", LLMS)):
            return None
        return self._contributions.get("services", LLMS).object  # type: ignore[no-any-return]

    def names(self) -> list[str]:
        """The names of all models, sorted."""
        return sorted(self._contributions.all("llms"))

    def find(self, name: str) -> LLM:
        """One model; for an empty name, the only one.

        Raises:
            ToolFailed: there is none, or more than one (TOOL_ERROR).
        """
        known = self._contributions.all("llms")
        found = next(iter(known.values())) if not name and len(known) == 1 else known.get(name)
        if found is None:
            what = (
                f"no language model {name!r}"
                if name
                else "no language model"
                if not known
                else "more than one language model"
            )
            hint = did_you_mean(name, known) or (
                f"name one of {', '.join(sorted(known))}"
                if known
                else "a plugin contributes one with tavern_register_llms"
            )
            raise ToolFailed(f"there is {what}", hint=hint, fixFor="caller" if known else "operator")
        return found  # type: ignore[no-any-return]

    def asked_by(self, name: str, context: CallContext | None, purpose: str) -> LLM:
        """A model for the caller `context`; None: the host, or the caller of the tool that runs. Raises as `find`."""
        streams = self.replacement is None and isinstance(self.find(name), StreamingLLM)
        return (_StreamingAsker if streams else _Asker)(self, name, context, purpose)

    async def ask(
        self,
        name: str,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        context: CallContext | None,
        purpose: str,
        *,
        asker: str = "",
        tell: Callable[[str], object] | None = None,
    ) -> LLMAnswer:
        """Call a model. Cancelling the task cancels the request.

        Args:
            asker: the calling plugin; one that replaces the service `llms` calls the original models.
            tell: called with each piece of the text while a model streams; True ends the request, and the answer is what has arrived.

        Raises:
            CallError: it was refused, or failed.
        """
        question = {"model": name, "messages": [dict(message) for message in messages], "options": dict(options)}
        which: Any = Inner(ASK)
        token, telling = _is_beneath.set(self._contributions.overrides(LLMS, asker)), _tell.set(tell)
        try:
            result = await self.invoke(which, question, context, purpose)
        finally:
            _is_beneath.reset(token)
            _tell.reset(telling)
        if (error := result.error) is not None:
            raise call_error_of(error.kind)(
                error.message,
                hint=error.fix,
                retryable=error.retryable,
                outcome=error.outcome,
                retry_after_ms=error.retry_after_ms,
                **error.details,
            )
        return answer_of(result.value)

    async def _answer(
        self, model: str, messages: list[dict[str, Any]], options: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        if not _is_beneath.get() and (other := self.replacement) is not None:
            return dict(await other.complete(messages, model, options or {}))
        found, tell = self.find(model), _tell.get()
        if tell is None or not isinstance(found, StreamingLLM):
            return answer_json(await found.complete(messages, **(options or {})))
        parts: list[str] = []
        whole: LLMAnswer | None = None
        stream = found.stream(messages, **(options or {}))
        try:
            async for piece in stream:
                if isinstance(piece, LLMAnswer):
                    whole = piece
                    continue
                parts.append(piece)
                if tell(piece) is True:
                    whole = LLMAnswer("".join(parts), STOPPED, model=model)
                    break
        finally:
            if (close := getattr(stream, "aclose", None)) is not None:
                await close()  # now, and not when the iterator is collected: it ends the request
        return answer_json(whole or LLMAnswer("".join(parts), model=model))


def answer_json(answer: LLMAnswer) -> dict[str, Any]:
    """An answer as JSON."""
    said: dict[str, Any] = {
        "text": answer.text,
        "finishReason": answer.finish_reason,
        "usage": dict(answer.usage),
        "model": answer.model,
    }
    if answer.tool_calls:
        said["toolCalls"] = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in answer.tool_calls]
    if answer.data is not None:
        said["data"] = answer.data
    return said


def answer_of(said: Mapping[str, Any]) -> LLMAnswer:
    """The answer that `answer_json` wrote."""
    calls = tuple(ModelCall(c["id"], c["name"], c["arguments"]) for c in said.get("toolCalls") or ())
    return LLMAnswer(said["text"], said["finishReason"], said["usage"], said["model"], calls, said.get("data"))


class _Asker:
    """One model for one caller."""

    def __init__(self, models: Models, name: str, context: CallContext | None, purpose: str) -> None:
        self._models, self._name, self._context, self._purpose = models, name, context, purpose

    async def complete(self, messages: Sequence[Message], /, **options: Any) -> LLMAnswer:
        """See `LLM.complete`."""
        return await self._models.ask(self._name, messages, options, self._context, self._purpose)


class _StreamingAsker(_Asker):
    async def stream(self, messages: Sequence[Message], /, **options: Any) -> AsyncIterator[str]:
        """The pieces of the text. Closing the iterator cancels the request."""
        pieces: asyncio.Queue[str | None] = asyncio.Queue()

        async def work() -> None:
            try:
                await self._models.ask(
                    self._name, messages, options, self._context, self._purpose, tell=pieces.put_nowait
                )
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
