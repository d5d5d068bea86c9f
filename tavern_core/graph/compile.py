"""Compiles a workflow: the result is a plan that the engine can run, or a list of all problems.

    which workflows are in it → each node and its slots → each edge → what feeds each input → order

It reports all problems at once. Nothing recurses, neither over nodes nor over groups, so large workflows need no deep stack.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final, Protocol

from tavern_core.frozen_dataclass import dataclass
from tavern_core.graph.node_reading import NodeReader, ResolvedNode
from tavern_core.graph.order import circles, reachable, topological
from tavern_core.graph.plan import GROUPS, REFERENCE_KEY, FlowPlan, FlowStep
from tavern_core.graph.problems import MOST_ALLOWED, FlowProblem, ProblemReport
from tavern_core.graph.wiring import Wiring
from tavern_core.model import depths
from tavern_core.model.nearest import suggestion
from tavern_core.model.node import NodeSpec
from tavern_core.model.workflow import Workflow, WorkflowNode

MOST_NODES: Final = 200_000
MOST_EDGES: Final = 1_000_000
MOST_EXPANDED: Final = 1_000_000
"""Nodes of a workflow including those of all groups, counted at each use: ten groups in ten groups in ten …"""


class Library(Protocol):
    """The node types and workflows that a workflow can reference."""

    def node(self, type_: str) -> NodeSpec | None:
        """The node type, or None."""
        ...

    def node_types(self) -> Collection[str]:
        """All of them, for suggestions."""
        ...

    def why_no_node(self, type_: str) -> str:
        """An explanation of how to get a missing node type."""
        ...

    def workflow(self, id_: str) -> Workflow | None:
        """The workflow of a group, or None if it does not exist or cannot be read."""
        ...

    def workflow_ids(self) -> Collection[str]:
        """All of them, for suggestions."""
        ...

    def problems_of(self, workflow: Workflow) -> Iterable[FlowProblem]:
        """Problems of one workflow that others report: its requirements, and the code of its nodes."""
        ...


@dataclass(frozen=True, slots=True)
class CompileResult:
    """The result of compiling a workflow."""

    plan: FlowPlan | None
    """None if it has errors."""
    problems: tuple[FlowProblem, ...] = ()
    """Errors and warnings, in the order of the file."""

    @property
    def errors(self) -> tuple[FlowProblem, ...]:
        return tuple(problem for problem in self.problems if problem.severity == "error")


def compile_workflow(workflow: Workflow, library: Library) -> CompileResult:
    """Compile a workflow and the workflows of its groups.

    Returns:
        The plan, or all problems; problems in groups name the path of the node.
    """
    contained = _InnerWorkflows(library)
    report = ProblemReport()
    order = contained.gather(workflow, report)
    plans: dict[str, FlowPlan | None] = {}
    found: dict[str, ProblemReport] = {}
    sizes: dict[str, int] = {}
    for inner in order:  # groups before the workflows that contain them
        found[inner.id] = ProblemReport()
        plans[inner.id] = _compile_one(inner, library, plans, found[inner.id], contained)
        _report_groups(inner, found, found[inner.id], library)
        sizes[inner.id] = _size(inner, sizes, library)
    plan = _compile_one(workflow, library, plans, report, contained)
    _report_groups(workflow, found, report, library)
    if (size := _size(workflow, sizes, library)) > MOST_EXPANDED:
        text = f"with those of its groups it has {size:,} nodes; at most {MOST_EXPANDED:,}"
        report.add(FlowProblem("TOO_LARGE", text, hint="use a core:Map or core:Loop instead of groups in groups"))
    return CompileResult(plan if not report.errors else None, report.problems)


def _size(workflow: Workflow, sizes: Mapping[str, int], library: Library) -> int:
    groups = (node for node in workflow.nodes if node.type in GROUPS)
    return len(workflow.nodes) + sum(sizes.get(group_workflow_id(node, workflow, library), 0) for node in groups)


def _report_groups(
    workflow: Workflow, found: Mapping[str, ProblemReport], report: ProblemReport, library: Library
) -> None:
    """Add the problems in each group, with the path of the node."""
    for node in workflow.nodes:
        reference = group_workflow_id(node, workflow, library) if node.type in GROUPS else ""
        inside = found.get(reference) if reference else None
        if inside is None or report.takes_none_of(inside):
            continue
        for inner in inside.problems:
            path = f"{node.id}/{inner.node}" if inner.node else node.id
            report.add(replace(inner, node=path, hint=inner.hint or f"it is in workflow {reference!r}"))


def reference_of(node: WorkflowNode) -> str:
    """The workflow of a group node; empty for other nodes and for groups that name none."""
    if node.type not in GROUPS:
        return ""
    for key in (REFERENCE_KEY, "workflowId", "workflow"):
        found = node.config_values.get(key, node.data.get(key))
        if isinstance(found, str) and found:
            return found.removesuffix(".json")
    return ""


def group_workflow_id(node: WorkflowNode, workflow: Workflow, library: Library) -> str:
    """The workflow id of a group node of `workflow`; empty if it names none.

    Workflows of plugins have ids ``<plugin>.<name>``, and reference each other by name.
    """
    reference = reference_of(node)
    plugin, dot, _ = workflow.id.rpartition(".")
    plugin_workflow = f"{plugin}.{reference}"
    return plugin_workflow if reference and dot and plugin_workflow in library.workflow_ids() else reference


class _InnerWorkflows:
    """The workflows inside a workflow."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.workflows: dict[str, Workflow | None] = {}
        self.circular: set[tuple[str, str]] = set()
        """(workflow, reference) pairs that lead back to the workflow itself."""

    def gather(self, root: Workflow, report: ProblemReport) -> list[Workflow]:
        """All workflows inside `root`, inner ones first, without those that contain themselves."""
        names: list[str] = []
        queue = self._references(root)
        while queue:
            name = queue.pop(0)
            if name in self.workflows:
                continue
            self.workflows[name] = inner = root if name == root.id else self.library.workflow(name)
            names.append(name)
            if inner is not None and inner is not root:
                queue.extend(self._references(inner))
        return self._ordered(root, names, report)

    def _ordered(self, root: Workflow, names: list[str], report: ProblemReport) -> list[Workflow]:
        everything = ["", *names]  # the empty name is the root
        number = {name: at for at, name in enumerate(everything)}
        if root.id in number:
            number[root.id] = 0
        holds: list[list[int]] = [[] for _ in everything]
        for name in everything:
            flow = root if not name else self.workflows.get(name)
            if flow is not None and (name == "" or flow is not root):
                holds[number[name]] = [number[inner] for inner in self._references(flow)]
        order, stuck = topological(holds)
        for circle in circles(holds, stuck):
            path = [everything[at] or root.id or "this workflow" for at in circle]
            text = " → ".join([*path, path[0]])
            report.add(
                FlowProblem(
                    "GROUP_RECURSION", f"a workflow contains itself: {text}", hint="take one of these groups out"
                )
            )
            self.circular.update(zip(path, [*path[1:], path[0]], strict=True))
        if not report.errors and (depth := _depth(holds, order)) > depths.VALUE:
            report.add(
                FlowProblem(
                    "TOO_DEEP",
                    f"groups are nested {depth} levels deep; the limit is {depths.VALUE}",
                    hint="flatten some",
                )
            )
        inner_first = [self.workflows[everything[at]] for at in reversed(order) if at != 0] if not report.errors else []
        return [flow for flow in inner_first if flow is not None]

    def _references(self, workflow: Workflow) -> list[str]:
        groups = (node for node in workflow.nodes if node.type in GROUPS)
        return list(dict.fromkeys(name for node in groups if (name := group_workflow_id(node, workflow, self.library))))


