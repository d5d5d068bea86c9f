"""`tavern.agents`: start, follow, resume and replay runs of agents.

    outcome = await tavern.agents.run("writer", "Count the words of README.md")

A run makes its calls as a caller of its own, ``agent:<name>``: with the profile's inventory, at most the permissions of
its caller, and one budget for all of its calls. Requests to the model are made for the caller.
"""

from __future__ import annotations

import asyncio
import builtins
import json
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Final

from tavern_core.agents.agent_services import AgentServices
from tavern_core.agents.call_contexts import HOST, HumanAnswers, agent_context, caller_of, context_for_model, owner_of
from tavern_core.agents.handle import AgentHandle, RunEvents, cancel_task
from tavern_core.agents.loop import AgentLoop
from tavern_core.agents.model_requests import AgentTask
from tavern_core.agents.notices import sentence
from tavern_core.agents.playback import Playback
from tavern_core.agents.profile_resolution import read_fields
from tavern_core.agents.prompt import AgentPrompt, PromptBuilder
from tavern_core.agents.replay_comparison import AgentReplay, replay_run
from tavern_core.agents.run_store import AgentRuns, StoredAgentRun
from tavern_core.agents.schema_budget import tokens_of_schema
from tavern_core.agents.spending import BudgetLike, BudgetTracker, Clock, budget_of, check_price
from tavern_core.contract.llm import Price, price_of
from tavern_core.errors import Finding, InputInvalid, UsageError
from tavern_core.flow.llm_calls import ModelLike
from tavern_core.flow.run_caller import caller_from_json, caller_to_json, taken_up_as
from tavern_core.kernel.access.profiles import Profile, ProfileLike, usable_wire_names
from tavern_core.kernel.calls.approvals import waiting
from tavern_core.kernel.calls.elicitation import conversation, mismatch
from tavern_core.kernel.calls.taint_tracking import running_call_has_read
from tavern_core.kernel.catalogue.namespace_resolvers import canonical
from tavern_core.kernel.settings.result_redaction import masking
from tavern_core.model.agent_profile import AgentBudget, AgentProfile
from tavern_core.model.agent_run import RESUMABLE, AgentOutcome, AgentRecord
from tavern_core.model.call import CallContext
from tavern_core.model.event import AGENT_FINISHED, AGENT_STARTED
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.question import Question
from tavern_core.model.safe_printing import is_text
from tavern_core.model.untrusted_content_rules import MARK, ContentRead, addresses_in, sources_in, texts_in
from tavern_core.schema.provider_tool_export import export_tool

_BY_CODE: Final = {"model": "llms", "deliberation_workflow": "workflows"}
"""Field of a profile → section of contributions, whose names may be known only when the plugins are active."""
MOST_TASK: Final = 1_000_000
"""Characters of a task."""


