"""The running call, as its tool sees it: deadline, cancellation, progress, artifacts, questions.

@tool
def convert(pages: list[str], ctx: ToolContext) -> int:
    for number, page in enumerate(pages):
        ctx.check()                                   # raises if the call was cancelled
        ctx.progress(number, len(pages), page)
        ...
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Protocol, get_args

from tavern_core.contract.trace_context import trace_headers
from tavern_core.errors import CallCancelled, CallTimeout, InputRequired, OutputTooLarge, UsageError
from tavern_core.model.question import Question, QuestionKind, prompt_and_schema

LogLevel = Literal["debug", "info", "warning", "error"]


class Control(Protocol):
    """The host's side of one running call."""

    @property
    def is_cancelled(self) -> bool: ...

    @property
    def is_again(self) -> bool: ...

    @property
    def seconds_left(self) -> float | None: ...

    def progress(self, done: float, total: float | None, message: str) -> None: ...

    def keep(self, data: bytes | str | Path | Iterable[bytes], media_type: str, name: str) -> dict[str, Any]: ...

    def artifact_facts(self, uri: str) -> dict[str, Any]: ...
    def can_ask(self, kind: QuestionKind) -> bool: ...

    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Any]: ...

    def log(self, level: LogLevel, message: str) -> None: ...

    def read_artifact(self, uri: str, start: int, length: int) -> bytes: ...


LONGEST_MESSAGE: Final = 500
"""The maximum length of a progress message, in characters."""

RUNNING: Final[dict[str, Control]] = {}
"""Call id → its control, for calls of tools that want one."""