def _depth(holds: list[list[int]], order: list[int]) -> int:
    level = [0] * len(holds)
    for node in order:
        for inner in holds[node]:
            level[inner] = max(level[inner], level[node] + 1)
    return max(level, default=0)


def _compile_one(
    workflow: Workflow,
    library: Library,
    plans: Mapping[str, FlowPlan | None],
    report: ProblemReport,
    contained: _InnerWorkflows,
) -> FlowPlan | None:
    """Compile one workflow whose groups are already compiled."""
    if len(workflow.nodes) > MOST_NODES or len(workflow.edges) > MOST_EDGES:
        text = f"{len(workflow.nodes):,} nodes and {len(workflow.edges):,} edges; at most {MOST_NODES:,} and {MOST_EDGES:,}"
        report.add(FlowProblem("TOO_LARGE", text, hint="split the workflow into groups"))
        return None
    for problem in library.problems_of(workflow):
        report.add(problem)
    placed = _place(workflow, library, plans, report, contained)
    wiring = Wiring(workflow, placed, report)
    steps = wiring.steps()
    after = [list(step.after) + list(step.listeners) for step in steps]
    for step in steps:  # a lazy input waits, too, but not from the start
        for binding in step.lazy:
            for source in binding.sources:
                after[source.step].append(step.index)
    _, stuck = topological(after)
    for circle in circles(after, stuck):
        ids = [steps[at].id for at in circle]
        text = " → ".join([*ids[:20], *(["…"] if len(ids) > 20 else []), ids[0]])
        report.add(
            FlowProblem("CYCLE", f"these nodes wait for each other: {text}", ids[0], hint="remove one of these edges")
        )
    if report.errors:
        return None
    needs = _needs(steps)
    return FlowPlan(workflow, tuple(steps), workflow.inputs(), workflow.outputs(), _wanted(steps, needs), needs)


