"""`tavern.agents`: runs of agents, started, followed, resumed and replayed.

    outcome = await tavern.agents.run("writer", "Count the words of README.md")

A run makes its calls as its own caller, ``agent:<name>``: with the profile's inventory, at most the permissions of whoever starts
it, and one budget for all of its calls. The model is asked on behalf of whoever starts it.
"""

from __future__ import annotations

import asyncio
import builtins
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from tavern_core.agents.handle import AgentHandle, RunEvents
from tavern_core.agents.instructions import build_system
from tavern_core.agents.loop import AgentLoop
from tavern_core.agents.model_requests import Task
from tavern_core.agents.notices import READ_RESULT
from tavern_core.agents.parts import Parts, reading_tool
from tavern_core.agents.people import Answers
from tavern_core.agents.replay import AgentReplay, replayed
from tavern_core.agents.run_store import AgentRuns, KeptAgentRun
from tavern_core.agents.spending import Clock, Spending, check_price
from tavern_core.agents.tape import Tape
from tavern_core.contract.llm import Price
from tavern_core.errors import UsageError
from tavern_core.flow.run_caller import restored, stored, taken_up_as
from tavern_core.kernel.access.profiles import Profile, ProfileLike
from tavern_core.kernel.calls.approvals import waiting
from tavern_core.kernel.calls.conversation import conversation
from tavern_core.kernel.calls.running_call import current
from tavern_core.kernel.settings.result_redaction import masking
from tavern_core.model.agent import RESUMABLE, AgentOutcome, AgentRecord
from tavern_core.model.call import HOST_PRINCIPAL, Budget, CallContext, Ledger
from tavern_core.model.capability import is_dangerous
from tavern_core.model.event import AGENT_FINISHED, AGENT_STARTED
from tavern_core.model.profile import AgentBudget, AgentProfile

BudgetLike = AgentBudget | Mapping[str, Any] | None
MOST_TASK: Final = 1_000_000
"""Characters of a task."""
_HOST: Final = CallContext(principal=HOST_PRINCIPAL)
"""Stands for the host itself where a run stores its caller."""