class ToolContext:
    """The running call of a tool. The host fills in a parameter with this annotation; models do not see it."""

    __slots__ = ("_asked", "_control", "call_id")

    def __init__(self, call_id: str = "") -> None:
        self.call_id: str = call_id
        """Names the call in events and in the log."""
        self._control = RUNNING.get(call_id)
        self._asked = 0

    @property
    def is_cancelled(self) -> bool:
        """Whether this call, or a call around it, was cancelled or has timed out."""
        return self._control is not None and self._control.is_cancelled

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the deadline, at least 0; None: there is none."""
        return None if self._control is None else self._control.seconds_left

    @property
    def trace_headers(self) -> Mapping[str, str]:
        """`traceparent`, and `tracestate` if there is one, for requests that belong to this call; empty without a trace."""
        return trace_headers()

    def check(self) -> None:
        """Raise if this call was cancelled or has timed out, because sync code cannot be stopped from outside.

        Raises:
            CallTimeout: its time is over (TIMEOUT).
            CallCancelled: it was cancelled (CANCELLED).
        """
        if self.seconds_left == 0:
            raise CallTimeout(
                "the time of the call is over", hint="ask for less, or give it more time", outcome="unknown"
            )
        if self.is_cancelled:
            raise CallCancelled("the call was cancelled", outcome="unknown")

    def keep(
        self, data: bytes | str | Path | Iterable[bytes], media_type: str = "application/octet-stream", name: str = ""
    ) -> dict[str, Any]:
        """Store large data as an artifact of the caller: an image, a file.

        Returns:
            A content block that links to it: return it as the answer, or in ``{"content": [...]}``.

        Raises:
            UsageError: it is not such data, or no host runs this tool (USAGE).
            OutputTooLarge: larger than `artifacts.maxBytes` (OUTPUT_TOO_LARGE).
        """
        return self._host().keep(data, media_type, name)

    def _host(self) -> Control:
        if self._control is None:
            raise UsageError("there are no artifacts here: no host runs this tool", hint="pass the bytes on yourself")
        return self._control

    def artifact(self, uri: str, max_bytes: int = 64_000_000) -> tuple[bytes, str]:
        """The bytes and the media type of an artifact of the caller.

        Args:
            uri: ``artifact:…``, as an argument of the call has it.

        Raises:
            ArtifactNotFound: the caller has no such artifact (ARTIFACT_NOT_FOUND).
            OutputTooLarge: it has more than `max_bytes` (OUTPUT_TOO_LARGE).
            UsageError: no host runs this tool (USAGE).
        """
        facts = self.artifact_facts(uri)
        if facts["size"] > max_bytes:
            raise OutputTooLarge(
                f"{uri:.80} has {facts['size']:,} bytes; at most {max_bytes:,} are read", limit=max_bytes
            )
        return self.read_artifact(uri), str(facts["mediaType"])

    def artifact_facts(self, uri: str) -> dict[str, Any]:
        """`id`, `size`, `mediaType`, `name`, `digest` and more of an artifact of the caller. Raises as `artifact`."""
        return self._host().artifact_facts(uri)

    def read_artifact(self, uri: str, start: int = 0, length: int = -1) -> bytes:
        """A part of an artifact of the caller; all of it by default. Raises as `artifact`."""
        return self._host().read_artifact(uri, start, length)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Report progress. This extends only the idle deadline.

        Args:
            done: of `total`, in any unit.
            message: at most 500 characters.
        """
        if self._control is not None:
            self._control.progress(json_number(done) or 0, json_number(total), str(message)[:LONGEST_MESSAGE])

    def log(self, message: str, level: LogLevel = "info") -> None:
        """Send a log message to the caller, if it receives them (an MCP client), and to the log of the process.

        Args:
            message: at most 2,000 characters are kept.

        Raises:
            UsageError: there is no such level (USAGE).
        """
        if level not in (levels := get_args(LogLevel)):
            raise UsageError(f"{level!r:.80} is not a level of a log message", hint=f"one of {', '.join(levels)}")
        if self._control is not None:
            self._control.log(level, message)

    # Asking --------------------------------------------------------------------------------------------------------------

    def can_ask(self, kind: QuestionKind = "form") -> bool:
        """Whether the caller can answer such a question: a person, a language model, a workspace."""
        return self._control is not None and self._control.can_ask(kind)

    async def ask(
        self,
        *question: str | Mapping[str, Any],
        prompt: str | None = None,
        schema: Mapping[str, Any] | None = None,
        key: str = "",
    ) -> dict[str, Any] | None:
        """Ask a person on the caller's side: ``await ctx.ask("How many?", {"type": "object", ...})``.

        If no caller waits for the call any more, it ends here and is made again from its beginning once the answer is there. So
        ask before you change anything.

        Args:
            question: what the person reads, and the JSON Schema of an object of text, numbers, booleans and choices; in either
                order, as in `NodeContext.ask`.
            prompt: what the person reads, by name.
            schema: the schema by name.
            key: names the question in this call; by default its number.

        Returns:
            The values; None: the person declined.

        Raises:
            InputRequired: there is no one to ask now (INPUT_REQUIRED). Let it through.
        """
        answer: dict[str, Any] | None = await self._ask_one(
            key, Question.form(*prompt_and_schema(question, prompt, schema))
        )
        return answer

    async def complete(
        self, messages: str | list[Mapping[str, Any]], *, max_tokens: int = 1000, system: str = "", key: str = ""
    ) -> dict[str, Any]:
        """Ask the caller's language model, at their expense.

        Args:
            messages: the user's text, or messages with `role` and `content`, oldest first.

        Returns:
            ``{"role", "content", "model", "stopReason"}``.

        Raises:
            InputRequired: it cannot be asked now (INPUT_REQUIRED). Let it through.
        """
        question = Question.completion(messages, max_tokens=max_tokens, system=system)
        answer: dict[str, Any] = await self._ask_one(key, question)
        return answer

    async def roots(self, *, key: str = "") -> list[dict[str, Any]]:
        """The folders that the caller works in: ``[{"uri": "file:///...", "name": ...}]``.

        Raises:
            InputRequired: there is no one to ask now (INPUT_REQUIRED). Let it through.
        """
        answer: list[dict[str, Any]] = await self._ask_one(key, Question.roots())
        return answer

    async def ask_all(self, questions: Mapping[str, Question]) -> dict[str, Any]:
        """Ask several questions at once: ``{"name": Question.form(...), "folders": Question.roots()}``; key → answer. Raises as `ask`."""
        if self._control is None:
            raise InputRequired("there is no one to ask: no host runs this tool")
        return dict(await self._control.ask(questions))

    async def _ask_one(self, key: str, question: Question) -> Any:
        self._asked += 1
        key = key or f"question-{self._asked}"
        return (await self.ask_all({key: question}))[key]


def json_number(value: object) -> float | None:
    """`value` if it is a number that JSON can hold; else None, because tools may pass anything."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < 1e15 else None  # NaN is not
