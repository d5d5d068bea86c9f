"""A workflow, compiled: what the engine runs. Immutable, so any number of runs share one.

A group is one step with its own plan; nothing is flattened, so a group used twice has two paths (``g1/a``, ``g2/a``)
and one plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final, Literal

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.node import NodeSpec, PassThrough, Slot
from tavern_core.model.workflow import NodeExec, Workflow

GROUP_INPUT: Final = "core:GroupInput"
GROUP_OUTPUT: Final = "core:GroupOutput"
GROUP_NODE: Final = "core:NodeGroup"
MAP: Final = "core:Map"
LOOP: Final = "core:Loop"
GROUPS: Final = frozenset({GROUP_NODE, MAP, LOOP})
"""Node types that run another workflow; `configValues.referencedWorkflowId` names it."""
REFERENCE_KEY: Final = "referencedWorkflowId"
ERROR_PORT: Final = "error"
"""The additional output of a node with `onError: port`."""

StepKind = Literal["node", "input", "output", "group", "map", "loop"]


@dataclass(frozen=True, slots=True)
class ValueSource:
    """The source of a value: the output `key` of a step."""

    step: int
    key: str
    type: str = "WILDCARD"
    is_list: bool = False
    """True if it is a list of such values: an interface slot with several values. An input that also accepts several gets its items."""


@dataclass(frozen=True, slots=True)
class Binding:
    """An input with edges."""

    slot: Slot
    sources: tuple[ValueSource, ...]

    @property
    def key(self) -> str:
        return self.slot.key


@dataclass(frozen=True, slots=True)
class FlowStep:
    """A node, ready to run."""

    index: int
    id: str
    spec: NodeSpec
    kind: StepKind
    inputs: Mapping[str, Slot]
    outputs: Mapping[str, Slot]
    config: Mapping[str, Any]
    mode: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Inputs without edges: values of the file, else defaults."""
    bindings: tuple[Binding, ...] = ()
    """Inputs with edges whose values arrive before the node begins."""
    streams: tuple[Binding, ...] = ()
    """Inputs that get the chunks of a stream while the node runs."""
    lazy: tuple[Binding, ...] = ()
    """Inputs that are computed when the node requests them."""
    after: tuple[int, ...] = ()
    """Steps that wait for this one to end, each once."""
    listeners: tuple[int, ...] = ()
    """Steps that read a stream of it, and only wait for it to begin."""
    waits: int = 0
    """How many steps must have ended (or, for streams, begun) before this one can begin."""
    exec: NodeExec = field(default_factory=NodeExec)
    bypass: PassThrough | Literal["mute"] | None = None
    """Its outputs instead of running; None: it runs."""
    plan: FlowPlan | None = None
    """The plan of a group."""

    @property
    def type(self) -> str:
        return self.spec.type


@dataclass(frozen=True, slots=True)
class FlowPlan:
    """A compiled workflow, ready to run."""

    workflow: Workflow = field(repr=False)
    steps: tuple[FlowStep, ...]
    inputs: Mapping[str, Slot]
    outputs: Mapping[str, Slot]
    wanted: frozenset[int]
    """The steps that a run begins by default: all except those that only feed lazy inputs."""
    needs: tuple[tuple[int, ...], ...]
    """Step → the steps that it needs, without lazy ones."""

    @property
    def id(self) -> str:
        return self.workflow.id

    def step(self, node: str) -> FlowStep | None:
        """The step of a node id."""
        return next((step for step in self.steps if step.id == node), None)

    def __len__(self) -> int:
        return len(self.steps)


def map_keys(config: Mapping[str, Any], inputs: Mapping[str, Slot]) -> tuple[str, str]:
    """The inputs of the inner workflow that a `core:Map` fills itself: the item, and its number (or none)."""
    item = str(config.get("itemInput") or ("item" if "item" in inputs else next(iter(inputs), "item")))
    return item, str(config.get("indexInput") or ("index" if "index" in inputs and item != "index" else ""))
