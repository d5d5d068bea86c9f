"""Calling hooks and other code of plugins: within the time limit, timed, their errors caught; one after the other in chains.

    guards fail closed:     an error or a time-out of a gate or a before-hook denies the call and names the plugin
    observers fail open:    their errors are diagnostics
    chains:                 each implementation gets a copy of the previous one's result; a denial is final; the result is
                            checked again: by the schemas, and by what a hook may change

No plugin gets an object of the host or of another plugin: arguments, results and events are copied first.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tavern_core.contract.decisions import Deny, RequireApproval
from tavern_core.errors import CallError, InputInvalid, PolicyDenied, SettingsInvalid
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.execution.sync_async_drivers import ExecutionMode, TimeLimit, cancellations
from tavern_core.kernel.hooks.argument_copies import ToolSnapshot, copy_for_plugin, copy_json
from tavern_core.kernel.hooks.quarantine import HookPaused, HookQuarantine
from tavern_core.kernel.hooks.table import HookImplementation
from tavern_core.kernel.log.call_changes import CallChange
from tavern_core.model.call import ToolCall
from tavern_core.model.result import ToolResult, contradiction, failure
from tavern_core.model.safe_printing import printed, said
from tavern_core.schema.bounded_json_copying import json_copy
from tavern_core.schema.secret_scanning import redact_text


class RequestedApproval(NamedTuple):
    """The approval of a call that a gate or a rule requests."""

    by: str
    """The plugin of the gate, or the place of the rule."""
    reason: str
    details: Mapping[str, Any] = {}


class HookCalls:
    """Runs plugin code on behalf of the pipeline, the lifecycle and the settings.

    Args:
        seconds: time limit of one implementation.
        diagnostics: gets errors of observers and dropped changes.
        quarantine: pauses implementations that failed too often.
    """

    def __init__(self, seconds: float, diagnostics: Diagnostics, quarantine: HookQuarantine) -> None:
        self._seconds = seconds
        self._diagnostics = diagnostics
        self.quarantine = quarantine

    async def notify(
        self, implementations: Iterable[HookImplementation], values: Mapping[str, Any], mode: ExecutionMode
    ) -> None:
        """Call observers, each with copies of its own; their errors are diagnostics."""
        for impl in implementations:
            try:
                if impl.timing.is_watched:
                    self.quarantine.check(impl)
                await self._run(impl, {name: copy_for_plugin(value) for name, value in values.items()}, mode)
                if impl.timing.is_watched:
                    self.quarantine.worked(impl)
            except HookPaused:
                continue
            except Exception as error:  # noqa: BLE001 - whatever a plugin raises
                self._report_failure(impl, error, "no other code was affected")

    async def call_one(self, impl: HookImplementation, values: Mapping[str, Any], mode: ExecutionMode) -> Any:
        """Call one implementation; its error is raised, and TimeLimit becomes a TimeoutError that names it."""
        try:
            return await self._run(impl, values, mode)
        except TimeLimit:
            raise TimeoutError(
                f"{impl.hook.name} of {impl.plugin} took longer than {self._seconds:g} s (limits.hookTimeoutMs)"
            ) from None

    async def work(self, what: str, function: Callable[..., Any], *args: Any, mode: ExecutionMode) -> Any:
        """Run code of a plugin that is not a hook (the start of a service, a factory), within the time limit of hooks.

        Raises:
            TimeoutError: it took longer; names `what`. Its own errors pass through.
        """
        try:
            return await self._bounded(what, function, args, mode, what)
        except TimeLimit:
            raise TimeoutError(f"{what} took longer than {self._seconds:g} s (limits.hookTimeoutMs)") from None

    async def _run(self, impl: HookImplementation, values: Mapping[str, Any], mode: ExecutionMode) -> Any:
        began = time.perf_counter()
        failed = True
        try:
            args = impl.bind(values)
            if impl.fast and not impl.is_async:
                answer = _at_once(impl, args)
                if answer is not None and inspect.isawaitable(answer):
                    answer = await self._bounded(impl.hook.name, _itself, (answer,), mode, impl.plugin, fast=True)
            else:
                answer = await self._bounded(impl.hook.name, impl.function, args, mode, impl.plugin, fast=impl.fast)
            failed = False
            return answer
        finally:
            timing = impl.timing
            timing.count += 1
            timing.failures += failed
            timing.seconds += time.perf_counter() - began

    async def _bounded(
        self,
        what: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        mode: ExecutionMode,
        plugin: str,
        *,
        fast: bool = False,
    ) -> Any:
        """Run plugin code, sync or async, for at most the time limit. Any error arrives as an Exception.

        A plugin that calls sys.exit() or raises CancelledError must end neither the host nor the caller's task; a
        KeyboardInterrupt and the cancellation of the caller itself pass.
        """
        before = cancellations()
        try:
            if fast or inspect.iscoroutinefunction(function):
                answer = function(*args)
            else:
                answer = await mode.guarded(function, *args, seconds=self._seconds, owner=(plugin, what))
            return await mode.awaited(answer, self._seconds) if inspect.isawaitable(answer) else answer
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and cancellations() > before:
                raise
            raise RuntimeError(f"{what} raised {type(error).__name__}") from error

    async def guard(self, impl: HookImplementation, values: Mapping[str, Any], mode: ExecutionMode, tool: str) -> Any:
        """Call a guard; raises PolicyDenied for a denial and for anything that goes wrong."""
        try:
            if impl.timing.is_watched:
                self.quarantine.check(impl)
            answer = await self._run(impl, values, mode)
        except HookPaused as paused:
            raise self._paused_error(paused, tool) from None
        except TimeLimit:
            self.quarantine.failed(impl, f"took longer than {self._seconds:g} s")
            raise PolicyDenied(
                f"{tool} was refused: {impl.hook.name} of {impl.plugin} took longer than {self._seconds:g} s (limits.hookTimeoutMs)",
                hint=f"tavern plugins disable {impl.plugin}",
                plugin=impl.plugin,
            ) from None
        except CallError as error:  # a way to say no, not a failure
            if impl.timing.is_watched:
                self.quarantine.worked(impl)
            raise PolicyDenied(
                f"{tool} was refused by {impl.plugin}: {_own(impl, error.message)}",
                hint=_own(impl, error.hint),
                **{**facts(error.details), "plugin": impl.plugin},
            ) from error
        except Exception as error:
            self.quarantine.failed(impl, f"failed with {printed(error)}")
            raise PolicyDenied(
                f"{tool} was refused: {impl.hook.name} of {impl.plugin} failed with {printed(error)}",
                hint=f"see {impl.where}; tavern plugins disable {impl.plugin}",
                plugin=impl.plugin,
            ) from error
        if impl.timing.is_watched:
            self.quarantine.worked(impl)
        if isinstance(answer, Deny):
            raise PolicyDenied(
                f"{tool} was refused by {impl.plugin}: {_own(impl, answer.reason)}",
                hint=_own(impl, answer.hint),
                **{**facts(answer.details), "plugin": impl.plugin},
            )
        return answer

    def _paused_error(self, paused: HookPaused, tool: str) -> PolicyDenied:
        rest = paused.rest
        return PolicyDenied(
            f"{tool} was refused: {rest.summary}",
            hint=f"see {rest.where}; correct it and `tavern plugins reload {rest.plugin}`, or `tavern plugins disable {rest.plugin}`",
            plugin=rest.plugin,
            quarantinedUntil=rest.until,
        )

    def _report_failure(self, impl: HookImplementation, error: Exception, consequence: str) -> None:
        what = (
            f"took longer than {self._seconds:g} s (limits.hookTimeoutMs)"
            if isinstance(error, TimeLimit)
            else f"failed with {printed(error)}"
        )
        self.quarantine.failed(impl, what)
        self._diagnostics.add(
            "HOOK_FAILED",
            f"{impl.hook.name} {what}; {consequence}",
            plugin=impl.plugin,
            hint=f"see {impl.where}",
            severity="error",
        )

    # Chains -----------------------------------------------------------------------------------------------------------

    async def change_call(
        self,
        implementations: Iterable[HookImplementation],
        call: ToolCall,
        tool: ToolSnapshot,
        mode: ExecutionMode,
        changes: list[CallChange],
    ) -> ToolCall:
        """Chain `tavern_before_execute`: each gets a copy of what the one before it made.

        Args:
            changes: gets the changes of each plugin, also if one denies in the end.

        Raises:
            PolicyDenied: one denied, failed, took too long, or made a forbidden change (POLICY_DENIED).
            InputInvalid: the arguments after a change are not JSON (INPUT_SCHEMA_INVALID).
        """
        for impl in implementations:
            answer = await self.guard(
                impl, {"call": copy_for_plugin(call), "tool": tool.to(impl.plugin)}, mode, tool.id
            )
            if answer is None:
                continue
            changed = _changed_call(impl, call, answer)
            if changed.arguments != call.arguments or changed.purpose != call.purpose:
                changes.append(CallChange(impl.plugin, _difference(call, changed), _parts(call), _parts(changed)))
                call = changed
        return call

    async def call_gates(
        self, implementations: Iterable[HookImplementation], call: ToolCall, tool: ToolSnapshot, mode: ExecutionMode
    ) -> RequestedApproval | None:
        """Call every gate; a denial is final and wins over a request for approval.

        Returns:
            The first request for approval, if no gate denied.

        Raises:
            PolicyDenied: a gate denied, failed or took too long (POLICY_DENIED).
        """
        requested: RequestedApproval | None = None
        for impl in implementations:
            # Built-in gates are ours and read only; others get a copy, or a gate could change the call.
            is_own = impl.fast and impl.is_builtin
            arguments = {
                "call": call if is_own else copy_for_plugin(call),
                "tool": tool.spec if is_own else tool.to(impl.plugin),
            }
            answer = await self.guard(impl, arguments, mode, tool.id)
            if isinstance(answer, RequireApproval):
                requested = requested or RequestedApproval(impl.plugin, answer.reason, facts(answer.details))
            elif answer is not None:
                raise PolicyDenied(
                    f"{tool.id} was refused by {impl.plugin}: it answered {type(answer).__name__}, not a decision",
                    hint="a gate returns None, deny(...) or require_approval(...)",
                    plugin=impl.plugin,
                )
        return requested

    async def change_result(
        self,
        implementations: Iterable[HookImplementation],
        call: ToolCall,
        result: ToolResult,
        fits: Callable[[Any], bool] | None,
        mode: ExecutionMode,
    ) -> tuple[ToolResult, list[CallChange]]:
        """Chain `tavern_transform_result`; a change that fails or does not fit is dropped with a diagnostic.

        Args:
            fits: whether a value fits the tool's output schema.
        """
        changes: list[CallChange] = []
        for impl in implementations:
            try:
                if impl.timing.is_watched:
                    self.quarantine.check(impl)
                answer = await self._run(impl, {"call": copy_for_plugin(call), "result": copy_for_plugin(result)}, mode)
            except HookPaused:
                continue
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                self._report_failure(impl, error, "its change was dropped")
                continue
            if isinstance(answer, Deny):
                answer = _withheld(impl, call, result, answer)
            if answer is not None and (why := _why_not(answer, result, fits)):
                self._report_failure(impl, ValueError(why), "its change was dropped")
                continue
            if impl.timing.is_watched:
                self.quarantine.worked(impl)
            if answer is None:
                continue
            changed = _changed_result(result, answer)
            before, after = result_parts(result), result_parts(changed)
            if before != after:
                names = ", ".join(name for name in after if before[name] != after[name])
                changes.append(CallChange(impl.plugin, names, before, after))
            result = changed
        return result, changes

    async def change_settings(
        self, implementations: Iterable[HookImplementation], changes: Mapping[str, Any], mode: ExecutionMode
    ) -> Mapping[str, Any]:
        """Chain `tavern_before_save_settings`.

        Raises:
            SettingsInvalid: one refused, failed or took too long (SETTINGS_INVALID).
        """
        for impl in implementations:
            try:
                answer = await self.guard(impl, {"changes": copy_json(dict(changes))}, mode, "the change")
            except PolicyDenied as denied:
                raise SettingsInvalid(f"not saved: {denied.message}", hint=denied.hint, plugin=impl.plugin) from denied
            if isinstance(answer, Mapping) and all(isinstance(key, str) for key in answer):
                changes = copy_json(dict(answer))
            elif answer is not None:
                raise SettingsInvalid(
                    f"not saved: {impl.plugin} answered {type(answer).__name__}",
                    hint="return changes, deny(...) or None",
                )
        return changes


def _changed_call(impl: HookImplementation, call: ToolCall, answer: Any) -> ToolCall:
    if isinstance(answer, ToolCall):
        if replace(answer, arguments=call.arguments, purpose=call.purpose) != call:
            raise PolicyDenied(
                f"{call.tool} was refused: {impl.plugin} tried to change more than the arguments and the purpose",
                hint=f"see {impl.where}",
                plugin=impl.plugin,
            )
        answer, purpose = answer.arguments, answer.purpose
    else:
        purpose = call.purpose
    if not isinstance(answer, Mapping):
        raise PolicyDenied(
            f"{call.tool} was refused: {impl.plugin} answered {type(answer).__name__} from tavern_before_execute",
            hint="return a changed ToolCall, a mapping of arguments, deny(...) or None",
            plugin=impl.plugin,
        )
    arguments, problem = json_copy(answer)
    if problem is not None:
        raise InputInvalid(
            f"{call.tool}: {problem} (the arguments were changed by {impl.plugin})",
            hint=problem.hint,
            problems=[problem.to_json()],
            changedBy=[impl.plugin],
        )
    return replace(call, arguments=arguments, purpose=purpose)


def _parts(call: ToolCall) -> dict[str, Any]:
    return {"arguments": call.arguments, "purpose": call.purpose}


def result_parts(result: ToolResult) -> dict[str, Any]:
    """The parts of a result that a hook may change, as plain JSON."""
    error = result.error
    return {
        "ok": result.ok,
        "value": result.value,
        "content": [dict(block) for block in result._content],
        "error": None if error is None else {"kind": error.kind, "message": error.message},
        "status": result.status,
    }


def _difference(old: ToolCall, new: ToolCall) -> str:
    before, after = old.arguments, new.arguments
    names = sorted(k for k in {*before, *after} if (k in before) != (k in after) or before.get(k) != after.get(k))
    return ", ".join([*map(str, names), *(["purpose"] if old.purpose != new.purpose else [])])


def _why_not(answer: Any, result: ToolResult, fits: Callable[[Any], bool] | None) -> str:
    """Why the answer of a result hook cannot be used; empty if it can."""
    if not isinstance(answer, ToolResult):
        return f"it answered {type(answer).__name__}, not a ToolResult"
    if answer.ok and not result.ok:
        return "a failure cannot be turned into a success"
    if why := contradiction(answer):
        return f"its result contradicts itself: {why}"
    if not answer.ok and answer.error is None:
        return "its result contradicts itself: ok is False, the error None"
    if (problem := json_copy([answer.value, [dict(b) for b in answer._content], answer._meta])[1]) is not None:
        return f"the changed result is not JSON: {problem}"
    if answer.ok and fits is not None and not fits(answer.value):
        return "the changed value does not fit the tool's output schema"
    return ""


def _withheld(impl: HookImplementation, call: ToolCall, result: ToolResult, denial: Deny) -> ToolResult:
    """The result of a call whose answer a hook withholds from its caller: effects of the call remain."""
    error = PolicyDenied(
        f"the answer of {call.tool} was withheld by {impl.plugin}: {said(denial.reason)}",
        hint=denial.hint,
        outcome="done" if result.error is None else result.error.outcome,
        **{**facts(denial.details), "plugin": impl.plugin, "stage": "transform_result"},
    )
    return failure(error)


def _changed_result(result: ToolResult, answer: ToolResult) -> ToolResult:
    """The parts of a result that a hook may change; its origin stays."""
    if result.ok and not answer.ok:
        return result.replace(ok=False, value=None, content=(), error=answer.error, status=answer.status)
    copy = copy_for_plugin(answer)
    return result.replace(
        value=copy.value,
        content=copy._content,
        evidence=copy._evidence,
        meta=copy._meta,
        error=copy.error,
        status=copy.status,
    )


def _at_once(impl: HookImplementation, args: Sequence[Any]) -> Any:
    """`HookCalls._bounded` for a sync function that never blocks: while it runs, no one can cancel its caller."""
    try:
        return impl.function(*args)
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise RuntimeError(f"{impl.hook.name} raised {type(error).__name__}") from error


def _itself(answer: Any) -> Any:
    return answer


def facts(details: Mapping[str, Any]) -> dict[str, Any]:
    """Details without the names that an error's constructor takes itself."""
    taken = {"message", "hint", "retryable", "outcome", "retry_after_ms", "findings", "plugin", "tool"}
    return {str(k): v for k, v in details.items() if k not in taken}


def _own(impl: HookImplementation, text: str) -> str:
    """A message of a plugin without secrets; those of the host's own plugins are not redacted."""
    return text if impl.is_builtin else redact_text(text)
