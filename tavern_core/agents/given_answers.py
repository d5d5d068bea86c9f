"""Answers that people have given to the questions of tools, for calls that are made again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tavern_core.contract.tool_context import LogLevel
from tavern_core.kernel.calls.elicitation import Conversation, mismatch, unanswered
from tavern_core.model.question import Question, QuestionKind


class HumanAnswers:
    """The conversation of a run: what was answered is known, everything else makes the run wait.

    Args:
        given: question → answer.
        outer: the conversation of the caller, for what is not answered yet; None: the run waits.
    """

    def __init__(self, given: Mapping[str, Any], outer: Conversation | None) -> None:
        self._given = given
        self._outer = outer

    def can_ask(self, kind: QuestionKind) -> bool:
        return kind == "form" or (self._outer is not None and self._outer.can_ask(kind))

    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Any]:
        """See `Conversation.ask`."""
        known = {
            key: self._given[key]
            for key, asked in questions.items()
            if key in self._given and not mismatch(asked, self._given[key])
        }
        missing = {key: asked for key, asked in questions.items() if key not in known}
        if not missing:
            return known
        if self._outer is not None:
            return {**known, **await self._outer.ask(missing)}
        raise unanswered(missing)

    def log(self, level: LogLevel, message: str) -> None:
        if self._outer is not None:
            self._outer.log(level, message)
