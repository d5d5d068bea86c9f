"""The contexts of a run: for its caller, for the agent's calls, and for the requests to its model.

Also the answers of people to questions of tools, for calls that are repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tavern_core.contract.tool_context import LogLevel
from tavern_core.errors import UsageError
from tavern_core.kernel.access.profiles import Profile
from tavern_core.kernel.calls.elicitation import Conversation, mismatch, unanswered
from tavern_core.kernel.calls.running_call import current
from tavern_core.model.agent_profile import AgentBudget
from tavern_core.model.call import HOST_PRINCIPAL, Budget, CallContext, Ledger, host_context, owner_name
from tavern_core.model.capability import is_dangerous
from tavern_core.model.question import Question, QuestionKind
from tavern_core.model.untrusted_content_rules import AfterUntrusted, stricter

HOST: Final = host_context()
"""The host itself as the stored caller of a run."""


def agent_context(
    profile: Profile, name: str, caller: CallContext | None, limits: AgentBudget, run: str, drawn: int = 0
) -> CallContext:
    """The caller of an agent's calls.

    Args:
        name: the name by which contexts refer to the profile.
        caller: the caller who starts the agent; None: the host, which allows everything in the profile, never
            ``danger:*``.
        drawn: how many calls the run has made before.
    """
    principal = f"agent:{profile.name}"
    if caller is None:
        listed = profile.capabilities if profile.capabilities is not None else frozenset({"*"})
        return CallContext(
            permissions=frozenset(each for each in listed if not is_dangerous(each)), principal=principal, profile=name,
            budget=Budget(max_tool_calls=limits.calls), ledger=Ledger(drawn), task_id=run, agent_id=profile.name,
            after_untrusted=_strictest(profile, caller), **_fields_of_agent(profile, None, run),
        )  # fmt: skip
    most = limits.calls + caller.ledger.drawn - drawn
    outer = caller.budget
    if outer.max_tool_calls is not None:
        most = min(most, outer.max_tool_calls)
    return replace(
        caller, principal=principal, profile=name, task_id=run, agent_id=profile.name, after_untrusted=_strictest(profile, caller),
        budget=Budget(outer.timeout_ms, outer.max_retries, max(most, 0)), **_fields_of_agent(profile, caller, run),
    )  # fmt: skip


def _fields_of_agent(profile: Profile, caller: CallContext | None, run: str) -> dict[str, Any]:
    """The fields of seed 002 that an agent sets for its tools if its caller sets none."""
    fields = {"config": profile.config or None, "agent_dir": profile.written.folder or None, "session_key": run}
    return {name: value for name, value in fields.items() if caller is None or getattr(caller, name) is None}


def _strictest(profile: Profile, caller: CallContext | None) -> AfterUntrusted:
    """The rule for calls with an effect after untrusted content was read: the profile's, or a stricter one."""
    rule = profile.written.after_untrusted
    return rule if caller is None else stricter(rule, caller.after_untrusted)


def context_for_model(caller: CallContext | None, run: str) -> CallContext | None:
    """The context for requests to the model: the starter's, with another ledger, as requests are not calls."""
    return None if caller is None else replace(caller, ledger=type(caller.ledger)(), budget=Budget(), task_id=run)


def caller_of(context: CallContext | None) -> CallContext | None:
    """The caller; None: the host itself. Raises UsageError (USAGE)."""
    if context is None:
        frame = current.get()
        return frame.caller if frame is not None else None
    if not isinstance(context, CallContext):
        raise UsageError(f"the context of a run is a CallContext, got {type(context).__name__}")
    return context


def owner_of(caller: CallContext | None) -> str:
    """The owner of a run."""
    return f"{HOST_PRINCIPAL}\x1f" if caller is None else owner_name(caller.principal, caller.user_id)


class HumanAnswers:
    """The conversation of a run: answered questions get their answers, all others make the run wait.

    Args:
        given: question → answer.
        outer: the conversation of the caller, for open questions; None: the run waits.
    """

    def __init__(self, given: Mapping[str, Any], outer: Conversation | None) -> None:
        self._answers = given
        self._outer = outer

    def can_ask(self, kind: QuestionKind) -> bool:
        return kind == "form" or (self._outer is not None and self._outer.can_ask(kind))

    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Any]:
        """See `Conversation.ask`."""
        answered = {
            key: self._answers[key]
            for key, question in questions.items()
            if key in self._answers and not mismatch(question, self._answers[key])
        }
        missing = {key: question for key, question in questions.items() if key not in answered}
        if not missing:
            return answered
        if self._outer is not None:
            return {**answered, **await self._outer.ask(missing)}
        raise unanswered(missing)

    def log(self, level: LogLevel, message: str) -> None:
        if self._outer is not None:
            self._outer.log(level, message)
