"""`tavern.nodes`: all node types of plugins; a type is found by activating the plugin of its prefix."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from tavern_core.contract.decisions import Deny
from tavern_core.errors import NodeNotFound, PluginError
from tavern_core.kernel.catalogue.changed_tool_check import changed_parts
from tavern_core.kernel.hooks.argument_copies import copy_for_plugin, is_its_code
from tavern_core.kernel.plugins.candidate import has_nodes
from tavern_core.kernel.plugins.lifecycle import Lifecycle
from tavern_core.model.naming_rules import split_id
from tavern_core.model.nearest import did_you_mean, fold, suggestion
from tavern_core.model.node import NodeMatch, NodeSpec
from tavern_core.model.safe_printing import printed

HOST_NAMESPACE: Final = "core"
_MEANT: Final[Mapping[str, str]] = {
    word: name
    for name, words in {
        "LLM": "openai openaichat genericllmrequest llmrequest chat model agent complete completion",
        "Text": "string textinput multilinetext",
        "Value": "constant number integer float boolean literal object array set",
        "Template": "prompt format contextbuilder textformat",
        "Join": "concat concatenate append combine textjoin textconcat",
        "Replace": "regex applyregex textreplace substitute",
        "Expression": "math mathoperation calculate calculator code function script formula compare",
        "Switch": "if ifelse condition conditional branch router filter",
        "Choose": "select ternary coalesce",
        "Map": "foreach each iterate iteration batch splitinbatches",
        "Loop": "while repeat until for",
        "HttpFetch": "http httprequest fetch request webhook url api download",
        "CallTool": "tool toolcall invoke action plugin",
        "NodeGroup": "group subgraph subworkflow subflow workflow executeworkflow nodegroupinstance",
        "GroupInput": "input start trigger entry workflowinput",
        "GroupOutput": "output end answer result return workflowoutput",
        "Delay": "sleep wait pause timer",
        "Ask": "question humaninput userinput form approval confirm",
        "Note": "comment stickynote markdown annotation notes",
        "frame": "box groupbox area region",
        "Random": "randomnumber rand seed",
        "JsonParse": "parsejson jsonread jsonloads",
        "JsonWrite": "jsonstringify stringify tojson jsondumps",
        "JsonGet": "get pick path jsonpath extract getfield",
        "Length": "count size len",
        "Case": "upper lower trim textcase strip",
    }.items()
    for word in words.split()
}
"""Names of this host's nodes in other products, folded and without ``Node`` at the end → their local name."""


class Retrieval(Protocol):
    """The search for node types (`assistant.node_retrieval`)."""

    async def retrieve(
        self, nodes: Nodes, request: str, plan: Sequence[str] = (), workflow: Any = None, limit: int = 20
    ) -> builtins.list[NodeMatch]: ...


