"""Running hook implementations: one by one, each isolated, timed, with copies instead of shared objects.

    guards fail closed:     an error or a time-out of a gate or a before-hook denies the call and names the plugin
    observers fail open:    their errors are diagnostics
    a denial is final:      nothing that runs later can undo it
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tavern_core.contract.decisions import Deny, RequireApproval
from tavern_core.errors import ApprovalRequired, CallError, PolicyDenied, SettingsInvalid
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.hook_table import Implementation
from tavern_core.kernel.modes import Mode, TimeLimit
from tavern_core.model.call import ToolCall
from tavern_core.model.result import ToolResult
from tavern_core.model.tool import ToolSpec
from tavern_core.schema.limits import json_copy

Change = tuple[str, str]
"""(plugin, what it changed): recorded with the call."""


class HookCalls:
    """Calls implementations on behalf of the pipeline and the lifecycle.

    Args:
        seconds: time limit of one implementation.
        diagnostics: where errors of observers and dropped changes go.
    """

    def __init__(self, seconds: float, diagnostics: Diagnostics) -> None:
        self._seconds = seconds
        self._diagnostics = diagnostics

    async def change_call(
        self, implementations: Iterable[Implementation], call: ToolCall, tool: ToolSpec, mode: Mode
    ) -> tuple[ToolCall, list[Change]]:
        """Chain `tavern_before_execute`: each gets a copy of what the one before it made.

        Raises:
            PolicyDenied: one denied, failed, took too long, or changed what it may not (POLICY_DENIED).
        """
        changes: list[Change] = []
        for impl in implementations:
            arguments = _copied(call.arguments)
            answer = await self._guard(impl, {"call": replace(call, arguments=arguments), "tool": tool}, mode, tool.id)
            if answer is None:
                continue
            changed = _changed_call(impl, call, answer)
            if changed.arguments != call.arguments or changed.purpose != call.purpose:
                changes.append((impl.plugin, _difference(call, changed)))
                call = changed
        return call, changes

    async def judge(
        self, implementations: Iterable[Implementation], call: ToolCall, tool: ToolSpec, mode: Mode
    ) -> None:
        """Ask every gate; a denial is final, and beats a wish for approval.

        Raises:
            PolicyDenied: a gate denied, failed or took too long (POLICY_DENIED).
            ApprovalRequired: no gate denied, one wants approval (APPROVAL_REQUIRED).
        """
        wish: tuple[str, RequireApproval] | None = None
        for impl in implementations:
            # Built-in gates are ours and read only; everybody else gets a copy, or a gate could change the call.
            shown = call if impl.fast and impl.plugin.startswith("core-") else replace(call, arguments=_copied(call.arguments))
            answer = await self._guard(impl, {"call": shown, "tool": tool}, mode, tool.id)
            if isinstance(answer, RequireApproval):
                wish = wish or (impl.plugin, answer)
            elif answer is not None:
                raise PolicyDenied(
                    f"{tool.id} was refused by {impl.plugin}: it answered {type(answer).__name__}, not a decision",
                    hint="a gate returns None, deny(...) or require_approval(...)",
                    plugin=impl.plugin,
                )
        if wish:
            plugin, approval = wish
            raise ApprovalRequired(
                f"{tool.id} needs approval: {approval.reason}", plugin=plugin, tool=tool.id, **_facts(approval.details)
            )

    async def change_result(
        self,
        implementations: Iterable[Implementation],
        call: ToolCall,
        result: ToolResult,
        fits: Callable[[Any], bool] | None,
        mode: Mode,
    ) -> ToolResult:
        """Chain `tavern_transform_result`; a change that fails or does not fit is dropped with a diagnostic."""
        for impl in implementations:
            shown = result.replace(value=_copied(result.value))
            try:
                answer = await self._run(impl, {"call": call, "result": shown}, mode)
            except Exception as error:  # noqa: BLE001 - whatever a plugin raises
                self._note(impl, error, "its change was dropped")
                continue
            if answer is None:
                continue
            if why := _why_not(answer, result, fits):
                self._note(impl, ValueError(why), "its change was dropped")
                continue
            result = result.replace(
                value=answer.value, content=answer._content, evidence=answer._evidence, meta=answer._meta,
                error=answer.error if not result.ok else None, ok=result.ok and answer.ok,
                status=answer.status,
            ) if answer.ok == result.ok else _failed_by_hook(result, answer)  # fmt: skip
        return result

    async def change_settings(
        self, implementations: Iterable[Implementation], changes: Mapping[str, Any], mode: Mode
    ) -> Mapping[str, Any]:
        """Chain `tavern_before_save_settings`.

        Raises:
            SettingsInvalid: one refused, failed or took too long (SETTINGS_INVALID).
        """
        for impl in implementations:
            try:
                answer = await self._run(impl, {"changes": _copied(dict(changes))}, mode)
            except TimeLimit:
                raise SettingsInvalid(f"not saved: {impl.plugin} took longer than {self._seconds:g} s") from None
            except Exception as error:
                raise SettingsInvalid(f"not saved: {impl.plugin} failed with {error!r}", hint=f"see {impl.where}") from error
            if isinstance(answer, Deny):
                raise SettingsInvalid(f"not saved: {impl.plugin} refused: {answer.reason}", hint=answer.hint, plugin=impl.plugin)
            if isinstance(answer, Mapping):
                changes = answer
            elif answer is not None:
                raise SettingsInvalid(
                    f"not saved: {impl.plugin} answered {type(answer).__name__}", hint="return changes, deny(...) or None"
                )
        return changes

    async def tell(self, implementations: Iterable[Implementation], values: Mapping[str, Any], mode: Mode) -> None:
        """Call observers; their errors are diagnostics."""
        for impl in implementations:
            try:
                await self._run(impl, values, mode)
            except Exception as error:  # noqa: BLE001 - whatever a plugin raises
                self._note(impl, error, "nothing else was affected")

    async def ask(self, impl: Implementation, values: Mapping[str, Any], mode: Mode) -> Any:
        """Call one implementation and let its error through; TimeLimit becomes a TimeoutError that names it."""
        try:
            return await self._run(impl, values, mode)
        except TimeLimit:
            raise TimeoutError(f"{impl.hook.name} of {impl.plugin} took longer than {self._seconds:g} s") from None

    async def _guard(self, impl: Implementation, values: Mapping[str, Any], mode: Mode, tool: str) -> Any:
        """One answer of a guard; raises PolicyDenied for a denial and for anything that goes wrong."""
        try:
            answer = await self._run(impl, values, mode)
        except TimeLimit:
            raise PolicyDenied(
                f"{tool} was refused: {impl.hook.name} of {impl.plugin} took longer than {self._seconds:g} s",
                hint=f"tavern plugins disable {impl.plugin}",
                plugin=impl.plugin,
            ) from None
        except CallError as error:
            raise PolicyDenied(
                f"{tool} was refused by {impl.plugin}: {error.message}", hint=error.hint, plugin=impl.plugin, **error.details
            ) from error
        except Exception as error:
            raise PolicyDenied(
                f"{tool} was refused: {impl.hook.name} of {impl.plugin} failed with {error!r}",
                hint=f"see {impl.where}; tavern plugins disable {impl.plugin}",
                plugin=impl.plugin,
            ) from error
        if isinstance(answer, Deny):
            raise PolicyDenied(
                f"{tool} was refused by {impl.plugin}: {answer.reason}",
                hint=answer.hint,
                **{**_facts(answer.details), "plugin": impl.plugin},
            )
        return answer

    async def work(self, what: str, function: Callable[..., Any], *args: Any, mode: Mode) -> Any:
        """Run code of a plugin that is no hook (the start of a service, a factory), within the time limit of hooks.

        Raises:
            TimeoutError: it took longer; names `what`. Its own errors pass through.
        """
        try:
            return await self._bounded(what, function, args, mode)
        except TimeLimit:
            raise TimeoutError(f"{what} took longer than {self._seconds:g} s") from None

    async def _run(self, impl: Implementation, values: Mapping[str, Any], mode: Mode) -> Any:
        began = time.perf_counter()
        failed = True
        try:
            answer = await self._bounded(impl.hook.name, impl.function, impl.bind(values), mode, fast=impl.fast)
            failed = False
            return answer
        finally:
            timing = impl.timing
            timing.count += 1
            timing.failures += failed
            timing.seconds += time.perf_counter() - began

    async def _bounded(
        self, what: str, function: Callable[..., Any], args: Sequence[Any], mode: Mode, *, fast: bool = False
    ) -> Any:
        """Run plugin code, sync or async, for at most the time limit. Whatever it raises arrives as an Exception.

        A plugin that calls sys.exit() or raises CancelledError must end neither the host nor the caller's task; a
        KeyboardInterrupt and the cancellation of the caller itself pass.
        """
        try:
            if fast or inspect.iscoroutinefunction(function):
                answer = function(*args)
            else:
                answer = await mode.guarded(function, *args, seconds=self._seconds)
            return await mode.awaited(answer, self._seconds) if inspect.isawaitable(answer) else answer
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            raise RuntimeError(f"{what} raised {type(error).__name__}") from error

    def _note(self, impl: Implementation, error: Exception, consequence: str) -> None:
        what = f"took longer than {self._seconds:g} s" if isinstance(error, TimeLimit) else f"failed with {error!r}"
        self._diagnostics.add(
            "HOOK_FAILED",
            f"{impl.hook.name} {what}; {consequence}",
            plugin=impl.plugin,
            hint=f"see {impl.where}",
            severity="error",
        )


def _is_cancelled() -> bool:
    """True when the task that waits is being cancelled itself."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # stepped by hand: there is no task
        return False
    return task is not None and task.cancelling() > 0


