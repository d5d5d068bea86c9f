"""`tavern.nodes.retrieve`: the node types that a request may need, from examples, words, rankers of plugins and ports.

The index is built by the first request and changed with node types, plugins and workflow files.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Final

from tavern_core.assistant.node_index import ExampleWorkflow, NodeIndex, Ranking, document_text, fuse_rankings
from tavern_core.contract.ranking import NodeDocument
from tavern_core.errors import TavernError, UsageError
from tavern_core.flow.compiled_workflow_cache import as_workflow
from tavern_core.flow.node_catalogue import Nodes
from tavern_core.flow.workflow_files import WorkflowFiles, workflow_files
from tavern_core.kernel.catalogue.tool_spec_cache import ToolSpecs
from tavern_core.kernel.execution.sync_async_drivers import ExecutionMode
from tavern_core.kernel.files.file_stamp import Stamp, stamp_at
from tavern_core.kernel.files.regular_file import open_regular
from tavern_core.kernel.manifest.workflow_file_codec import LARGEST_FILE, SUFFIX, read_workflow
from tavern_core.model.node import ABSENT, NodeMatch, NodeSpec, Slot
from tavern_core.model.safe_printing import printed
from tavern_core.model.workflow import Workflow

MOST_RESULTS: Final = 1_000
MOST_EXAMPLES: Final = 5_000
_MOST_REQUEST: Final = 20_000
_SECTION: Final = "rankers"
_MOST_RANKED: Final = 100
_BY_RANKER, _BY_WORKFLOW, _BY_PORTS = 0.5, 0.3, 0.05
_CHOSEN: Final = 12
"""The number of best types that are searched for inputs that none of them feeds."""
_MOST_PORTS: Final = 8
_MOST_PER_PORT: Final = 3


class NodeRetrieval:
    """The search for node types of one host. Safe for threads.

    Args:
        examples: folders with further example workflows.
    """

    def __init__(self, specs: ToolSpecs, files: WorkflowFiles, examples: Sequence[Path]) -> None:
        base, tables = specs.base, specs.lifecycle.tables
        self._files = files
        self._lifecycle = specs.lifecycle
        self._contributions = tables.contributions
        self._calls = tables.calls
        self._diagnostics = base.diagnostics
        self._mode: ExecutionMode = base.mode
        self._rest_s = base.config.limits.hook_rest_ms / 1000
        self._folders = [ExampleFolder(folder) for folder in examples]
        self._made: dict[str, tuple[Workflow, ExampleWorkflow]] = {}
        """The workflows of the host and of plugins."""
        self._lock = Lock()
        self._index = NodeIndex()
        self._documents: tuple[NodeDocument, ...] | None = None
        self._generation = 0
        self._types: tuple[int, list[NodeSpec]] = (-1, [])
        """The generation in which they were listed, and all node types."""
        self._resting: dict[str, tuple[Any, float]] = {}
        """Ranker → the object that hung, and until when it is not asked (monotonic clock)."""
        for signal in (base.signals.tools, base.signals.rights):
            signal.subscribe(self._changed)

    def _changed(self) -> None:
        self._generation += 1

    async def retrieve(
        self, nodes: Nodes, request: str, plan: Sequence[str] = (), workflow: Any = None, limit: int = 20
    ) -> list[NodeMatch]:
        """See `Nodes.retrieve`."""
        is_plan = isinstance(plan, list | tuple) and all(isinstance(step, str) for step in plan)
        if not isinstance(request, str) or not is_plan or not isinstance(limit, int):
            hint = 'retrieve("...", plan=["...", "..."], limit=20)'
            raise UsageError("a request is a text, a plan a list of texts, and a limit a whole number", hint=hint)
        await self._lifecycle.activate_section(_SECTION)
        current = None if workflow is None else as_workflow(workflow, self._files)
        if self._types[0] != (now := self._generation):
            self._types = now, await nodes.listed()
        types = self._types[1]
        request, steps = request[:_MOST_REQUEST], [step[:_MOST_REQUEST] for step in islice(plan, 100)]
        found: list[Ranking] = await self._mode.blocking(self._by_index, types, request, steps, current, seconds=None)
        ranked = [await self._by_ranker(name, f"{request}\n{' '.join(steps)}".strip()) for name in self._rankers()]
        found += [Ranking(_BY_RANKER, reasons) for reasons in ranked]
        best: list[NodeMatch] = await self._mode.blocking(
            self._with_feeders, found, min(limit, MOST_RESULTS), seconds=None
        )
        return best

    # The evidence of the index ---------------------------------------------------------------------------------------

    def _by_index(
        self, types: list[NodeSpec], request: str, plan: Sequence[str], current: Workflow | None
    ) -> list[Ranking]:
        with self._lock:
            if self._index.sync(types, self._examples()):
                self._documents = None
            found = list(self._index.evidence(request, plan))
            if current is not None:
                found.append(Ranking(_BY_WORKFLOW, self._beside(current)))
        return found

    def _with_feeders(self, found: list[Ranking], limit: int) -> list[NodeMatch]:
        """The best types, among them some that feed an input which none of the best feeds."""
        with self._lock:
            chosen = [match.type for match in fuse_rankings(found, _CHOSEN)]
            open_ = [
                (spec, slot)
                for spec in (self._index.specs[type_] for type_ in chosen if type_ in self._index.specs)
                for slot in spec.inputs.values()
                if _is_open(slot)
                and not set(chosen).difference([spec.type]).intersection(self._index.ports.giving(slot))
            ]
            return fuse_rankings([*found, Ranking(_BY_PORTS, self._feeding(open_))], limit)

    def _beside(self, workflow: Workflow) -> dict[str, str]:
        """The node types that fit the open inputs and the unused outputs of the current workflow."""
        ends = {(edge.target, (edge.target_handle or "").partition("__")[0]) for edge in workflow.edges}
        starts = {edge.source for edge in workflow.edges}
        nodes = [
            (node, spec) for node in workflow.nodes[:500] if (spec := self._index.specs.get(node.type)) is not None
        ]
        feeding = self._feeding(
            (spec, slot)
            for node, spec in nodes
            for key, slot in spec.inputs.items()
            if _is_open(slot) and key not in node.input_values and (node.id, key) not in ends
        )
        taking = {
            type_: f"takes {slot.key} of {spec.type}"
            for node, spec in nodes
            if node.id not in starts
            for slot in islice(spec.outputs.values(), _MOST_PORTS)
            for type_ in self._index.ports.taking(slot)[:_MOST_PER_PORT]
        }
        return dict(islice((taking | feeding).items(), _MOST_RANKED)) if taking or feeding else {}

    def _feeding(self, open_: Iterable[tuple[NodeSpec, Slot]]) -> dict[str, str]:
        reasons: dict[str, str] = {}
        for spec, slot in islice(open_, _MOST_PORTS):
            for type_ in self._index.ports.giving(slot)[:_MOST_PER_PORT]:
                if type_ != spec.type:
                    reasons.setdefault(type_, f"gives {slot.key} to {spec.type}")
        return reasons

    def _examples(self) -> dict[str, ExampleWorkflow]:
        """The examples of the host, of plugins and of `assistant.examples`, in order; invalid files are left out."""
        current: dict[str, tuple[Workflow, ExampleWorkflow]] = {}
        for id_, source in islice(self._files.list().items(), MOST_EXAMPLES):
            with suppress(TavernError):
                workflow = self._files.open(source)
                cached = self._made.get(id_)
                current[id_] = cached if cached and cached[0] is workflow else (workflow, ExampleWorkflow.of(workflow))
        self._made = current
        found = {id_: example for id_, (_, example) in current.items()}
        for folder in self._folders:
            for id_, example in folder.read().items():
                found.setdefault(id_, example)
        return dict(islice(found.items(), MOST_EXAMPLES))

    # Rankers of plugins ----------------------------------------------------------------------------------------------

    def _rankers(self) -> list[str]:
        return sorted(self._contributions.all(_SECTION))

    async def _by_ranker(self, name: str, query: str) -> dict[str, str]:
        """The order of one ranker; none if it fails, is still resting, or names nothing that exists."""
        ranker, owner = self._contributions.get(_SECTION, name), self._contributions.owner(_SECTION, name) or ""
        hung_ranker, until = self._resting.get(name, (None, 0.0))
        if ranker is None or (hung_ranker is ranker and time.monotonic() < until):
            return {}
        try:
            answer = await self._calls.work(
                "it", ranker.rank, query, self._node_documents(), _MOST_RANKED, mode=self._mode
            )
            ids = [id_ for id_ in islice(answer, _MOST_RANKED) if isinstance(id_, str) and id_ in self._index.specs]
        except Exception as error:  # noqa: BLE001 - any error of a plugin
            if isinstance(error, TimeoutError):
                self._resting[name] = ranker, time.monotonic() + self._rest_s
            text = f"the ranker {name!r} of {owner} was not used: {printed(error):.300}"
            self._diagnostics.add("RANKER_FAILED", text, plugin=owner, hint=f"tavern plugins info {owner}")
            return {}
        return dict.fromkeys(ids, f"ranked by {name}")

    def _node_documents(self) -> tuple[NodeDocument, ...]:
        with self._lock:
            if self._documents is None:
                self._documents = tuple(
                    NodeDocument(type_, document_text(spec)) for type_, spec in self._index.specs.items()
                )
            return self._documents


def _is_open(slot: Slot) -> bool:
    """Whether a node cannot run without an edge or a value here."""
    return slot.required is True and slot.default is ABSENT


# Example folder -------------------------------------------------------------------------------------------------------
# A folder with example workflows: looked at for every request, and only read where something changed.


class ExampleFolder:
    """A folder of `assistant.examples`. Used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._listed: tuple[Stamp, list[Path]] | None = None
        self._known: dict[str, tuple[Stamp, ExampleWorkflow | None]] = {}
        """File → its stamp and its searchable parts; None: it is not a workflow."""

    def read(self) -> dict[str, ExampleWorkflow]:
        """Id → example; files that are not workflows are left out."""
        found, entries = {}, {}
        for path in self._paths():
            file = str(path)
            stamp, entry = stamp_at(file), self._known.get(file)
            if entry is None or stamp is None or entry[0] != stamp:
                entry = stamp or (0, 0, 0, 0), _read(path)
            entries[file] = entry
            if entry[1] is not None:
                found[path.name.removesuffix(SUFFIX)] = entry[1]
        self._known = entries
        return found

    def _paths(self) -> list[Path]:
        stamp = stamp_at(str(self._folder))
        if self._listed is None or stamp is None or self._listed[0] != stamp:
            self._listed = stamp or (0, 0, 0, 0), list(workflow_files(self._folder))
        return self._listed[1]


def _read(path: Path) -> ExampleWorkflow | None:
    """The searchable parts of a workflow file; None: it is not a workflow.

    The rest is not kept, because there may be thousands of files.
    """
    try:
        with open_regular(path) as file:
            return ExampleWorkflow.of(
                read_workflow(file.read(LARGEST_FILE + 1), str(path), path.name.removesuffix(SUFFIX))
            )
    except (OSError, ValueError, TavernError):
        return None