def _place(
    workflow: Workflow,
    library: Library,
    plans: Mapping[str, FlowPlan | None],
    report: ProblemReport,
    contained: _InnerWorkflows,
) -> dict[str, ResolvedNode]:
    """Each node with its type and its slots here."""
    reader = NodeReader(workflow, report)
    placed: dict[str, ResolvedNode] = {}
    for node in workflow.nodes:
        if node.id in placed:
            report.add(
                FlowProblem(
                    "DUPLICATE_NODE", f"two nodes have the id {node.id!r}", node.id, hint="give one of them another id"
                )
            )
            continue
        spec = library.node(node.type)
        if spec is None:
            report.add(_unknown_type(node, library, report))
        reference = group_workflow_id(node, workflow, library) if node.type in GROUPS else ""
        inner = contained.workflows.get(reference) if reference else None
        if node.type in GROUPS and inner is None:
            report.add(_no_group(node, reference, library, report))
        placed[node.id] = reader.place(node, spec, inner, plans.get(reference) if reference else None)
    groups = {node.id for node in workflow.nodes if node.type in GROUPS}
    for node in workflow.nodes if groups else ():
        parts = node.id.split("/")
        outer = next((name for at in range(1, len(parts)) if (name := "/".join(parts[:at])) in groups), None)
        if outer is not None:
            text = f"node {node.id!r} has the path of a node inside of group {outer!r}"
            report.add(FlowProblem("DUPLICATE_NODE", text, node.id, hint="take the / out of its id"))
    return placed


def _unknown_type(node: WorkflowNode, library: Library, report: ProblemReport) -> FlowProblem:
    near = report.near(node.type, library.node_types())
    hint = suggestion(near) or library.why_no_node(node.type)
    return FlowProblem(
        "UNKNOWN_TYPE",
        f"node {node.id!r} has the type {node.type!r}, which does not exist",
        node.id,
        hint=hint,
        nearest=near,
    )


def _no_group(node: WorkflowNode, reference: str, library: Library, report: ProblemReport) -> FlowProblem:
    if not reference:
        return FlowProblem(
            "GROUP_MISSING",
            f"group {node.id!r} names no workflow",
            node.id,
            hint=f"configValues: {{{REFERENCE_KEY}: <workflow id>}}",
        )
    known = library.workflow_ids()
    if reference in known:
        text = f"group {node.id!r} stands for workflow {reference!r}, whose file cannot be read"
        return FlowProblem("GROUP_INVALID", text, node.id, hint=f"tavern workflows check {reference}")
    near = report.near(reference, known)
    hint = suggestion(near) or "put it into a workflow folder"
    return FlowProblem(
        "GROUP_MISSING",
        f"group {node.id!r} stands for workflow {reference!r}, which does not exist",
        node.id,
        hint=hint,
        nearest=near,
        allowed=tuple(islice(known, MOST_ALLOWED)),
    )


def _needs(steps: Iterable[FlowStep]) -> tuple[tuple[int, ...], ...]:
    needs = []
    for step in steps:
        fed = (*step.bindings, *step.streams)
        needs.append(tuple(dict.fromkeys(source.step for binding in fed for source in binding.sources)))
    return tuple(needs)


def _wanted(steps: list[FlowStep], needs: tuple[tuple[int, ...], ...]) -> frozenset[int]:
    """All steps except those that only feed lazy inputs."""
    asked = {source.step for step in steps for binding in step.lazy for source in binding.sources}
    if not asked:
        return frozenset(range(len(steps)))
    ends = [step.index for step in steps if not step.after and not step.listeners and step.index not in asked]
    return frozenset(reachable(needs, ends))
