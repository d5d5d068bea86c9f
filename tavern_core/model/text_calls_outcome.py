"""The outcome of a text with TAM blocks: the calls, their results, the problems, and the feedback for the model."""

from __future__ import annotations

from typing import Any

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.result import ToolResult
from tavern_core.model.text_call import TamCall, TextProblem


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a text and its result."""

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
