"""The problems of a workflow: one table of codes, and one value for each finding.

All problems of a workflow are reported at once, before anything runs; each names its node, slot and edge.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any, Final

from tavern_core.errors import Finding, Location, Problem, Severity
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.nearest import nearest, suggestion
from tavern_core.model.node import Slot

PROBLEM_CODES: Final[Mapping[str, str]] = {
    "DUPLICATE_NODE": "Two nodes have the same id.",
    "DUPLICATE_EDGE": "Two edges have the same id.",
    "UNKNOWN_TYPE": "No active plugin provides this node type.",
    "DANGLING_EDGE": "An edge begins or ends at a node that does not exist.",
    "UNKNOWN_HANDLE": "The node has no such input or output.",
    "TYPE_MISMATCH": "The output's type does not fit the input.",
    "STREAM_MISMATCH": "A stream is connected to a slot without streams, or the other way round.",
    "TOO_MANY_CONNECTIONS": "An input has more edges than it allows.",
    "MISSING_INPUT": "A required input has neither edge, value nor default.",
    "BAD_VALUE": "A value does not fit its input.",
    "BAD_CONFIG": "The configuration of a node does not fit its type.",
    "BAD_EXEC": "`configValues.$exec` has an unknown key or an invalid value.",
    "UNKNOWN_INPUT": "A value is given for an input that the node does not have, or inside of `data`.",
    "CYCLE": "Nodes wait for each other.",
    "GROUP_MISSING": "The workflow of a group does not exist.",
    "GROUP_RECURSION": "A workflow contains itself.",
    "GROUP_INVALID": "The workflow file of a group cannot be read.",
    "TOO_DEEP": "Groups are nested too deeply.",
    "TOO_LARGE": "There are more nodes or edges than the host allows.",
    "DUPLICATE_OUTPUT": "Two edges set the same output of the workflow.",
    "INTERFACE": "The workflow's interface and its GroupInput and GroupOutput nodes disagree.",
    "REQUIREMENT": "A plugin that the workflow requires is missing or has another version.",
    "DEPRECATED": "The node type is deprecated.",
    "TARGET": "A node at which the run should end or start does not exist.",
}
"""Code → meaning; the manual page shows this table."""
MOST_REPORTED: Final = 1_000
"""Errors of one workflow, and as many warnings; a file with a million mistakes is not reported in full."""
_MOST_COMPARED: Final = 50_000
"""Names compared for suggestions, for all problems together: of many mistakes, the first ones get a hint."""


Identity = tuple[str, str, str, str]
"""Code, node, slot and edge of a problem."""


@dataclass(frozen=True, slots=True)
class FlowProblem(Problem):
    """A problem of a workflow."""

    code: str
    """A key of PROBLEM_CODES."""
    message: str
    node: str = ""
    """Path of the node: its id, after the ids of its groups: ``g1/a``."""
    slot: str = ""
    edge: str = ""
    hint: str = ""
    nearest: tuple[str, ...] = ()
    severity: Severity = "error"
    allowed: tuple[str, ...] = ()
    """The names or values that would be accepted, if there are any to choose from."""

    def __post_init__(self) -> None:
        self.escape("message", "hint")

    @property
    def located(self) -> str:
        return f"{self.code}: {self.message}"

    @property
    def identity(self) -> Identity:
        """The part of a problem that stays the same when it is found again, whatever its words."""
        return self.code, self.node, self.slot, self.edge

    def to_json(self) -> dict[str, Any]:
        data = {
            "code": self.code,
            "message": self.message,
            "severity": self.severity,
            "node": self.node,
            "slot": self.slot,
            "edge": self.edge,
            "hint": self.hint,
            "nearest": list(self.nearest),
            "allowed": list(self.allowed),
        }
        return {key: value for key, value in data.items() if value}

    def finding(self, file: str = "") -> Finding:
        """The problem as a finding in the workflow's file."""
        where = Location(file, pointer=self.node) if file else None
        return Finding(
            "WORKFLOW_INVALID", f"{self.code}: {self.message}", self.hint, where, self.severity, self.to_json()
        )


MOST_ALLOWED: Final = 50
"""Names in `FlowProblem.allowed`."""


def known_slots(near: Collection[str], slots: Mapping[str, Slot]) -> str:
    """The hint for a slot that a node does not have: those that were probably meant, else those that it has."""
    return suggestion(near) or (f"it has {', '.join(map(repr, islice(slots, 10)))}" if slots else "it has none")


def allowed_values(slot: Slot) -> tuple[str, ...]:
    """The values that a slot accepts, for `FlowProblem.allowed`; none if it accepts others, too."""
    return tuple(str(each) for each in slot.choices[:MOST_ALLOWED]) if slot.is_closed else ()


class ProblemReport:
    """The problems found so far; bounded in number."""

    def __init__(self) -> None:
        self.errors: list[FlowProblem] = []
        self._warnings: list[FlowProblem] = []
        self._order: list[FlowProblem] = []
        self._left = _MOST_COMPARED

    def add(self, problem: FlowProblem) -> None:
        """Add a problem."""
        kind = self.errors if problem.severity == "error" else self._warnings
        if len(kind) < MOST_REPORTED:
            kind.append(problem)
            self._order.append(problem)

    def near(self, name: str, known: Collection[str]) -> tuple[str, ...]:
        """The known names that were probably meant; none after the limit of comparisons."""
        if self._left <= 0:
            return ()
        self._left -= len(known)
        return tuple(nearest(name, known))

    def takes_none_of(self, other: ProblemReport) -> bool:
        """Whether no problem of `other` would be added."""
        return all(len(own) >= MOST_REPORTED or not theirs for own, theirs in self._pairs(other))

    def _pairs(self, other: ProblemReport) -> tuple[tuple[list[FlowProblem], list[FlowProblem]], ...]:
        return (self.errors, other.errors), (self._warnings, other._warnings)

    @property
    def problems(self) -> tuple[FlowProblem, ...]:
        """All of them, in the order of discovery."""
        return tuple(self._order)
