"""Dry runs, and refusals that can be known before a call is made."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tavern_core.errors import CallError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.calls.approvals import Approvals, definition_of
from tavern_core.kernel.calls.call_preparation import admit, check_rule, give_copy, tool_call
from tavern_core.kernel.calls.compiler import Compiler
from tavern_core.kernel.calls.plan_tokens import PlanTokens
from tavern_core.kernel.calls.result_normalisation import to_result
from tavern_core.kernel.calls.running_call import CallLimits, RunningCall, begin, enter, frame, leave, of_request
from tavern_core.kernel.calls.taint_tracking import has_read, required_approval
from tavern_core.kernel.catalogue.call_plan import CallPlan, Execute
from tavern_core.kernel.execution.sync_async_drivers import ExecutionMode
from tavern_core.kernel.hooks.hook_calls import HookCalls, RequestedApproval
from tavern_core.kernel.hooks.table import HookImplementation
from tavern_core.model.call import CallContext, ToolCall
from tavern_core.model.result import ToolResult, iso_utc, success


@dataclass(frozen=True, slots=True)
class CallPreview:
    """Previews calls without making them. Holds no state of a call."""

    compiler: Compiler
    hooks: HookCalls
    approvals: Approvals
    plans: PlanTokens
    limits: CallLimits
    series: str
    """Start of the call ids of this host."""

    async def planned(self, plan: CallPlan, call: RunningCall, mode: ExecutionMode) -> ToolResult:
        """Preview the call, and issue a token that commits exactly that."""
        context = call.context
        assert context is not None
        asked = call.call or tool_call(plan, call, context, self.series)
        asked = call.call = replace(asked, arguments=call.values or {})
        call.stage = "check_call"
        requested = required_approval(
            plan, call, await self.hooks.call_gates(plan.hooks.gates, asked, plan.hooks.tool_snapshot, mode)
        )
        if (rule := plan.admission.approval) is not None:
            check_rule(plan, rule)
        shown = None if plan.runner.preview is None else await self._preview(plan, call, mode, plan.runner.preview)
        if shown is not None and (error := shown.error) is not None:
            return shown.replace(error=replace(error, details={**error.details, "stage": call.stage}))
        caller_arguments = call.caller_values if call.caller_values is not None else call.values or {}
        token, until = await self.plans.issue(plan, asked, caller_arguments, mode, call.seconds)
        value: dict[str, Any] = {
            "tool": plan.id, "version": plan.spec.version, "definition": definition_of(plan.spec),
            "arguments": plan.redact(call.values or {}), "steps": [step.to_json() for step in plan.steps()],
            "needsApproval": requested is not None or rule is not None, "planToken": token, "expiresAt": iso_utc(until),
        }  # fmt: skip
        if shown is not None:
            value["preview"] = shown.value
        return success(value, call.trace(self.series)).replace(meta={"dryRun": True})

    async def _preview(self, plan: CallPlan, call: RunningCall, mode: ExecutionMode, preview: Execute) -> ToolResult:
        """Run the tool's own preview, within the call: for its caller, until its deadline."""
        call.stage = "preview"
        if plan.content.source:
            has_read(call, (plan.content.source,))
        give_copy(plan, call, self.limits.argument_bytes)
        call.has_begun, entered = True, enter(call)
        try:
            preview_value: Any = preview(call, mode)
            if inspect.isawaitable(preview_value):
                preview_value = await mode.awaited(preview_value, call.seconds)
        finally:
            if frame() is not call.outer:
                leave(entered)
        return to_result(preview_value, call.trace(self.series), self.limits.output_bytes, plan.id)

    def _check_approval(
        self, plan: CallPlan, asked: ToolCall, requested: RequestedApproval | None, *, is_whole: bool
    ) -> None:
        """Check that the call can get the approval that it needs. Raises CallError: it cannot."""
        if (rule := plan.admission.approval) is not None:
            check_rule(plan, rule)
            requested = requested or RequestedApproval(rule.place, rule.reason)
        if requested is not None and is_whole:
            self.approvals.check_possible(plan, asked, requested)

    async def preview_call(
        self,
        mode: ExecutionMode,
        written: str,
        arguments: Mapping[str, Any],
        context: CallContext | None,
        earlier: int,
        key: str | None = None,
        door: str = "tam",
    ) -> CallError | None:
        """Why lists, rights, approval or budget would refuse a planned call; None: no reason is known.

        Only gates of the host are called, as after an approval: gates of plugins may count their calls.

        Args:
            arguments: what an earlier call or a hook may change is unknown; no approval is requested for the rest alone.
            context, key: as for `run`.
            earlier: number of calls before it.
        """
        from tavern_core.tam import Reference  # loaded by what plans calls

        call = of_request(begin(0), written, arguments, context, key=key, door=door)
        try:
            plan = await self.compiler.find(written, context)
            context = admit(plan, call, self.limits.depth, ahead=earlier)
            if plan.admission.guarded or context.profile is not None:
                plan = await self.compiler.admits(plan, context)
            known = {} if plan.hooks.before else {n: v for n, v in arguments.items() if not isinstance(v, Reference)}
            call.values = known if plan.arguments.fill is None else plan.arguments.fill(known)
            asked = tool_call(plan, call, context, self.series)
            requested = required_approval(
                plan, call, await self.hooks.call_gates(own_gates(plan), asked, plan.hooks.tool_snapshot, mode)
            )
            is_whole = not plan.hooks.before and len(known) == len(arguments)
            self._check_approval(plan, asked, requested, is_whole=is_whole)
        except CallError as error:
            return error
        except Exception:  # noqa: BLE001, S110 - the call itself reports it
            pass
        return None


def own_gates(plan: CallPlan) -> tuple[HookImplementation, ...]:
    """The host's own gates, which give the same answer every time."""
    return tuple(gate for gate in plan.hooks.gates if gate.is_builtin)
