"""Runs the calls in TAM text: parses, binds and checks each block as a whole, then runs it step by step.

    parse → look up the tools (activating plugins) → bind → may the caller use every tool? → run in order

An invalid block does not run. A chain does not run if a later step could not be called.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Any, Final, Protocol

from tavern_core import tam
from tavern_core.errors import CallError, InputInvalid, TavernError, ToolNotFound
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.calls.running_call import frame
from tavern_core.kernel.calls.text_call_report import MOST_CHARS, render_feedback
from tavern_core.kernel.catalogue.call_plan import CallPlan
from tavern_core.kernel.catalogue.tools import Tools
from tavern_core.model.call import CallContext
from tavern_core.model.config import TamConfig
from tavern_core.model.message_translation import Language, of_the_locale, say
from tavern_core.model.nearest import fold
from tavern_core.model.result import ToolError, ToolResult, failure
from tavern_core.model.text_call import Step, TextOutcome
from tavern_core.model.tool import ToolSpec

Aside = Callable[..., Awaitable[Any]]
"""Runs a function on this thread or in another."""
MOST_RETRIES = 10
_STAGES: Final = {"TAM_SYNTAX": "parse", "TOOL_NOT_FOUND": "resolve", "INPUT_SCHEMA_INVALID": "validate_input"}
"""Kind of the error of a block → `details.stage`."""
_LONG: Final = 50_000
"""Characters; parsing this many takes some milliseconds."""
_TURN: Final = 50
"""After this many blocks, other tasks get a turn."""
_AT_ONCE: Final = 8
"""At most this many blocks run at the same time."""


class ToolFinder(Protocol):
    """Finds the tools that a text names (`Compiler`)."""

    async def find(self, written: str, context: CallContext | None) -> CallPlan: ...

    async def language(self, context: CallContext | None) -> Language | None: ...

    async def prepare(self, context: CallContext | None) -> None: ...


class TextCaller(Protocol):
    """Makes the calls of a text."""

    def invoke(
        self, tool: str, arguments: Mapping[str, Any], context: CallContext | None, key: str | None
    ) -> Awaitable[ToolResult]:
        """Make one call through the pipeline; `key` is its idempotency key."""
        ...

    async def preview_call(
        self, tool: str, arguments: Mapping[str, Any], context: CallContext | None, earlier: int, key: str | None
    ) -> CallError | None:
        """Why a planned call, after `earlier` others, would be refused, if known (`CallPreview.preview_call`)."""

    def refused(self, command: str, context: CallContext | None, result: ToolResult) -> ToolResult:
        """Record a block that was not run; return its result."""


@dataclass(frozen=True, slots=True)
class _FoundTool:
    """The tool that a command names."""

    spec: ToolSpec
    plan: CallPlan | None = None
    """None: it cannot be used now; the call will say why."""

    @property
    def schema(self) -> Any:
        """The schema of the arguments: like the pipeline, it refuses undeclared names."""
        return self.spec.input_schema if self.plan is None else self.plan.arguments.validator.judged_by

    def problems(self, arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
        """The errors that the tool's schema finds: (JSON pointer, message)."""
        if (plan := self.plan) is None:
            return []
        rules = plan.arguments
        whole = arguments if rules.fill is None else rules.fill(arguments)
        return [] if rules.validator.accepts(whole) else [*map(tam.pointed, rules.validator.problems(whole))]


class _TooLarge(Exception):
    """A text exceeds a limit: its size, the limit, and the text between its blocks."""

    def __init__(self, has: str, limit: str, prose: str = "") -> None:
        super().__init__(has, limit)
        self.has, self.limit, self.prose = has, limit, prose


