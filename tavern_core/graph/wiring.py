"""Reads the edges of a workflow: do both ends exist, do their types fit, and which outputs feed each input?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

from tavern_core.graph.node_reading import ResolvedNode, bypass_of, repeated_stream
from tavern_core.graph.plan import GROUP_OUTPUT, Binding, FlowStep, ValueSource
from tavern_core.graph.problems import MOST_ALLOWED, FlowProblem, ProblemReport, allowed_values, known_slots
from tavern_core.graph.slot_compatibility import chosen, mismatch, value_mismatch
from tavern_core.model.nearest import suggestion
from tavern_core.model.node import ABSENT, NodeSpec, PassThrough, Slot
from tavern_core.model.workflow import Workflow, WorkflowEdge

_NUMBERED: Final = re.compile(r"(.+)__(\d+)\Z")
_Fed = dict[str, list[tuple[WorkflowEdge, ValueSource]]]
"""Input key → its edges, in the order of the file."""


class Wiring:
    """Reads the edges of one workflow; problems go to `report`.

    Args:
        placed: its nodes by id; those with unknown types are skipped.
    """

    def __init__(self, workflow: Workflow, placed: Mapping[str, ResolvedNode], report: ProblemReport) -> None:
        self._workflow = workflow
        self._report = report
        self._placed = {key: node for key, node in placed.items() if node.spec is not None and not node.spec.is_ui_node}
        self._all = placed
        self._number = {key: at for at, key in enumerate(self._placed)}
        self._fed: dict[str, _Fed] = {key: {} for key in self._placed}
        self._missed: set[tuple[str, str]] = set()
        """Inputs with an edge that does not fit."""

    def steps(self) -> list[FlowStep]:
        """Every node as a step, in the order of the file."""
        self._read_edges()
        fed = {key: self._bindings(placed) for key, placed in self._placed.items()}
        after: list[dict[int, None]] = [{} for _ in self._placed]
        listeners: list[dict[int, None]] = [{} for _ in self._placed]
        waits = [0] * len(self._placed)
        for key, bindings in fed.items():
            number = self._number[key]
            batch = {s.step for b in bindings if not b.slot.is_stream and not b.slot.lazy for s in b.sources}
            begun = {s.step for b in bindings if b.slot.is_stream for s in b.sources} - batch
            for source in batch:
                after[source][number] = None
            for source in begun:
                listeners[source][number] = None
            waits[number] = len(batch) + len(begun)
        self._check_interface()
        return [
            _step(at, placed, fed[key], tuple(after[at]), tuple(listeners[at]), waits[at])
            for at, (key, placed) in enumerate(self._placed.items())
        ]

    def _read_edges(self) -> None:
        ids: set[str] = set()
        for edge in self._workflow.edges:
            if edge.id in ids:
                self._say(
                    "DUPLICATE_EDGE", f"two edges have the id {edge.id!r}", edge, hint="give one of them another id"
                )
            ids.add(edge.id)
            self._read_edge(edge)

    def _read_edge(self, edge: WorkflowEdge) -> None:
        ends = self._end(edge, edge.source, "begins"), self._end(edge, edge.target, "ends")
        if not all(ends):
            return
        source, target = self._placed.get(edge.source), self._placed.get(edge.target)
        for end in (edge.source, edge.target):
            if end not in self._placed and (spec := self._all[end].spec) is not None:
                self._say(
                    "UNKNOWN_HANDLE",
                    f"edge {edge.id!r} leads to {end!r}, which is only drawn ({spec.type}) and never run",
                    edge,
                    end,
                    hint="remove the edge",
                )
        output = self._slot(edge, source, edge.source_handle, is_output=True) if source else None
        found = self._slot(edge, target, edge.target_handle, is_output=False) if target else None
        if source is None and found is not None and self._all[edge.source].spec is None:
            self._missed.add((edge.target, found.key))  # the unknown type of its source was already reported
        if source is None or target is None or output is None or found is None:
            return
        if found.hide_handle:
            self._say(
                "UNKNOWN_HANDLE",
                f"input {found.key!r} of {edge.target!r} takes a value, no edge",
                edge,
                edge.target,
                found.key,
            )
        elif (wrong := mismatch(output, found)) is not None:
            code, why = wrong
            self._missed.add((edge.target, found.key))
            text = f"{edge.source}.{output.key} does not fit {edge.target}.{found.key}: {why}"
            fits = (
                key for key, slot in target.inputs.items() if not slot.hide_handle and mismatch(output, slot) is None
            )
            hint, allowed = "put a node that converts between them", tuple(islice(fits, MOST_ALLOWED))
            self._report.add(FlowProblem(code, text, edge.target, found.key, edge.id, hint, allowed=allowed))
        else:
            origin = ValueSource(
                self._number[edge.source], output.key, output.type, output.multi and not output.is_stream
            )
            self._fed[edge.target].setdefault(found.key, []).append((edge, origin))

    def _end(self, edge: WorkflowEdge, node: str, verb: str) -> bool:
        if node in self._all:
            return True
        near = self._report.near(node, self._all)
        hint = suggestion(near) or "remove the edge"
        text = f"edge {edge.id!r} {verb} at {node!r}, which does not exist"
        allowed = tuple(islice(self._all, MOST_ALLOWED))
        self._report.add(FlowProblem("DANGLING_EDGE", text, node, "", edge.id, hint, near, allowed=allowed))
        return False

    def _slot(self, edge: WorkflowEdge, placed: ResolvedNode, handle: str | None, is_output: bool) -> Slot | None:
        slots = placed.outputs if is_output else placed.inputs
        side, node = ("output", edge.source) if is_output else ("input", edge.target)
        if not handle:
            if len(slots) == 1:
                return next(iter(slots.values()))
            text = f"edge {edge.id!r} does not say which {side} of {node!r} it means"
            allowed = tuple(islice(slots, MOST_ALLOWED))
            hint = known_slots((), slots)
            self._report.add(FlowProblem("UNKNOWN_HANDLE", text, node, "", edge.id, hint, allowed=allowed))
            return None
        if (slot := slots.get(handle)) is not None:
            return slot
        numbered = _NUMBERED.match(handle)
        if numbered and not is_output and (slot := slots.get(numbered[1])) is not None and slot.multi:
            return slot
        if placed.is_open and not (is_output and slots):
            return Slot(handle)
        near = self._report.near(handle, slots)
        hint = known_slots(near, slots)
        text = f"{node!r} ({placed.node.type}) has no {side} {handle!r}"
        allowed = tuple(islice(slots, MOST_ALLOWED))
        self._report.add(FlowProblem("UNKNOWN_HANDLE", text, node, handle, edge.id, hint, near, allowed=allowed))
        return None

    def _bindings(self, placed: ResolvedNode) -> list[Binding]:
        node, fed = placed.node, self._fed[placed.node.id]
        bindings: list[Binding] = []
        bypass = bypass_of(placed)
        repeated = set(bypass.outputs.values()) if isinstance(bypass, PassThrough) else ()
        for key, edges in fed.items():
            slot = placed.inputs.get(key) or Slot(key)
            if slot.lazy and key in repeated:
                slot = replace(slot, lazy=False)  # no code requests it
            most = slot.max_connections if slot.multi else 1
            if most is not None and len(edges) > most:
                ids = ", ".join(repr(edge.id) for edge, _ in edges[:5])
                text = f"{len(edges)} edges arrive at input {key!r} of {node.id!r}, which takes {most}: {ids}"
                self._say(
                    "TOO_MANY_CONNECTIONS",
                    text,
                    edges[-1][0],
                    node.id,
                    key,
                    "remove all but one" if most == 1 else "remove some",
                )
            order = {edge: at for at, edge in enumerate(node.input_connection_orders.get(key, ()))}
            if order:
                edges = sorted(edges, key=lambda item: order.get(item[0].id, len(order)))
            bindings.append(Binding(slot, tuple(self._origin(edge, source) for edge, source in edges)))
        for key, slot in placed.inputs.items():
            if (node.id, key) in self._missed:
                continue  # the wrong edge was already reported
            if key not in fed and key not in placed.values and self._is_required(placed, slot):
                if placed.exec.bypassed and placed.kind == "node":
                    continue
                text = f"input {key!r} of {node.id!r} ({node.type}) is required and has neither edge nor value"
                hint, allowed = "connect it, or set it in inputValues", allowed_values(slot)
                self._report.add(FlowProblem("MISSING_INPUT", text, node.id, key, hint=hint, allowed=allowed))
        return bindings

    def _origin(self, edge: WorkflowEdge, source: ValueSource) -> ValueSource:
        """The source of an edge; for a stream that bypassed nodes repeat, the source of that stream."""
        seen: set[tuple[str, str]] = set()
        node = edge.source
        while (key := repeated_stream(self._placed[node], source.key)) is not None and (node, key) not in seen:
            seen.add((node, key))
            edges = self._fed[node].get(key, [])
            if len(edges) != 1:
                break
            node, source = edges[0][0].source, edges[0][1]
        return source

    def _is_required(self, placed: ResolvedNode, slot: Slot) -> bool:
        try:
            return slot.is_required(placed.config)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - any error of a plugin's function
            text = f"whether input {slot.key!r} of {placed.node.id!r} ({placed.node.type}) is required is unknown: it failed with {error!r}"
            self._report.add(
                FlowProblem(
                    "BAD_CONFIG",
                    text,
                    placed.node.id,
                    slot.key,
                    hint="correct the node's configuration, or report it to the plugin's author",
                )
            )
            return False

    def _check_interface(self) -> None:
        """Check that exactly one edge sets each output of the workflow, and that each default of an input fits."""
        for key, slot in self._workflow.inputs().items():
            if (
                slot.default is not ABSENT
                and slot.default is not None
                and (why := value_mismatch(slot, chosen(slot, slot.default)))
            ):
                text = f"the default of input {key!r} of the workflow does not fit: it {why}"
                self._report.add(
                    FlowProblem("INTERFACE", text, slot=key, hint="correct interfaceInputs", severity="warning")
                )
        if not self._workflow.interface_outputs:
            return
        output_nodes = [placed.node.id for placed in self._all.values() if placed.node.type == GROUP_OUTPUT]
        if not output_nodes:
            text = "the workflow has interfaceOutputs and no core:GroupOutput node gives them"
            self._report.add(FlowProblem("INTERFACE", text, hint="add a core:GroupOutput node"))
            return
        node_by_output: dict[str, str] = {}
        for end in output_nodes:
            for key, edges in self._fed.get(end, {}).items():
                if key in node_by_output:
                    text = f"output {key!r} of the workflow is given by {node_by_output[key]!r} and by {end!r}"
                    self._say("DUPLICATE_OUTPUT", text, edges[0][0], end, key, "leave one of the edges out")
                node_by_output.setdefault(key, end)
        sent = {key for node, key in self._missed if node in output_nodes} | {
            key for end in output_nodes for key in self._all[end].values
        }
        for key, out in self._workflow.interface_outputs.items():
            if key not in node_by_output and key not in sent and not out.required:
                text = f"no edge gives output {key!r} of the workflow"
                self._report.add(
                    FlowProblem(
                        "INTERFACE", text, slot=key, hint="connect it at a core:GroupOutput node", severity="warning"
                    )
                )

    def _say(self, code: str, message: str, edge: WorkflowEdge, node: str = "", slot: str = "", hint: str = "") -> None:
        self._report.add(FlowProblem(code, message, node or edge.target, slot, edge.id, hint))


def _step(
    at: int,
    placed: ResolvedNode,
    bindings: list[Binding],
    after: tuple[int, ...],
    listeners: tuple[int, ...],
    waits: int,
) -> FlowStep:
    spec = placed.spec
    assert isinstance(spec, NodeSpec)
    fed = {binding.key for binding in bindings}
    return FlowStep(
        at,
        placed.node.id,
        spec,
        placed.kind,
        placed.inputs,
        placed.outputs,
        placed.config,
        placed.mode,
        {key: value for key, value in placed.values.items() if key not in fed},
        tuple(b for b in bindings if not b.slot.is_stream and not b.slot.lazy),
        tuple(b for b in bindings if b.slot.is_stream),
        tuple(b for b in bindings if b.slot.lazy and not b.slot.is_stream),
        after,
        listeners,
        waits,
        placed.exec,
        bypass_of(placed),  # type: ignore[arg-type]
        placed.plan,
    )
