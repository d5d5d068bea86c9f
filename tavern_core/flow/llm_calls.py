"""Language models for nodes and plugins: each request passes the pipeline of tool calls, with its permissions, hooks, budget and record.

find the model → tavern_before_prompt → budget of the plugin → the governed call core:LLM → MODEL_CALLED

Programs may pass a model itself instead of the name of a configured one.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tavern_core.contract.core_services import LLMS, Llms
from tavern_core.contract.llm import (
    DEADLINE,
    LLM,
    LLMAnswer,
    Message,
    ScriptedLLM,
    StreamingLLM,
    answer_json,
    answer_of,
    price_of,
)
from tavern_core.errors import CallError, InputInvalid, ToolFailed, UsageError
from tavern_core.flow.llm_use import LlmUse, PluginBudgets
from tavern_core.flow.plugin_workflows import PluginWorkflows
from tavern_core.flow.prompt_hooks import ModelRequest, PromptHooks
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.calls.running_call import current
from tavern_core.kernel.hooks.event_emitter import EventEmitter
from tavern_core.kernel.log.recorder import Recorder
from tavern_core.model.call import HOST_PRINCIPAL, CallContext
from tavern_core.model.event import MODEL_CALLED, Event
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.result import ToolResult

if TYPE_CHECKING:
    from tavern_core.kernel.plugins.contribution_registry import Contributions


Invoke = Callable[[str, Mapping[str, Any] | None, CallContext | None, str, str | None], Coroutine[Any, Any, ToolResult]]
"""(tool, arguments, context, purpose, idempotency key): a call through the one pipeline."""
DOOR: Final = "workflow"
"""The entry point of these calls, and of those of nodes."""
OnText = Callable[[str], object]
"""Called with each piece of the text while a model streams; True ends the request."""
_on_text: ContextVar[OnText | None] = ContextVar("tavern_pieces", default=None)
"""The receiver of the pieces of the current answer."""

_uses_originals: ContextVar[bool] = ContextVar("tavern_original_models", default=False)
"""Whether the request comes from the plugin that replaces the service, and so goes to the original models."""


@dataclass(frozen=True, slots=True)
class LlmGovernance:
    """The rules that apply to every request.

    Args:
        plugin_workflows: activates the plugins that declare models.
        mask: removes secrets from the data of an event.
        most: characters of one streamed answer.
    """

    hooks: PromptHooks
    budgets: PluginBudgets
    events: EventEmitter
    recorder: Recorder
    plugin_workflows: PluginWorkflows
    mask: Callable[[Any], Any]
    most: int


class Models:
    """The language models of plugins and of tavern.yaml."""

    def __init__(self, contributions: Contributions, invoke: Invoke, governance: LlmGovernance) -> None:
        from tavern_core.flow.llm_tool import llm_operations

        self._contributions = contributions
        self.invoke = invoke
        """A call through the pipeline."""
        self._governance = governance
        self._passed = PassedModels()
        self._questions = llm_operations(self._answer)

    @property
    def replacement(self) -> Llms | None:
        """The replacement of the service `llms`; None if there is none."""
        if self._contributions.is_builtin(self._contributions.owner("services", LLMS)):
            return None
        return self._contributions.get("services", LLMS).object  # type: ignore[no-any-return]

    async def prepare(self) -> None:
        """Activate the plugins that declare models."""
        await self._governance.plugin_workflows.activate()

    def names(self) -> list[str]:
        """The names of all models, sorted."""
        return sorted(self._contributions.all("llms"))

    def owner(self, name: str) -> str:
        """The plugin that contributes a model."""
        return self._contributions.owner("llms", name) or ""

    def find(self, name: str) -> LLM:
        """A model by name; for an empty name, the only one.

        Raises:
            ToolFailed: there is none, or more than one (TOOL_ERROR).
        """
        if (found := self._find_model(name)) is not None:
            return found
        known = self._contributions.all("llms")
        several = "more than one language model" if known else "no language model"
        what = f"no language model {name!r}" if name else several
        if is_passed(name):
            hint = "it was passed by a program that has ended, or too many were passed since: pass it again with model="
            raise ToolFailed(f"there is no language model {name!r} any more", hint=hint, fixFor="caller")
        hint = did_you_mean(name, known) or (
            f"name one of {', '.join(sorted(known))}"
            if known
            else "add one to `llms` in tavern.yaml, or a plugin that contributes one with tavern_register_llms"
        )
        raise ToolFailed(f"there is {what}", hint=hint, fixFor="caller" if known else "operator")

    def name_of(self, model: ModelLike) -> str:
        """The name of a model; one that a program passes as an object or a function gets a name of this host.

        Raises:
            UsageError: it is neither a name nor a model (USAGE).
        """
        if isinstance(model, str):
            return model
        return self._passed.name_of(model)

    def _find_model(self, name: str) -> LLM | None:
        known: dict[str, LLM] = self._contributions.all("llms")
        if not name:
            return next(iter(known.values())) if len(known) == 1 else None
        model: LLM | None = known[name] if name in known else self._passed.get(name)
        return model

    def asked_by(self, name: str, context: CallContext | None, purpose: str, asker: str = "") -> LLM:
        """A model for the caller `context`; None: the host, or the caller of the tool that runs. Raises as `find`."""
        streams = self.replacement is None and isinstance(self.find(name), StreamingLLM)
        ask = partial(self.ask, name, context=context, purpose=purpose, asker=asker)
        return (GovernedStreamingLLM if streams else GovernedLLM)(ask)

    async def ask(
        self,
        name: str,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        context: CallContext | None,
        purpose: str,
        *,
        asker: str = "",
        on_text: OnText | None = None,
    ) -> LLMAnswer:
        """Call a model. Cancelling the task cancels the request.

        Args:
            asker: the calling plugin: its budget is used, and its own hooks do not see the request. One that replaces the
                service `llms` calls the original models.
            on_text: called with each piece of the text while a model streams; True ends the request, and the answer is what has arrived.

        Raises:
            CallError: it was refused, or failed.
        """
        if self._find_model(name) is None:
            await self.prepare()
        governance = self._governance
        use = LlmUse(ModelRequest(name, _copied(messages), dict(options), purpose), context, asker)
        try:
            use.request, use.changes = await governance.hooks.change(
                use.request, asker, lambda other: self._find_model(other) is not None
            )
            use.price = price_of(self._find_model(use.request.model))
            governance.budgets.begin(use)
        except CallError as error:
            await governance.events.deliver(self._record_use(use, error.code))
            raise
        return await self._governed(use, on_text)

    async def _governed(self, use: LlmUse, on_text: OnText | None) -> LLMAnswer:
        """Make the governed call; records its use and its event."""
        request, governance = use.request, self._governance

        def passed_on(piece: str) -> object:
            use.streamed.append(piece)
            return on_text(piece) if on_text is not None else None

        uses_originals = self._contributions.overrides(LLMS, use.asker)
        is_original = uses_originals or self.replacement is None
        is_local = is_original and getattr(self._find_model(request.model), "is_local", False) is True
        which: Any = self._questions[is_local]
        token, receiver = _uses_originals.set(uses_originals), _on_text.set(None if on_text is None else passed_on)
        try:
            question = {"model": request.model, "messages": request.messages, "options": request.options}
            result = await self.invoke(which, question, use.context, request.purpose, None)
        except BaseException:  # the caller's task is cancelled
            use.broke_off()
            governance.budgets.add(use)
            self._record_use(use, "CANCELLED")
            raise
        finally:
            _uses_originals.reset(token)
            _on_text.reset(receiver)
        answer, error = None if result.error is not None else answer_of(result.value), result.error
        if answer is not None:
            use.answered(answer)
        elif error is not None and error.outcome != "none":
            use.broke_off()
        governance.budgets.add(use)
        api_model = "" if answer is None else answer.model
        await governance.events.deliver(self._record_use(use, error.kind if error else "", api_model, result.call_id))
        result.unwrap()  # raises the error
        assert answer is not None
        return answer

    def _record_use(self, use: LlmUse, error: str, api_model: str = "", call_id: str = "") -> Event:
        """Log MODEL_CALLED: amounts, never content. A model that does not exist has no name there."""
        request = use.request
        name = (request.model if self._find_model(request.model) else "") if request.model else self._only()
        outer = current.get()
        context = use.context or (outer.caller if outer is not None else None)
        data: dict[str, Any] = {
            "name": name,
            "model": api_model,
            "purpose": self._governance.mask(request.purpose),
            **({"principal": HOST_PRINCIPAL} if context is None else context.whose()),
            "ok": not error,
            "ms": round((time.perf_counter() - use.began) * 1000, 3),
            "tokens": dict(use.tokens),
        }
        if use.is_estimated:
            data["estimated"] = True
        if use.price is not None:
            data |= {"cost": use.cost, "currency": use.price.currency}
        if error:
            data["error"] = error
        if use.changes:
            data["changedBy"] = [{"plugin": plugin, "changed": names} for plugin, names in use.changes]
        counts = {(name, "failed" if error else "ok"): 1} | {(name, key): count for key, count in use.tokens.items()}
        self._governance.recorder.model_use.update(counts)
        return self._governance.recorder.note(MODEL_CALLED, data, plugin=use.asker, call_id=call_id)

    def _only(self) -> str:
        known = self.names()
        return known[0] if len(known) == 1 else ""

    async def _answer(
        self, model: str, messages: list[dict[str, Any]], options: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        from tavern_core.flow.llm_tool import model_answer

        if not _uses_originals.get() and (other := self.replacement) is not None:
            return dict(await other.complete(messages, model, options or {}))
        found, frame = self.find(model), current.get()
        deadline = DEADLINE.set(None if frame is None else frame.deadline)
        try:
            return answer_json(
                await model_answer(found, model, messages, options or {}, _on_text.get(), self._governance.most)
            )
        finally:
            DEADLINE.reset(deadline)


def _copied(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies of the messages. Raises InputInvalid: something is not one (INPUT_SCHEMA_INVALID)."""
    if not all(isinstance(message, Mapping) for message in messages):
        raise InputInvalid("messages are mappings", hint='[{"role": "user", "content": "Hello"}]')
    return [dict(message) for message in messages]


