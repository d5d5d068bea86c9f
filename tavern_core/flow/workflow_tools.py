"""Workflows and nodes as tools: their description for a model, and the result of a call."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from tavern_core import errors
from tavern_core.errors import CallError, InputInvalid, OutputInvalid, TavernError, UpstreamError, call_error_of
from tavern_core.flow.workflow_tool_cache import ToolFacts, WorkflowToolCache
from tavern_core.kernel.calls.background_call_request import job_id
from tavern_core.kernel.files.file_stamp import stamp_at
from tavern_core.kernel.registry import RegistryEntry
from tavern_core.model.artifact import media_type_of
from tavern_core.model.plugin_status import Diagnostic
from tavern_core.model.result import ToolResult, failure
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.flow.node_catalogue import Nodes
    from tavern_core.flow.plugin_workflows import PluginWorkflows
    from tavern_core.flow.run_handle import RunHandle
    from tavern_core.flow.workflow_files import WorkflowFiles, WorkflowSource
    from tavern_core.flow.workflows import Workflows
    from tavern_core.kernel.calls.large_results import ArtifactStore
    from tavern_core.kernel.catalogue.tool_spec_cache import ToolSpecs
    from tavern_core.kernel.plugins.host_registries import HostRegistries
    from tavern_core.model.call import CallContext, ToolCall
    from tavern_core.model.node import NodeSpec
    from tavern_core.model.run import RunResult
    from tavern_core.model.workflow import Workflow

OWNER: Final = "core-flows"
"""The built-in plugin under which workflow tools are listed."""
PREFIX: Final = "workflow:"
_LOOK_S: Final = 0.05
"""Interval at which a job checks whether another process still runs its run."""
_TOOL_NAME: Final = re.compile(r"[\w.-]{1,64}")
"""File names can be in any language; providers of models get an ASCII alias."""


def workflow_tool(id_: str, workflow: Workflow) -> ToolSpec:
    """A workflow as a tool (seed 000 §4.4.3)."""
    return _tool(id_, ToolFacts.of(workflow))


def _tool(id_: str, facts: ToolFacts) -> ToolSpec:
    return ToolSpec(
        PREFIX + id_,
        facts.description,
        "workflow",
        facts.version or "0",
        input_schema=facts.input_schema,
        display_name=facts.name or id_,
        plugin=OWNER,
        implementation={"type": "workflow", "content": facts.content},
    )


class WorkflowTools:
    """Keeps the registry up to date with the existing workflows: a look-up of a tool sees the current files.

    Nothing watches the files. They are checked (names, times, sizes) when tools are listed, or when a call may be a workflow.
    """

    def __init__(
        self, workflow_files: WorkflowFiles, plugin_workflows: PluginWorkflows, tables: HostRegistries
    ) -> None:
        self._workflow_files = workflow_files
        self._plugin_workflows = plugin_workflows
        self._cache = WorkflowToolCache(tables.base.home / "cache" / "workflow-tools.json", tables.base.version)
        self._contributions = tables.contributions
        self._registry = tables.registry
        self._diagnostics = tables.diagnostics
        self._lock = threading.Lock()
        self._rank: int | None = None
        self._last_stamp: object = None
        self._paths: tuple[Path, ...] = ()
        """Files of plugins, and the folders in which further ones may appear."""
        self._reported: dict[tuple[str, str], Diagnostic] = {}
        self._changed = tables.base.signals.tools
        tables.base.signals.lookup.subscribe(self.catch_up)
        tables.base.signals.workflow_lookup.subscribe(self.catch_up)

    def list(self, rank: int) -> None:
        """Register a tool for each workflow, at each use of tools from now on; an unreadable one is a diagnostic."""
        self._rank = rank
        self._last_stamp = None

    def catch_up(self) -> None:
        """Register the current workflows if anything has changed."""
        if self._rank is None or (self._last_stamp is not None and self._stamp() == self._last_stamp):
            return
        with self._lock:
            stamp = self._stamp()
            if self._last_stamp is not None and stamp == self._last_stamp:
                return
            found: dict[tuple[str, str], Diagnostic] = {}
            listed = self._workflow_files.list()
            entries = [
                entry for id_, source in listed.items() if (entry := self._entry(id_, source, found)) is not None
            ]
            self._cache.save()
            for code, tool in self._reported.keys() - found.keys():
                self._diagnostics.withdraw(code, tool=tool)
            for key, diagnostic in found.items():
                if self._reported.get(key) != diagnostic:
                    self._diagnostics.withdraw(key[0], tool=key[1])
                self._diagnostics.put(diagnostic, quiet=True)
            is_other, self._reported = self._reported != found, found
            self._registry.put(OWNER, self._rank, entries, {})
            paths = tuple(each.file for each in listed.values() if each.path is None and each.file)
            paths += tuple(self._plugin_workflows.folders())
            is_same, self._paths = self._paths == paths, paths
            self._last_stamp = (*stamp[:2], self._registry.generation) if stamp is not None and is_same else None
        if is_other:  # why a tool is missing changes no entry of the registry
            self._changed.emit()

    def _stamp(self) -> tuple[object, int, int] | None:
        """A value that changes with the files and the plugins' workflows; None: a file changed so recently that its next change may go unnoticed."""
        files = self._workflow_files.stamp(self._paths)
        return None if files is None else (files, self._contributions.generation, self._registry.generation)

    def _entry(
        self, id_: str, source: WorkflowSource, found: dict[tuple[str, str], Diagnostic]
    ) -> RegistryEntry | None:
        def notice(code: str, message: str, hint: str, severity: Literal["error", "warning"] = "warning") -> None:
            found[code, PREFIX + id_] = Diagnostic(code, message, "", hint, severity, {"tool": PREFIX + id_})

        if not _TOOL_NAME.fullmatch(id_):
            hint = "use 1 to 64 letters (of any script), digits, _ . - as the file's name"
            notice("WORKFLOW_NAME", f"workflow {id_!r} is not a tool: its id is not a tool name", hint)
            return None
        try:
            facts = self._facts(id_, source)
        except TavernError as error:
            notice("WORKFLOW_INVALID", error.message, error.hint or f"tavern workflows check {id_}", "error")
            return None
        if not facts.description.strip():
            text = f"workflow {id_!r} has no description: a model cannot know what it is for"
            notice("WORKFLOW_UNDESCRIBED", text, 'write "description" into its file')
        return RegistryEntry(PREFIX + id_, OWNER, _tool(id_, facts))

    def _facts(self, id_: str, source: WorkflowSource) -> ToolFacts:
        """The facts of a workflow; a file is read only if it has changed. Raises TavernError: it is not valid."""
        if (path := source.file) is None:
            return ToolFacts.of(self._workflow_files.open(source))
        if (facts := self._cache.get(path, id_)) is None:
            stamp = stamp_at(path)
            facts = ToolFacts.of(self._workflow_files.open(source))
            self._cache.put(path, id_, stamp, facts)
        return facts


