"""The steps of one run of a workflow, from reading the file to the last hook.

read → compile → permissions of its nodes → before_workflow hooks → check inputs → run → record → after_workflow
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tavern_core.contract.nodes import MismatchedInput
from tavern_core.errors import InputInvalid, UsageError
from tavern_core.flow.compiled_workflow_cache import WorkflowCompiler
from tavern_core.flow.engine.cache import DiskCache, EarlierResults, RunCache, SessionCache
from tavern_core.flow.engine.node_value_encoding import deep_copy
from tavern_core.flow.engine.plan_tables import PreparedPlan
from tavern_core.flow.engine.run import Run, RunHost, RunStart, new_run_id, wanted_steps
from tavern_core.flow.engine.run_event_log import RunEventLog
from tavern_core.flow.engine.run_options import RunRequest
from tavern_core.flow.engine.sqlite_run_store import RunStore, StoredRun
from tavern_core.flow.engine.subworkflows import input_mismatch, interface_values
from tavern_core.flow.hook_chains import NodeHooks, WorkflowHookCalls
from tavern_core.flow.node_facilities import NodeFacilities
from tavern_core.flow.node_permissions import NodeRights
from tavern_core.flow.resuming import ResumedRun, document_of_run, stored_options, taken_up
from tavern_core.flow.run_caller import caller_from_json, caller_to_json, judge_owner, taken_up_as
from tavern_core.flow.run_handle import RecentRuns
from tavern_core.flow.run_recorder import RunRecorder
from tavern_core.flow.workflow_files import WorkflowFiles
from tavern_core.frozen_dataclass import dataclass
from tavern_core.graph.slot_compatibility import chosen, nesting_mismatch
from tavern_core.kernel.calls.running_call import FixedFrame, RunningCall, current
from tavern_core.kernel.calls.taint_tracking import has_read
from tavern_core.kernel.log.call_changes import CallChange
from tavern_core.kernel.nodes.annotation_coercion import plain
from tavern_core.kernel.plugins.host_registries import HostRegistries
from tavern_core.kernel.settings.result_redaction import masking, redacted_outputs
from tavern_core.model.call import CallContext, check_caller
from tavern_core.model.event import WORKFLOW_CHANGED, WORKFLOW_FINISHED, WORKFLOW_STARTED
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.node import ABSENT, NodeSpec
from tavern_core.model.run import RunInfo, RunResult
from tavern_core.model.workflow import Workflow
from tavern_core.schema.bounded_json_copying import json_or
from tavern_core.schema.redact import compile_redactor
from tavern_core.schema.slot_to_schema import workflow_schema

if TYPE_CHECKING:
    from tavern_core.flow.patching import WorkflowPatcher


@dataclass(frozen=True, slots=True)
class NodeCaches:
    """The caches for answers of nodes."""

    session: SessionCache
    disk: DiskCache
    runs: RunStore


@dataclass(frozen=True, slots=True)
class AdmittedRun:
    """A run that may start."""

    run: Run
    info: RunInfo
    recorder: RunRecorder | None
    """Writes it to the store, if it is stored."""


class WorkflowRunner:
    """Runs the workflows of one host."""

    def __init__(
        self,
        workflow_files: WorkflowFiles,
        compiler: WorkflowCompiler,
        rights: NodeRights,
        facilities: NodeFacilities,
        caches: NodeCaches,
        tables: HostRegistries,
    ) -> None:
        base, workflows = tables.base, tables.base.config.workflows
        self.remembered = RecentRuns()
        self._workflow_files = workflow_files
        self.compiler = compiler
        self._rights = rights
        self._hooks = tables.hooks
        self._calls = WorkflowHookCalls(tables.calls, tables.mode)
        self.caches = caches
        self._host = rights.host
        self._recorder, self._note = base.recorder, base.recorder.note
        self._tables = tables
        self._defaults = {"concurrency": workflows.concurrency, "resources": workflows.resources}
        self._known_secrets = base.known_secrets
        self._mask = masking(base.known_secrets)
        self._run_host = RunHost(base.tool_threads, facilities, self._mask, base.known_secrets)

    @cached_property
    def patcher(self) -> WorkflowPatcher:
        """Applies patches; imported with the first one."""
        from tavern_core.flow.patching import WorkflowPatcher

        return WorkflowPatcher(self._workflow_files, self.compiler, self._tables, self._host)

    async def begin(
        self, what: Any, inputs: Mapping[str, Any], context: CallContext | None, options: Mapping[str, Any]
    ) -> AdmittedRun:
        """All steps before the first node: a refusal has not run anything. Raises as `Workflows.run`."""
        if not isinstance(inputs, Mapping):
            raise UsageError(f"inputs= takes a mapping, got {type(inputs).__name__}", hint='{"name": value}')
        check_caller(context)
        return await self._begin(what, inputs, self._caller(context) or self._host, options)

    async def take_up(
        self,
        run_id: str,
        answers: Mapping[str, Any],
        inputs: Mapping[str, Any],
        context: CallContext | None,
        options: Mapping[str, Any],
    ) -> AdmittedRun:
        """The same for a stored run, which no other process can resume from now on. Raises as `Workflows.resume`."""
        await self.compiler.plugin_workflows.prepare()
        stored, journal = self.caches.runs.take_up(run_id)
        try:
            asked = {str(question["id"]) for question in stored.questions}
            left_answers = {name: value for name, value in self.caches.runs.answers(run_id).items() if name in asked}
            resumed = taken_up(stored, journal, {**left_answers, **answers}, inputs, options)
            drawn = self.caches.runs.calls(run_id)
            caller = taken_up_as(
                run_id, caller_from_json(run_id, stored.caller, drawn, self._host), self._caller(context), self._host
            )
            return await self._begin(
                document_of_run(stored, self._workflow_files), resumed.inputs, caller, resumed.options, resumed
            )
        except BaseException:
            journal.close()
            raise

    def _caller(self, context: CallContext | None) -> CallContext | None:
        """The caller: inside a call without a context, the caller of that call; None: the host."""
        outer = current.get()
        return context if context is not None or outer is None else outer.caller

    async def _seen(
        self,
        inputs: dict[str, Any],
        log: RunEventLog,
        info: RunInfo,
        prepared: PreparedPlan,
        resumed: ResumedRun | None,
    ) -> tuple[dict[str, Any], bool]:
        """The inputs as hooks have changed them, once for a run and its resumptions; and whether they did."""
        if resumed is None or resumed.hooked_inputs is None:
            return await self._changed(inputs, log, info, prepared)
        return dict(resumed.hooked_inputs), resumed.stored.changed is not None

    def _log_of(self, run_id: str) -> RunEventLog:
        """The event log of a run; that of a resumed run continues after the stored events."""
        before = self.caches.runs.events(run_id)
        return RunEventLog(before[-1].seq if before else 0, lambda after: self.caches.runs.events(run_id, after))

    def _node_hooks(self, info: RunInfo) -> NodeHooks | None:
        around, after = self._hooks.of("tavern_before_node"), self._hooks.of("tavern_after_node")
        return NodeHooks(self._calls, around, after, info) if around or after else None

    async def _begin(
        self,
        what: Any,
        inputs: Mapping[str, Any],
        caller: CallContext,
        options: Mapping[str, Any],
        resumed: ResumedRun | None = None,
    ) -> AdmittedRun:
        compiled = await self.compiler.compiled(what)
        if compiled.prepared is None:
            raise compiled.refuse()
        await self._rights.check(_specs(compiled.prepared), caller)
        request = self._request(options, resumed)
        earlier = self._earlier(request.again, caller, compiled.prepared, request.start_at, resumed)
        run_id = resumed.stored.run_id if resumed is not None else request.run_id or new_run_id()
        log = RunEventLog() if resumed is None else self._log_of(run_id)
        info = RunInfo(run_id, compiled.workflow.id, caller.principal or "")
        inputs = {key: plain(value) for key, value in inputs.items()}
        hooked_inputs, is_changed = await self._seen(inputs, log, info, compiled.prepared, resumed)
        chosen_inputs = _chosen(hooked_inputs, info, compiled.prepared)
        _check_inputs(compiled.prepared, chosen_inputs, info)
        wanted_steps(compiled.prepared, request.options.to)
        cache, recorder = self._cache(request, earlier), None
        if request.keep:
            stored = await self._about(run_id, compiled.workflow, caller, resumed)
            stored = replace(  # the inputs are copied, because nodes may change them
                stored, inputs=deep_copy(inputs), changed=deep_copy(chosen_inputs) if is_changed else None,
                options=stored_options(request.options, options, stored.latency_ms),
            )  # fmt: skip
            recorder = RunRecorder(self.caches.runs, cache, stored, None if resumed is None else resumed.journal)
        times, around = 0 if resumed is None else resumed.stored.times_taken_up, self._node_hooks(info)
        changes = int(resumed is not None and resumed.stored.may_have_changed)
        run = Run(
            compiled.prepared, chosen_inputs, host=self._run_host, context=caller, options=request.options,
            beginning=RunStart(run_id, cache, request.answers, log, times, changes, around, recorder),
        )  # fmt: skip
        self._take_over_reading(run, request.again if resumed is None else run_id)
        self.remembered.add(run, cache, is_taken_up=resumed is not None)
        return AdmittedRun(run, info, recorder)

    def _cache(self, request: RunRequest, earlier: EarlierResults | None) -> RunCache:
        caches, is_off = self.caches, not request.uses_cache
        return RunCache(
            caches.session, caches.disk, earlier, is_off=is_off, write=caches.runs.written, is_stored=request.keep
        )

    def _request(self, options: Mapping[str, Any], resumed: ResumedRun | None) -> RunRequest:
        """The options of a run. Raises UsageError: they do not fit together, or the id is taken (USAGE)."""
        request = RunRequest.read(options, self._defaults)
        if request.start_at and request.again is None and resumed is None:
            raise UsageError(
                "start_at needs `again`: the run whose other outputs are reused",
                hint="run(what, inputs, again=run_id, start_at=[...])",
            )
        if (name := request.run_id) and (request.has_invalid_id or self._is_used(name, request.keep)):
            raise UsageError(
                f"{name!r} cannot be the id of a new run", hint="use 1 to 100 of A-Z a-z 0-9 _ . - and no id twice"
            )
        return request

    def _is_used(self, run_id: str, is_kept: bool) -> bool:
        return run_id in self.remembered or (is_kept and self.caches.runs.get(run_id) is not None)

    def _take_over_reading(self, run: Run, earlier: str | None) -> None:
        """Record that a run which reuses the answers of an earlier one has read the same untrusted content."""
        if earlier is not None:
            known = self.remembered.get(earlier)
            has_read(run, (known[0].reads or ()) if known is not None else self.caches.runs.sources(earlier))

    async def _about(
        self, run_id: str, workflow: Workflow, caller: CallContext, resumed: ResumedRun | None
    ) -> StoredRun:
        """The stored data of a run that are known before its inputs."""
        if resumed is not None:
            return replace(resumed.stored, masked=())
        who = caller_to_json(caller, self._host, await self._rights.limit(caller))
        return StoredRun(run_id, workflow.id, "running", time.time(), content=workflow.raw, caller=who)

    async def through(self, begun: AdmittedRun) -> RunResult:
        """Run it to its end, record it, and call observers."""
        run, info, recorder = begun.run, begun.info, begun.recorder
        outer = current.get()  # the maker of that call can follow the run and its streams from now on
        self._note(
            WORKFLOW_STARTED,
            {"runId": run.id, "workflow": info.workflow, **run.context.whose()},
            call_id=outer.call_id if outer else "",
        )
        result: RunResult | None = None
        token = current.set(self._frame(run))
        try:
            if recorder is not None:
                await recorder.begin(run)
            result = await run.execute()
        finally:
            current.reset(token)
            self.remembered.ended(run)
            if recorder is not None:
                recorder.end(run, result)
            facts = {
                "runId": run.id,
                "workflow": info.workflow,
                "state": "cancelled" if result is None else result.state,
            }
            took = 0.0 if result is None else round(result.latency_ms, 3)
            errors = [error.to_json() for error in run.errors[:20]]
            self._note(WORKFLOW_FINISHED, {**facts, "latencyMs": took, "errors": self._mask(errors)})
        result = replace(
            result,
            outputs=redacted_outputs(result.outputs, self._known_secrets.values),
            untrusted=tuple(run.reads or ()),
        )
        if observers := self._hooks.of("tavern_after_workflow"):
            run_info = RunInfo(run.id, info.workflow, info.principal, result.state)
            await self._calls.notify(observers, {"run": run_info, "outputs": dict(result.outputs)})
        return result

    def _frame(self, run: Run) -> FixedFrame:
        """The caller for services in node code: that of the run; without one, that of the call in which it started."""
        outer = current.get() or FixedFrame()
        caller = outer.caller if run.context is self._host else run.context
        return FixedFrame(outer.depth, outer.deadline, caller, outer.call_id, run)

    async def _changed(
        self, inputs: Mapping[str, Any], log: RunEventLog, info: RunInfo, prepared: PreparedPlan
    ) -> tuple[dict[str, Any], bool]:
        """The inputs after the `tavern_before_workflow` hooks, and whether they changed any."""
        private_inputs, implementations = dict(inputs), self._hooks.of("tavern_before_workflow")
        if not implementations or any(
            map(nesting_mismatch, private_inputs.values())
        ):  # such a value is refused, with or without hooks
            return private_inputs, False
        private_inputs, changes = await self._calls.change_inputs(
            implementations, {"run": info}, private_inputs, f"workflow {info.workflow or 'without a name'}"
        )
        for change in changes:
            log.add("changed", "", {"plugin": change.plugin, "inputs": change.changed})
            self._record_change(change, info, prepared)
        return private_inputs, bool(changes)

    def _record_change(self, change: CallChange, info: RunInfo, prepared: PreparedPlan) -> None:
        """Log what a plugin changed, masked by the interface and, in the call of a tool, by its parameters."""
        outer = current.get()
        call = outer.reader if outer else None
        of_interface = compile_redactor(
            workflow_schema(prepared.plan.inputs), known_secrets=lambda: self._known_secrets.values
        )
        of_call = call.plan.redact if isinstance(call, RunningCall) and call.plan is not None else None
        self._recorder.changed(
            WORKFLOW_CHANGED,
            {"runId": info.run_id, "workflow": info.workflow, "plugin": change.plugin, "inputs": change.changed},
            change._replace(before={"inputs": _as_json(change.before)}, after={"inputs": _as_json(change.after)}),
            of_interface if of_call is None else lambda value: of_interface(of_call(value)),
            call_id=outer.call_id if outer else "",
        )

    def _earlier(
        self, again: str | None, caller: CallContext, prepared: PreparedPlan, start_at: Any, resumed: ResumedRun | None
    ) -> EarlierResults | None:
        """The answers of an earlier run, or of this one before it is resumed. Raises PolicyDenied: they belong to another caller."""
        if resumed is not None:
            again = resumed.stored.run_id
        if again is None:
            return None
        lost: Mapping[str, str] | None
        known = self.remembered.get(again)
        if known is not None and (resumed is None or known[0].times_taken_up == resumed.stored.times_taken_up - 1):
            steps, lost, owner = dict(known[1].steps), None, known[0].context
        else:
            stored = self.caches.runs.find(again)
            steps, lost = self.caches.runs.steps(again)
            owner = caller if caller is self._host else caller_from_json(again, stored.caller, 0, self._host)
        if resumed is None and caller is not self._host:
            judge_owner(again, owner, caller, self._host)
        names = {start_at} if isinstance(start_at, str) else set(start_at)
        for name in names:
            if prepared.plan.step(name.partition("/")[0]) is None:
                ids = [step.id for step in prepared.plan.steps]
                raise UsageError(
                    f"the workflow has no node {name!r}",
                    hint=did_you_mean(name, ids) or f"nodes: {', '.join(ids[:20])}",
                )
        return EarlierResults(
            steps, names if resumed is None else names | resumed.anew, lost, is_same=resumed is not None
        )


def _as_json(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs for the log; of a value that is not JSON, its type."""
    return {key: json_or(inputs[key], f"<{type(inputs[key]).__name__}>") for key in sorted(inputs)}


