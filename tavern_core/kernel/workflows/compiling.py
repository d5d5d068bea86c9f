"""Workflows compiled and kept: what plugins say about their nodes included, until a node type or a file changes."""

from __future__ import annotations

import copy
import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from tavern_core.contract.nodes import Node
from tavern_core.errors import TavernError, UsageError, WorkflowInvalid
from tavern_core.graph.compile import Compiled, compile_workflow, resolved
from tavern_core.graph.problems import Problem
from tavern_core.kernel.catalogue.nodes import Nodes
from tavern_core.kernel.engine.prepared import Prepared, prepare
from tavern_core.kernel.life.lifecycle import Lifecycle
from tavern_core.kernel.manifest.workflow_files import SUFFIX, document_of, workflow_of
from tavern_core.kernel.nodes.code import NodeCode
from tavern_core.kernel.workflows.shelf import WorkflowShelf
from tavern_core.model.node import NodeSpec
from tavern_core.model.workflow import EXEC_KEY, Workflow, WorkflowNode
from tavern_core.schema.validate import compile_validator

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


class _Library:
    """What one compilation refers to, remembered, so that it can be told whether it would come out the same."""

    def __init__(self, nodes: Nodes, shelf: WorkflowShelf) -> None:
        self._nodes = nodes
        self._shelf = shelf
        self.types: dict[str, NodeSpec | None] = {}
        self.workflows: dict[str, Workflow | None] = {}
        self._names: dict[str, Collection[str]] = {}

    def node(self, type_: str) -> NodeSpec | None:
        if type_ not in self.types:
            self.types[type_] = self._nodes.find(type_)
        return self.types[type_]

    def node_types(self) -> Collection[str]:
        if "nodes" not in self._names:
            self._names["nodes"] = [spec.type for spec in self._nodes.known()]
        return self._names["nodes"]

    def why_no_node(self, type_: str) -> str:
        return self._nodes.why_not(type_)

    def workflow(self, id_: str) -> Workflow | None:
        if id_ not in self.workflows:
            self.workflows[id_] = None
            if id_ in self.workflow_ids():
                with suppress(TavernError):  # a file that cannot be read: the compiler says that nothing is there
                    self.workflows[id_] = self._shelf.get(id_)
        return self.workflows[id_]

    def workflow_ids(self) -> Collection[str]:
        if "workflows" not in self._names:
            self._names["workflows"] = self._shelf.list()
        return self._names["workflows"]

    def is_current(self) -> bool:
        fresh = _Library(self._nodes, self._shelf)
        return all(fresh.node(t) is spec for t, spec in self.types.items()) and all(
            fresh.workflow(i) is flow for i, flow in self.workflows.items()
        )


