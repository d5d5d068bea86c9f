"""Workflows compiled and kept: what plugins say about their nodes included, until a node type or a file changes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tavern_core.errors import UsageError, WorkflowInvalid
from tavern_core.graph.compile import compile_workflow, resolved
from tavern_core.graph.problems import Problem
from tavern_core.kernel.catalogue.nodes import Nodes
from tavern_core.kernel.engine.prepared import Prepared, prepare
from tavern_core.kernel.life.lifecycle import Lifecycle
from tavern_core.kernel.manifest.workflow_files import SUFFIX, document_of, workflow_of
from tavern_core.kernel.workflows.library import CompileLibrary
from tavern_core.kernel.workflows.shelf import WorkflowShelf
from tavern_core.model.workflow import Workflow

_MOST_KEPT: Final = 200


@dataclass(frozen=True, slots=True)
class Made:
    """What became of a workflow."""

    workflow: Workflow
    """As it was compiled: old nodes upgraded."""
    prepared: Prepared | None
    problems: tuple[Problem, ...]

    def refuse(self) -> WorkflowInvalid:
        """The error that tells all its problems."""
        errors = [problem for problem in self.problems if problem.severity == "error"]
        more = f" and {len(errors) - 1} more" if len(errors) > 1 else ""
        return WorkflowInvalid(
            f"workflow {self.workflow.id or 'without a name'}: {errors[0]}{more}",
            hint=errors[0].hint,
            findings=tuple(problem.finding(self.workflow.id) for problem in self.problems),
            problems=[problem.to_json() for problem in self.problems],
        )


class Compiling:
    """Compiles the workflows of one host. Safe for threads."""

    def __init__(self, nodes: Nodes, shelf: WorkflowShelf, lifecycle: Lifecycle) -> None:
        self._nodes = nodes
        self._shelf = shelf
        self._lifecycle = lifecycle
        self._lock = threading.Lock()
        self._kept: dict[int, tuple[Workflow, Made, CompileLibrary]] = {}

    async def make(self, workflow: Workflow) -> Made:
        """Compile a workflow; the plugins of its nodes are activated."""
        with self._lock:
            known = self._kept.get(id(workflow))
        if known is not None and known[0] is workflow and known[2].is_current():
            return known[1]
        library = CompileLibrary(self._nodes, self._shelf, self._lifecycle)
        await self._activate(workflow, library)
        upgraded = library.upgraded(workflow)
        compiled = compile_workflow(upgraded, library)
        made = Made(upgraded, prepare(compiled.plan) if compiled.plan is not None else None, compiled.problems)
        if made.prepared is None:
            return made  # not kept: what is missing may be there the next time, and its plugin must be asked again
        with self._lock:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[id(workflow)] = workflow, made, library
        return made

    async def _activate(self, workflow: Workflow, library: CompileLibrary) -> None:
        """Activate the plugins of all nodes in a workflow and in the workflows of its groups."""
        seen: set[str] = set()
        queue = [workflow]
        types: dict[str, None] = {}
        while queue:
            flow = queue.pop()
            types.update(dict.fromkeys(node.type for node in flow.nodes))
            for node in flow.nodes:
                reference = resolved(node, flow, library)
                if reference and reference not in seen:
                    seen.add(reference)
                    if (inner := library.written(reference)) is not None:
                        queue.append(inner)
        await self._nodes.activate_for(list(types))


def as_workflow(what: Any, shelf: WorkflowShelf) -> Workflow:
    """What somebody calls a workflow: an id, the path of a file, the content of one, or a Workflow.

    Raises:
        WorkflowNotFound: no such id (WORKFLOW_NOT_FOUND).
        WorkflowInvalid: it cannot be read (WORKFLOW_INVALID).
        UsageError: it is none of these (USAGE).
    """
    if isinstance(what, Workflow):
        return what if what.raw else what.model_copy(update={"raw": document_of(what)})
    if isinstance(what, Mapping):
        return workflow_of(what)
    if not isinstance(what, str | Path):
        raise UsageError(f"{type(what).__name__} names no workflow", hint="give an id, the path of a file, or the content of one")
    text = str(what)
    if isinstance(what, Path) or ((text.endswith(SUFFIX) or "/" in text) and text not in shelf):
        return shelf.read(Path(text).absolute())
    return shelf.get(text.removeprefix("workflow:"))
