"""Reading one node of a file with its type: its slots, its values in the file, and how it runs.

The node type can depend on the node: on its mode, its own slots, or the interface of its workflow or
group.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from itertools import islice
from typing import Any, Final

from pydantic import ValidationError

from tavern_core.frozen_dataclass import dataclass
from tavern_core.graph.plan import (
    ERROR_PORT,
    GROUP_INPUT,
    GROUP_NODE,
    GROUP_OUTPUT,
    LOOP,
    MAP,
    FlowPlan,
    StepKind,
    map_keys,
)
from tavern_core.graph.problems import MOST_ALLOWED, FlowProblem, ProblemReport, allowed_values, known_slots
from tavern_core.graph.slot_compatibility import chosen, convert_value, value_mismatch
from tavern_core.model.nearest import suggestion
from tavern_core.model.node import JSON_TYPES, NodeSpec, PassThrough, Slot
from tavern_core.model.pydantic_errors import explain
from tavern_core.model.workflow import EXEC_KEY, NodeExec, Workflow, WorkflowNode

_KINDS: Final[Mapping[str, StepKind]] = {
    GROUP_INPUT: "input",
    GROUP_OUTPUT: "output",
    GROUP_NODE: "group",
    MAP: "map",
    LOOP: "loop",
}
_ERROR_SLOT: Final = Slot(ERROR_PORT, "OBJECT", "Error", "what went wrong, when the node failed")
_NO_EXEC: Final = NodeExec()


@dataclass(slots=True)
class ResolvedNode:
    """A node of the file with its type. `spec` is None if its type is unknown; its slots are then not checked."""

    node: WorkflowNode
    spec: NodeSpec | None
    kind: StepKind = "node"
    inputs: Mapping[str, Slot] = field(default_factory=dict)
    outputs: Mapping[str, Slot] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    mode: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    exec: NodeExec = _NO_EXEC
    plan: FlowPlan | None = None
    is_open: bool = False
    """Has undeclared inputs and outputs."""


_VALUES: Final = ("inputValues", "configValues")
"""Keys of a node that hold its values."""
_SLOTS: Final = ("inputs", "outputs")
"""In `data`, they are the slots of nodes with dynamic ones."""


class NodeReader:
    """Reads the nodes of one workflow; problems go to `report`."""

    def __init__(self, workflow: Workflow, report: ProblemReport) -> None:
        self._workflow = workflow
        self._report = report

    def place(
        self, node: WorkflowNode, spec: NodeSpec | None, inner: Workflow | None, plan: FlowPlan | None
    ) -> ResolvedNode:
        """Read one node.

        Args:
            inner: the workflow of a group.
            plan: the compiled inner workflow; None if it has problems.
        """
        placed = ResolvedNode(node, spec, _KINDS.get(node.type, "node"), exec=self._exec(node), plan=plan)
        if spec is None:
            placed.is_open = True
            return placed
        config_values = {key: value for key, value in node.config_values.items() if key != EXEC_KEY}
        placed.config = {**spec.config_values, **config_values} if spec.config_values or config_values else {}
        placed.mode = spec.mode_of(placed.config)
        self._choices(placed, spec, inner)
        self._slots(placed, spec, inner)
        if placed.exec.on_error == "port" and ERROR_PORT not in placed.outputs:
            placed.outputs = {**placed.outputs, ERROR_PORT: _ERROR_SLOT}
        self._values(placed)
        self._defaults(placed)
        if spec.deprecated:
            hint = f"use {spec.replaced_by!r}" if spec.replaced_by else ""
            self._say("DEPRECATED", f"{spec.type!r} is deprecated", node, hint=hint, is_warning=True)
        return placed

    def _choices(self, placed: ResolvedNode, spec: NodeSpec, inner: Workflow | None) -> None:
        """Names in the configuration that must exist: of a mode, of inputs and outputs of the inner workflow."""
        named: dict[str, Collection[str]] = {}
        if spec.modes and spec.mode_config_key:
            named[spec.mode_config_key] = spec.modes
        if inner is not None and placed.kind == "map":
            named["itemInput"] = named["indexInput"] = inner.interface_inputs
        if inner is not None and placed.kind == "loop":
            named["until"] = inner.interface_outputs
        for key, known in named.items():
            choice = placed.config.get(key)
            if choice is None or choice == "" or (isinstance(choice, str) and choice in known):
                continue
            if not isinstance(choice, str) and placed.kind != "node":
                continue  # the schema of the configuration says so
            near = self._report.near(choice, known) if isinstance(choice, str) else ()
            text = (
                f"configuration of {placed.node.id!r} ({spec.type}): {key} names {choice!r:.80}, which does not exist"
            )
            hint = suggestion(near) or (f"one of {', '.join(map(repr, list(known)[:10]))}" if known else "leave it out")
            self._say("BAD_CONFIG", text, placed.node, hint=hint, near=near)

    def _slots(self, placed: ResolvedNode, spec: NodeSpec, inner: Workflow | None) -> None:
        inputs, outputs = spec.inputs, spec.outputs
        if placed.mode:
            mode = spec.modes[placed.mode]
            inputs = inputs if mode.inputs is None else mode.inputs
            outputs = outputs if mode.outputs is None else mode.outputs
        if placed.kind == "input":
            outputs = self._workflow.inputs()
        elif placed.kind == "output":
            inputs = self._workflow.outputs()
        elif placed.kind == "group" and inner is not None:
            inputs, outputs = inner.inputs(), inner.outputs()
        elif placed.kind in ("map", "loop") and inner is not None:
            filled = map_keys(placed.config, inner.inputs()) if placed.kind == "map" else ("index",)
            inputs = {**{k: s for k, s in inner.inputs().items() if k not in inputs and k not in filled}, **inputs}
            if placed.kind == "loop":
                outputs = {**inner.outputs(), **outputs}
        placed.is_open = spec.dynamic_slots or (placed.kind in ("group", "map", "loop") and inner is None)
        if spec.dynamic_slots:
            inputs = {**inputs, **self._declared(placed.node, "inputs")}
            outputs = {**outputs, **self._declared(placed.node, "outputs")}
        placed.inputs, placed.outputs = inputs, outputs

    def _declared(self, node: WorkflowNode, side: str) -> dict[str, Slot]:
        """The node's own slots."""
        written = node.data.get(side)
        found: dict[str, Slot] = {}
        if not isinstance(written, Mapping):
            return found
        for key, data in written.items():
            if isinstance(data, Mapping):
                found[str(key)] = slot_from_json(str(key), data)
        return found

    def _exec(self, node: WorkflowNode) -> NodeExec:
        written = node.config_values.get(EXEC_KEY)
        if written is None:
            return _NO_EXEC
        try:
            return NodeExec.model_validate(written)
        except ValidationError as error:
            for each in explain(error, written, NodeExec):
                place = ".".join(map(str, (EXEC_KEY, *each.path)))
                self._say("BAD_EXEC", f"{place} of {node.id!r}: {each.message}", node, hint=each.hint)
            return _NO_EXEC

    def _defaults(self, placed: ResolvedNode) -> None:
        """The outputs of the node after a failure: they must exist and have the right types."""
        defaults = dict(placed.exec.defaults)
        for key, value in defaults.items():
            slot = placed.outputs.get(key)
            if slot is not None:
                defaults[key] = value = convert_value(chosen(slot, value), slot.type, slot.type)
            place = f"{EXEC_KEY}.defaults.{key} of {placed.node.id!r}"
            if slot is None and not (placed.is_open and not placed.outputs):
                near = self._report.near(key, placed.outputs)
                self._say(
                    "BAD_EXEC",
                    f"{place}: the node has no such output",
                    placed.node,
                    key,
                    known_slots(near, placed.outputs),
                    near,
                )
            elif slot is not None and not slot.is_stream and (why := value_mismatch(slot, value)):
                self._say("BAD_EXEC", f"{place} {why}", placed.node, key, "correct it")
        if defaults:
            placed.exec = placed.exec.model_copy(update={"defaults": defaults})

    def _warn_of_ignored(self, placed: ResolvedNode) -> None:
        """Values in `data`, where editors put them, and where nothing reads them."""
        node = placed.node
        for name in _VALUES:
            if node.data.get(name):
                text, hint = (
                    f"values in data.{name} of {node.id!r} are ignored",
                    f"write them into {name} of the node, beside `data`",
                )
                self._say("UNKNOWN_INPUT", text, node, hint=hint, is_warning=True)
        for key in [key for key in node.data if key in placed.inputs and key not in (*node.input_values, *_SLOTS)]:
            text, hint = f"data.{key} of {node.id!r} is ignored", f"write it as inputValues.{key}"
            self._say("UNKNOWN_INPUT", text, node, key, hint, is_warning=True)

    def _values(self, placed: ResolvedNode) -> None:
        """The values of the file and the defaults, checked."""
        node = placed.node
        self._warn_of_ignored(placed)
        for key, value in node.input_values.items():
            slot = placed.inputs.get(key)
            if slot is None:
                if placed.is_open:
                    placed.values[key] = value
                    continue
                near = self._report.near(key, placed.inputs)
                text = f"{node.id!r} has no input {key!r}; its value is ignored"
                self._report.add(
                    FlowProblem(
                        "UNKNOWN_INPUT", text, node.id, key, "", known_slots(near, placed.inputs), near, "warning",
                        tuple(islice(placed.inputs, MOST_ALLOWED)),
                    )
                )  # fmt: skip
                continue
            value = chosen(slot, value)
            if why := value_mismatch(slot, value):
                text = f"input {key!r} of {node.id!r} {why}"
                hint, allowed = "correct inputValues of the node", allowed_values(slot)
                self._report.add(FlowProblem("BAD_VALUE", text, node.id, key, hint=hint, allowed=allowed))
            placed.values[key] = value
        for key, slot in placed.inputs.items():
            if key not in placed.values and slot.config and "default" in slot.config:
                placed.values[key] = slot.default

    def _say(
        self, code: str, message: str, node: WorkflowNode, slot: str = "", hint: str = "",
        near: tuple[str, ...] = (), is_warning: bool = False,
    ) -> None:  # fmt: skip
        severity = "warning" if is_warning else "error"
        self._report.add(FlowProblem(code, message, node.id, slot, "", hint, near, severity))  # type: ignore[arg-type]


