"""Runs a changed workflow once without consequences: sample inputs, scripted models, tools only checked.

Nodes that could change or read something outside do not run, nor do those that need their results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tavern_core.contract.llm import LLMAnswer, Message, ScriptedLLM
from tavern_core.errors import TavernError
from tavern_core.flow.composition import WorkflowServices
from tavern_core.flow.workflows import Workflows
from tavern_core.frozen_dataclass import dataclass
from tavern_core.graph.compile import reference_of
from tavern_core.graph.order import reachable_along
from tavern_core.graph.patch_problems import PatchProblem
from tavern_core.graph.plan import GROUPS
from tavern_core.model import depths
from tavern_core.model.call import CallContext
from tavern_core.model.node import ABSENT, Slot
from tavern_core.model.plain_data import json_members
from tavern_core.model.run import NodeError
from tavern_core.model.workflow import Workflow, WorkflowNode

TIMEOUT_MS: Final = 10_000
_REPLACED: Final = frozenset({"core:LLM", "core:CallTool"})
"""Types that a scripted model and a dry call replace."""
_WAITING: Final = frozenset({"core:Ask", "core:Delay"})
"""Types that need a person or time."""
_SAMPLES: Final[Mapping[str, Any]] = {
    "STRING": "sample text", "INTEGER": 1, "FLOAT": 1.0, "BOOLEAN": True, "OBJECT": {}, "ARRAY": [], "BINARY": b"sample",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DryRun:
    """The outcome of a dry run."""

    state: str
    """A RunState, or ``skipped``: nothing could run."""
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    left_out: tuple[str, ...]
    """Nodes that did not run, because they or what they need have effects outside."""
    problems: tuple[PatchProblem, ...] = ()
    """Failures that the workflow itself explains."""
    uncertain: tuple[PatchProblem, ...] = ()
    """Failures behind a node whose result was invented: the real one may fit."""

    def to_json(self) -> dict[str, Any]:
        from tavern_core.kernel.nodes.json_values import to_plain

        return {
            "state": self.state, "inputs": to_plain(dict(self.inputs), tagged=False),
            "outputs": to_plain(dict(self.outputs), tagged=False),
            **json_members(self, "left_out", "problems", "uncertain"),
        }  # fmt: skip


class DryRunner:
    """Dry runs of one host."""

    def __init__(self, flow: WorkflowServices) -> None:
        self._flow = flow
        self._made: Workflows | None = None

    async def run(self, workflow: Workflow, context: CallContext | None) -> DryRun:
        """Run a valid workflow without consequences. Never raises."""
        left_out = self._left_out(workflow)
        inputs = {key: sample(slot) for key, slot in workflow.inputs().items()}
        targets = tuple(node.id for node in workflow.nodes if node.id not in left_out and not self._is_drawn(node.type))
        if not targets:
            return DryRun("skipped", inputs, {}, tuple(sorted(left_out)))
        self._made = self._made or self._flow.dry_run(ScriptedLLM(_answer))
        options: dict[str, Any] = {"to": targets} if left_out else {}
        try:
            result = await self._made.run(
                workflow, inputs, context=context, cache=False, keep=False, timeout_ms=TIMEOUT_MS, **options
            )
        except TavernError as error:
            problem = PatchProblem("DRY_RUN", error.message, hint=error.hint, severity="warning")
            return DryRun("error", inputs, {}, tuple(sorted(left_out)), (problem,))
        invented = _with_dependents(workflow, [node.id for node in workflow.nodes if node.type in _REPLACED])
        failed = [(error.path.partition("/")[0] in invented, _problem(error)) for error in result.errors]
        sure, unsure = (tuple(problem for behind, problem in failed if behind is which) for which in (False, True))
        return DryRun(result.state, inputs, result.outputs, tuple(sorted(left_out)), sure, unsure)

    def _left_out(self, workflow: Workflow) -> set[str]:
        return _with_dependents(workflow, [node.id for node in workflow.nodes if self._has_effects(node, workflow)])

    def _has_effects(self, node: WorkflowNode, workflow: Workflow, depth: int = 0) -> bool:
        if node.type in _REPLACED:
            return False
        if node.type not in GROUPS:
            spec = self._flow.nodes.find(node.type)
            return node.type in _WAITING or spec is None or bool(spec.capabilities)
        files, reference = self._flow.workflows.workflow_files, reference_of(node)
        own_id = f"{workflow.id.rpartition('.')[0]}.{reference}"  # what the compiler takes inside a plugin's workflow
        try:
            group = files.get(own_id if own_id in files else reference)
        except TavernError:
            return True
        return depth > depths.EFFECTS or any(self._has_effects(each, group, depth + 1) for each in group.nodes)

    def _is_drawn(self, type_: str) -> bool:
        spec = self._flow.nodes.find(type_)
        return spec is not None and spec.is_ui_node


def _with_dependents(workflow: Workflow, nodes: Iterable[str]) -> set[str]:
    """Nodes, and all that need their results."""
    return reachable_along(((edge.source, edge.target) for edge in workflow.edges), nodes)


def _problem(error: NodeError) -> PatchProblem:
    text = f"{error.path} ({error.type}) failed with sample values: {error.kind}: {error.message}"
    place = f"/nodes/{error.path.partition('/')[0]}"
    return PatchProblem(
        "DRY_RUN", text, pointer=place, hint=error.hint, node=error.path, slot=error.slot, severity="warning"
    )


def sample(slot: Slot) -> Any:
    """A value for an input of the workflow."""
    if slot.default is not ABSENT and slot.default is not None:
        return slot.default
    value = slot.choices[0] if slot.choices else _SAMPLES.get(slot.type, "sample text")
    if "Url" in slot.categories:
        value = "https://example.com/"
    low, high = slot.config.get("min"), slot.config.get("max")
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = max(value, low) if isinstance(low, int | float) else value
        value = min(value, high) if isinstance(high, int | float) else value
    return [value] if slot.multi else value


def _answer(messages: Any) -> LLMAnswer:
    """A short text, as a model might answer."""
    last: Message = messages[-1] if messages else {}
    return LLMAnswer(f"sample answer to: {str(last.get('content', ''))[:80]}", model="scripted")