class Compiling:
    """Compiles the workflows of one host. Safe for threads."""

    def __init__(self, nodes: Nodes, shelf: WorkflowShelf, lifecycle: Lifecycle) -> None:
        self._nodes = nodes
        self._shelf = shelf
        self._lifecycle = lifecycle
        self._lock = threading.Lock()
        self._kept: dict[int, tuple[Workflow, Made, _Library]] = {}

    async def make(self, workflow: Workflow) -> Made:
        """Compile a workflow; the plugins of its nodes are activated."""
        with self._lock:
            known = self._kept.get(id(workflow))
        if known is not None and known[0] is workflow and known[2].is_current():
            return known[1]
        library = _Library(self._nodes, self._shelf)
        await self._activate(workflow, library)
        upgraded, problems = self._upgraded(workflow, library)
        compiled = compile_workflow(upgraded, library)
        problems += [*self._unmet(workflow), *self._said(upgraded, library), *compiled.problems]
        made = self._made(upgraded, compiled, problems)
        if made.prepared is None:
            return made  # not kept: what is missing may be there the next time, and its plugin must be asked again
        with self._lock:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[id(workflow)] = workflow, made, library
        return made

    def _made(self, workflow: Workflow, compiled: Compiled, problems: list[Problem]) -> Made:
        is_sound = compiled.plan is not None and not any(p.severity == "error" for p in problems)
        return Made(workflow, prepare(compiled.plan) if is_sound and compiled.plan is not None else None, tuple(problems))

    async def _activate(self, workflow: Workflow, library: _Library) -> None:
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
                    if (inner := library.workflow(reference)) is not None:
                        queue.append(inner)
        await self._nodes.activate_for(list(types))

    # What files and plugins say ------------------------------------------------------------------------------------------

    def _unmet(self, workflow: Workflow) -> Iterable[Problem]:
        """Plugins that the file requires and that are missing or have another version."""
        for name, wanted in workflow.requires.items():
            record = self._lifecycle.records.get(name)
            if record is None or not record.usable:
                why = f"is {record.state}: {record.reason}" if record is not None else "is not installed"
                yield Problem("REQUIREMENT", f"the workflow requires plugin {name!r}, which {why}", hint=f"install or enable {name}")
                continue
            try:
                fits = not wanted or Version(record.candidate.version) in SpecifierSet(wanted, prereleases=True)
            except (InvalidSpecifier, InvalidVersion) as error:
                yield Problem("REQUIREMENT", f"requires.{name}: {wanted!r} cannot be compared ({error})", hint='write ">=1,<2"')
                continue
            if not fits:
                text = f"the workflow requires {name} {wanted}; {record.candidate.version} is there"
                yield Problem("REQUIREMENT", text, hint=f"install {name} {wanted}")

    def _upgraded(self, workflow: Workflow, library: _Library) -> tuple[Workflow, list[Problem]]:
        """The workflow with nodes of an older version upgraded by their class; the file itself stays as it is."""
        problems: list[Problem] = []
        nodes: list[WorkflowNode] = []
        written = workflow.raw.get("nodes") or ()
        for at, node in enumerate(workflow.nodes):
            spec = library.node(node.type)
            if spec is not None and node.type_version is not None and node.type_version < spec.version:
                node = _upgrade(node, spec, written[at] if at < len(written) else None, problems)
            nodes.append(node)
        if all(one is other for one, other in zip(nodes, workflow.nodes, strict=True)):
            return workflow, problems
        return workflow.model_copy(update={"nodes": tuple(nodes)}), problems

    def _said(self, workflow: Workflow, library: _Library) -> Iterable[Problem]:
        """What the schema of the configuration and the class form's `validate` say about values of the file."""
        for node in workflow.nodes:
            spec = library.node(node.type)
            if spec is None:
                continue
            config = {**spec.config_values, **{k: v for k, v in node.config_values.items() if k != EXEC_KEY}}
            if spec.config_schema:
                for found in compile_validator(spec.config_schema, name=spec.type).problems(config):
                    yield Problem("BAD_CONFIG", f"configuration of {node.id!r} ({spec.type}): {found}", node.id, hint=found.hint)
            code = spec.impl
            if isinstance(code, NodeCode) and code.cls is not None and code.cls.validate.__func__ is not Node.validate.__func__:  # type: ignore[attr-defined]
                yield from _validated(code.cls, node, spec, config)


def _validated(cls: type[Node], node: WorkflowNode, spec: NodeSpec, config: Mapping[str, Any]) -> Iterable[Problem]:
    try:
        for text in list(cls.validate(dict(node.input_values), dict(config)) or ()):
            yield Problem("BAD_VALUE", f"{node.id!r} ({spec.type}): {text}", node.id)
    except Exception as error:  # noqa: BLE001 - whatever a plugin raises
        yield Problem("BAD_VALUE", f"{node.id!r}: validate of {spec.type} failed with {error!r}", node.id)


def _upgrade(node: WorkflowNode, spec: NodeSpec, raw: Any, problems: list[Problem]) -> WorkflowNode:
    """The node as its class has it now.

    Args:
        raw: as it stands in the file, unknown keys included; None when there is no file.
    """
    code = spec.impl
    if not isinstance(code, NodeCode) or code.cls is None:
        return node
    given = copy.deepcopy(dict(raw)) if isinstance(raw, Mapping) else node.model_dump(by_alias=True)
    try:
        changed = dict(code.cls.upgrade(given, node.type_version or 1))
        return WorkflowNode.model_validate({**changed, "id": node.id, "type": node.type, "typeVersion": spec.version})
    except Exception as error:  # noqa: BLE001 - whatever a plugin raises
        text = f"{node.id!r} was written for version {node.type_version} of {spec.type}, and its upgrade failed with {error!r}"
        problems.append(Problem("BAD_CONFIG", text, node.id, hint="report it to the plugin's author"))
        return node


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