def _chosen(inputs: Mapping[str, Any], info: RunInfo, prepared: PreparedPlan) -> dict[str, Any]:
    """The inputs in the form of the interface. Raises InputInvalid: the workflow has no such input (INPUT_SCHEMA_INVALID)."""
    known = prepared.plan.inputs
    if unknown := [key for key in inputs if key not in known]:
        raise InputInvalid(
            f"workflow {info.workflow or 'without a name'} has no input {' or '.join(map(repr, unknown[:10]))}",
            hint=did_you_mean(unknown[0], known) or f"inputs: {', '.join(known) or 'none'}",
            problems=[{"pointer": f"/{key}", "message": "unknown input"} for key in unknown],
        )
    return {key: chosen(known[key], value) for key, value in inputs.items()}


def _check_inputs(prepared: PreparedPlan, inputs: Mapping[str, Any], info: RunInfo) -> None:
    """Check the inputs. Raises InputInvalid: some are missing or do not fit the interface (INPUT_SCHEMA_INVALID)."""
    try:
        interface_values(prepared, inputs)
    except MismatchedInput as error:
        slots = prepared.plan.inputs
        found = {
            key: why
            for key, slot in slots.items()
            if not slot.is_stream and (why := input_mismatch(slot, inputs.get(key, slot.default)))
        } or {error.slot: error.why}  # a stream
        defaults = [key for key in found if key not in inputs and slots[key].default is not ABSENT]
        messages = [f"{'the default of ' * (key in defaults)}input {key!r} {why}" for key, why in found.items()]
        raise InputInvalid(
            f"workflow {info.workflow or 'without a name'}: {'; '.join(messages)}",
            hint=f"give {', '.join(defaults)}, or correct interfaceInputs"
            if defaults
            else f"inputs: {', '.join(slots)}",
            problems=[{"pointer": f"/{key}", "message": why} for key, why in found.items()],
        ) from None


def _specs(prepared: PreparedPlan) -> Iterator[NodeSpec]:
    """Every node type in a plan and in its groups, each once."""
    visited: set[int] = set()
    types: set[str] = set()
    stack = [prepared]
    while stack:
        each = stack.pop()
        if id(each) in visited:
            continue
        visited.add(id(each))
        stack.extend(each.inner.values())
        for work in each.works:
            if work.step.type not in types:
                types.add(work.step.type)
                yield work.step.spec