class WorkflowEngine:
    """Runs workflows and nodes for the executors (`contract.protocols.FlowEngine`)."""

    def __init__(
        self,
        workflows: Workflows,
        nodes: Nodes,
        specs: ToolSpecs,
        artifacts: ArtifactStore,
        inline_bytes: int | None,
    ) -> None:
        self._workflows = workflows
        self._jobs = specs.base.config.jobs
        self._nodes = nodes
        self._is_host = specs.is_host
        self._artifacts = artifacts
        self._inline_bytes = inline_bytes
        self._asking: dict[str, tuple[RunHandle, str, Collection[str], CallContext | None]] = {}
        """Runs with questions, the node whose outputs are their answer, which of them stay named, and their owner."""

    async def outcome(self, run_id: str) -> ToolResult:
        """The result of a run with questions."""
        handle, only, named, context = self._asking.pop(run_id)
        try:
            return _tool_result(await handle, only, named, partial(self._link_of_large, context), is_job=True)
        except CallError as error:
            return failure(error)
        except asyncio.CancelledError:
            await handle.stop()
            raise

    def _link_of_large(self, context: CallContext | None, data: bytes) -> dict[str, Any] | None:
        """The link to an artifact of a caller, None for the host, that holds `data`; None: they are few."""
        if self._inline_bytes is None or len(data) <= self._inline_bytes:
            return None
        return self._artifacts.put(data, media_type_of(data), context=context).link()

    async def run_workflow(
        self,
        what: str,
        arguments: Mapping[str, Any],
        call: ToolCall | None,
        plugin: str = "",
        named: Collection[str] = (),
    ) -> ToolResult:
        """Run a workflow for the caller of the call.

        Args:
            plugin: the plugin of the file, if `what` is a path.
            named: names with which a single output is an object and not the value itself.

        Raises:
            CallError: it cannot run, or a node failed; `details` name the node, its path and the run.
        """
        try:
            found = self._workflows.file(what, plugin) if "/" in what else what
        except TavernError as error:
            raise _not_begun(error) from error
        return await self._run(found, arguments, call, named)

    async def run_node(
        self, type_: str, arguments: Mapping[str, Any], call: ToolCall | None, named: Collection[str] = ()
    ) -> ToolResult:
        """Run a workflow of one node. Raises as `run_workflow`; InputInvalid: an argument does not fit its input."""
        content, streams, only = _one_node(type_, arguments, self._nodes.find(type_))
        try:
            return await self._run(content, streams, call, named, only=only)
        except UpstreamError as error:
            raise _about_arguments(error, type_, arguments) from error

    async def _run(
        self, what: Any, arguments: Mapping[str, Any], call: ToolCall | None, named: Collection[str], only: str = ""
    ) -> ToolResult:
        context = None if call is None or self._is_host(call.context) else call.context
        try:
            wanted = job_id.get() if call is not None and not call.parent else ""
            options = {"run_id": wanted} if wanted.startswith("run-") else {}
            if options and self._workflows.kept_run(wanted) is not None:  # it waited for an approval
                handle = await self._going_on(wanted, arguments, context)
                if handle is None:
                    return self._ended_elsewhere(wanted, only, named)
            else:
                handle = await self._workflows.start(what, arguments, context=context, **options)
        except CallError:
            raise
        except TavernError as error:
            raise _not_begun(error) from error
        result = await _result_or_question(handle)
        if result is None:
            if options:
                self._asking[handle.id] = handle, only, named, context
            handle.promise()
            value = {
                "runId": handle.id,
                "jobId": handle.id,
                "status": "input_required",
                "progress": None,
                "pollIntervalMs": self._jobs.poll_ms,
                "ttlMs": self._jobs.ttl_ms,
                "questions": [question.to_json() for question in handle.questions],
            }
            return ToolResult(True, value=value, status="job", job=handle.id)
        link = partial(self._link_of_large, context)
        return _tool_result(result, only, named, link, is_job=bool(options))

    async def _going_on(
        self, run_id: str, arguments: Mapping[str, Any], context: CallContext | None
    ) -> RunHandle | None:
        """The run of a job, from where it waited for an approval; None: it was resumed elsewhere, and is over."""
        from tavern_core.flow.engine.journal import RunContinuesElsewhere

        while (stored := self._workflows.kept_run(run_id)) is not None:
            if stored.state != "running":
                if stored.state == "complete" or (
                    stored.errors and stored.errors[0].get("kind") != errors.ApprovalRequired.code
                ):
                    return None
                unstored = {name: arguments[name] for name in stored.masked if name in arguments}
                with suppress(RunContinuesElsewhere):
                    return await self._workflows.take_up(run_id, inputs=unstored, context=context)
            await asyncio.sleep(_LOOK_S)
        return None

    def _ended_elsewhere(self, run_id: str, only: str, named: Collection[str]) -> ToolResult:
        """The result of a run that another process has resumed. Raises CallError: it has failed there."""
        from tavern_core.kernel.nodes.json_values import from_plain, to_plain

        stored = self._workflows.kept_run(run_id)
        if stored is None or stored.state != "complete":
            first = {} if stored is None or not stored.errors else stored.errors[0]
            raise call_error_of(str(first.get("kind") or errors.ConnectionLost.code))(
                str(first.get("message") or f"{run_id} is not stored any more"),
                hint=str(first.get("hint") or ""), outcome="unknown", runId=run_id,
            )  # fmt: skip
        outputs = dict(from_plain(stored.outputs or {}))
        value = answer_of(dict(outputs.get(only, {})) if only else outputs, named)
        return ToolResult(True, to_plain(value, tagged=False), job=run_id)