# Governed llm ---------------------------------------------------------------------------------------------------------
# A language model as nodes and plugins get it: each request goes through `Models.ask`.


class GovernedLLM:
    """A model for one caller."""

    def __init__(self, ask: Callable[..., Awaitable[LLMAnswer]]) -> None:
        self._ask = ask  # `Models.ask` for this model and caller

    async def complete(self, messages: Sequence[Message], /, **options: Any) -> LLMAnswer:
        """See `LLM.complete`."""
        return await self._ask(messages, options)


class GovernedStreamingLLM(GovernedLLM):
    """The same for a model that streams."""

    async def stream(self, messages: Sequence[Message], /, **options: Any) -> AsyncIterator[str | LLMAnswer]:
        """The pieces of the text. Closing the iterator cancels the request."""
        pieces: asyncio.Queue[str | None] = asyncio.Queue()

        async def work() -> None:
            try:
                await self._ask(messages, options, on_text=pieces.put_nowait)
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


ModelLike = str | LLM | Callable[[Sequence[Message]], Any]
"""A program's reference to a model: its name, the model itself, or a function from messages to text."""
_PREFIX: Final = "passed:"
_MOST: Final = 1_000
"""Models of one host; the least recently used ones are dropped."""


class PassedModels:
    """The models that programs passed, by the names that they got. Thread-safe."""

    def __init__(self) -> None:
        self._models: dict[str, tuple[Any, LLM]] = {}
        """Name → the passed object, and the model; the last used one is at the end."""
        self._numbers = itertools.count(1)
        self._own = secrets.token_hex(4)
        self._lock = threading.Lock()

    def name_of(self, model: LLM | Callable[[Sequence[Message]], Any]) -> str:
        """The name of a model; the same object always gets the same one.

        Raises:
            UsageError: it is not a model (USAGE).
        """
        if not isinstance(model, LLM) and not callable(model):
            raise UsageError(
                f"a model is a name, an object with `complete`, or a function of the messages, got {type(model).__name__}",
                hint='model="gpt", or model=ScriptedLLM([...])',
            )
        with self._lock:
            for name, (passed, _) in self._models.items():
                if passed is model:
                    return name
            # A stored run must not find another process's model under its name.
            name = f"{_PREFIX}{self._own}-{next(self._numbers)}"
            self._models[name] = model, model if isinstance(model, LLM) else ScriptedLLM(model)
            if len(self._models) > _MOST:
                del self._models[next(iter(self._models))]
            return name

    def get(self, name: str) -> LLM | None:
        """The model with this name; None: there is none, or none any more."""
        with self._lock:
            if (found := self._models.pop(name, None)) is None:
                return None
            self._models[name] = found
            return found[1]


def is_passed(name: str) -> bool:
    """Whether a name was given to a passed model."""
    return name.startswith(_PREFIX)
