"""Language models for nodes and plugins: each request passes the pipeline of tool calls, with its permissions, hooks, budget and record.

find the model → tavern_before_prompt → budget of the plugin → the governed call core:LLM → MODEL_CALLED
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tavern_core.contract.core_services import LLMS, Llms
from tavern_core.contract.llm import DEADLINE, LLM, LLMAnswer, Message, Price, StreamingLLM, answer_json, answer_of
from tavern_core.contract.targets import PythonTarget
from tavern_core.errors import CallError, ToolFailed, call_error_of
from tavern_core.flow.llm_use import PluginBudgets, Use
from tavern_core.flow.prompt_hooks import Asked, PromptChange, PromptHooks
from tavern_core.frozen import dataclass as frozen_dataclass
from tavern_core.kernel.calls.running_call import current
from tavern_core.kernel.catalogue.plan import Inner
from tavern_core.kernel.hooks.event_emitter import EventEmitter
from tavern_core.kernel.log.recorder import Recorder
from tavern_core.model.call import HOST_PRINCIPAL, CallContext
from tavern_core.model.event import MODEL_CALLED, Event
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.result import ToolResult
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.kernel.plugins.contributions import Contributions

Invoke = Callable[[str, Mapping[str, Any] | None, CallContext | None, str], Coroutine[Any, Any, ToolResult]]
"""(tool, arguments, context, purpose): a call through the one pipeline."""
ASK: Final = "core:LLM"
_ASK_LOCAL: Final = "core:LLM, local"
"""The key of the same operation for models that are local."""
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
        "toolCalls": {"type": "array"},
        "data": {},
    },
    "required": ["text", "finishReason", "usage", "model"],
}
_tell: ContextVar[Callable[[str], object] | None] = ContextVar("tavern_pieces", default=None)
"""The receiver of the pieces of the current answer."""


_is_beneath: ContextVar[bool] = ContextVar("tavern_beneath", default=False)
"""Whether the request comes from the plugin that replaces the service."""


@frozen_dataclass(frozen=True, slots=True)
class Around:
    """What happens around each request.

    Args:
        prepare: activates the plugins that declare models.
        mask: removes secrets from the data of an event.
    """

    hooks: PromptHooks
    budgets: PluginBudgets
    events: EventEmitter
    recorder: Recorder
    prepare: Callable[[], Awaitable[None]]
    mask: Callable[[Any], Any]


class Models:
    """The language models of plugins and of tavern.yaml.

    Args:
        invoke: the pipeline.
    """

    def __init__(self, contributions: Contributions, invoke: Invoke, around: Around) -> None:
        self._contributions = contributions
        self.invoke = invoke
        """A call through the pipeline."""
        self._around = around
        self.specs = {
            key: ToolSpec(
                ASK, "Asks a language model.", plugin="core-nodes-outside", capabilities=needed, input_schema=_QUESTION,
                output_schema=_ANSWER, impl=PythonTarget(self._answer),
            )
            for key, needed in ((ASK, frozenset({CAPABILITY})), (_ASK_LOCAL, frozenset[str]()))
        }  # fmt: skip

    @property
    def replacement(self) -> Llms | None:
        """The replacement of the service `llms`; None if there is none."""
        if self._contributions.is_builtin(self._contributions.owner("services", LLMS)):
            return None
        return self._contributions.get("services", LLMS).object  # type: ignore[no-any-return]

    async def prepare(self) -> None:
        """Activate the plugins that declare models."""
        await self._around.prepare()

    def names(self) -> list[str]:
        """The names of all models, sorted."""
        return sorted(self._contributions.all("llms"))

    def owner(self, name: str) -> str:
        """The plugin that contributes a model."""
        return self._contributions.owner("llms", name) or ""

    def find(self, name: str) -> LLM:
        """One model; for an empty name, the only one.

        Raises:
            ToolFailed: there is none, or more than one (TOOL_ERROR).
        """
        if (found := self._known(name)) is not None:
            return found
        known = self._contributions.all("llms")
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
            else "add one to `llms` in tavern.yaml, or a plugin that contributes one with tavern_register_llms"
        )
        raise ToolFailed(f"there is {what}", hint=hint, fixFor="caller" if known else "operator")

    def _known(self, name: str) -> LLM | None:
        known = self._contributions.all("llms")
        return next(iter(known.values())) if not name and len(known) == 1 else known.get(name)

    def asked_by(self, name: str, context: CallContext | None, purpose: str, plugin: str = "") -> LLM:
        """A model for the caller `context`; None: the host, or the caller of the tool that runs. Raises as `find`.

        Args:
            plugin: whose budget its requests use.
        """
        streams = self.replacement is None and isinstance(self.find(name), StreamingLLM)
        return (_StreamingAsker if streams else _Asker)(self, name, context, purpose, plugin)

    async def ask(
        self,
        name: str,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        context: CallContext | None,
        purpose: str,
        *,
        asker: str = "",
        plugin: str = "",
        tell: Callable[[str], object] | None = None,
    ) -> LLMAnswer:
        """Call a model. Cancelling the task cancels the request.

        Args:
            asker: the calling plugin; one that replaces the service `llms` calls the original models.
            plugin: whose budget is used and whose hooks do not see the request; default: `asker`.
            tell: called with each piece of the text while a model streams; True ends the request, and the answer is what has arrived.

        Raises:
            CallError: it was refused, or failed.
        """
        if self._known(name) is None:
            await self._around.prepare()
        request = _Request(
            Asked(name, [dict(message) for message in messages], dict(options), purpose),
            context,
            asker,
            plugin or asker,
        )
        try:
            request.asked, request.changes = await self._around.hooks.change(
                request.asked, request.plugin, lambda other: self._known(other) is not None
            )
            request.use = self._use(request.asked)
            self._around.budgets.begin(request.plugin, request.asked.model, request.use.price)
        except CallError as error:
            await self._around.events.deliver(self._note(request, error.code))
            raise
        return await self._governed(request, tell)

    def _use(self, asked: Asked) -> Use:
        price = getattr(self._known(asked.model), "price", None)
        question = {"model": asked.model, "messages": asked.messages, "options": asked.options}
        return Use(question, price if isinstance(price, Price) else None)

    async def _governed(self, request: _Request, tell: Callable[[str], object] | None) -> LLMAnswer:
        """The governed call, what it used, and its event."""
        use, around = request.use, self._around

        def passed_on(piece: str) -> object:
            use.streamed += len(piece)
            return tell(piece) if tell is not None else None

        is_beneath = self._contributions.overrides(LLMS, request.asker)
        is_original = is_beneath or self.replacement is None
        is_local = is_original and getattr(self._known(request.asked.model), "is_local", False) is True
        which: Any = Inner(_ASK_LOCAL if is_local else ASK)
        token, telling = _is_beneath.set(is_beneath), _tell.set(None if tell is None else passed_on)
        try:
            result = await self.invoke(which, use.question, request.context, request.asked.purpose)
        except BaseException:  # the caller's task is cancelled
            use.broke_off()
            around.budgets.add(request.plugin, use)
            self._note(request, "CANCELLED")
            raise
        finally:
            _is_beneath.reset(token)
            _tell.reset(telling)
        answer, error = None if result.error is not None else answer_of(result.value), result.error
        if answer is not None:
            use.answered(answer)
        elif error is not None and error.outcome != "none":
            use.broke_off()
        around.budgets.add(request.plugin, use)
        api_model = "" if answer is None else answer.model
        await around.events.deliver(self._note(request, error.kind if error else "", api_model, result.call_id))
        if error is not None:
            raise call_error_of(error.kind)(
                error.message,
                hint=error.fix,
                retryable=error.retryable,
                outcome=error.outcome,
                retry_after_ms=error.retry_after_ms,
                **error.details,
            )
        assert answer is not None
        return answer

    def _note(self, request: _Request, error: str, api_model: str = "", call_id: str = "") -> Event:
        """Put MODEL_CALLED on the record: what was used, never what was said."""
        asked, use = request.asked, request.use
        context = request.context or (current.get() or (0, None, None, ""))[2]
        data: dict[str, Any] = {
            "name": asked.model or self._only(),
            "model": api_model,
            "purpose": self._around.mask(asked.purpose),
            "principal": HOST_PRINCIPAL if context is None else context.principal,
            "ok": not error,
            "ms": round((time.perf_counter() - request.began) * 1000, 3),
            "tokens": dict(use.tokens),
        }
        if use.is_estimated:
            data["estimated"] = True
        if use.price is not None:
            data |= {"cost": use.cost, "currency": use.price.currency}
        if error:
            data["error"] = error
        if request.changes:
            data["changedBy"] = [{"plugin": plugin, "changed": names} for plugin, names in request.changes]
        self._around.recorder.model_use.update(
            {
                (data["name"], "ok" if not error else "failed"): 1,
                **{(data["name"], k): n for k, n in use.tokens.items()},
            }
        )
        return self._around.recorder.note(MODEL_CALLED, data, plugin=request.plugin, call_id=call_id)

    def _only(self) -> str:
        known = self.names()
        return known[0] if len(known) == 1 else ""

    async def _answer(
        self, model: str, messages: list[dict[str, Any]], options: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        if not _is_beneath.get() and (other := self.replacement) is not None:
            return dict(await other.complete(messages, model, options or {}))
        found, frame = self.find(model), current.get()
        deadline = DEADLINE.set(None if frame is None else frame[1])
        try:
            return answer_json(await _complete(found, model, messages, options or {}))
        finally:
            DEADLINE.reset(deadline)


@dataclass(slots=True)
class _Request:
    """One request on its way."""

    asked: Asked
    context: CallContext | None
    asker: str
    plugin: str
    changes: Sequence[PromptChange] = ()
    use: Use = field(default_factory=lambda: Use({}, None))
    began: float = field(default_factory=time.perf_counter)


async def _complete(model: LLM, name: str, messages: Sequence[Message], options: Mapping[str, Any]) -> LLMAnswer:
    """The answer of a model; it is streamed if somebody receives the pieces."""
    tell = _tell.get()
    if tell is None or not isinstance(model, StreamingLLM):
        return await model.complete(messages, **options)
    text, whole = [], None
    pieces = model.stream(messages, **options)
    async with aclosing(pieces) if hasattr(pieces, "aclose") else nullcontext():  # type: ignore[type-var]
        async for piece in pieces:
            if isinstance(piece, LLMAnswer):
                whole = piece
                continue
            text.append(piece)
            if tell(piece) is True:
                return LLMAnswer("".join(text), STOPPED, model=name)
    return whole or LLMAnswer("".join(text), model=name)


class _Asker:
    """One model for one caller."""

    def __init__(self, models: Models, name: str, context: CallContext | None, purpose: str, plugin: str) -> None:
        self._models, self._name, self._context, self._purpose, self._plugin = models, name, context, purpose, plugin

    async def complete(self, messages: Sequence[Message], /, **options: Any) -> LLMAnswer:
        """See `LLM.complete`."""
        return await self._models.ask(self._name, messages, options, self._context, self._purpose, plugin=self._plugin)


class _StreamingAsker(_Asker):
    async def stream(self, messages: Sequence[Message], /, **options: Any) -> AsyncIterator[str | LLMAnswer]:
        """The pieces of the text. Closing the iterator cancels the request."""
        pieces: asyncio.Queue[str | None] = asyncio.Queue()

        async def work() -> None:
            try:
                await self._models.ask(
                    self._name,
                    messages,
                    options,
                    self._context,
                    self._purpose,
                    plugin=self._plugin,
                    tell=pieces.put_nowait,
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
