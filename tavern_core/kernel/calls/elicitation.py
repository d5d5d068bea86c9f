"""The conversation of a running tool with its caller: questions and messages."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final, Protocol

from tavern_core.contract.tool_context import LogLevel
from tavern_core.errors import InputRequired
from tavern_core.model.question import Question, QuestionKind
from tavern_core.schema.validate import compile_output_validator


class Conversation(Protocol):
    """Answers a tool's questions: an entry point that can ask its client, or the job of the call."""

    def can_ask(self, kind: QuestionKind) -> bool: ...

    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Any]:
        """The answer to each question; each answer fits its question.

        Raises:
            InputRequired: some answers are not there yet (INPUT_REQUIRED).
        """
        ...

    def log(self, level: LogLevel, message: str) -> None: ...


conversation: Final[ContextVar[Conversation | None]] = ContextVar("tavern_conversation", default=None)
"""The conversation of the calls made within. Set by an entry point, a job or a node; None: no person can be asked."""


def unanswered(questions: Mapping[str, Question]) -> InputRequired:
    """The error of a call that cannot continue without answers."""
    prompt = " ".join(next(iter(questions.values())).prompt.split()) if len(questions) == 1 else ""
    return InputRequired(
        f"needs an answer: {prompt:.300}" if prompt else f"needs an answer to {', '.join(questions)}",
        hint="make the call as a job and answer with tavern.jobs.answer(...), or from an MCP client that can be asked",
        questions=[{"id": key, **question.to_json()} for key, question in questions.items()],
    )


def mismatch(question: Question, answer: Any) -> str:
    """Why `answer` does not answer a question; empty if it does. The answer None declines a form."""
    if question.kind == "roots":
        fits = isinstance(answer, list) and all(isinstance(root, Mapping) and "uri" in root for root in answer)
        return "" if fits else "the answer is a list of folders with a uri"
    if question.kind == "completion":
        return "" if isinstance(answer, Mapping) and "content" in answer else "the answer is a message with content"
    if answer is None or not question.schema:
        return ""
    return "; ".join(map(str, compile_output_validator(question.schema).problems(answer)))