class Transcript:
    """Runs the calls in texts."""

    def __init__(
        self,
        tools: Tools,
        compiler: ToolFinder,
        config: TamConfig,
        caller: TextCaller,
        language: Language | None = None,
    ) -> None:
        self._tools = tools
        self._compiler = compiler
        self._config = config
        self._caller = caller
        self._language = language

    async def run(
        self, text: str, context: CallContext | None, *, max_chars: int = MOST_CHARS, parallel: bool = False
    ) -> TextOutcome:
        """Run every block of `text` in order; its content never raises.

        Args:
            max_chars: the limit of the feedback.
            parallel: adjacent blocks of one read-only call each run at the same time.
        """
        language = await self._compiler.language(context) or self._language or of_the_locale(os.environ)
        # Other tasks of the loop would have to wait while a long text is parsed.
        aside = asyncio.to_thread if len(text) > _LONG else _at_once
        try:
            document, found, plan = await self._read(text, context, aside)
        except _TooLarge as large:
            return self._too_large(large, context, language)
        steps = await self._run_blocks(
            [list(calls) for _, calls in groupby(plan.calls, key=_block_of)],
            found,
            context,
            most=_AT_ONCE if parallel else 1,
        )
        results = {
            block: [step.result for step in done if step.result is not None]
            for block, done in groupby(steps, key=lambda step: step.call.block)
        }
        for block, result, command in self._damaged(document, plan.problems):
            results[block] = [self._caller.refused(command, context, result)]

        def named(tool: str) -> str | None:
            return tool if self._tools.why(tool, context=context) else None

        has_feedback = document.blocks or plan.problems
        return TextOutcome(
            tuple(r for block in sorted(results) for r in results[block]),
            tuple(plan.calls),
            tuple(plan.problems),
            document.prose,
            await aside(render_feedback, steps, plan.problems, max_chars=max_chars, language=language, name=named)
            if has_feedback
            else "",
            tuple(steps),
        )

    async def _read(
        self, text: str, context: CallContext | None, aside: Aside
    ) -> tuple[tam.Document, dict[str, _FoundTool], tam.Plan]:
        """The blocks of a text, its tools and its calls.

        Raises:
            _TooLarge: the text exceeds a limit.
        """
        config = self._config
        if len(text) > config.max_text:
            raise _TooLarge(say(tam.WORDS["many_characters"], count=len(text)), f"{config.max_text:,} (tam.maxText)")
        document = await aside(
            tam.parse, text, ignore_fenced=config.ignore_fenced, max_block=config.max_block, thoughts=config.thoughts
        )
        most = f"{config.max_calls:,} (tam.maxCalls)"
        if len(document.blocks) > config.max_calls:
            raise _TooLarge(say(tam.WORDS["many_blocks"], count=len(document.blocks)), most, document.prose)
        found = await self._look_up(document, context, aside)
        visible = await self._visible(context) if document.blocks else ()
        plan: tam.Plan = await aside(
            tam.bind,
            document,
            lambda tool: found[tool].schema if tool in found else None,
            known=visible,
            destructive=lambda tool: tool in found and found[tool].spec.is_destructive,
            references=config.references,
            validate=lambda tool, arguments: found[tool].problems(arguments),
        )
        if len(plan.calls) > config.max_calls:
            raise _TooLarge(say(tam.WORDS["many_calls"], count=len(plan.calls)), most, document.prose)
        return document, found, plan

    def _too_large(self, large: _TooLarge, context: CallContext | None, language: Language) -> TextOutcome:
        """The outcome of a text that exceeds a limit: nothing runs."""
        row = tam.PROBLEM_CODES["text_too_large"]
        message = say(tam.WORDS["too_many"], has=large.has, limit=large.limit)
        problem = tam.Problem(row.severity, "text_too_large", message, row.repair)
        result = ToolResult(
            False,
            error=ToolError(row.error_kind, problem.message, {"problems": [_problem_json(problem)]}, fix=problem.hint),
        )
        results = (self._caller.refused("", context, result),)
        return TextOutcome(results, (), (problem,), large.prose, render_feedback((), (problem,), language=language))

    async def _look_up(
        self, document: tam.Document, context: CallContext | None, aside: Aside
    ) -> dict[str, _FoundTool]:
        """The tool of every command that names one, by the id as written."""
        found: dict[str, _FoundTool] = {}
        for tool in await aside(tam.named_tools, document):
            try:
                plan = await self._compiler.find(tool, context)
                found[tool] = _FoundTool(plan.spec, plan)
            except ToolNotFound:
                continue  # bind reports it, with the nearest ids
            except CallError:
                with suppress(ToolNotFound):  # removed in the meantime: reported as above
                    found[tool] = _FoundTool(self._tools.known(tool))  # the call itself will say why it cannot run
        return found

    async def _visible(self, context: CallContext | None) -> list[str]:
        await self._compiler.prepare(context)
        try:
            return [spec.id for spec in self._tools.list(context=context)]
        except TavernError:  # the profile cannot be read: each call reports that
            return []

    def _damaged(
        self, document: tam.Document, problems: Sequence[tam.Problem]
    ) -> Iterator[tuple[int, ToolResult, str]]:
        """For each block without a call: its number, a result with the reason, and its command if it has one."""
        errors = sorted((p for p in problems if p.severity == "error"), key=lambda p: p.block)
        blocks = {block.number: block for block in document.blocks} if errors else {}
        for block, group in groupby(errors, key=lambda p: p.block):
            found = list(group)
            kind, command = tam.PROBLEM_CODES[found[0].code].error_kind, _command(blocks.get(block))
            details: dict[str, Any] = {"problems": [_problem_json(p) for p in found], "stage": _STAGES[kind]}
            if kind == ToolNotFound.code:
                details["nearest"] = list(self._tools.suggest(command))
            message = " ".join(p.message for p in found[:3])
            yield block, ToolResult(False, error=ToolError(kind, message, details, fix=found[0].hint)), command

    async def _run_blocks(
        self,
        blocks: Sequence[list[tam.TamCall]],
        found: Mapping[str, _FoundTool],
        context: CallContext | None,
        *,
        most: int,
    ) -> list[Step]:
        """Run the blocks in order; up to `most` independent read-only blocks run at the same time."""
        steps: list[Step] = []
        for number, group in enumerate(_groups(blocks, found, most)):
            if len(group) == 1:
                steps += await self._run_block(group[0], found, context)
            else:
                running = (self._run_block(calls, found, context) for calls in group)
                # All end before an error of one is raised: a call that has begun is recorded with its result.
                for done in await asyncio.gather(*running, return_exceptions=True):
                    if isinstance(done, BaseException):
                        raise done
                    steps += done
            if number % _TURN == _TURN - 1:
                await asyncio.sleep(0)  # tools that never wait must not block the loop
        return steps

    async def _run_block(
        self, calls: list[tam.TamCall], found: Mapping[str, _FoundTool], context: CallContext | None
    ) -> list[Step]:
        """Run one block; a chain stops at its first failure unless the failed step says otherwise."""
        if len(calls) > 1:
            refusals = [
                await self._caller.preview_call(found[call.tool].spec.id, call.arguments, context, at, _key(call))
                for at, call in enumerate(calls)
            ]
            if any(refusals):
                return [
                    Step(call, None if refusal is None else self._caller.refused(call.tool, context, failure(refusal)))
                    for call, refusal in zip(calls, refusals, strict=True)
                ]
        steps: list[Step] = []
        answers: dict[int, Any] = {}
        stopped = False
        for call in calls:
            if stopped:
                steps.append(Step(call))
                continue
            result = await self._run_step(call, found[call.tool], answers, context)
            steps.append(Step(call, result))
            if result.ok:
                if result.status != "job":  # the result of a job comes later
                    answers[call.index] = result.value
            elif call.on_error != "continue":
                stopped = True
        return steps

    async def _run_step(
        self, call: tam.TamCall, found: _FoundTool, answers: Mapping[int, Any], context: CallContext | None
    ) -> ToolResult:
        spec = found.spec
        around = frame()
        context = context or (around.caller if around is not None else None)
        if context is None and found.plan is not None:
            context = found.plan.admission.host
        if context is not None and call.request_id:
            context = replace(context, request_id=call.request_id, trace_id=call.request_id)
        if context is not None and call.retry is not None:
            allowed = context.budget.max_retries
            retries = min(call.retry, MOST_RETRIES if allowed is None else allowed)
            context = replace(context, budget=replace(context.budget, max_retries=retries))
        arguments: Mapping[str, Any] = call.arguments
        if self._config.references:
            try:
                arguments = tam.resolve_references(arguments, answers)
            except InputInvalid as error:
                error.details["stage"] = "validate_input"
                return self._caller.refused(spec.id, context, failure(error))
        return await self._caller.invoke(spec.id, arguments, context, _key(call))


