"""Tool calls that were written as text, their problems, and the outcome of a text with such calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from tavern_core.errors import Problem, Severity
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.result import ToolResult

OnError = Literal["stop", "continue"]


@dataclass(frozen=True, slots=True)
class TamCall:
    """A call that is ready for the pipeline.

    Args:
        index: number of its step; 1 for a single call.
        block: number of its block, from 1.
        tool: the tool's id in the spelling of the catalogue.
        arguments: typed; the pipeline fills in defaults.
        request_id: trace and idempotency key of the block.
        on_error: whether a failure ends the chain.
        retry: how often to repeat a failed call, at most.
    """

    index: int
    block: int
    tool: str
    arguments: Mapping[str, Any]
    request_id: str | None = None
    on_error: OnError = "stop"
    retry: int = 0


@dataclass(frozen=True, slots=True)
class TextProblem(Problem):
    """A problem of a block.

    Args:
        severity: an `error` invalidates all calls of the block; a `warning` does not.
        code: a key of `tam.PROBLEM_CODES`.
        message: the problem, with its names and values.
        hint: how to repair it.
        block: number of the block, from 1.
        line, column: place in the text, from 1.
        key: the field it is about, as spelled; empty for the block as a whole.
        step: the chain step it is about; 0 if there is none.
    """

    severity: Severity
    code: str
    message: str
    hint: str = ""
    block: int = 0
    line: int = 0
    column: int = 0
    key: str = ""
    step: int = 0

    @property
    def located(self) -> str:
        return f"{self.severity}[{self.code}] line {self.line}, column {self.column}: {self.message}"

    def __str__(self) -> str:
        return f"{self.located} {self.hint}" if self.hint else self.located

    def to_json(self) -> dict[str, Any]:
        return {
            "severity": self.severity,
            "code": self.code,
            "message": self.message,
            "hint": self.hint or None,
            "block": self.block,
            "line": self.line,
            "column": self.column,
        }


@dataclass(frozen=True, slots=True)
class Step:
    """A call of a text and its result."""

    call: TamCall
    result: ToolResult | None = None
    """None: it did not run, because another step of its chain failed or was refused."""

    def to_json(self) -> dict[str, Any]:
        call = self.call
        return {
            "block": call.block,
            "index": call.index,
            "tool": call.tool,
            "arguments": dict(call.arguments),
            "result": self.result.to_json() if self.result is not None else None,
        }


@dataclass(frozen=True, slots=True)
class TextOutcome:
    """The answer of `Tavern.run_text`."""

    results: tuple[ToolResult, ...] = ()
    """One for each call that ran or was refused and one for each invalid block, in the order of the text."""
    calls: tuple[TamCall, ...] = ()
    """All calls of valid blocks, in order; some may not have run (`steps`)."""
    problems: tuple[TextProblem, ...] = ()
    text: str = ""
    """The prose outside of the blocks."""
    feedback: str = ""
    """The text for the model; empty if the text held no block."""
    steps: tuple[Step, ...] = ()
    """Calls with their results."""

    @property
    def ok(self) -> bool:
        """True if every call ran and succeeded, and no block was invalid."""
        ran = all(step.result is not None and step.result.ok for step in self.steps)
        return ran and all(result.ok for result in self.results) and all(p.severity != "error" for p in self.problems)

    def to_json(self) -> dict[str, Any]:
        """The outcome as JSON, camelCase."""
        return {
            "ok": self.ok,
            "text": self.text,
            "steps": [step.to_json() for step in self.steps],
            "results": [result.to_json() for result in self.results],
            "problems": [problem.to_json() for problem in self.problems],
            "feedback": self.feedback,
        }
