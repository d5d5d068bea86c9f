"""The tool calls of one run: recorded before and after, made once, and not repeated when the run is resumed."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from tavern_core.agents.agent_services import AgentServices
from tavern_core.agents.model_requests import AgentTask
from tavern_core.agents.notices import sentence
from tavern_core.agents.playback import PersonRequired, Playback, PlaybackEnds
from tavern_core.agents.read_result_tool import READ_RESULT
from tavern_core.agents.repetition import PastCall
from tavern_core.agents.spending import BudgetTracker
from tavern_core.contract.llm import ModelCall
from tavern_core.errors import CallError, InputInvalid, TavernError, ToolNotFound, call_error_of
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.calls.native_calls import not_an_object, read_arguments, text_of
from tavern_core.kernel.calls.result_serialization import result_of, result_text
from tavern_core.kernel.calls.text_call_runner import Transcript
from tavern_core.kernel.catalogue.call_plan import CallPlan
from tavern_core.kernel.catalogue.parameter_text import fold_lines
from tavern_core.model.call import CallContext
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.result import ToolError, ToolResult, failure
from tavern_core.model.safe_printing import is_text
from tavern_core.model.text_call import TextOutcome
from tavern_core.schema.provider_tool_export import export_tool

DOOR: Final = "agent"
RESULT_CHARS: Final = 6_000
"""Characters of one result that the model sees; the full result is an artifact."""
FEEDBACK_CHARS: Final = 60_000
_AT_ONCE: Final = 8
_PURPOSE_CHARS: Final = 200
"""Characters of the task that are shown to a person who approves a call."""


class RunListener(Protocol):
    """Receives the events of a run."""

    def record(self, kind: str, data: Mapping[str, Any]) -> None:
        """Store an event."""
        ...

    def piece(self, step: int, piece: str) -> None:
        """Receive a piece of an answer while it streams."""
        ...


@dataclass(frozen=True, slots=True)
class _PendingCall:
    """A call that is about to be made."""

    tool: str
    arguments: Mapping[str, Any]
    context: CallContext
    key: str
    """The idempotency key."""


class ToolCalls:
    """Makes the calls of one run, within its time budget."""

    def __init__(
        self, services: AgentServices, task: AgentTask, playback: Playback, spending: BudgetTracker, events: RunListener
    ) -> None:
        self._services = services
        self._run = task.run
        self._purpose = f"run {task.run}: {fold_lines(task.task, _PURPOSE_CHARS)}"
        self._playback = playback
        self._context = task.context
        self._schemas = task.tools
        self._language = language = services.language(task.profile)
        self._record = events.record
        self._within = spending.within
        self._step = self._next = self._foreseen = self._running = 0
        self._drawn_before = task.context.ledger.drawn - playback.drawn
        """Calls of the caller, which its ledger counts, too."""
        self.calls: list[PastCall] = []
        """The calls of this step, in the order of their numbers."""
        self.unread: list[Mapping[str, Any]] = []
        """Native calls of this step that could not be read, for the record."""
        config = services.base.config
        self._transcript = Transcript(services.catalogue.tools, _Finder(services), config.tam, self, language)

    @property
    def drawn(self) -> int:
        """The used part of the call budget: ended calls, nested calls of their tools, and calls of a workflow."""
        return self._context.ledger.drawn - self._drawn_before - self._running

    def begin(self, step: int) -> None:
        """Start a step, to which the next calls belong."""
        self._step, self._next, self._foreseen, self.calls, self.unread = step, 0, 0, [], []

    def again(self, step: int, unread: Iterable[Mapping[str, Any]]) -> None:
        """Register the calls of a step that is complete in the record, which are not repeated.

        Args:
            unread: the calls that could not be read.
        """
        self.begin(step)
        self.calls += [PastCall(data["tool"], data["arguments"], result_of(data["result"]), True) for data in unread]
        for (at, number), data in sorted(self._playback.calls.items()):
            if at == step and (recorded := self._playback.results.get((at, number))) is not None:
                reads = (at, number) in self._playback.reads
                self.calls.append(PastCall(data["tool"], data["arguments"], result_of(recorded), reads))

    async def text(self, text: str) -> TextOutcome:
        """Run the TAM blocks of a text. Raises PersonRequired, PlaybackEnds."""
        return await self._transcript.run(text, self._context, max_chars=FEEDBACK_CHARS, parallel=True)

    async def native(self, calls: Sequence[ModelCall]) -> list[ToolResult]:
        """Make native calls; adjacent read-only calls run at the same time. Raises PersonRequired, PlaybackEnds."""
        results: list[ToolResult] = []
        group: list[Coroutine[Any, Any, ToolResult]] = []
        for call in calls:
            try:
                tool, arguments = self._read(call)
            except (InputInvalid, ToolNotFound) as error:
                results += await _all(group)
                group = []
                refused = failure(error)
                written = {"written": call.arguments}
                self.calls.append(PastCall(call.name, written, refused, True))
                result = json.loads(result_text(refused))
                self.unread.append({"tool": call.name, "arguments": written, "result": result})
                results.append(refused)
                continue
            reads = await self._reads(tool)
            if not reads or len(group) == _AT_ONCE:
                results += await _all(group)
                group = []
            pending = self.invoke(tool, arguments, self._context, None)
            if reads:
                group.append(pending)
            else:
                results.append(await pending)
        return results + await _all(group)

    def _reader(self) -> str:
        """The wire name of the tool that reads results."""
        return str(export_tool(self._services.reading.spec, "openai")["function"]["name"])

    def _read(self, call: ModelCall) -> tuple[str, Mapping[str, Any]]:
        try:
            tool = (
                READ_RESULT if call.name == self._reader() else self._services.catalogue.descriptions.tool_id(call.name)
            )
        except ToolNotFound as error:
            hint = did_you_mean(call.name, [tool["function"]["name"] for tool in self._schemas])
            raise ToolNotFound(
                error.message, hint=hint or "use one of the tools that you have", fixFor="caller"
            ) from None
        arguments = read_arguments(call.arguments)
        if arguments is None:
            raise not_an_object(tool, call.arguments)
        if not is_text(json.dumps(arguments, ensure_ascii=False)):
            raise InputInvalid(
                f"{tool}: the arguments hold half a character (a lone surrogate): {call.arguments[:200]}",
                hint="write each character whole, as itself", fixFor="caller",
            )  # fmt: skip
        return tool, arguments

    async def _reads(self, tool: str) -> bool:
        try:
            return (await _Finder(self._services).find(tool, self._context)).spec.read_only
        except TavernError:
            return False  # the call itself reports it

    def invoke(
        self, tool: str, arguments: Mapping[str, Any], context: CallContext | None, key: str | None
    ) -> Coroutine[Any, Any, ToolResult]:
        """Make one call. It is numbered now, so that concurrent calls keep their order in the record."""
        number, self._next = self._next, self._next + 1
        self.calls.append(PastCall(tool, arguments, _NOT_YET, False))
        call_key = self._key_of(key) or f"{self._run}:{self._step}:{number}"
        return self._make(
            number, _PendingCall(tool, arguments, context or self._context, call_key), len(self.calls) - 1
        )

    def _key_of(self, request_key: str | None) -> str | None:
        """The idempotency key of a step of a block with a `request_id`."""
        return None if request_key is None else f"{self._run}:{_digest(request_key)}"

    async def _make(self, number: int, pending: _PendingCall, place: int) -> ToolResult:
        at = self._step, number
        recorded = self._playback.results.get(at)
        if recorded is None:
            if self._playback.is_final:
                raise PlaybackEnds
            recorded = await self._make_now(at, pending)
        result = result_of(recorded)
        self.calls[place] = PastCall(pending.tool, pending.arguments, result, at in self._playback.reads)
        return result

    async def _make_now(self, at: tuple[int, int], pending: _PendingCall) -> Mapping[str, Any]:
        step, number = at
        tool, arguments = pending.tool, pending.arguments
        if at not in self._playback.calls:
            begun = {"tool": tool, "arguments": dict(arguments), "key": pending.key}
            self._record("call", {"step": step, "index": number, **begun})
        target: Any = self._services.reading if tool == READ_RESULT else tool
        mode, run = self._services.base.mode, self._services.pipeline.run
        # The idempotency key covers calls begun by an ended process: none is made twice, unless that is harmless.
        self._running += 1
        result = await self._within(run(mode, target, arguments, pending.context, self._purpose, pending.key, DOOR))
        if (person := _waiting_for(result, tool, self._run)) is not None:
            raise PersonRequired(person)  # it has not ended, so it is made again
        self._running -= 1
        if tool != READ_RESULT:
            result = self._shortened(result, tool)
        data: Mapping[str, Any] = json.loads(result_text(result))
        reads = await self._reads(tool)
        if reads:
            self._playback.reads.add(at)
        ended = {"tool": tool, "result": data, "callId": result.call_id, "reads": reads, "drawn": self.drawn}
        self._record("result", {"step": step, "index": number, **ended})
        self._playback.human_answers.clear()
        return data

    def _shortened(self, result: ToolResult, tool: str) -> ToolResult:
        """The result, or its beginning and the address of the full result."""
        if not result.ok:
            return result
        text = (
            result.value if isinstance(result.value, str) else text_of(ToolResult(True, result.value), self._language)
        )
        if result._content:
            text = text_of(result, self._language)
        if len(text) <= RESULT_CHARS:
            return result
        address = self.store_text(text, f"{tool.replace(':', '-')}.txt")
        shown = {"beginning": text[:RESULT_CHARS], "characters": len(text), "whole": address, "readOnWith": READ_RESULT}
        return ToolResult(True, shown, evidence=result._evidence, meta=result._meta, trace=result._trace)

    def store_text(self, text: str, name: str) -> str:
        """Store a text that the agent may read again, marked with all sources that it has read; return its address."""
        store, read = self._services.state.artifacts, tuple(self._context.ledger.content_read.sources)
        return store.put(text, "text/plain", name=name, context=self._context, untrusted=read).uri

    async def preview_call(
        self, tool: str, arguments: Mapping[str, Any], context: CallContext | None, earlier: int, key: str | None
    ) -> CallError | None:
        """The preview of a chain's step, recorded: a replay must not use the current host."""
        at = self._step, self._foreseen
        self._foreseen += 1
        if at in self._playback.foreseen:
            recorded = self._playback.foreseen[at]
            return None if recorded is None else _error(recorded)
        if self._playback.is_final:
            raise PlaybackEnds
        pipeline = self._services.pipeline
        if tool == READ_RESULT:
            return None
        error = await pipeline.call_preview.preview_call(
            self._services.base.mode, tool, arguments, context, earlier, self._key_of(key), DOOR
        )
        if error is not None and (data := _waiting_for(failure(error), tool, self._run)) is not None:
            raise PersonRequired(data)
        error_json = None if error is None else ToolError.of(error).to_json()
        self._record("foreseen", {"step": at[0], "index": at[1], "tool": tool, "error": error_json})
        return error

    def refused(self, command: str, context: CallContext | None, result: ToolResult) -> ToolResult:
        """Record a block that was not run, unless in a replay; return its result."""
        if self._playback.is_final:
            return result
        return self._services.pipeline.conclusion.refused(command, context, result, DOOR)

    def answers(self, calls: Sequence[ModelCall], results: Sequence[ToolResult]) -> list[dict[str, Any]]:
        """The messages with the results of native calls."""
        return [
            {"role": "tool", "toolCallId": call.id, "content": self._answer(result)[:FEEDBACK_CHARS]}
            for call, result in zip(calls, results, strict=True)
        ]

    def _answer(self, result: ToolResult) -> str:
        callable_name = self._services.catalogue.descriptions.callable_name
        return text_of(result, self._language, lambda tool: callable_name(tool, self._context))

    def refusals(self, calls: Sequence[ModelCall], why: str, **values: Any) -> list[dict[str, Any]]:
        """The messages that refuse native calls, none of which is made."""
        text = sentence(why, self._language, **values)
        return [{"role": "tool", "toolCallId": call.id, "content": text} for call in calls]