def _block_of(call: tam.TamCall) -> int:
    return call.block


def _groups(
    blocks: Sequence[list[tam.TamCall]], found: Mapping[str, _FoundTool], most: int
) -> Iterator[list[list[tam.TamCall]]]:
    """Groups of blocks that may run at the same time."""
    group: list[list[tam.TamCall]] = []
    for calls in blocks:
        if group and not (len(group) < most and _reads(calls, found) and _reads(group[-1], found)):
            yield group
            group = []
        group.append(calls)
    if group:
        yield group


def _reads(calls: list[tam.TamCall], found: Mapping[str, _FoundTool]) -> bool:
    """Whether a block is one read-only call."""
    return len(calls) == 1 and not calls[0].retry and found[calls[0].tool].spec.read_only


def _key(call: tam.TamCall) -> str | None:
    """The idempotency key of a step."""
    return f"{call.request_id}:{call.index}" if call.request_id else None


def _problem_json(problem: tam.Problem) -> dict[str, Any]:
    return {
        "code": problem.code,
        "message": problem.message,
        "hint": problem.hint,
        "line": problem.line,
        "column": problem.column,
    }


def _command(block: tam.Block | None) -> str:
    """The first command of a block, valid or not; empty: there is none."""
    fields = block.fields if block is not None else ()
    return next((f.value.strip()[:200] for f in fields if fold(f.key).startswith("command")), "")


async def _at_once(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return function(*args, **options)
