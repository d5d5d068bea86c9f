"""An open host: its parts, and operations on several of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from tavern_core.contract.stores import RecordStore
from tavern_core.errors import CallError, CallMisused, TavernError, UsageError
from tavern_core.flow.composition import WorkflowServices
from tavern_core.frozen_dataclass import dataclass
from tavern_core.isolation.placement import Isolation
from tavern_core.kernel.calls.compiler import Compiler
from tavern_core.kernel.calls.pipeline import CallMode, Pipeline
from tavern_core.kernel.catalogue.limit_status import HostLimits
from tavern_core.kernel.catalogue.tool_catalogue import ToolCatalogue
from tavern_core.kernel.execution.portal import COPIED_HINT, fork_problem
from tavern_core.kernel.execution.sync_async_drivers import ExecutionMode
from tavern_core.kernel.foundation import Foundation
from tavern_core.kernel.jobs.jobs import Jobs
from tavern_core.kernel.jobs.running_jobs import RunningJobs
from tavern_core.kernel.plugins.consent import Consent
from tavern_core.kernel.plugins.decision_watch import DecisionWatch
from tavern_core.kernel.plugins.host_registries import HostRegistries
from tavern_core.kernel.plugins.lazy_contribution_lookup import LazyContributions
from tavern_core.kernel.plugins.lifecycle import Lifecycle
from tavern_core.kernel.plugins.plugins import Plugins
from tavern_core.kernel.plugins.reconciler import Activate, Reconciler
from tavern_core.kernel.plugins.skill_catalogue import Skills
from tavern_core.kernel.state import State
from tavern_core.knowledge.knowledge import KnowledgeBases
from tavern_core.model.call import CallContext
from tavern_core.model.result import ToolResult, failure
from tavern_core.model.text_call import TextOutcome
from tavern_core.observability.metrics import Metrics
from tavern_core.upstreams.composition import UpstreamsOnDemand

if TYPE_CHECKING:
    from tavern_core.kernel.browser_assets import Extension


@dataclass(frozen=True, slots=True)
class OutsideCall:
    """A call from another entry point than the API; see `Tavern.invoke_from`."""

    door: str
    tool: str
    arguments: Mapping[str, Any] | None
    context: CallContext | None
    purpose: str
    timeout_ms: int | None
    key: str | None
    dry_run: bool
    job: bool
    trace: bool


_InvokeText = Callable[[str, Mapping[str, Any], CallContext | None, str | None], Coroutine[Any, Any, ToolResult]]


@dataclass(frozen=True, slots=True)
class _TextCaller:
    """Makes the calls of a text (`text_call_runner.TextCaller`)."""

    pipeline: Pipeline
    mode: ExecutionMode
    invoke: _InvokeText

    async def preview_call(
        self, tool: str, arguments: Mapping[str, Any], context: CallContext | None, earlier: int, key: str | None
    ) -> CallError | None:
        return await self.pipeline.call_preview.preview_call(self.mode, tool, arguments, context, earlier, key)

    def refused(self, command: str, context: CallContext | None, result: ToolResult) -> ToolResult:
        return self.pipeline.conclusion.refused(command, context, result, "tam")


@dataclass(frozen=True, slots=True)
class PluginManagement:
    """Management of plugins: which ones exist, which may be used, and which are active."""

    lifecycle: Lifecycle
    reconciler: Reconciler
    consent: Consent
    statuses: Plugins
    """`tavern.plugins`."""
    skills: Skills
    sections: LazyContributions
    decisions: DecisionWatch


@dataclass(frozen=True, slots=True)
class CallServices:
    """The services that make calls: immediate and background calls, and their limits."""

    pipeline: Pipeline
    jobs: Jobs
    running_jobs: RunningJobs
    limits: HostLimits
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Host:
    """The parts of one host, as `composition.compose` built them."""

    plugins: PluginManagement
    catalogue: ToolCatalogue
    state: State
    calls: CallServices
    flow: WorkflowServices
    upstreams: UpstreamsOnDemand
    isolation: Isolation
    knowledge: KnowledgeBases

    @property
    def tables(self) -> HostRegistries:
        """The contributions of plugins."""
        return self.plugins.lifecycle.tables

    @property
    def base(self) -> Foundation:
        """The parts that all others use."""
        return self.tables.base

    @property
    def compiler(self) -> Compiler:
        """Finds tools, and compiles the path of their calls."""
        return self.calls.pipeline.compiler

    async def start(self, activate: Activate) -> None:
        """Activate plugins that must be active from the start. Workflows become tools at the first use of tools."""
        self.isolation.sandboxes.work.sweep()
        await self.plugins.reconciler.start(activate)
        if self.base.config.workflows.as_tools:
            self.flow.tools.list(self.plugins.lifecycle.records["core-flows"].rank)
        if activate != "none":
            self.plugins.decisions.start()

    async def close(self) -> None:
        """End all runs, stop all plugins."""
        self.plugins.decisions.close()
        await self.flow.workflows.leave(self.calls.running_jobs.leave())
        await self.calls.running_jobs.close()
        await self.flow.workflows.close()
        await self.upstreams.leave()
        await self.plugins.lifecycle.close()

    def become_copy(self, owner: int) -> None:
        """In a forked child: all use of the host is refused, its store included, because it belongs to process `owner`."""
        self.base.become_copy(owner)

        def refuse(*_: Any, **__: Any) -> NoReturn:
            raise UsageError(fork_problem(owner), hint=COPIED_HINT)

        for name in (name for name in vars(RecordStore) if not name.startswith("_")):
            setattr(self.state.records, name, refuse)
        self.flow.workflows.become_copy()

    def release(self) -> None:
        """Release processes, threads and files."""
        self.isolation.release()
        self.isolation.sandboxes.release()
        self.base.release()
        pipeline = self.calls.pipeline
        pipeline.approvals.close()
        pipeline.compiler.cancellation.close()
        pipeline.governance.idempotency.close()
        self.state.records.close()
        self.knowledge.close()
        if self.base.log is not None:
            self.base.log.close()

    def extensions(self) -> list[Extension]:
        """The browser contributions of usable plugins."""
        from tavern_core.kernel.browser_assets import extension

        return [
            extension(record.candidate.origin.manifest(), record.candidate.folder, record.may)
            for record in self.plugins.lifecycle.records.values()
            if record.usable and not record.candidate.fixed_id
        ]

    async def invoke_from(self, call: OutsideCall) -> ToolResult:
        """Make a call from another entry point than the API; see `Tavern.invoke_from`."""
        context, timeout_ms = call.context, call.timeout_ms
        if not isinstance(call.door, str):
            text = f"the door of a call is text, got {type(call.door).__name__}"
            return failure(CallMisused(text, hint='door="chat"'))
        if timeout_ms is not None and context is None:
            try:
                context = (await self.compiler.find(call.tool, None)).admission.host
            except TavernError:
                timeout_ms = None  # the call itself reports why there is nothing to call
        if timeout_ms is not None and isinstance(context, CallContext):
            try:
                context = replace(context, budget=replace(context.budget, timeout_ms=timeout_ms))
            except UsageError as error:
                return failure(CallMisused(error.message))
        steps: list[tuple[str, float]] | None = [] if call.trace else None
        phase = None
        if call.dry_run or call.job or call.trace:
            phase = CallMode(is_dry=call.dry_run, is_job=call.job and not call.dry_run, steps=steps)
        result = await self.calls.pipeline.run(
            self.base.mode, call.tool, call.arguments, context, call.purpose, call.key, call.door, phase
        )
        if steps is None:
            return result
        end_times = [*(began for _, began in steps[1:]), time.perf_counter()]
        timed = [
            {"step": name, "ms": round((end - began) * 1000, 4)}
            for (name, began), end in zip(steps, end_times, strict=True)
        ]
        return result.replace(meta={**(result._meta or {}), "trace": timed})

    async def commit(
        self,
        token: str,
        arguments: Mapping[str, Any] | None,
        context: CallContext | None,
        purpose: str,
        key: str | None,
        door: str,
        tool: str | None = None,
    ) -> ToolResult:
        """Make the planned call; see `Tavern.commit`."""
        pipeline, mode = self.calls.pipeline, self.base.mode
        try:
            planned = await pipeline.plans.find(token, context, mode, key)
            if tool is not None and (meant := (await self.compiler.find(tool, context)).id) != planned.tool:
                raise CallMisused(
                    f"the plan token is for {planned.tool}, not for {meant}", hint=f"commit {planned.tool}"
                )
            if planned.arguments is None and arguments is None:
                raise CallMisused(
                    f"{planned.tool}: the arguments of the plan held secrets and were not stored",
                    hint="pass the same arguments again: commit(token, arguments)",
                )
        except CallError as error:
            return failure(error)
        values = planned.arguments if arguments is None else arguments
        return await pipeline.run(mode, planned.tool, values, context, purpose, key, door, CallMode(token=token))

    async def run_text(self, text: str, context: CallContext | None, invoke: _InvokeText) -> TextOutcome:
        """Run the blocks in a text; see `Tavern.run_text`.

        Args:
            invoke: makes one call, as long as the host is open.
        """
        from tavern_core.kernel.calls.text_call_runner import Transcript

        config = self.base.config
        caller = _TextCaller(self.calls.pipeline, self.base.mode, invoke)
        return await Transcript(self.catalogue.tools, self.compiler, config.tam, caller, config.language).run(
            text, context
        )
