"""A workflow that may still be wrong: its slots, and which outputs fit an input without a circle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from tavern_core.graph.order import reachable_along
from tavern_core.graph.plan import GROUP_INPUT, GROUP_OUTPUT
from tavern_core.graph.slot_compatibility import mismatch
from tavern_core.model.node import ABSENT, NodeSpec, Slot
from tavern_core.model.workflow import Workflow, WorkflowEdge

PortRef = tuple[str, str]
"""(node, slot)."""


class DraftGraph:
    """The nodes and edges of a draft.

    Args:
        further: nodes that are not there yet, but should be: name → type.
    """

    def __init__(
        self, workflow: Workflow, spec: Callable[[str], NodeSpec | None], further: Mapping[str, str] | None = None
    ) -> None:
        self.workflow = workflow
        self.types = {node.id: node.type for node in workflow.nodes} | dict(further or {})
        self._spec = spec
        self._values = {node.id: node.input_values for node in workflow.nodes}
        self._edges = [
            (edge.id, (edge.source, edge.source_handle or ""), (edge.target, edge.target_handle or ""))
            for edge in workflow.edges
        ]
        self.used = {source for _, source, _ in self._edges}

    def inputs(self, node: str) -> Mapping[str, Slot]:
        """The inputs of a node; none if its type is unknown."""
        if self.types.get(node) == GROUP_OUTPUT:
            return self.workflow.outputs()
        spec = self._spec(self.types.get(node, ""))
        return spec.inputs if spec is not None else {}

    def outputs(self, node: str) -> Mapping[str, Slot]:
        """The outputs of a node."""
        if self.types.get(node) == GROUP_INPUT:
            return self.workflow.inputs()
        spec = self._spec(self.types.get(node, ""))
        return spec.outputs if spec is not None else {}

    def open_inputs(self, node: str) -> Iterator[Slot]:
        """Required inputs without an edge, a value or a default."""
        connected = {handle.partition("__")[0] for _, _, (target, handle) in self._edges if target == node}
        for key, slot in self.inputs(node).items():
            if (
                slot.required is True
                and slot.default is ABSENT
                and key not in connected
                and key not in self._values.get(node, {})
            ):
                yield slot

    def fitting(self, node: str, slot: Slot, without: str = "") -> list[PortRef]:
        """Outputs that fit an input: unused ones first, then those of nearer types; none that would close a circle.

        Args:
            without: an edge that is to be replaced.
        """
        if slot.is_closed:
            return []
        behind = self._behind(node, without)
        found = [
            (self._is_used((source, output.key)), self._strangeness(output, slot), place, -at, (source, output.key))
            for at, source in enumerate(self.types)
            if source not in behind
            for place, output in enumerate(self.outputs(source).values())
            if mismatch(output, slot) is None
        ]
        return [end for *_, end in sorted(found)]

    def taking(self, node: str, output: Slot, key: str = "") -> list[PortRef]:
        """Inputs without an edge or a value that take an output, and those for several edges; none that would close a circle.
        Optional inputs for anything come last.

        Args:
            key: an input of this name comes first.
        """
        connected = {(target, handle.partition("__")[0]) for _, _, (target, handle) in self._edges}
        ahead = self._ahead(node)
        found = [
            (
                not (slot.multi or slot.required is True or slot.type != "WILDCARD"),
                slot.key != key,
                slot.required is not True,
                not slot.multi,
                self._strangeness(output, slot),
                -at,
                (target, slot.key),
            )
            for at, target in enumerate(self.types)
            if target not in ahead and target != node
            for slot in self.inputs(target).values()
            if mismatch(output, slot) is None
            and (slot.multi or ((target, slot.key) not in connected and slot.key not in self._values.get(target, {})))
            and not slot.is_closed
        ]
        return [end for *_, end in sorted(found)]

    def uses(self, node: str) -> int:
        """The number of edges that begin at a node."""
        return sum(source == node for _, (source, _), _ in self._edges)

    def beside(self, node: str) -> list[WorkflowEdge]:
        """Edges from the nodes that feed a node, to others."""
        sources = {source for _, (source, _), (target, _) in self._edges if target == node}
        return [edge for edge in self.workflow.edges if edge.source in sources and edge.target != node]

    def handles(self, node: str, other: Slot | None, *, is_output: bool) -> list[str]:
        """The slots of a node that fit the slot at the other end of an edge; all, if that is not known."""
        slots = self.outputs(node) if is_output else self.inputs(node)
        return [
            key
            for key, slot in slots.items()
            if other is None or mismatch(*((slot, other) if is_output else (other, slot))) is None
        ]

    def circle(self, nodes: Iterable[str]) -> list[WorkflowEdge]:
        """The edges between these nodes, in the order of the file."""
        among = set(nodes)
        return [edge for edge in self.workflow.edges if edge.source in among and edge.target in among]

    def _is_used(self, end: PortRef) -> bool:
        """Whether a result has a reader; of an input of the workflow, this very one, of other nodes, any."""
        return end in self.used or (self.types[end[0]] != GROUP_INPUT and self.uses(end[0]) > 0)

    def _strangeness(self, output: Slot, slot: Slot) -> int:
        return (output.type != slot.type) + (output.type == "WILDCARD") + (slot.multi and output.type != slot.type)

    def _ahead(self, node: str) -> set[str]:
        """A node and every node whose result it needs."""
        return reachable_along(((target, source) for _, (source, _), (target, _) in self._edges), [node])

    def _behind(self, node: str, without: str) -> set[str]:
        """A node and every node that needs its result."""
        return reachable_along(
            ((source, target) for id_, (source, _), (target, _) in self._edges if id_ != without), [node]
        )
