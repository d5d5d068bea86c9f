"""The problems of a patch: one table of codes, and one value for each finding, in the words of who wrote the patch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.graph.problems import FlowProblem
from tavern_core.model.nearest import nearest, suggestion
from tavern_core.model.safe_printing import printed

PATCH_CODES: Final[Mapping[str, str]] = {
    "NOT_A_PATCH": "A patch is a list of operations, and each operation is an object.",
    "NOT_JSON": "The patch holds something that JSON cannot hold.",
    "TOO_MANY_OPERATIONS": "There are more operations than one patch may have.",
    "PATCH_TOO_LARGE": "The values of the patch, with everything that it copies, are too large.",
    "PATCH_TOO_DEEP": "A value would be nested too deeply.",
    "UNSAFE_KEY": "`__proto__` is not a name: programs in a browser take it for something else.",
    "UNKNOWN_OP": "`op` is missing, or is not an operation of RFC 6902.",
    "MISSING_MEMBER": "An operation lacks `path`, `value` or `from`.",
    "BAD_POINTER": "`path` or `from` is not a JSON Pointer.",
    "AMBIGUOUS_PATH": "A number is the id of one element and the place of another.",
    "PATH_MISSING": "There is nothing at this path.",
    "BAD_INDEX": "An item of a list is named by its place, or by `-` for the end.",
    "NOT_A_CONTAINER": "The path leads into a value that holds nothing: a text, a number, a boolean or null.",
    "TEST_FAILED": "The value that `test` expects is not there.",
    "REV_CONFLICT": "The workflow was changed since the revision that the patch was written for.",
    "MOVE_INTO_ITSELF": "A value cannot be moved into itself.",
    "READ_ONLY": "The patch sets something that the host sets: ids, positions, `rev`, all nodes or edges at once.",
    "NODE_EXISTS": "A node is added under the id of an existing one.",
    "EDGE_EXISTS": "An edge is added under the id of an existing one.",
    "DUPLICATE_LOCAL_ID": "Two operations add a node, or an edge, with the same localId.",
    "LOCAL_ID_TAKEN": "A localId is the id of an existing node or edge.",
    "LOCAL_ID_MISMATCH": "The key of a new node or edge and its localId differ.",
    "BAD_LOCAL_ID": "A localId is text of 1 to 100 characters without a slash.",
    "MISSING_TYPE": "A node has no type.",
    "MISSING_END": "An edge has no source or no target.",
    "CONFLICTING_END": "An edge names one end twice, differently.",
    "UNKNOWN_KEY": "A workflow, a node or an edge has no such key.",
    "BAD_SHAPE": "A value has another type than the workflow format requires.",
}
"""Code → meaning; the manual page shows this table. Problems of the result have the codes of `PROBLEM_CODES`."""
_SHOWN: Final = 50
"""Allowed names in one problem."""


@dataclass(frozen=True, slots=True)
class PatchProblem(FlowProblem):
    """A problem of a patch or of its result, in the words of the patch: new nodes and edges have their localIds."""

    op: int | None = None
    """The place of the operation in the patch, from 0; None: no single operation is the cause."""
    pointer: str = ""
    """JSON Pointer into the id-keyed form."""
    is_old: bool = False
    """Whether the workflow had this problem before the patch; it is no reason to refuse the patch."""

    def __post_init__(self) -> None:
        self.escape("message", "pointer", "hint", "node", "slot", "edge")

    @property
    def fix(self) -> str:
        """The repair: the hint, by its name in JSON."""
        return self.hint

    @property
    def located(self) -> str:
        place = f"operation {self.op}: " if self.op is not None else ""
        return f"{self.code}: {place}{self.message}"

    def to_json(self) -> dict[str, Any]:
        data = {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "pointer": self.pointer,
            "fix": self.hint,
            "allowed": list(self.allowed),
            "nearest": list(self.nearest),
            "node": self.node,
            "slot": self.slot,
            "edge": self.edge,
            "old": self.is_old,
        }
        found = {key: value for key, value in data.items() if value}
        return found if self.op is None else {"code": found.pop("code"), "op": self.op, **found}


class PatchRefused(Exception):
    """A patch cannot be applied."""

    def __init__(self, *problems: PatchProblem) -> None:
        super().__init__(str(problems[0]))
        self.problems = problems


def unknown_name_problem(code: str, what: str, name: str, known: Iterable[str], **place: Any) -> PatchProblem:
    """A problem with a wrong name: ``{what} {name!r}``, the known names, the nearest ones."""
    names = list(known)[: 20 * _SHOWN]
    near = tuple(nearest(name, names))
    allowed = tuple(names[:_SHOWN])
    fix = suggestion(near)
    if not near and names:
        fix = f"there are: {', '.join(map(repr, names[:10]))}" + (" …" if len(names) > 10 else "")
    return PatchProblem(code, f"{what} {printed(name):.220}", allowed=allowed, nearest=near, hint=fix, **place)