class Nodes(Mapping[str, NodeSpec]):
    """Node types by full id; ``tavern.nodes["text:Template"]``.

    Listing does not import plugins that were active before and have not changed; it activates the others.

    Args:
        retrieval: makes the search behind `retrieve`, at its first use.
    """

    def __init__(self, lifecycle: Lifecycle, retrieval: Callable[[], Retrieval]) -> None:
        tables = lifecycle.tables
        self._lifecycle = lifecycle
        self._contributions = tables.contributions
        self._hooks = tables.hooks
        self._calls = tables.calls
        self._diagnostics = tables.diagnostics
        self._mode = tables.mode
        self._wait = tables.base.portal.run
        self._make_retrieval = retrieval
        self._retrieval: Retrieval | None = None
        self._making = threading.Lock()
        self._state: tuple[Any, Mapping[str, NodeSpec | None], dict[str, NodeSpec | None], int] = (None, {}, {}, -1)
        """The generation of hooks, the types, what became of them, and the generation of contributions that is known to have the same."""

    # Looking -------------------------------------------------------------------------------------------------------------

    def __getitem__(self, type_: str) -> NodeSpec:
        try:
            return self.get_node(type_)
        except NodeNotFound as error:
            raise KeyError(str(error)) from error

    def __iter__(self) -> Iterator[str]:
        return iter([spec.type for spec in self.list()])

    def __len__(self) -> int:
        return len(self.list())

    def __contains__(self, type_: object) -> bool:
        return isinstance(type_, str) and any(spec.type == type_ for spec in self.list())

    def list(self, *, query: str = "", category: str = "") -> builtins.list[NodeSpec]:
        """All node types, sorted; including hidden ones of the engine.

        Args:
            query: words that must occur in type, name, category or description, in any language.
            category: only this one.
        """
        words = query.casefold().split()
        return [
            spec
            for spec in self._wait(self.listed())
            if (not category or spec.category == category) and has_words(spec, words)
        ]

    def get_node(self, type_: str) -> NodeSpec:
        """A node type; its plugin is activated.

        Raises:
            NodeNotFound: there is none; the message names the closest (NODE_NOT_FOUND).
        """
        if not isinstance(type_, str):
            raise NodeNotFound(f"a node type is text, got {type(type_).__name__}", hint="for example core:GroupInput")
        self._wait(self.activate_for([type_]))
        found = self.find(type_)
        if found is None:
            hint = did_you_mean(type_, [spec.type for spec in self.list()]) or self.why_not(type_)
            raise NodeNotFound(f"there is no node type {type_!r}", hint=hint)
        return found

    def catalogue(self) -> builtins.list[dict[str, Any]]:
        """All node types as JSON, for editors."""
        return [spec.to_json() for spec in self.list()]

    def retrieve(
        self, request: str, *, plan: Sequence[str] = (), workflow: Any = None, limit: int = 20
    ) -> builtins.list[NodeMatch]:
        """The node types that a request may need, best first; equal requests to an unchanged host give equal answers.

        Args:
            request: the thing to build, in the words of a person.
            plan: the steps to it, if known: node types are searched for each.
            workflow: the workflow to change: its id, the path of its file, its content, or a `Workflow`.
            limit: maximum number of results (never more than 1,000).

        Raises:
            WorkflowNotFound, WorkflowInvalid: `workflow` is not a workflow (WORKFLOW_NOT_FOUND, WORKFLOW_INVALID).
            UsageError: an argument has the wrong type (USAGE).
        """
        return self._wait(self.retrieved(request, plan=plan, workflow=workflow, limit=limit))

    async def retrieved(
        self, request: str, *, plan: Sequence[str] = (), workflow: Any = None, limit: int = 20
    ) -> builtins.list[NodeMatch]:
        """`retrieve` for code in an event loop."""
        with self._making:
            self._retrieval = self._retrieval or self._make_retrieval()
        return await self._retrieval.retrieve(self, request, plan, workflow, limit)

    def why_not(self, type_: str) -> str:
        """Why a node type is missing, and the repair."""
        plugin = split_id(type_)[0]
        record = self._lifecycle.records.get(plugin)
        if record is None:
            if plugin == HOST_NAMESPACE:
                meant = _MEANT.get(fold(split_id(type_)[1]).removesuffix("node"))
                near = suggestion([f"{HOST_NAMESPACE}:{meant}"] if meant else [])
                return near or "this host has no such node of its own; `tavern nodes list core` shows them"
            return f"install or enable the plugin {plugin!r}" if plugin else "`tavern nodes list` shows what there is"
        return (
            f"plugin {plugin} is {record.state}: {record.reason}"
            if record.reason
            else f"plugin {plugin} has no such node"
        )

    # For the engine --------------------------------------------------------------------------------------------------------

    def find(self, type_: str) -> NodeSpec | None:
        """The node type among those of active plugins, or its replacement."""
        specs = self._specs()
        found = specs.get(type_)
        return found if found is not None else self._replacements().get(type_)

    def known(self) -> builtins.list[NodeSpec]:
        """The node types of active plugins, sorted."""
        return sorted((spec for spec in self._specs().values() if spec is not None), key=lambda spec: spec.type)

    async def activate_for(self, types: builtins.list[str]) -> None:
        """Activate the plugins of these types."""
        for namespace in dict.fromkeys(split_id(type_)[0] for type_ in types):
            for plugin in self._builtin_plugins if namespace == HOST_NAMESPACE else (namespace,):
                await self._activate(plugin)
        missing = {type_ for type_ in types if self.find(type_) is None}
        for spec in await self.listed() if missing else ():  # perhaps replaced by one of another plugin
            if missing.intersection(spec.replaces):
                await self._activate(spec.plugin)

    async def listed(self) -> builtins.list[NodeSpec]:
        """The node types of all usable plugins, sorted; for inactive plugins, from the cache."""
        remembered: builtins.list[NodeSpec] = []
        for record in list(self._lifecycle.records.values()):
            if not record.usable or record.active or not has_nodes(record.candidate):
                continue
            if (found := self._lifecycle.tables.cache.nodes(record.candidate)) is None:
                await self._activate(record.name)
            else:
                remembered += found
        await self._update()
        remembered_specs = [await self._decorated(spec) for spec in remembered]
        return sorted(
            (*self.known(), *(spec for spec in remembered_specs if spec is not None)), key=lambda spec: spec.type
        )

    @property
    def _builtin_plugins(self) -> builtins.list[str]:
        """The host's own plugins with node types."""
        return [record.name for record in self._lifecycle.records.values() if record.candidate.is_nodes_alone]

    async def _activate(self, plugin: str) -> None:
        record = self._lifecycle.records.get(plugin)
        if record is not None and record.can_start:
            try:
                await self._lifecycle.activate(plugin)
            except PluginError:
                return  # the record says why
        await self._update()

    # Changes by hooks ------------------------------------------------------------------------------------------------------

    def _specs(self) -> Mapping[str, NodeSpec | None]:
        return self._state[2] if self._is_fresh() else self._contributions.all("nodes")

    def _is_fresh(self) -> bool:
        stamp, raw, made, compared = self._state
        if stamp != self._hooks.generation:
            return False
        if compared == (now := self._contributions.generation):
            return True
        if is_same := raw == self._contributions.all("nodes"):  # something else changed
            self._state = stamp, raw, made, now
        return is_same

    async def _update(self) -> None:
        """Call the `tavern_before_register_node` hooks for new types."""
        raw: dict[str, NodeSpec] = self._contributions.all("nodes")
        if self._is_fresh():
            return
        stamp, before, known, _ = self._state
        keep = known if stamp == self._hooks.generation else {}
        made: dict[str, NodeSpec | None] = {}
        for type_, spec in raw.items():
            made[type_] = keep[type_] if type_ in keep and before.get(type_) is spec else await self._decorated(spec)
        self._state = self._hooks.generation, raw, made, -1

    async def _decorated(self, spec: NodeSpec) -> NodeSpec | None:
        for impl in self._hooks.of("tavern_before_register_node"):
            if impl.plugin == spec.plugin:
                continue
            try:
                answer = await self._calls.call_one(
                    impl, {"definition": copy_for_plugin(spec), "owner": spec.plugin}, self._mode
                )
            except Exception as error:  # noqa: BLE001 - any error of a plugin
                answer = Deny(f"it failed with {printed(error)}")
            if answer is None:
                continue
            why = answer.reason if isinstance(answer, Deny) else _why_not(answer, spec)
            if why:
                text = f"{spec.type} was left out by {impl.plugin}: {why}"
                self._diagnostics.add("NODE_LEFT_OUT", text, plugin=impl.plugin, hint=f"see {impl.where}")
                return None
            answer = replace(answer, impl=spec.impl)
            text = f"{impl.plugin} changed {', '.join(changed_parts(spec, answer)) or 'nothing'} of node {spec.type}"
            self._diagnostics.add("NODE_CHANGED", text, plugin=impl.plugin, severity="info")
            spec = answer
        return spec

    def _replacements(self) -> dict[str, NodeSpec]:
        return {old: spec for spec in self.known() for old in spec.replaces}