def _copied(value: Any) -> Any:
    """A copy that shares nothing mutable with the original; what is no JSON stays as it is (validation refuses it later)."""
    copy, problem = json_copy(value)
    return value if problem is not None else copy


def _changed_call(impl: Implementation, call: ToolCall, answer: Any) -> ToolCall:
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
    return replace(call, arguments=_copied(dict(answer)), purpose=purpose)


def _difference(old: ToolCall, new: ToolCall) -> str:
    before, after = old.arguments, new.arguments
    names = sorted(k for k in {*before, *after} if (k in before) != (k in after) or before.get(k) != after.get(k))
    return ", ".join([*map(str, names), *(["purpose"] if old.purpose != new.purpose else [])])


def _why_not(answer: Any, result: ToolResult, fits: Callable[[Any], bool] | None) -> str:
    if not isinstance(answer, ToolResult):
        return f"it answered {type(answer).__name__}, not a ToolResult"
    if answer.ok and not result.ok:
        return "a failure cannot be turned into a success"
    if answer.ok and fits is not None and not fits(answer.value):
        return "the changed value does not fit the tool's output schema"
    if answer.ok and json_copy(answer.value)[1] is not None:
        return "the changed value is not JSON"
    return ""


def _failed_by_hook(result: ToolResult, answer: ToolResult) -> ToolResult:
    return result.replace(ok=False, value=None, content=(), error=answer.error, status=answer.status)


def _facts(details: Mapping[str, Any]) -> dict[str, Any]:
    """Details without the names that an error's constructor takes itself."""
    taken = {"message", "hint", "retryable", "outcome", "retry_after_ms", "findings", "plugin", "tool"}
    return {str(k): v for k, v in details.items() if k not in taken}
