"""The context of a running node: the NodeContext of one run of one node, without a way to the run behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from inspect import isfunction
from math import isfinite
from typing import Any, Final

from tavern_core.contract.llm import LLM
from tavern_core.contract.nodes import MismatchedInput, NodeContext, NothingCame
from tavern_core.contract.tool_context import LogLevel
from tavern_core.flow.engine.plan_tables import PreparedStep
from tavern_core.flow.engine.protocols import RunPart, SchedulerPart
from tavern_core.kernel.calls.background_call_request import in_run
from tavern_core.kernel.calls.elicitation import conversation
from tavern_core.kernel.views.clean_errors import clean_copy
from tavern_core.kernel.views.sealed_functions import Awaited, hidden, seal_awaitable
from tavern_core.kernel.views.values import exact
from tavern_core.model.question import Question, QuestionKind, prompt_and_schema
from tavern_core.model.result import ToolResult


def _read(name: str) -> Any:
    """A property whose value is behind the context."""
    return property(lambda self: self._behind(name))


class RunningNode(NodeContext):
    """The context of one run of one node, as the node holds it."""

    __slots__ = ("_behind", "attempt")

    def __init__(self, run: RunPart, scope: SchedulerPart, number: int, work: PreparedStep, attempt: int = 1) -> None:
        self._behind = hidden(_through, _HiddenContext(run, scope, number, work))
        self.attempt = attempt

    run_id = _read("run_id")
    path = _read("path")
    type = _read("type")
    config = _read("config")
    mode = _read("mode")
    logger = _read("logger")
    is_cancelled = _read("is_cancelled")

    def progress(self, done: float, total: float = 1.0, text: str = "") -> None:
        done, total = float(done), float(total)
        if not (isfinite(done) and isfinite(total)):
            raise ValueError(f"progress({done}, {total}) takes finite numbers")
        self._behind("progress", done, total, text)

    def keep(self, data: Any, media_type: str = "application/octet-stream", name: str = "") -> dict[str, Any]:
        return self._behind("keep", data, media_type, name)  # type: ignore[no-any-return]

    async def need(self, key: str) -> Any:
        return _settled(await self._behind("need", key))

    async def invoke(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        purpose: str = "",
        idempotency_key: str | None = None,
    ) -> ToolResult:
        return _settled(await self._behind("invoke", tool, arguments, purpose, idempotency_key))  # type: ignore[no-any-return]

    async def ask(
        self,
        *question: str | Mapping[str, Any],
        prompt: str | None = None,
        schema: Mapping[str, Any] | None = None,
    ) -> Any:
        words, wanted = prompt_and_schema(question, prompt, schema)
        return _settled(await self._behind("ask", wanted, words))

    def llm(self, name: str = "") -> LLM:
        return self._behind("llm", name)  # type: ignore[no-any-return]

    def service(self, name: str) -> Any:
        return self._behind("service", name)


class _HiddenContext:
    """The part behind the context, which nodes never get."""

    __slots__ = ("number", "question_count", "run", "scope", "work")

    def __init__(self, run: RunPart, scope: SchedulerPart, number: int, work: PreparedStep) -> None:
        self.run, self.scope, self.number, self.work = run, scope, number, work
        self.question_count = 0

    @property
    def place(self) -> str:
        """The path of the node."""
        return self.scope.prefix + self.work.step.id

    @property
    def purpose(self) -> str:
        """Why it calls a tool or a model, for the record."""
        return f"node {self.place} of {self.run.id}"

    def progress(self, done: float, total: float, text: str) -> None:
        self.run.progress(self.place, done, total, text)

    def keep(self, data: Any, media_type: str, name: str) -> dict[str, Any]:
        return self.run.facilities.keep(data, media_type, name, self.run.context)

    def need(self, key: str) -> Awaited:
        return _waited(self.scope.need(self.number, key), "need")

    def invoke(self, tool: str, arguments: Mapping[str, Any] | None, purpose: str, key: str | None) -> Awaited:
        return _waited(self._invoke(tool, arguments, purpose, key), "invoke")

    async def _invoke(
        self, tool: str, arguments: Mapping[str, Any] | None, purpose: str, key: str | None
    ) -> ToolResult:
        # Who called the workflow is asked where that is possible; else what the tool asks is a question of the run.
        talked = conversation.set(conversation.get() or _Conversation(self))
        within = in_run.set(True)
        run, outcome = self.run, "unknown"
        try:
            result = await run.facilities.invoke(tool, arguments, run.context, purpose or self.purpose, key)
            outcome = "done" if result.error is None else result.error.outcome
            return result
        finally:
            run.changes += outcome != "none"
            in_run.reset(within)
            conversation.reset(talked)

    def ask(self, schema: dict[str, Any], prompt: str) -> Awaited:
        self.question_count += 1
        return _waited(self._ask(self.question_count, schema, prompt), "ask")

    async def _ask(self, number: int, schema: Mapping[str, Any], prompt: str) -> Any:
        async with self.scope.without_slots(self.number):
            with self.scope.idling(self.number):
                return await self.run.ask(self.place, number, schema, prompt)

    async def _ask_all(self, questions: Mapping[str, Question]) -> dict[str, Any]:
        """Ask what a tool asks that the node calls, one question after the other."""
        first = self.question_count + 1
        self.question_count += len(questions)
        return {
            key: await self._ask(number, _SCHEMAS.get(question.kind, question.schema), _prompt(question))
            for number, (key, question) in enumerate(questions.items(), first)
        }

    def llm(self, name: str) -> LLM:
        return self.run.facilities.llm(self.work.step.spec.plugin, name, self.run.context, self.purpose)

    def service(self, name: str) -> Any:
        return self.run.facilities.service(self.work.step.spec.plugin, name)


class _Conversation:
    """Asks the questions of a called tool as questions of its node."""

    def __init__(self, behind: _HiddenContext) -> None:
        self._behind, self._loop = behind, asyncio.get_running_loop()

    def can_ask(self, kind: QuestionKind) -> bool:
        return True

    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Any]:
        asking = self._behind._ask_all(questions)
        if asyncio.get_running_loop() is self._loop:
            return await asking
        # A thread of the tool has a loop of its own.
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asking, self._loop))

    def log(self, level: LogLevel, message: str) -> None:
        pass  # the log of the process has it


_SCHEMAS: Final[Mapping[QuestionKind, Mapping[str, Any]]] = {
    "completion": {"type": "object", "required": ["content"]},
    "roots": {"type": "array", "items": {"type": "object", "required": ["uri"]}},
}
"""Schemas of answers to questions other than forms, which have their own."""


def _prompt(question: Question) -> str:
    return question.prompt or json.dumps(question.request or question.kind)


_MEMBERS: Final[Mapping[str, Callable[..., Any]]] = {
    "run_id": lambda behind: behind.run.id,
    "path": lambda behind: behind.place,
    "type": lambda behind: behind.work.step.type,
    "config": lambda behind: dict(behind.work.step.config),
    "mode": lambda behind: behind.work.step.mode,
    "logger": lambda behind: behind.run.facilities.logger(behind.work.step.spec.plugin),
    "is_cancelled": lambda behind: behind.run.is_cancelled,
    **{
        name: member for name, member in vars(_HiddenContext).items() if not name.startswith("_") and isfunction(member)
    },
}
"""The allowed names; any other name, such as ``__getattribute__``, would lead to the run."""


def _member(name: str) -> Callable[..., Any]:
    if (found := _MEMBERS.get(exact(name))) is None:
        raise AttributeError(f"the context of a node has no {name!r}")
    return found


def _through(behind: _HiddenContext, name: str, /, *args: Any) -> Any:
    try:
        return _member(name)(behind, *args)
    except BaseException as error:  # noqa: BLE001 - raised again below
        failed = clean_copy(error, "the host")
    behind = args = None  # type: ignore[assignment]  # the traceback keeps this frame: nothing is left in it
    try:
        raise failed
    finally:
        del failed


def _waited(work: Coroutine[Any, Any, Any], what: str) -> Awaited:
    return seal_awaitable(_outcome(work), f"ctx.{what}")


async def _outcome(work: Coroutine[Any, Any, Any]) -> tuple[Any, MismatchedInput | NothingCame | None]:
    """The result of `work`: the answer, or an error that the engine must recognise when the node raises it."""
    try:
        return await work, None
    except (MismatchedInput, NothingCame) as error:
        error.__traceback__ = error.__context__ = error.__cause__ = None
        return None, error


def _settled(outcome: tuple[Any, MismatchedInput | NothingCame | None]) -> Any:
    answer, error = outcome
    if error is not None:
        raise error
    return answer