def _why_not(answer: Any, spec: NodeSpec) -> str:
    """Why a changed definition is refused; empty if it is accepted."""
    from tavern_core.kernel.nodes.node_rules import definition_mismatch

    if not isinstance(answer, NodeSpec):
        return f"it answered {type(answer).__name__}, not a NodeSpec"
    if (
        replace(answer, type=spec.type).type != answer.type
        or answer.plugin != spec.plugin
        or not is_its_code(answer, spec)
    ):
        return "it tried to change the node's type, owner or code"
    takes = {key for slots in (spec.inputs, *(mode.inputs or {} for mode in spec.modes.values())) for key in slots}
    if why := definition_mismatch(answer, None if spec.dynamic_slots else takes):
        return why
    if lost := sorted(spec.capabilities - frozenset(answer.capabilities)):
        return f"it tried to remove a safeguard of the node: the capability {lost[0]}"
    for side, slots, original_slots in (
        ("input", answer.inputs, spec.inputs),
        ("output", answer.outputs, spec.outputs),
    ):
        if lost := sorted(original_slots.keys() - slots.keys()):
            return f"it took the {side} {lost[0]!r} away, which the node's code needs"
    return ""


def has_words(spec: NodeSpec, words: list[str]) -> bool:
    text = f"{spec.type} {spec.display_name} {spec.category} {spec.description}".casefold()
    return all(word in text for word in words)