class Agents:
    """The agents of one host.

    Args:
        parts: of the host.
        wait: runs a coroutine for code without an event loop.
    """

    def __init__(self, parts: Parts, wait: Callable[[Any], Any]) -> None:
        self._parts = parts
        self._wait = wait
        self._process = secrets.token_hex(8)
        self._has_entered = False
        self._tasks: set[asyncio.Task[AgentOutcome]] = set()
        known = parts.base.known_secrets
        self._runs = AgentRuns(
            parts.home / "agents.sqlite", masking(lambda: known.values), self._process, parts.records.is_present
        )
        parts.engines.inner.setdefault(READ_RESULT, reading_tool(parts.artifacts))

    # Running -------------------------------------------------------------------------------------------------------------

    async def run(
        self,
        profile: ProfileLike,
        task: str,
        *,
        context: CallContext | None = None,
        model: str | None = None,
        budget: BudgetLike = None,
    ) -> AgentOutcome:
        """Give a task to an agent, and wait until it is done, stopped, or waits for a person.

        Args:
            profile: its name, the path of an agent_profile.json, or a mapping.
            task: what to do, in words.
            context: the caller, whose permissions the agent gets at most; None: the host, or the caller of the tool that runs.
            model: name of the language model, instead of the profile's.
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
        model: str | None = None,
        budget: BudgetLike = None,
    ) -> AgentHandle:
        """`run` in the background; the handle has `events()`, `wait()` and `cancel()`."""
        text = _task_of(task)
        caller = _caller(context)
        resolved, name = await self._resolved(profile)
        limits = _budget(resolved.written.budget, budget)
        chosen = model if model is not None else resolved.written.model_name
        price = await self._priced(resolved, chosen, limits)
        run = f"agent-{secrets.token_hex(8)}"
        agent = agent_context(resolved, name, caller, limits, run)
        system = await asyncio.to_thread(build_system, self._parts, resolved, agent, text)
        facts = {
            "profile": resolved.written.model_dump(mode="json"), "given": name, "model": chosen, "budget": limits.model_dump(),
            "caller": stored(caller or _HOST, _HOST, None), "system": system,
        }  # fmt: skip
        self._enter()
        record = AgentRecord(run, resolved.name, text, "running", time.time(), facts)
        await asyncio.to_thread(self._runs.begin, record, _owner(caller))
        about = Task(run, resolved, system, text, chosen, agent, _asking(caller, run))
        return self._begin(about, Tape(), limits, price)

    async def resume(
        self,
        run_id: str,
        answers: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        budget: BudgetLike = None,
    ) -> AgentOutcome:
        """Go on with a run that waits, was stopped, cancelled or interrupted. The model is not asked again what it has answered.

        Args:
            answers: question → the answer of a person.
            context: the caller, which must be the run's own; None: the host.
            budget: as for `run`; raises limits that stopped the run.

        Raises:
            RunNotFound: there is no such run of this caller (RUN_NOT_FOUND).
            UsageError: it is done, or runs elsewhere (USAGE).
        """
        return await _to_its_end(await self.take_up(run_id, answers, context=context, budget=budget))

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
        budget: BudgetLike = None,
    ) -> AgentHandle:
        """`resume` in the background. Raises as `resume`."""
        resumer = _caller(context)
        kept = await asyncio.to_thread(self._runs.find, run_id, None if resumer is None else _owner(resumer))
        record, facts = kept.record, kept.record.facts
        if record.state not in RESUMABLE:
            raise UsageError(f"{run_id} is {record.state}", hint="only a run that is not done can be resumed")
        resolved, name = await self._resolved(facts["given"], AgentProfile.model_validate(facts["profile"]))
        limits = _budget(AgentBudget.model_validate(facts["budget"]), budget)
        price = await self._priced(resolved, facts["model"], limits)
        tape = Tape(record.events)
        caller = restored(run_id, facts["caller"], 0, _HOST)
        if resumer is not None or caller is not _HOST:
            caller = taken_up_as(run_id, caller, resumer, _HOST)
        acting = None if caller is _HOST else caller
        agent = agent_context(resolved, name, acting, limits, run_id, drawn=len(tape.calls))
        self._enter()
        await asyncio.to_thread(self._runs.take_up, kept)
        about = Task(run_id, resolved, facts["system"], record.task, facts["model"], agent, _asking(acting, run_id))
        return self._begin(about, tape, limits, price, answers or {})

    # Looking -------------------------------------------------------------------------------------------------------------

    def profiles(self) -> builtins.list[str]:
        """The names of the agent profiles, sorted."""
        return self._parts.written.names()

    def runs(self, *, context: CallContext | None = None, most: int = 100) -> builtins.list[AgentRecord]:
        """Runs without their events, newest first; with a context, that caller's alone."""
        caller = _caller(context)
        return self._runs.list(None if caller is None else _owner(caller), most)

    def get(self, run_id: str, *, context: CallContext | None = None) -> AgentRecord:
        """One run with its events. Raises RunNotFound: there is none of this caller (RUN_NOT_FOUND)."""
        return self._found(run_id, context).record

    async def replay(self, run_id: str, *, context: CallContext | None = None) -> AgentReplay:
        """Run the loop over the record, without model and tools: does it lead to the same messages?

        Raises:
            RunNotFound: there is none of this caller (RUN_NOT_FOUND).
        """
        record = (await asyncio.to_thread(self._found, run_id, context)).record
        facts = record.facts
        resolved, name = await self._resolved(facts["given"], AgentProfile.model_validate(facts["profile"]))
        caller = restored(run_id, facts["caller"], 0, _HOST)
        acting = None if caller is _HOST else caller
        limits = AgentBudget.model_validate(facts["budget"]).model_copy(update={"seconds": None, "money": None})
        agent = agent_context(resolved, name, acting, limits, run_id)
        await self._wake_model(facts["model"])
        about = Task(run_id, resolved, facts["system"], record.task, facts["model"], agent, None)
        return await replayed(self._parts, about, record, limits, self._runs.mask)

    def replay_sync(self, run_id: str, **options: Any) -> AgentReplay:
        """`replay` for code without an event loop."""
        found: AgentReplay = self._wait(self.replay(run_id, **options))
        return found

    async def prompt(self, profile: ProfileLike, task: str = "", *, context: CallContext | None = None) -> str:
        """The system prompt that a run would begin with. Raises ProfileInvalid (PROFILE_INVALID)."""
        resolved, name = await self._resolved(profile)
        agent = agent_context(resolved, name, _caller(context), resolved.written.budget, "")
        return await asyncio.to_thread(build_system, self._parts, resolved, agent, task)

    def prompt_sync(self, profile: ProfileLike, task: str = "", **options: Any) -> str:
        """`prompt` for code without an event loop."""
        text: str = self._wait(self.prompt(profile, task, **options))
        return text

    async def close(self) -> None:
        """Cancel all runs of this host; they can be resumed."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        if self._has_entered:
            self._parts.records.leave(self._process)
        self._runs.close()

    # Parts of these --------------------------------------------------------------------------------------------------------

    def _begin(
        self,
        about: Task,
        tape: Tape,
        limits: AgentBudget,
        price: Price | None,
        answers: Mapping[str, Any] | None = None,
    ) -> AgentHandle:
        recorder = self._parts.base.recorder
        events = RunEvents(about.run, self._runs, recorder, tape.seq)
        spending = Spending(limits, price, Clock(tape.seconds))
        if answers is not None:
            events.record("resumed", {"budget": limits.model_dump(), "principal": about.context.principal})
        if answers:
            events.record("given", {"answers": dict(answers)})
            tape.given |= answers
        loop = AgentLoop(self._parts, about, tape, spending, events.record, events.tell)
        recorder.note(AGENT_STARTED, {
            "run": about.run, "profile": about.profile.name, "model": about.model, "principal": about.context.principal,
            "resumed": answers is not None,
        })  # fmt: skip
        is_cancelled = False

        async def work() -> AgentOutcome:
            waiting.set(spending.clock.paused)
            if tape.given or conversation.get() is None:
                conversation.set(Answers(tape.given, conversation.get()))
            try:
                outcome = await loop.run()
            except asyncio.CancelledError:
                self._finish(events, loop.cancelled())
                if is_cancelled:
                    return loop.cancelled()
                raise
            except BaseException:
                events.end()
                raise
            self._finish(events, outcome)
            return outcome

        task = asyncio.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def cancel() -> bool:
            nonlocal is_cancelled
            is_cancelled = True
            return task.cancel()

        return AgentHandle(about.run, events, task, cancel)

    def _finish(self, events: RunEvents, outcome: AgentOutcome) -> None:
        try:
            events.record("end", {"outcome": outcome.to_json()})
            self._runs.end(outcome)
        finally:
            events.end()
        told = outcome.to_json()
        names = ("state", "reason", "steps", "calls", "usage", "cost", "seconds")
        self._parts.base.recorder.note(AGENT_FINISHED, {"run": outcome.run_id, **{name: told[name] for name in names}})

    async def _resolved(self, given: ProfileLike, known: AgentProfile | None = None) -> tuple[Profile, str]:
        """A profile, and the name by which contexts call it.

        Args:
            known: its content, for a profile that a program had given.
        """
        parts = self._parts
        if isinstance(given, PathLike):
            given = str(given)
        if isinstance(given, str) and not (known is not None and "@" in given and not parts.written.has(given)):
            is_file = given.endswith(".json") and not parts.written.has(given)
            name = str(Path(given).absolute()) if is_file else given
            return await parts.profiles.resolved(name), name
        resolved = await parts.profiles.resolved(known if known is not None else given)
        name = parts.written.lend(resolved.written)
        return await parts.profiles.resolved(name), name

    async def _priced(self, profile: Profile, model: str, limits: AgentBudget) -> Price | None:
        """The price of the model; checks that it exists. Raises ToolFailed, UsageError."""
        if profile.written.deliberation_workflow:
            check_price(limits, None, profile.written.deliberation_workflow)
            return None
        await self._wake_model(model)
        price = getattr(self._parts.models.find(model), "price", None)
        known = price if isinstance(price, Price) else None
        check_price(limits, known, model)
        return known

    async def _wake_model(self, model: str) -> None:
        """Activate the plugins that contribute language models."""
        if not model or await self._parts.sections.one("llms", model) is None:
            await self._parts.sections.wake("llms")

    def _found(self, run_id: str, context: CallContext | None) -> KeptAgentRun:
        caller = _caller(context)
        return self._runs.find(run_id, None if caller is None else _owner(caller))

    def _enter(self) -> None:
        if not self._has_entered:
            self._parts.records.enter(self._process)
            self._has_entered = True


def agent_context(
    profile: Profile, name: str, caller: CallContext | None, limits: AgentBudget, run: str, drawn: int = 0
) -> CallContext:
    """The caller of an agent's calls.

    Args:
        name: by which contexts call the profile.
        caller: who starts the agent; None: the host, which gives everything that the profile lists, never ``danger:*``.
        drawn: calls that the run has made before.
    """
    principal = f"agent:{profile.name}"
    if caller is None:
        listed = profile.capabilities if profile.capabilities is not None else frozenset({"*"})
        return CallContext(
            permissions=frozenset(each for each in listed if not is_dangerous(each)), principal=principal, profile=name,
            budget=Budget(max_tool_calls=limits.calls), ledger=Ledger(drawn), task_id=run, agent_id=profile.name,
        )  # fmt: skip
    most = limits.calls + caller.ledger.drawn - drawn
    outer = caller.budget
    if outer.max_tool_calls is not None:
        most = min(most, outer.max_tool_calls)
    return replace(
        caller, principal=principal, profile=name, task_id=run, agent_id=profile.name,
        budget=Budget(outer.timeout_ms, outer.max_retries, max(most, 0)),
    )  # fmt: skip


def _asking(caller: CallContext | None, run: str) -> CallContext | None:
    """Who asks the model: the starter, on a ledger of its own, for requests are no calls of the agent."""
    return None if caller is None else replace(caller, ledger=Ledger(), budget=Budget(), task_id=run)


async def _to_its_end(handle: AgentHandle) -> AgentOutcome:
    try:
        return await handle.wait()
    except asyncio.CancelledError:
        handle.cancel()
        with suppress(asyncio.CancelledError):
            await handle.wait()
        raise


def _caller(context: CallContext | None) -> CallContext | None:
    """Who calls; None: the host itself. Raises UsageError (USAGE)."""
    if context is None:
        frame = current.get()
        return frame[2] if frame is not None else None
    if not isinstance(context, CallContext):
        raise UsageError(f"the context of a run is a CallContext, got {type(context).__name__}")
    return context


def _owner(caller: CallContext | None) -> str:
    return f"{HOST_PRINCIPAL}\x1f" if caller is None else f"{caller.principal}\x1f{caller.user_id}"


def _task_of(task: object) -> str:
    if not isinstance(task, str) or not task.strip():
        raise UsageError("a task is text, and not empty", hint='tavern.agents.run(profile, "Count the words of …")')
    if len(task) > MOST_TASK:
        raise UsageError(
            f"the task has {len(task):,} characters; at most {MOST_TASK:,} are taken", hint="pass large data as a file"
        )
    return task.encode("utf-8", "replace").decode()


def _budget(known: AgentBudget, given: BudgetLike) -> AgentBudget:
    """A budget with the given fields replaced. Raises UsageError (USAGE)."""
    if isinstance(given, AgentBudget) or given is None:
        return given or known
    if not isinstance(given, Mapping):
        raise UsageError(f"a budget is a mapping, got {type(given).__name__}", hint='{"steps": 10, "money": 0.5}')
    try:
        return AgentBudget.model_validate({**known.model_dump(), **given})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        names = ", ".join(AgentBudget.model_fields)
        raise UsageError(f"budget.{where}: {first['msg']}", hint=f"a budget has: {names}") from error
