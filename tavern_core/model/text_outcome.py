"""What came of a text with TAM blocks: the calls, their results, what was wrong, and what to tell the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from tavern_core.frozen import dataclass
from tavern_core.model.result import ToolResult


class TextCall(Protocol):
    """One call of a block, as `tam.bind` makes it (`tam.TamCall`)."""

    @property
    def index(self) -> int:
        """Step within its block, from 1."""
        ...

    @property
    def block(self) -> int:
        """Number of the block within the text, from 1."""
        ...

    @property
    def tool(self) -> str: ...

    @property
    def arguments(self) -> Mapping[str, Any]: ...


class TextProblem(Protocol):
    """One thing wrong in the text (`tam.Problem`)."""

    @property
    def severity(self) -> Literal["error", "warning"]: ...

    @property
    def code(self) -> str: ...

    @property
    def message(self) -> str: ...

    @property
    def hint(self) -> str: ...

    @property
    def block(self) -> int: ...

    @property
    def line(self) -> int: ...

    @property
    def column(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a text and what came of it."""

    call: TextCall
    result: ToolResult | None = None
    """None: it was not run, because another step of its chain failed or was refused."""


@dataclass(frozen=True, slots=True)
class TextOutcome:
    """The answer of `Tavern.run_text`."""

    results: tuple[ToolResult, ...] = ()
    """One for each call that was run or refused and one for each damaged block, in the order of the text."""
    calls: tuple[TextCall, ...] = ()
    """All calls of undamaged blocks, in order; some may not have been run (`steps`)."""
    problems: tuple[TextProblem, ...] = ()
    text: str = ""
    """The prose outside the blocks."""
    feedback: str = ""
    """What to give back to the model; empty when the text held no block."""
    steps: tuple[Step, ...] = ()
    """Calls with their results."""

    @property
    def ok(self) -> bool:
        """True when every call was run and succeeded, and no block was damaged."""
        ran = all(step.result is not None and step.result.ok for step in self.steps)
        return ran and all(result.ok for result in self.results) and all(p.severity != "error" for p in self.problems)
