"""The references of one compilation: node types, workflows with upgraded old nodes, and checks by plugins."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from tavern_core.contract.nodes import MismatchedInput, Node, method_without_run
from tavern_core.errors import TavernError
from tavern_core.flow.node_catalogue import Nodes
from tavern_core.flow.workflow_files import WorkflowFiles, WorkflowSource
from tavern_core.graph.problems import FlowProblem
from tavern_core.graph.slot_compatibility import chosen, value_mismatch
from tavern_core.kernel.nodes.annotation_coercion import adapt_value
from tavern_core.kernel.nodes.node_callable import NodeCode
from tavern_core.kernel.plugins.lifecycle import Lifecycle
from tavern_core.model.node import NodeSpec, Slot
from tavern_core.model.workflow import EXEC_KEY, Workflow, WorkflowNode
from tavern_core.schema.validate import compile_output_validator, compile_validator

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_HOST: Final = frozenset({"core", "tavern-core"})
"""The names of the host in `requires`: the namespace of its nodes, its distribution."""
_IN_THE_HOST: Final = "core-flows"
"""A plugin that every host has, with the version of the host."""


class CompileLibrary:
    """The `Library` of one compilation; it records what it was asked, to check later whether the result would be the same."""

    def __init__(self, nodes: Nodes, workflow_files: WorkflowFiles, lifecycle: Lifecycle) -> None:
        self._nodes = nodes
        self._workflow_files = workflow_files
        self._lifecycle = lifecycle
        self._types: dict[str, NodeSpec | None] = {}
        self._written: dict[str, Workflow | None] = {}
        self._upgraded: dict[str, Workflow] = {}
        self._failed: dict[int, list[FlowProblem]] = {}
        """Identity of an upgraded workflow → problems of its nodes."""
        self._known: Collection[str] | None = None
        self._sources: Mapping[str, WorkflowSource] | None = None

    def node(self, type_: str) -> NodeSpec | None:
        if type_ not in self._types:
            self._types[type_] = self._nodes.find(type_)
        return self._types[type_]

    def node_types(self) -> Collection[str]:
        if self._known is None:
            self._known = [spec.type for spec in self._nodes.known()]
        return self._known

    def why_no_node(self, type_: str) -> str:
        return self._nodes.why_not(type_)

    def written(self, id_: str) -> Workflow | None:
        """The workflow of an id, as read; None if there is no readable one."""
        if id_ not in self._written:
            self._written[id_] = None
            if (source := self.workflow_ids().get(id_)) is not None:
                with suppress(TavernError):  # an unreadable file: the compiler reports it as missing
                    self._written[id_] = self._workflow_files.open(source)
        return self._written[id_]

    def workflow(self, id_: str) -> Workflow | None:
        if id_ not in self._upgraded:
            if (found := self.written(id_)) is None:
                return None
            self._upgraded[id_] = self.upgraded(found)
        return self._upgraded[id_]

    def workflow_ids(self) -> Mapping[str, WorkflowSource]:
        if self._sources is None:
            self._sources = self._workflow_files.list()
        return self._sources

    def is_current(self) -> bool:
        """Whether everything that it was asked for is unchanged."""
        fresh = CompileLibrary(self._nodes, self._workflow_files, self._lifecycle)
        return all(fresh.node(t) is spec for t, spec in self._types.items()) and all(
            fresh.written(i) is flow for i, flow in self._written.items()
        )

    # Checks by files and plugins ----------------------------------------------------------------------------------------

    def upgraded(self, workflow: Workflow) -> Workflow:
        """The workflow with older nodes upgraded by their class; the file itself is unchanged."""
        problems: list[FlowProblem] = []
        nodes: list[WorkflowNode] = []
        written = workflow.raw.get("nodes") or ()
        for at, node in enumerate(workflow.nodes):
            spec = self.node(node.type)
            if spec is not None and node.type_version is not None and node.type_version < spec.version:
                node = _upgrade(node, spec, written[at] if at < len(written) else None, problems)
            nodes.append(node)
        if any(one is not other for one, other in zip(nodes, workflow.nodes, strict=True)):
            workflow = workflow.model_copy(update={"nodes": tuple(nodes)})
        self._failed[id(workflow)] = problems
        return workflow

    def problems_of(self, workflow: Workflow) -> Iterator[FlowProblem]:
        """Problems of one workflow outside of the compiler: requirements, upgrades, configuration schemas, `validate`."""
        yield from self._failed.get(id(workflow), ())
        yield from self._unmet(workflow)
        for node in workflow.nodes:
            spec = self.node(node.type)
            if spec is None:
                continue
            if node.type_version is not None and node.type_version > spec.version:
                text = f"{node.id!r} was written for version {node.type_version} of {spec.type}; version {spec.version} is there"
                yield FlowProblem(
                    "REQUIREMENT", text, node.id, hint=f"update the plugin {spec.plugin}", severity="warning"
                )
            config = {**spec.config_values, **{k: v for k, v in node.config_values.items() if k != EXEC_KEY}}
            if spec.config_schema:
                for found in compile_validator(spec.config_schema, name=spec.type).problems(config):
                    where = f"{found.path}: " if found.path else ""
                    yield FlowProblem(
                        "BAD_CONFIG",
                        f"configuration of {node.id!r} ({spec.type}): {where}{found.message}",
                        node.id,
                        hint=found.hint,
                    )
            yield from _mismatches(node, spec, config)
            code = spec.impl
            if isinstance(code, NodeCode) and code.cls is not None:
                yield from _validated(code.cls, node, spec, config)

    def _unmet(self, workflow: Workflow) -> Iterable[FlowProblem]:
        """Plugins required by the file that are missing or have another version."""
        for name, wanted in workflow.requires.items():
            record = self._lifecycle.records.get(_IN_THE_HOST if name in _HOST else name)
            if record is None or not record.usable:
                why = f"is {record.state}: {record.reason}" if record is not None else "is not installed"
                yield FlowProblem(
                    "REQUIREMENT",
                    f"the workflow requires plugin {name!r}, which {why}",
                    hint=f"install or enable {name}",
                )
                continue
            try:
                version = Version(record.candidate.version)
                if record.candidate.fixed_id:  # of the host: a development version of 1.0 counts as 1.0
                    version = Version(version.base_version)
                fits = not wanted or version in SpecifierSet(wanted, prereleases=True)
            except (InvalidSpecifier, InvalidVersion) as error:
                yield FlowProblem(
                    "REQUIREMENT", f"requires.{name}: {wanted!r} cannot be compared ({error})", hint='write ">=1,<2"'
                )
                continue
            if not fits:
                text = f"the workflow requires {name} {wanted}; {record.candidate.version} is there"
                yield FlowProblem("REQUIREMENT", text, hint=f"install {name} {wanted}")


def _mismatches(node: WorkflowNode, spec: NodeSpec, config: Mapping[str, Any]) -> Iterable[FlowProblem]:
    """Values of the file with the right type that do not fit the schema or annotation of their input."""
    mode = spec.modes.get(spec.mode_of(config))
    slots = spec.inputs if mode is None or mode.inputs is None else mode.inputs
    adapters = spec.impl.adapters if isinstance(spec.impl, NodeCode) else {}
    for key, value in node.input_values.items():
        slot = slots.get(key)
        if slot is None or value is None or value_mismatch(slot, chosen(slot, value)):
            continue
        why, hint = _mismatch(slot, chosen(slot, value), adapters)
        if why:
            yield FlowProblem("BAD_VALUE", f"input {key!r} of {node.id!r}: {why}", node.id, key, hint=hint)


def _mismatch(slot: Slot, value: Any, adapters: Mapping[str, TypeAdapter[Any]]) -> tuple[str, str]:
    """The problem of a value, and its repair; empty if there is none."""
    if slot.schema is not None:
        validator = compile_output_validator(slot.schema, name=slot.key)
        for at, item in enumerate(value if slot.multi else [value]):
            if found := validator.problems(item, limit=1):
                place = f"/{at}{found[0].path}" if slot.multi else found[0].path
                return f"{place}: {found[0].message}" if place else found[0].message, found[0].hint
    try:
        adapt_value(adapters, slot.key, value, MismatchedInput)
    except MismatchedInput as mismatch:
        return mismatch.why, ""
    return "", ""


def _validated(cls: type[Node], node: WorkflowNode, spec: NodeSpec, config: Mapping[str, Any]) -> Iterable[FlowProblem]:
    try:
        validate = method_without_run(cls, "validate")
        if validate is None:
            return
        messages = validate(copy.deepcopy(node.input_values), copy.deepcopy(dict(config))) or ()
        for text in [messages] if isinstance(messages, str) else list(messages):
            yield FlowProblem("BAD_VALUE", f"{node.id!r} ({spec.type}): {text}", node.id)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any error of a plugin
        yield FlowProblem("BAD_VALUE", f"{node.id!r}: validate of {spec.type} failed with {error!r}", node.id)


def _upgrade(node: WorkflowNode, spec: NodeSpec, raw: Any, problems: list[FlowProblem]) -> WorkflowNode:
    """The node, upgraded by its class.

    Args:
        raw: as in the file, including unknown keys; None if there is no file.
    """
    code = spec.impl
    if not isinstance(code, NodeCode) or code.cls is None:
        return node
    document = copy.deepcopy(dict(raw)) if isinstance(raw, Mapping) else node.model_dump(by_alias=True)
    try:
        upgrade = method_without_run(code.cls, "upgrade")
        changed = document if upgrade is None else dict(upgrade(document, node.type_version or 1))
        return WorkflowNode.model_validate({**changed, "id": node.id, "type": node.type, "typeVersion": spec.version})
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any error of a plugin
        text = f"{node.id!r} was written for version {node.type_version} of {spec.type}, and its upgrade failed with {error!r}"
        problems.append(FlowProblem("BAD_CONFIG", text, node.id, hint="report it to the plugin's author"))
        return node
