"""The loop of an agent's run: ask the model, make its calls, return the results, until it answers without a call.

The loop is deterministic: with the recorded answers and results (`playback.py`), it takes the same path again. To
resume or replay a run, the loop runs over its record. A resumed run does real work from the end of the record on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from tavern_core.agents.agent_services import AgentServices
from tavern_core.agents.answer_stream import (
    MOST_ARGUMENTS,
    MOST_CALLS,
    AnswerReader,
    ModelAnswer,
    answer_of_model,
    answer_of_record,
    fenced_content,
)
from tavern_core.agents.compaction import as_text, plan_compaction, shorten, tokens_of_messages
from tavern_core.agents.model_requests import AgentModelRequests, AgentTask
from tavern_core.agents.notices import sentence
from tavern_core.agents.playback import PersonRequired, Playback, PlaybackEnds
from tavern_core.agents.repetition import STOP_AT, WARN_AT, Repetition
from tavern_core.agents.schema_budget import tokens_of_schema
from tavern_core.agents.spending import BudgetTracker, StopReason, TimeBudgetExceeded
from tavern_core.agents.tool_calls import RunListener, ToolCalls
from tavern_core.contract.llm import LLMAnswer, ModelCall
from tavern_core.errors import CallError, CallTimeout, TavernError
from tavern_core.kernel.settings.result_redaction import masking
from tavern_core.model.agent_run import AgentOutcome, AgentState
from tavern_core.model.safe_printing import printed
from tavern_core.model.text_call import TextOutcome
from tavern_core.model.token_estimate import tokens_of

Message = Mapping[str, Any]
STUCK: Final = "AGENT_STUCK"
"""The code of a run that stopped because its model repeats itself, or writes nothing usable."""
LONGEST_PAUSE_S: Final = 10.0
"""The longest pause before a request is repeated. If a model requests a longer one, the run ends and can be resumed."""
_KEPT_CHARS: Final = 2_000
"""Kept characters of a shortened answer, and of each of its arguments."""
_KEPT_CALLS: Final = 5
_SECRET_LOST: Final = "secret_lost"
_LONG: Final = 50_000
"""Characters."""


class AgentLoop:
    """The loop of one run, from its start or from its record.

    Args:
        events: stores the events and passes them on.
    """

    def __init__(
        self, services: AgentServices, task: AgentTask, playback: Playback, spending: BudgetTracker, events: RunListener
    ) -> None:
        self._services = services
        self._task = task
        self._playback = playback
        self._spending = spending
        self._events = events
        self._record = events.record
        self._language = services.language(task.profile)
        self._written = task.profile.written
        self._calls = ToolCalls(services, task, playback, spending, events)
        self._requests = AgentModelRequests(services, task, playback)
        self._repetition = Repetition()
        self._tools_size = sum(map(tokens_of_schema, task.tools))
        self.messages: list[Message] = []
        self._answer = ""
        self.warnings = [*task.warnings]

    async def run(self) -> AgentOutcome:
        """Work until the task is done or cannot continue."""
        try:
            return await self._work()
        except TimeBudgetExceeded:
            stop = self._spending.out_of_time()
            assert stop is not None
            return self._outcome("stopped", stop)
        except PersonRequired as waits:
            self._record("waiting", {"waitingFor": waits.data, "seconds": self._spending.clock.seconds})
            reason = StopReason(str(waits.data["reason"]), str(waits.data["answer"]), waits.code)
            return self._outcome("waiting", reason, waits.data)
        except PlaybackEnds:
            return self._outcome("interrupted", StopReason("the record ends here", "", ""))
        except TavernError as error:
            return self._outcome("failed", StopReason(error.message, _fix_of(error), error.code))

    async def _work(self) -> AgentOutcome:
        self._begin()
        while True:
            step = self._spending.steps + 1
            self._compact(step)
            if step not in self._playback.answers and (stop := self._before_request()) is not None:
                return self._outcome("stopped", stop)
            answer = await self._ask(step)
            self._spending.answered(answer.input, answer.output)
            if self._written.calling == "tam" or answer.calls == ():
                message: dict[str, Any] = {"role": "assistant", "content": answer.text}
            else:
                message = {"role": "assistant", "content": answer.text, "toolCalls": _as_json(answer.calls)}
            self.messages.append(message)
            self._answer = answer.said or self._answer
            if answer.finish == "content_filter":
                return self._outcome(
                    "failed",
                    StopReason(
                        "the model's content filter ended its answer", "word the task differently", "CONTENT_FILTER"
                    ),
                )
            ended = await self._act(step, answer)
            if ended is not None:
                return ended

    def _begin(self) -> None:
        for lost in self._playback.faults:
            self._spending.lost(lost["usage"]["input"], lost["usage"]["output"])
        self.messages = [
            {"role": "system", "content": self._task.system},
            {"role": "user", "content": self._task.task},
        ]
        for message in self.messages[self._playback.messages :]:
            self._record("message", message)

    def _before_request(self) -> StopReason | None:
        if self._playback.is_final:
            raise PlaybackEnds
        size, window = tokens_of_messages(self.messages), self._task.window
        if size > window:
            reason = (
                f"the prompt, the task and the last results take about {size:,} tokens, and the window has {window:,}"
            )
            return StopReason(reason, "raise context_tokens in the profile, or give the agent fewer tools")
        return self._spending.before_request(self._prompt_size)

    @property
    def _prompt_size(self) -> int:
        """The estimated tokens of the next request: the conversation and the schemas of the tools."""
        return tokens_of_messages(self.messages) + self._tools_size

    # Asking ------------------------------------------------------------------------------------------------------------

    async def _ask(self, step: int) -> ModelAnswer:
        if (recorded := self._playback.answers.get(step)) is not None:
            return answer_of_record(recorded, self._listener())
        received = await self._request_answer(step)
        reading = received, self._listener(), self._prompt_size
        # Other tasks of the loop would have to wait while a long text is parsed.
        answer = (
            await asyncio.to_thread(answer_of_model, *reading)
            if len(received.text) > _LONG
            else answer_of_model(*reading)
        )
        spending = self._spending
        facts = {
            "cost": spending.cost,
            "seconds": spending.clock.seconds,
            "last": spending.is_last(step),
            "drawn": self._calls.drawn,
        }
        self._record("answer", {"step": step, **answer.to_json(), **facts})
        self._playback.human_answers.clear()
        return answer

    async def _request_answer(self, step: int) -> LLMAnswer:
        """The model's answer; a request with a transient failure is repeated once.

        Raises:
            CallError: it failed; its usage is recorded.
        """
        is_again = False
        while True:
            following = self._listener(lambda piece: self._events.piece(step, piece))
            try:
                return await self._spending.within(self._requests.ask(step, self.messages, following.feed))
            except TimeBudgetExceeded:
                self._lost(step, CallTimeout("the time of the run is over", outcome="unknown"), following.text)
                raise
            except CallError as error:
                pause = (error.retry_after_ms or 0) / 1000
                may_pass = error.retryable and pause <= LONGEST_PAUSE_S and not self._written.deliberation_workflow
                is_again = self._lost(step, error, following.text, may_pass=may_pass and not is_again)
                if not is_again:
                    raise
                await self._spending.within(asyncio.sleep(pause))

    def _lost(self, step: int, error: CallError, text: str, *, may_pass: bool = False) -> bool:
        """Record a failed request, which may have cost tokens; return whether it is repeated."""
        used = {"input": 0 if error.outcome == "none" else self._prompt_size, "output": tokens_of(text)}
        self._spending.lost(used["input"], used["output"])
        is_again, spending = may_pass and self._before_request() is None, self._spending
        self._record("fault", {
            "step": step, "code": error.code, "message": error.message, "again": is_again, "usage": used,
            "cost": spending.cost, "seconds": spending.clock.seconds,
        })  # fmt: skip
        return is_again

    def _listener(self, on_piece: Callable[[str], object] = lambda piece: None) -> AnswerReader:
        reads = self._written.calling != "native"
        return AnswerReader(
            self._services.base.config.tam, many_blocks=self._written.many_blocks, reads_blocks=reads, on_piece=on_piece
        )

    # Acting ------------------------------------------------------------------------------------------------------------

    async def _act(self, step: int, answer: ModelAnswer) -> AgentOutcome | None:
        """Make the calls of an answer; return the outcome if the run ends."""
        if step in self._playback.replies and not self._playback.is_final:
            self._again(step, answer)
            return None
        self._calls.begin(step)
        if self._is_secret_lost(step):
            refused = self._calls.refusals(answer.calls, _SECRET_LOST) if "toolCalls" in self.messages[-1] else []
            self._reply(step, refused, "" if refused else sentence(_SECRET_LOST, self._language), _SECRET_LOST)
            return None
        if (fault := self._fault_of(answer)) is not None:
            return self._confused(step, answer, fault)
        outcome = await self._text(answer)
        native, problem = await self._native(answer)
        if problem and not self._calls.calls:
            return self._confused(step, answer, problem, native)
        errors = [p.code for p in outcome.problems if p.severity == "error"]
        if not self._calls.calls and not errors and not answer.calls and not outcome.steps:
            return self._done(answer)
        if errors and not self._calls.calls:
            return self._confused(step, answer, "blocks", native, outcome.feedback)
        return self._called(step, answer, native, outcome, problem)

    def _is_secret_lost(self, step: int) -> bool:
        """Whether the calls of an answer cannot be made, because a secret in it was masked in the record."""
        playback = self._playback
        if (recorded := playback.replies.get(step)) is not None:
            return bool(recorded["problem"] == _SECRET_LOST)
        return step in playback.masked and step in playback.answers and not playback.is_final

    def _again(self, step: int, answer: ModelAnswer) -> None:
        """Repeat a step that is complete in the record: with the recorded results, whatever the tools are now."""
        recorded = self._playback.replies[step]
        self._calls.again(step, recorded.get("unread", ()))
        self._spending.calls += len(self._calls.calls)
        self._repetition.see(self._calls.calls)
        if kind := recorded.get("problem"):
            self._repetition.problem(kind)
            self._shorten_last(kind, answer)
        self.messages += [dict(message) for message in recorded["messages"]]

    def _fault_of(self, answer: ModelAnswer) -> str | None:
        if answer.fault:
            return answer.fault
        if (
            max(len(answer.calls), answer.blocks) > MOST_CALLS
            or sum(len(call.arguments) for call in answer.calls) > MOST_ARGUMENTS
        ):
            return "too_many"
        if answer.calls or answer.blocks:
            return None
        if answer.hides_call:
            return "thought"
        return None if answer.said else "empty"

    async def _text(self, answer: ModelAnswer) -> TextOutcome:
        if self._written.calling == "native" or not answer.text:
            return TextOutcome(text=answer.text)
        outcome = await self._calls.text(answer.text)
        if not outcome.problems and not outcome.steps and (inside := fenced_content(answer.said)):
            return await self._calls.text(inside)  # an example with hardly any other text is meant as a call
        return outcome

    async def _native(self, answer: ModelAnswer) -> tuple[list[dict[str, Any]], str]:
        """The messages with the results of native calls, and the problem of the answer as a whole."""
        if self._written.calling == "tam":
            return [], "not_native" if answer.calls else ""
        if self._written.calling == "native" and answer.blocks and not answer.calls:
            return [], "not_tam"
        if not answer.calls:
            return [], ""
        return self._calls.answers(answer.calls, await self._calls.native(answer.calls)), ""

    def _done(self, answer: ModelAnswer) -> AgentOutcome:
        if answer.finish == "length":
            self.warnings.append("the answer reached the model's limit of output and may be incomplete")
        self._answer = answer.said
        return self._outcome("done")

    def _confused(
        self, step: int, answer: ModelAnswer, kind: str, native: list[dict[str, Any]] | None = None, feedback: str = ""
    ) -> AgentOutcome | None:
        """Report to the model why nothing ran; stop if that has not helped before."""
        count = self._repetition.problem(kind)
        most, stop = _CONFUSED[kind]
        messages = list(native or ())
        if kind == "too_many" or (answer.calls and not messages and self._written.calling != "tam"):
            messages = self._calls.refusals(answer.calls[:_KEPT_CALLS], kind, most=MOST_CALLS)
        self._shorten_last(kind, answer)
        text = feedback or sentence(kind, self._language, most=MOST_CALLS)
        if answer.finish == "length":
            text += "\n" + sentence("output_limit", self._language)
        self._reply(step, messages, text, kind)
        return self._outcome("stopped", stop) if count >= most and not self._goes_on(step) else None

    def _shorten_last(self, kind: str, answer: ModelAnswer) -> None:
        """Keep only the beginning of a shortened answer: the rest would fill the context."""
        if kind not in ("repeats", "too_long", "too_many"):
            return
        last = self.messages[-1]
        shortened: dict[str, Any] = {**last, "content": last["content"][:_KEPT_CHARS]}
        if "toolCalls" in last:
            calls = _as_json(answer.calls[:_KEPT_CALLS])
            shortened["toolCalls"] = [{**call, "arguments": call["arguments"][:_KEPT_CHARS]} for call in calls]
        self.messages[-1] = shortened

    def _called(
        self, step: int, answer: ModelAnswer, native: list[dict[str, Any]], outcome: TextOutcome, problem: str
    ) -> AgentOutcome | None:
        """Report the outcome of calls to the model; stop if it repeats itself.

        Args:
            problem: the problem of the other calls.
        """
        calls = self._calls.calls
        self._spending.calls += len(calls)
        times = self._repetition.see(self._calls.calls) if calls else self._repetition.problem(outcome.feedback)
        spent = any(m.result.error is not None and m.result.error.kind == "BUDGET_EXCEEDED" for m in calls)
        notices = [problem] if problem else []
        if answer.dropped and outcome.steps:
            notices.append("dropped")
        if times >= WARN_AT:
            notices.append("repeated")
        if spent:
            notices.append("no_more_calls")
        if self._is_last(step):
            notices.append("last_step")
        text = "\n".join([outcome.feedback, *(sentence(name, self._language) for name in notices)]).strip()
        self._reply(step, native, text, "" if calls else outcome.feedback)
        if times >= STOP_AT and not self._goes_on(step):
            last = calls[-1].tool if calls else ""
            stuck = StopReason(
                f"the agent repeated a call with the same outcome {times} times (last: {last})",
                "see `tavern agent show`; the task, the tool's description or its rights may need a change", STUCK,
            )  # fmt: skip
            return self._outcome(
                "stopped", (self._spending.out_of_calls(self._calls.drawn) if spent else None) or stuck
            )
        return None

    def _goes_on(self, step: int) -> bool:
        """Whether the run was resumed after it had stopped at this step."""
        return step + 1 in self._playback.answers

    def _is_last(self, step: int) -> bool:
        """Whether one request was left after this step; in a replay, by the recorded budget."""
        recorded = self._playback.answers.get(step)
        return self._spending.is_last(step) if recorded is None else bool(recorded["last"])

    def _reply(self, step: int, messages: list[dict[str, Any]], text: str, problem: str = "") -> None:
        """Add the reply to the model to the conversation, and record it."""
        messages = [*messages, *([{"role": "user", "content": text}] if text else [])]
        unread = {"unread": self._calls.unread} if self._calls.unread else {}
        seconds = self._spending.clock.seconds
        self._record("reply", {"step": step, "messages": messages, "problem": problem, "seconds": seconds, **unread})
        self.messages += messages

    def _compact(self, step: int) -> None:
        """Shorten the conversation if it no longer fits the window; record that, and report it to the model."""
        plan = plan_compaction(self.messages, self._task.window)
        if plan is None:
            return
        recorded = self._playback.compacted.get(step)
        if recorded is None and self._playback.is_final:
            raise PlaybackEnds
        begin, end = plan.turns
        if recorded is None:
            mask = masking(self._services.base.known_secrets)
            items = [
                self._calls.store_text(mask(self.messages[at]["content"]), f"message-{at}.txt") for at in plan.results
            ]
            if end > begin:
                items.append(
                    self._calls.store_text(mask(as_text(self.messages[begin:end])), f"messages-{begin}-{end}.txt")
                )
        else:
            items = list(recorded["items"])
        before = tokens_of_messages(self.messages)
        self.messages = shorten(self.messages, plan, items, self._language)
        self._repetition.forget()
        if recorded is None:
            self._record("compacted", {
                "step": step, "items": items, "results": len(plan.results), "messages": end - begin, "tokensBefore": before,
                "tokensAfter": tokens_of_messages(self.messages),
            })  # fmt: skip

    def _outcome(
        self, state: AgentState, stop: StopReason | None = None, waiting: Mapping[str, Any] | None = None
    ) -> AgentOutcome:
        spending, stop = self._spending, stop or StopReason("", "", "")
        return AgentOutcome(
            self._task.run, state, self._answer, stop.reason, stop.fix.replace("RUN", self._task.run), stop.code,
            spending.steps, spending.calls,
            {"input": spending.input, "output": spending.output}, spending.cost, spending.currency, spending.clock.seconds,
            tuple(self.warnings), waiting,
        )  # fmt: skip

    def host_failed(self, error: Exception) -> AgentOutcome:
        """The outcome of a run that ended with an error of the host itself."""
        reason = f"the host failed with {printed(error):.500}"
        return self._outcome("failed", StopReason(reason, "see the log; the run can be resumed", "INTERNAL"))

    def cancelled(self) -> AgentOutcome:
        """The outcome of a run that was cancelled."""
        return self._outcome(
            "cancelled", StopReason("the run was cancelled", f"tavern agent resume {self._task.run}", "CANCELLED")
        )


def _as_json(calls: tuple[ModelCall, ...]) -> list[dict[str, str]]:
    return [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in calls]


def _fix_of(error: TavernError) -> str:
    """The repair of an error; for a transient one, also how and when to continue."""
    if not isinstance(error, CallError) or not error.retryable:
        return error.hint
    when = f"after {error.retry_after_ms / 1000:g} s: " if error.retry_after_ms else ""
    return "; ".join(filter(None, (error.hint, f"{when}tavern agent resume RUN")))


def _stuck(reason: str, fix: str) -> StopReason:
    return StopReason(reason, fix, STUCK)


_SHOW: Final = "see `tavern agent show`; a larger model or a clearer prompt may help"
_CONFUSED: Final = {
    "empty": (2, _stuck("the model answered with nothing, twice", _SHOW)),
    "thought": (2, _stuck("the model writes its calls into thoughts, where nothing runs", _SHOW)),
    "repeats": (2, _stuck("the model repeats the same passage endlessly", _SHOW)),
    "too_long": (
        2, _stuck("the model's answers are too long to be read", "set model_options.max_tokens in the profile"),
    ),
    "too_many": (2, _stuck("the model makes more calls in one answer than are allowed", _SHOW)),
    "blocks": (3, _stuck("the model wrote calls that cannot be read, three times", _SHOW)),
    "not_native": (
        3, _stuck("the model makes native calls, but the profile calls tools by TAM", 'set "calling": "both"'),
    ),
    "not_tam": (3, _stuck("the model writes TAM, but the profile makes native calls", 'set "calling": "both"')),
}  # fmt: skip
"""Kind of an unusable answer → how often it may occur before the run stops without a call, and the reason."""
