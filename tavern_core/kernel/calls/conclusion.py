"""The end of a call: secrets removed from its result, the record in the log, and what observers get."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace

from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.calls.running_call import RunningCall, begin, of_request
from tavern_core.kernel.calls.taint_tracking import mark_sources
from tavern_core.kernel.catalogue.call_plan import CallPlan
from tavern_core.kernel.execution.sync_async_drivers import ExecutionMode
from tavern_core.kernel.hooks.hook_calls import HookCalls
from tavern_core.kernel.log.call_changes import CallChange
from tavern_core.kernel.log.recorder import DENIALS, Recorder
from tavern_core.kernel.settings.result_redaction import redact_result
from tavern_core.kernel.settings.secret_masking import KnownSecrets
from tavern_core.model.call import CallContext, ToolCall
from tavern_core.model.event import Event
from tavern_core.model.result import ToolResult
from tavern_core.schema.redact import compile_redactor, named_secrets


@dataclass(frozen=True, slots=True)
class Conclusion:
    """Ends calls. Holds no state of a call."""

    hooks: HookCalls
    recorder: Recorder
    secrets: KnownSecrets
    series: str
    """Start of the call ids of this host."""
    numbers: itertools.count[int]

    def redacted(self, call: RunningCall, result: ToolResult) -> ToolResult:
        """The result without known secrets, and without arguments that a schema or a name marks as secret."""
        known, plan = self.secrets.values, call.plan
        marked = plan.arguments.marked(call.values) if plan is not None and plan.arguments.marked is not None else ()
        if result.error is not None:
            return redact_result(result, [*known, *marked], named_secrets([call.arguments, call.values]))
        return redact_result(result, [*known, *marked]) if known or marked else result

    def record_beginning(self, plan: CallPlan, call: RunningCall) -> Event | None:
        """Record the beginning of a call before its tool runs; return the event if a plugin observes it."""
        assert call.call is not None
        call.is_recorded = True
        wanted = bool(plan.hooks.events)
        return self.recorder.called(call.call, plan.redact, call.changes or (), plan.spec.plugin, wanted=wanted)

    async def finish(self, plan: CallPlan, call: RunningCall, result: ToolResult, mode: ExecutionMode) -> ToolResult:
        """Call the result hooks, record the end, notify observers."""
        asked = call.call = call.call or self._refused_call(call, result)
        made: Sequence[CallChange] = ()
        if plan.hooks.transforms:
            fits = plan.answers.accepts if plan.answers.apply_to(result) else None
            try:
                result, made = await self.hooks.change_result(plan.hooks.transforms, asked, result, fits, mode)
            except BaseException:  # Ctrl-C, or the caller's own task is being cancelled
                self.record(call, result)
                raise
            result = mark_sources(call, redact_result(result, self.secrets.values))
        for event in self.record(call, result, made):
            await self.hooks.notify(plan.hooks.events, {"event": event}, mode)
        if plan.hooks.after:
            await self.hooks.notify(plan.hooks.after, {"call": asked, "result": result}, mode)
        return result

    def record(self, call: RunningCall, result: ToolResult, made: Sequence[CallChange] = ()) -> Sequence[Event]:
        """Record the end of a call.

        Args:
            made: the changes that plugins made to the result.

        Returns:
            The events for the observers of the tool.
        """
        plan, asked, recorder = call.plan, call.call, self.recorder
        is_wanted = call.is_recorded or recorder.is_on or (plan is not None and plan.hooks.events)
        if not is_wanted or (asked is None and result.ok):
            return ()
        asked = asked or self._refused_call(call, result)
        if plan is None:  # there is no such tool: the name is as the caller wrote it
            redact, plugin = compile_redactor(known_secrets=self.secrets.values), ""
            asked = replace(asked, tool=redact(asked.tool))
        else:
            redact, plugin = plan.redact, plan.spec.plugin
        wanted = plan is not None and bool(plan.hooks.events)
        changes = () if call.is_recorded or call.changes is None else call.changes
        if result.error is not None and result.error.kind in DENIALS:
            denied = recorder.denied(asked, result, redact, plugin, changes)
            finished = recorder.finished(asked, result, redact, plugin, is_recorded=True, changes=made, wanted=wanted)
            return (denied,) if finished is None else (denied, finished)
        all_changes = (*changes, *made)
        is_known = call.is_recorded
        finished = recorder.finished(
            asked, result, redact, plugin, is_recorded=is_known, changes=all_changes, wanted=wanted
        )
        return () if finished is None else (finished,)

    def refused(self, written: str, context: CallContext | None, result: ToolResult, door: str) -> ToolResult:
        """Record a call that was refused before the pipeline: an invalid block of text."""
        result = redact_result(result, self.secrets.values)
        result = result.replace(trace=(written or "(no command)", next(self.numbers), time.time(), 0.0, self.series))
        call = of_request(begin(0), written, None, context, door=door)
        call.call = self._refused_call(call, result)
        self.record(call, result)
        return result

    def _refused_call(self, call: RunningCall, result: ToolResult) -> ToolCall:
        """For the record: a ToolCall for a call that was refused before it had one."""
        context = call.context or CallContext(principal="host")
        return ToolCall(call.name, {}, context, result.call_id, call.purpose, call.key, door=call.door)
