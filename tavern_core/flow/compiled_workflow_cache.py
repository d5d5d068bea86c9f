"""Compiles workflows and caches the results, including checks by plugins, until a node type or a file changes."""

from __future__ import annotations

import marshal
import threading
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from tavern_core.errors import UsageError, WorkflowInvalid
from tavern_core.flow.compile_lookup import CompileLibrary
from tavern_core.flow.engine.plan_tables import PreparedPlan, prepare
from tavern_core.flow.node_catalogue import Nodes
from tavern_core.flow.plugin_workflows import PluginWorkflows
from tavern_core.flow.workflow_files import WorkflowFiles
from tavern_core.frozen_dataclass import dataclass
from tavern_core.graph.compile import compile_workflow, group_workflow_id
from tavern_core.graph.problems import FlowProblem
from tavern_core.kernel.limits.lru_cache import LruCache
from tavern_core.kernel.manifest.workflow_file_codec import SUFFIX, document_of, workflow_of
from tavern_core.kernel.plugins.lifecycle import Lifecycle
from tavern_core.model.safe_printing import and_more
from tavern_core.model.workflow import Workflow

_MOST_KEPT: Final = 200
_MOST_BYTES: Final = 32_000_000
"""Maximum number of cached workflows that were passed as mappings."""
_MOST_WRITTEN: Final = 200
"""Maximum number of cached workflows without a file."""


@dataclass(frozen=True, slots=True)
class CompiledWorkflow:
    """The result of compiling a workflow."""

    workflow: Workflow
    """As it was compiled: old nodes upgraded."""
    prepared: PreparedPlan | None
    problems: tuple[FlowProblem, ...]

    def refuse(self) -> WorkflowInvalid:
        """The error with all its problems."""
        errors = [problem for problem in self.problems if problem.severity == "error"]
        return WorkflowInvalid(
            f"workflow {self.workflow.id or 'without a name'}: {errors[0].code}: {errors[0].message}{and_more(len(errors) - 1)}",
            hint=errors[0].hint,
            findings=tuple(problem.finding(self.workflow.id) for problem in self.problems),
            problems=[problem.to_json() for problem in self.problems],
        )


class GivenWorkflows:
    """Workflows that were passed as plain mappings, by their content. Thread-safe.

    Equal content is one workflow, so it is read, compiled and written once. Content is compared by the hash of its `marshal` form, which
    distinguishes 1, 1.0 and "1", and takes a third of the time of JSON.
    """

    def __init__(self) -> None:
        self._kept = LruCache[bytes, Workflow](_MOST_KEPT, _MOST_BYTES)

    def get(self, content: dict[str, Any]) -> Workflow | None:
        """The workflow of equal content, if it was passed recently."""
        return None if (found := _digest(content)) is None else self._kept.find(found[0])

    def put(self, content: dict[str, Any], workflow: Workflow) -> Workflow:
        """Cache the result for `content`."""
        if (found := _digest(content)) is not None:
            self._kept.put(found[0], workflow, found[1])
        return workflow


def _digest(content: dict[str, Any]) -> tuple[bytes, int] | None:
    """(hash, bytes) of a mapping of exact built-in types; None: it contains other types."""
    try:
        text = marshal.dumps(content, 2)
    except ValueError:  # of another type, or nested too deeply
        return None
    return blake2b(text, digest_size=32).digest(), len(text)


class WorkflowCompiler:
    """Compiles the workflows of one host. Thread-safe."""

    def __init__(
        self, nodes: Nodes, workflow_files: WorkflowFiles, lifecycle: Lifecycle, plugin_workflows: PluginWorkflows
    ) -> None:
        self._nodes = nodes
        self._workflow_files = workflow_files
        self._lifecycle = lifecycle
        self.plugin_workflows: Final = plugin_workflows
        self._lock = threading.Lock()
        self._compiled: dict[int, tuple[Workflow, CompiledWorkflow, CompileLibrary]] = {}
        self._given_workflows = GivenWorkflows()
        self._written: dict[int, tuple[Workflow, Workflow]] = {}
        """Workflows without a file, and their document as it would be in a file."""

    async def compiled(self, what: Any) -> CompiledWorkflow:
        """A workflow, compiled. Raises WorkflowNotFound, WorkflowInvalid: as `Workflows.check`."""
        await self.plugin_workflows.prepare()
        return await self._make(self._read(what))

    def _read(self, what: Any) -> Workflow:
        """`as_workflow`; the same object for equal content, so that it is compiled once."""
        if type(what) is dict:
            return self._given_workflows.get(what) or self._given_workflows.put(
                what, as_workflow(what, self._workflow_files)
            )
        if not isinstance(what, Workflow) or what.raw:
            return as_workflow(what, self._workflow_files)
        known = self._written.get(id(what))
        if known is None or known[0] is not what:
            if len(self._written) >= _MOST_WRITTEN:
                self._written.clear()
            known = self._written[id(what)] = what, as_workflow(what, self._workflow_files)
        return known[1]

    async def _make(self, workflow: Workflow) -> CompiledWorkflow:
        """Compile a workflow; the plugins of its nodes are activated."""
        with self._lock:
            known = self._compiled.get(id(workflow))
        if known is not None and known[0] is workflow and known[2].is_current():
            return known[1]
        library = CompileLibrary(self._nodes, self._workflow_files, self._lifecycle)
        await self._activate(workflow, library)
        upgraded = library.upgraded(workflow)
        compiled = compile_workflow(upgraded, library)
        made = CompiledWorkflow(
            upgraded, prepare(compiled.plan) if compiled.plan is not None else None, compiled.problems
        )
        if made.prepared is None:
            return made  # not cached: missing parts may exist the next time, so the plugins must be asked again
        with self._lock:
            if len(self._compiled) >= _MOST_KEPT:
                self._compiled.clear()
            self._compiled[id(workflow)] = workflow, made, library
        return made

    async def _activate(self, workflow: Workflow, library: CompileLibrary) -> None:
        """Activate the plugins of all nodes in a workflow and in the workflows of its groups."""
        visited: set[str] = set()
        queue = [workflow]
        types: dict[str, None] = {}
        while queue:
            flow = queue.pop()
            types.update(dict.fromkeys(node.type for node in flow.nodes))
            for node in flow.nodes:
                reference = group_workflow_id(node, flow, library)
                if reference and reference not in visited:
                    visited.add(reference)
                    if (inner := library.written(reference)) is not None:
                        queue.append(inner)
        await self._nodes.activate_for(list(types))


def as_workflow(what: Any, workflow_files: WorkflowFiles) -> Workflow:
    """A workflow from any of its forms: an id, the path of a file, the content of one, or a Workflow.

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
        raise UsageError(
            f"{type(what).__name__} names no workflow", hint="give an id, the path of a file, or the content of one"
        )
    text = str(what)
    if isinstance(what, Path) or ((text.endswith(SUFFIX) or "/" in text) and text not in workflow_files):
        return workflow_files.read(Path(text).absolute())
    return workflow_files.get(text.removeprefix("workflow:"))