def bypass_of(placed: ResolvedNode) -> PassThrough | str | None:
    """The values of a bypassed node: as its type says, else each output repeats the first input of its type.

    Streams are not among them: their readers are connected to what the node would read, see `repeated_stream`.
    """
    bypass = _bypass(placed)
    if not isinstance(bypass, PassThrough):
        return bypass
    values = {
        key: source
        for key, source in bypass.outputs.items()
        if not (_is_stream(placed.outputs, key) or _is_stream(placed.inputs, source))
    }
    return PassThrough(values, bypass.defaults)


def repeated_stream(placed: ResolvedNode, key: str) -> str | None:
    """The input whose stream the output `key` of a bypassed node repeats."""
    bypass = _bypass(placed)
    source = bypass.outputs.get(key) if isinstance(bypass, PassThrough) else None
    both = source is not None and _is_stream(placed.outputs, key) and _is_stream(placed.inputs, source)
    return source if both else None


def _bypass(placed: ResolvedNode) -> PassThrough | str | None:
    spec = placed.spec
    if spec is None or not placed.exec.bypassed:
        return None
    if spec.bypass is not None:
        return spec.bypass
    repeats: dict[str, str] = {}
    for key, output in placed.outputs.items():
        same = [
            k
            for k, slot in placed.inputs.items()
            if slot.type == output.type and slot.is_stream == output.is_stream and slot.multi is False
        ]
        chosen_ = key if key in same else next(iter(same), None)
        if chosen_ is not None:
            repeats[key] = chosen_
    return PassThrough(repeats)


def _is_stream(slots: Mapping[str, Slot], key: str) -> bool:
    return key in slots and slots[key].is_stream


def slot_from_json(key: str, data: Mapping[str, Any]) -> Slot:
    """A slot as files write it; an unknown type counts as WILDCARD."""
    type_ = data.get("dataFlowType", data.get("type"))
    config = data.get("config")
    categories = data.get("matchCategories")
    most = data.get("maxConnections")
    return Slot(
        key,
        type_ if isinstance(type_, str) and type_ in JSON_TYPES else "WILDCARD",
        str(data.get("displayName") or ""),
        str(data.get("description") or data.get("customDescription") or ""),
        data.get("required") is True,
        tuple(str(item) for item in categories) if isinstance(categories, list | tuple) else (),
        config if isinstance(config, Mapping) else {},
        data.get("multi") is True,
        data.get("isStream") is True,
        data.get("lazy") is True,
        max_connections=most if isinstance(most, int) and not isinstance(most, bool) else None,
    )
