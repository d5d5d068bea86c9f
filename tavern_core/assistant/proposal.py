"""The proposal of the assistant: a checked change that is not applied yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from tavern_core.assistant.dry_run import DryRun
from tavern_core.assistant.model_answers import RequestNeeds
from tavern_core.assistant.repair_cycle import RepairAttempt
from tavern_core.contract.llm import Price
from tavern_core.flow.patching import PatchOutcome
from tavern_core.frozen_dataclass import dataclass
from tavern_core.graph.changes import WorkflowChange
from tavern_core.graph.patch import RemovedEdge
from tavern_core.graph.patch_problems import PatchProblem
from tavern_core.model.message_translation import Language
from tavern_core.model.plain_data import json_members
from tavern_core.model.workflow import Workflow


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """The usage of requests to a model."""

    requests: int = 0
    input: int = 0
    output: int = 0
    cost: float | None = None
    """None: the price of the model is not known."""
    currency: str = ""

    @classmethod
    def of(cls, usages: list[Mapping[str, int]], price: Price | None) -> ModelUsage:
        read, written = (sum(usage.get(side, 0) for usage in usages) for side in ("input", "output"))
        cost = None if price is None else price.of(read, written)
        return cls(len(usages), read, written, cost, price.currency if price is not None else "")

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"requests": self.requests, "input": self.input, "output": self.output}
        return data if self.cost is None else data | {"cost": self.cost, "currency": self.currency}


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change of a workflow."""

    ok: bool
    """False: there is no valid change; `problems` or `declined` say why, and `workflow` is the old one."""
    request: str
    before: Workflow
    workflow: Workflow
    """The changed workflow: final ids, positions, the next `rev`."""
    patch: tuple[Any, ...] = ()
    """The operations of the model."""
    seed: int = 0
    """The seed of the ids: with it, `Workflows.patch` makes the same workflow."""
    ids: Mapping[str, str] = field(default_factory=dict)
    """Names of the model (localIds) → ids."""
    changes: tuple[WorkflowChange, ...] = ()
    summary: str = ""
    """The changes in words, in the language of the request."""
    reason: str = ""
    """The change in the words of the model."""
    declined: str = ""
    """Why the model changed nothing."""
    needs: RequestNeeds = RequestNeeds()
    problems: tuple[PatchProblem, ...] = ()
    """Without a valid change: the problems of the last answer."""
    warnings: tuple[PatchProblem, ...] = ()
    """Warnings about a valid change."""
    removed_edges: tuple[RemovedEdge, ...] = ()
    """Edges that went with removed nodes."""
    plan: tuple[str, ...] = ()
    rounds: tuple[RepairAttempt, ...] = ()
    """Every answer, with its problems."""
    spent: ModelUsage = ModelUsage()
    dry_run: DryRun | None = None
    language: Language = "en"

    @property
    def usage(self) -> dict[str, int]:
        """Tokens of all requests: input, output."""
        return {"input": self.spent.input, "output": self.spent.output}

    @property
    def cost(self) -> float | None:
        """The price of all requests; None: not known."""
        return self.spent.cost

    def to_json(self) -> dict[str, Any]:
        """The proposal as data; `workflow` is the complete changed document, or null."""
        workflow = dict(self.workflow.raw) if self.ok else None
        return {
            "ok": self.ok, "request": self.request, "rev": self.before.rev, "workflow": workflow,
            **json_members(self, "patch", "ids", "changes", "summary", "reason", "declined", "problems", "warnings"),
            **json_members(self, "removed_edges", "plan", "rounds"),
            "usage": self.spent.to_json(), **json_members(self, "dry_run"),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class CheckedPatch:
    """A patch that passed all checks, while the cycle goes on."""

    outcome: PatchOutcome
    dry_run: DryRun | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """A form layout."""

    ok: bool
    """False: the model found no valid change; `layout` is then the one without it."""
    layout: Mapping[str, Any]
    inputs: Mapping[str, Any]
    """The schema of the inputs."""
    outputs: Mapping[str, Any]
    """Output → its schema."""
    reason: str = ""
    declined: str = ""
    problems: tuple[PatchProblem, ...] = ()
    rounds: tuple[RepairAttempt, ...] = ()
    spent: ModelUsage = ModelUsage()

    def to_json(self) -> dict[str, Any]:
        names = ("ok", "layout", "inputs", "outputs", "reason", "declined", "problems", "rounds")
        return {**json_members(self, *names), "usage": self.spent.to_json()}