class Agents:
    """The agents of one host."""

    def __init__(self, services: AgentServices, wait: Callable[[Any], Any]) -> None:
        self._services = services
        self._wait = wait
        self._prompts = PromptBuilder(services.catalogue, services.names)
        self._process = secrets.token_hex(8)
        self._has_entered = False
        self._tasks: set[asyncio.Task[AgentOutcome]] = set()
        self._runs = AgentRuns(
            services.base.home / "agents.sqlite", masking(services.base.known_secrets), self._process, services.state.records.is_present,
            services.base.diagnostics.of_damage("earlier runs of agents are lost"),
        )  # fmt: skip

    # Running -------------------------------------------------------------------------------------------------------------

    async def run(
        self,
        profile: ProfileLike,
        task: str,
        *,
        context: CallContext | None = None,
        model: ModelLike | None = None,
        budget: BudgetLike = None,
    ) -> AgentOutcome:
        """Give a task to an agent, and wait until it is done, stopped, or waits for a person.

        Args:
            profile: its name, the path of an agent_profile.json, a mapping, or the result of `tavern.profile`.
            task: what to do, in words.
            context: the caller, whose permissions limit the agent's; None: the host, or the caller of the running tool.
            model: the language model, instead of the profile's: its name, the model itself, or a function of the messages.
            budget: replaces the given fields of the profile's budget: ``{"steps": 5, "money": 0.1}``.

        Raises:
            ProfileInvalid: there is no such profile (PROFILE_INVALID).
            ToolFailed: there is no such model (TOOL_ERROR).
            UsageError: an argument is wrong, or a budget of money meets a model without a known price (USAGE).
        """
        return await _to_its_end(await self.start(profile, task, context=context, model=model, budget=budget))

    def run_sync(self, profile: ProfileLike, task: str, **options: Any) -> AgentOutcome:
        """`run` for code without an event loop."""
        outcome: AgentOutcome = self._wait(self.run(profile, task, **options))
        return outcome

    async def start(
        self,
        profile: ProfileLike,
        task: str,
        *,
        context: CallContext | None = None,
        model: ModelLike | None = None,
        budget: BudgetLike = None,
    ) -> AgentHandle:
        """`run` in the background; the handle has `events()`, `wait()` and `cancel()`."""
        text = _task_of(task)
        caller = caller_of(context)
        resolved, name = await self._resolved(profile)
        limits = budget_of(resolved.written.budget, budget)
        chosen = resolved.written.model_name if model is None else self._services.flow.models.name_of(model)
        price, window = await self._priced(resolved, chosen, limits)
        run = f"agent-{secrets.token_hex(8)}"
        agent = agent_context(resolved, name, caller, limits, run)
        prompt = await self._prompt(resolved, agent, text, window)
        tools = [*map(dict, prompt.tools)]
        if resolved.written.calling != "tam":
            tools.append(export_tool(self._services.reading.spec, "openai"))
        window = max(window - sum(map(tokens_of_schema, tools)), 1)
        facts = {
            "profile": resolved.written.model_dump(mode="json"), "given": name, "model": chosen, "budget": limits.model_dump(),
            "caller": caller_to_json(caller or HOST, HOST, None), "system": prompt.system, "window": window,
            "tools": tools, "warnings": list(prompt.warnings), "untrusted": [p.citation for p in prompt.sources if not p.trusted],
        }  # fmt: skip
        self._enter()
        record = AgentRecord(run, resolved.name, text, "running", time.time(), facts)
        await asyncio.to_thread(self._runs.begin, record, owner_of(caller))
        read_at_start(agent.ledger.content_read, facts, text)
        running_call_has_read((agent.principal,))  # a call that runs an agent returns text of a model
        agent_task = _agent_task(record, resolved, agent, context_for_model(caller, run))
        return self._begin(agent_task, Playback(), limits, price)

    async def resume(
        self,
        run_id: str,
        answers: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        model: ModelLike | None = None,
        budget: BudgetLike = None,
    ) -> AgentOutcome:
        """Continue a run that waits, was stopped, cancelled or interrupted. Recorded answers of the model are reused.

        Args:
            answers: question → the answer of a person.
            context: the caller, which must be the run's own; None: the host.
            model: for the rest of the run, instead of its own; required if the run began with a model that is not
                configured.
            budget: as for `run`; raises limits that stopped the run. Like `model`, it applies to later resumptions,
                too.

        Raises:
            RunNotFound: there is no such run of this caller (RUN_NOT_FOUND).
            UsageError: it is done, runs elsewhere, or did not ask the answered question (USAGE).
            InputInvalid: an answer does not fit its question, which stays open (INPUT_SCHEMA_INVALID).
        """
        return await _to_its_end(await self.take_up(run_id, answers, context=context, model=model, budget=budget))

    def resume_sync(self, run_id: str, answers: Mapping[str, Any] | None = None, **options: Any) -> AgentOutcome:
        """`resume` for code without an event loop."""
        outcome: AgentOutcome = self._wait(self.resume(run_id, answers, **options))
        return outcome

    async def take_up(
        self,
        run_id: str,
        answers: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        model: ModelLike | None = None,
        budget: BudgetLike = None,
    ) -> AgentHandle:
        """`resume` in the background. Raises as `resume`."""
        resumer, given_answers = caller_of(context), _answers_of(answers)
        stored = await asyncio.to_thread(self._runs.find, run_id, None if resumer is None else owner_of(resumer))
        record = stored.record
        facts = {**record.facts, **_changed(record)}
        if record.state not in RESUMABLE:
            raise UsageError(f"{run_id} is {record.state}", hint="only a run that is not done can be resumed")
        resolved, name = await self._resolved(facts["given"], AgentProfile.model_validate(facts["profile"]))
        limits = budget_of(AgentBudget.model_validate(facts["budget"]), budget)
        chosen = facts["model"] if model is None else self._services.flow.models.name_of(model)
        price, _ = await self._priced(resolved, chosen, limits)
        playback = Playback(record.events)
        _check_answers(run_id, given_answers, playback.waiting_for)
        caller = caller_from_json(run_id, facts["caller"], 0, HOST)
        if resumer is not None or caller is not HOST:
            caller = taken_up_as(run_id, caller, resumer, HOST)
        acting = None if caller is HOST else caller
        agent = agent_context(resolved, name, acting, limits, run_id, drawn=playback.drawn)
        self._enter()
        await asyncio.to_thread(self._runs.take_up, stored)
        read_at_start(agent.ledger.content_read, facts, record.task)
        read_again(agent.ledger.content_read, playback)
        agent_task = replace(_agent_task(record, resolved, agent, context_for_model(acting, run_id)), model=chosen)
        return self._begin(agent_task, playback, limits, price, given_answers)

    # Looking -------------------------------------------------------------------------------------------------------------

    def profiles(self) -> builtins.list[str]:
        """The names of the agent profiles, sorted."""
        return self._services.catalogue.profiles.written.names()

    def check(self, name: str) -> tuple[Finding, ...]:
        """Findings about a profile and its fields, as far as they are known without activating plugins.

        Raises:
            ProfileInvalid: there is no such profile, or it cannot be used (PROFILE_INVALID).
        """
        services = self._services
        written, findings = services.catalogue.profiles.written.get(name)
        tools = dict.fromkeys(canonical(item.strip()) for item in written.tool_ids_inventory)
        profile = Profile(written.name, tuple(tools), written=written)
        fields = read_fields(profile, services.names.inactive(), services.names.knowledge)
        by_code = {field for field, section in _BY_CODE.items() if services.contributions.inactive(section)}
        found = (f for f in fields.findings if f.where is None or f.where.pointer not in by_code)
        unusable = services.catalogue.profiles.known_findings(name)
        return (*findings, *unusable, *usable_wire_names(written, tools, canonical)[1], *found)

    def runs(self, *, context: CallContext | None = None, most: int = 100) -> builtins.list[AgentRecord]:
        """Runs without their events, newest first; with a context, only runs of that caller."""
        caller = caller_of(context)
        return self._runs.list(None if caller is None else owner_of(caller), most)

    def get(self, run_id: str, *, context: CallContext | None = None) -> AgentRecord:
        """A run with its events. Raises RunNotFound: this caller has no such run (RUN_NOT_FOUND)."""
        return self._found(run_id, context).record

    async def replay(self, run_id: str, *, context: CallContext | None = None) -> AgentReplay:
        """Run the loop over the record, without model and tools, and compare the messages.

        Raises:
            RunNotFound: this caller has no such run (RUN_NOT_FOUND).
        """
        record = (await asyncio.to_thread(self._found, run_id, context)).record
        facts = record.facts
        resolved, name = await self._resolved(facts["given"], AgentProfile.model_validate(facts["profile"]))
        caller = caller_from_json(run_id, facts["caller"], 0, HOST)
        acting = None if caller is HOST else caller
        limits = AgentBudget.model_validate(facts["budget"]).model_copy(update={"seconds": None, "money": None})
        agent = agent_context(resolved, name, acting, limits, run_id)
        agent_task = _agent_task(record, resolved, agent, None)
        return await replay_run(self._services, agent_task, record, limits, self._runs.mask)

    def replay_sync(self, run_id: str, **options: Any) -> AgentReplay:
        """`replay` for code without an event loop."""
        found: AgentReplay = self._wait(self.replay(run_id, **options))
        return found

    async def prompt(self, profile: ProfileLike, task: str = "", *, context: CallContext | None = None) -> AgentPrompt:
        """The prompt that a run would begin with: `system`, `tools`, `sources`, `left_out`, `findings`.

        Raises:
            ProfileInvalid: there is no such profile, or its template does not fit (PROFILE_INVALID).
        """
        resolved, name = await self._resolved(profile)
        await self._services.lifecycle.activate_section("llms")  # a model of an inactive plugin is not missing
        agent = agent_context(resolved, name, caller_of(context), resolved.written.budget, "")
        window = resolved.written.context_tokens
        return await self._prompt(resolved, agent, task, window)

    def prompt_sync(self, profile: ProfileLike, task: str = "", **options: Any) -> AgentPrompt:
        """`prompt` for code without an event loop."""
        prompt: AgentPrompt = self._wait(self.prompt(profile, task, **options))
        return prompt

    async def close(self) -> None:
        """Cancel all runs of this host; they can be resumed."""
        own_tasks = [task for task in self._tasks if task.get_loop() is asyncio.get_running_loop()]
        for task in list(self._tasks):
            cancel_task(task)
        if own_tasks:
            await asyncio.wait(own_tasks)
        if self._has_entered:
            self._services.state.records.leave(self._process)
        self._runs.close()

    # Helpers ----------------------------------------------------------------------------------------------------------

    def _begin(
        self,
        agent_task: AgentTask,
        playback: Playback,
        limits: AgentBudget,
        price: Price | None,
        answers: Mapping[str, Any] | None = None,
    ) -> AgentHandle:
        recorder = self._services.base.recorder
        events = RunEvents(agent_task.run, self._runs, recorder, playback.seq)
        spending = BudgetTracker(limits, price, Clock(playback.seconds))
        if answers is not None:
            facts = {
                "budget": limits.model_dump(),
                "model": agent_task.model,
                "principal": agent_task.context.principal,
            }
            events.record("resumed", facts)
        if answers:
            events.record("given", {"answers": dict(answers)})
            playback.human_answers |= answers
        loop = AgentLoop(self._services, agent_task, playback, spending, events)
        recorder.note(AGENT_STARTED, {
            "run": agent_task.run, "profile": agent_task.profile.name, "model": agent_task.model,
            **agent_task.context.whose(), "resumed": answers is not None,
        })  # fmt: skip
        task = asyncio.create_task(self._work(loop, events, spending.clock, playback))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return AgentHandle(agent_task.run, events, task)

    async def _work(self, loop: AgentLoop, events: RunEvents, clock: Clock, playback: Playback) -> AgentOutcome:
        """Run the loop to its end, whatever that is, and record the outcome."""
        waiting.set(clock.paused_with(waiting.get()))
        if playback.human_answers or conversation.get() is None:
            conversation.set(HumanAnswers(playback.human_answers, conversation.get()))
        events.has_begun = True
        try:
            if events.is_cancelled:
                raise asyncio.CancelledError
            outcome = await loop.run()
        except asyncio.CancelledError:
            self._finish(events, loop.cancelled())
            if events.is_cancelled:
                return loop.cancelled()
            raise
        except Exception as error:
            self._finish(events, loop.host_failed(error))
            raise
        self._finish(events, outcome)
        return outcome

    def _finish(self, events: RunEvents, outcome: AgentOutcome) -> None:
        try:
            events.record("end", {"outcome": outcome.to_json()})
            self._runs.end(outcome)
        finally:
            events.end()
        data = outcome.to_json()
        names = ("state", "reason", "code", "steps", "calls", "usage", "cost", "currency", "seconds")
        self._services.base.recorder.note(
            AGENT_FINISHED, {"run": outcome.run_id, **{name: data[name] for name in names}}
        )

    async def _prompt(self, profile: Profile, agent: CallContext, task: str, window: int) -> AgentPrompt:
        """The prompt at the start of a run: the profile's, and how to read long results, in half of the window."""
        assert agent.profile is not None
        closing = sentence("long_results", self._services.language(profile))
        build, most = self._prompts.build, max(window // 2, 1)
        return await asyncio.to_thread(build, agent.profile, task, agent, max_tokens=most, closing=closing)

    async def _resolved(self, reference: ProfileLike, content: AgentProfile | None = None) -> tuple[Profile, str]:
        """A profile, and the name by which contexts refer to it.

        Args:
            content: the content of a profile that a program passed.
        """
        services = self._services
        if isinstance(reference, Profile):
            reference = reference.written
        if isinstance(reference, PathLike):
            reference = str(reference)
        if isinstance(reference, str) and not (
            content is not None and "@" in reference and not services.catalogue.profiles.written.has(reference)
        ):
            is_file = reference.endswith(".json") and not services.catalogue.profiles.written.has(reference)
            name = str(Path(reference).absolute()) if is_file else reference
            return await services.catalogue.profiles.resolved(name), name
        name = services.catalogue.profiles.written.register(
            *services.catalogue.profiles.written.get(content if content is not None else reference)
        )
        return await services.catalogue.profiles.resolved(name), name

    async def _priced(self, profile: Profile, model: str, limits: AgentBudget) -> tuple[Price | None, int]:
        """The price of the model, and the maximum tokens of a request. Raises ToolFailed, UsageError."""
        window = profile.written.context_tokens
        if name := profile.written.deliberation_workflow:
            if limits.money is not None:
                raise UsageError(
                    f"the budget is {limits.money:g} {limits.currency}, but the price of the models of {name} is not known",
                    hint="leave money out of the budget and limit steps and calls",
                )
            return None, window
        await self._wake_model(model)
        found = self._services.flow.models.find(model)
        price, model_window = price_of(found), getattr(found, "context_tokens", None)
        check_price(limits, price, model)
        return price, min(window, model_window) if type(model_window) is int and model_window > 0 else window

    async def _wake_model(self, model: str) -> None:
        """Activate the plugins that contribute language models."""
        if not model or await self._services.contributions.one("llms", model) is None:
            await self._services.lifecycle.activate_section("llms")

    def _found(self, run_id: str, context: CallContext | None) -> StoredAgentRun:
        caller = caller_of(context)
        return self._runs.find(run_id, None if caller is None else owner_of(caller))

    def _enter(self) -> None:
        if not self._has_entered:
            self._services.state.records.enter(self._process)
            self._has_entered = True


def _agent_task(record: AgentRecord, profile: Profile, agent: CallContext, asking: CallContext | None) -> AgentTask:
    """The task of a run, from its recorded start."""
    facts = record.facts
    return AgentTask(
        record.run_id, profile, facts["system"], record.task, facts["model"], agent, asking, facts["window"], facts["tools"],
        tuple(facts["warnings"]),
    )  # fmt: skip


def _changed(record: AgentRecord) -> Mapping[str, Any]:
    """The budget and the model of the last resumption: they also apply to the next one."""
    last = next((event.data for event in reversed(record.events) if event.kind == "resumed"), {})
    return {name: last[name] for name in ("budget", "model") if name in last}


def _answers_of(answers: object) -> dict[str, Any]:
    """Checked answers, before the run is resumed. Raises UsageError (USAGE)."""
    checked = {} if answers is None else answers
    if not isinstance(checked, Mapping) or not all(isinstance(key, str) for key in checked):
        raise UsageError("answers are a mapping of questions to answers", hint='{"name": "Ann"}')
    try:
        json.dumps(dict(checked), ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"an answer is JSON: {error}", hint='{"name": "Ann"}') from error
    return dict(checked)


def _check_answers(run: str, answers: Mapping[str, Any], waiting_for: Mapping[str, Any] | None) -> None:
    """Check answers against the questions that a run waits for, if it does.

    Raises:
        UsageError: the run does not ask the answered question (USAGE).
        InputInvalid: an answer does not fit its question (INPUT_SCHEMA_INVALID).
    """
    if waiting_for is None:
        return
    questions = {question["id"]: question for question in waiting_for.get("questions", ())}
    for name, answer in answers.items():
        if name not in questions:
            hint = f"it asks {', '.join(questions)}" if questions else str(waiting_for["answer"])
            raise UsageError(f"{run} does not ask {name!r:.80}", hint=did_you_mean(name, questions) or hint)
        if waiting_for["kind"] == "question" and (
            why := mismatch(question := Question.from_json(questions[name]), answer)
        ):
            raise InputInvalid(f"the answer to {name!r} does not fit: {why}", hint=f"{name} asks: {question.prompt}")


async def _to_its_end(handle: AgentHandle) -> AgentOutcome:
    try:
        return await handle.wait()
    except asyncio.CancelledError:
        handle.cancel()
        with suppress(asyncio.CancelledError):
            await handle.wait()
        raise


def _task_of(task: object) -> str:
    if not isinstance(task, str) or not task.strip():
        raise UsageError("a task is text, and not empty", hint='tavern.agents.run(profile, "Count the words of …")')
    if len(task) > MOST_TASK:
        raise UsageError(
            f"the task has {len(task):,} characters; at most {MOST_TASK:,} are taken", hint="pass large data as a file"
        )
    if not is_text(task):
        raise UsageError(
            "a task is text, and this one holds half a character (a lone surrogate)",
            hint="decode it with its own encoding",
        )
    return task


def read_at_start(read: ContentRead, facts: Mapping[str, Any], task: str) -> None:
    """Record the task, the prompt, and untrusted knowledge in the prompt as read."""
    read.trust(task, facts["system"])
    read.add(facts["untrusted"], time.time())


def read_again(read: ContentRead, playback: Playback) -> None:
    """Record the content of the run's results as read, also in a process that resumes the run."""
    for at, result in sorted(playback.results.items()):
        sources = sources_in((result.get("meta") or {}).get(MARK))
        read.add(sources, time.time())
        if sources or not read.sources:
            arguments = playback.calls[at]["arguments"] if at in playback.calls else {}
            argument_addresses = {address for text in texts_in(arguments) for address in addresses_in(text)}
            read.learn([result.get("value"), result.get("content")], argument_addresses)