def _one_node(
    type_: str, arguments: Mapping[str, Any], spec: NodeSpec | None
) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The workflow of one node, the inputs of its run, and the node whose outputs are the result; "": those of the workflow.

    Streams pass through the interface, as in a file: a value goes in as a whole, and the chunks come out as a whole.
    """
    inputs = {} if spec is None else {k: s for k, s in spec.inputs.items() if s.is_stream and k in arguments}
    outputs = {} if spec is None or not any(s.is_stream for s in spec.outputs.values()) else spec.outputs
    values = {key: value for key, value in arguments.items() if key not in inputs}
    nodes: list[dict[str, Any]] = [{"id": "node", "type": type_, "inputValues": values}]
    if inputs:
        nodes.append({"id": "in", "type": "core:GroupInput"})
    if outputs:
        nodes.append({"id": "out", "type": "core:GroupOutput"})
    edges = [("in", "node", key) for key in inputs] + [("node", "out", key) for key in outputs]
    content = {
        "name": type_,
        "nodes": nodes,
        "edges": [
            {"id": str(at), "source": source, "sourceHandle": key, "target": target, "targetHandle": key}
            for at, (source, target, key) in enumerate(edges)
        ],
        "interfaceInputs": {key: {"dataFlowType": slot.type, "isStream": True} for key, slot in inputs.items()},
        "interfaceOutputs": {
            key: {"dataFlowType": slot.type, "isStream": slot.is_stream} for key, slot in outputs.items()
        },
    }
    return content, {key: arguments[key] for key in inputs}, "" if outputs else "node"


def _about_arguments(error: UpstreamError, type_: str, arguments: Mapping[str, Any]) -> CallError:
    """`error`, or only its part about arguments if it is about nothing else."""
    found = [each for each in error.details.get("problems", ()) if each.get("severity") == "error"]
    if not found or any(each["code"] != "BAD_VALUE" or each.get("slot") not in arguments for each in found):
        return error
    messages = [each["message"].replace(" of 'node'", "", 1) for each in found]
    return InputInvalid(
        f"node {type_}: {'; '.join(messages)}",
        hint=f"correct {', '.join(repr(each['slot']) for each in found)}",
        problems=[{"path": f"/{each['slot']}", "message": text} for each, text in zip(found, messages, strict=True)],
    )


async def _result_or_question(handle: RunHandle) -> RunResult | None:
    """The result of a run, or None once one of its nodes waits for a person and nothing else runs."""
    try:
        async for event in handle.events():
            if event.kind == "ask":
                return None
        result: RunResult = await handle
        return result
    except asyncio.CancelledError:
        await handle.stop()  # the call must not end before its run
        raise


def _tool_result(
    result: RunResult, only: str, named: Collection[str], store: Callable[[bytes], Any], *, is_job: bool
) -> ToolResult:
    from tavern_core.kernel.nodes.json_values import to_plain
    from tavern_core.schema.bounded_json_copying import NotPlainData

    if not result.ok:
        raise _call_error(result, is_job)
    outputs = dict(result.outputs)
    if only:
        outputs = dict(outputs.get(only, {}))
    value = answer_of(outputs, named)
    links: list[dict[str, Any]] = []

    def large(data: bytes) -> Any:
        if (link := store(data)) is not None:
            links.append(link)
        return link

    try:
        plain = to_plain(value, tagged=False, large=large)
        return ToolResult(True, value=plain, content=tuple(links), job=result.run_id)
    except NotPlainData as error:
        hint = "give text, numbers, lists, objects or bytes"
        message = f"an output of the workflow cannot be returned: {error}"
        raise OutputInvalid(message, hint=hint, outcome="done", runId=result.run_id) from None


def answer_of(outputs: Mapping[str, Any], named: Collection[str]) -> Any:
    """The answer of a tool: the outputs of its workflow; a single output itself, unless its name is in `named`."""
    if len(outputs) != 1:
        return outputs
    ((name, single),) = outputs.items()
    has_name = isinstance(single, Mapping) and name in single  # then it is what was declared
    return single if has_name or name not in named else outputs


def _call_error(result: RunResult, is_job: bool) -> CallError:
    outcome: errors.Outcome = "unknown" if result.may_have_changed else "none"
    if result.state == "cancelled" and not result.errors:
        return errors.CallCancelled("the run was cancelled", outcome=outcome, runId=result.run_id)
    if result.state == "waiting":
        hint = f"tavern workflows resume {result.run_id}"
        return errors.CallCancelled(
            "the run was left and waits for answers", hint=hint, outcome=outcome, runId=result.run_id
        )
    first = result.errors[0]
    hint, waits = first.hint, dict[str, Any]()
    if first.kind == "APPROVAL_REQUIRED" and isinstance(approval := first.details.get("approval"), str):
        if outcome == "none" or is_job:  # the same call may be made again: that of a job goes on with its run
            waits = {"approval": approval}
        else:
            approve, resume = f"`tavern approvals approve {approval}`", f"`tavern workflows resume {result.run_id}`"
            hint = f"another person answers with {approve}, then {resume}: what has run does not run again"
    if (limit := first.details.get("limit")) is not None:
        waits["limit"] = limit
    return call_error_of(first.kind)(
        f"node {first.path} ({first.type}) failed: {first.message}" if first.path else first.message,
        hint=hint,
        outcome=outcome,
        retry_after_ms=first.details.get("retryAfterMs"),
        **waits,
        node=first.path.rpartition("/")[2],
        path=first.path,
        type=first.type,
        slot=first.slot,
        runId=result.run_id,
        errors=[error.to_caller() for error in result.errors[:20]],
    )


def _not_begun(error: TavernError) -> UpstreamError:
    """Convert `error` for the caller of the tool."""
    problems = {"problems": error.details["problems"]} if "problems" in error.details else {}
    return UpstreamError(error.message, hint=error.hint, code=error.code, outcome="none", **problems)