class _Finder:
    """Finds tools for an agent: the host's, and the one that reads results."""

    def __init__(self, services: AgentServices) -> None:
        self._compiler = compiler = services.pipeline.compiler
        self._reading = services.reading
        self.language, self.prepare = compiler.language, compiler.prepare

    async def find(self, written: str, context: CallContext | None) -> CallPlan:
        target: Any = self._reading if written == READ_RESULT else written
        return await self._compiler.find(target, context)


_NOT_YET: Final = ToolResult(False, error=ToolError("CANCELLED", "the call has not ended"))


async def _all(group: Sequence[Awaitable[ToolResult]]) -> list[ToolResult]:
    """The results of concurrent calls; all end before an error of one is raised."""
    results: list[ToolResult] = []
    for result in await asyncio.gather(*group, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results


def _waiting_for(result: ToolResult, tool: str, run: str) -> dict[str, Any] | None:
    """The action that a person must take before the call can be made; None: none is needed."""
    error = result.error
    if error is None:
        return None
    if error.kind == "APPROVAL_REQUIRED" and (name := error.details.get("approval")):
        return {
            "kind": "approval", "id": name, "tool": tool, "reason": error.message, "answer": f"tavern approvals approve {name}",
        }  # fmt: skip
    if error.kind == "INPUT_REQUIRED" and (questions := error.details.get("questions")):
        first = questions[0]["id"]
        return {
            "kind": "question", "id": first, "tool": tool, "reason": error.message, "questions": questions,
            "answer": f"tavern agent resume {run} --answer {first}=VALUE",
        }  # fmt: skip
    return None


def _digest(key: str) -> str:
    """A block's `request_id` as a part of an idempotency key: unique within its run."""
    return hashlib.sha256(key.encode("utf-8", "backslashreplace")).hexdigest()[:24]


def _error(data: Mapping[str, Any]) -> CallError:
    return call_error_of(data["kind"])(
        data["message"], hint=data["fix"], retryable=data["retryable"], outcome=data["outcome"],
        retry_after_ms=data["retryAfterMs"], **data["details"],
    )  # fmt: skip
