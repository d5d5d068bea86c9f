"""Running one hook implementation, or other code of a plugin: within the time limit, timed, its errors caught.

    guards fail closed:     an error or a time-out of a gate or a before-hook denies the call and names the plugin
    observers fail open:    their errors are diagnostics

No plugin gets an object of the host or of another plugin: arguments, results and events are copied first.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tavern_core.contract.decisions import Deny
from tavern_core.errors import CallError, PolicyDenied
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.execution.sync_async_drivers import Mode, TimeLimit, cancellations
from tavern_core.kernel.hooks.argument_copies import shown
from tavern_core.kernel.hooks.quarantine import HookPaused, Quarantine
from tavern_core.kernel.hooks.table import Implementation
from tavern_core.model.safe_printing import printed
from tavern_core.schema.secret_scanning import redact_text


class HookRuns:
    """Runs plugin code on behalf of the pipeline and the lifecycle.

    Args:
        seconds: time limit of one implementation.
        diagnostics: where errors of observers and dropped changes go.
        quarantine: who is left alone because it failed too often.
    """

    def __init__(self, seconds: float, diagnostics: Diagnostics, quarantine: Quarantine) -> None:
        self._seconds = seconds
        self._diagnostics = diagnostics
        self._quarantine = quarantine

    async def notify(self, implementations: Iterable[Implementation], values: Mapping[str, Any], mode: Mode) -> None:
        """Call observers, each with copies of its own; their errors are diagnostics."""
        for impl in implementations:
            try:
                if impl.timing.is_watched:
                    self._quarantine.check(impl)
                await self._run(impl, {name: shown(value) for name, value in values.items()}, mode)
                if impl.timing.is_watched:
                    self._quarantine.worked(impl)
            except HookPaused:
                continue
            except Exception as error:  # noqa: BLE001 - whatever a plugin raises
                self._note(impl, error, "no other code was affected")

    async def ask(self, impl: Implementation, values: Mapping[str, Any], mode: Mode) -> Any:
        """Call one implementation and let its error through; TimeLimit becomes a TimeoutError that names it."""
        try:
            return await self._run(impl, values, mode)
        except TimeLimit:
            raise TimeoutError(
                f"{impl.hook.name} of {impl.plugin} took longer than {self._seconds:g} s (limits.hookTimeoutMs)"
            ) from None

    async def work(self, what: str, function: Callable[..., Any], *args: Any, mode: Mode) -> Any:
        """Run code of a plugin that is not a hook (the start of a service, a factory), within the time limit of hooks.

        Raises:
            TimeoutError: it took longer; names `what`. Its own errors pass through.
        """
        try:
            return await self._bounded(what, function, args, mode, what)
        except TimeLimit:
            raise TimeoutError(f"{what} took longer than {self._seconds:g} s (limits.hookTimeoutMs)") from None

    async def _run(self, impl: Implementation, values: Mapping[str, Any], mode: Mode) -> Any:
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
        mode: Mode,
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

    async def guard(self, impl: Implementation, values: Mapping[str, Any], mode: Mode, tool: str) -> Any:
        """One answer of a guard; raises PolicyDenied for a denial and for anything that goes wrong."""
        try:
            if impl.timing.is_watched:
                self._quarantine.check(impl)
            answer = await self._run(impl, values, mode)
        except HookPaused as paused:
            raise self._paused_error(paused, tool) from None
        except TimeLimit:
            self._quarantine.failed(impl, f"took longer than {self._seconds:g} s")
            raise PolicyDenied(
                f"{tool} was refused: {impl.hook.name} of {impl.plugin} took longer than {self._seconds:g} s (limits.hookTimeoutMs)",
                hint=f"tavern plugins disable {impl.plugin}",
                plugin=impl.plugin,
            ) from None
        except CallError as error:  # a way to say no, not a failure
            if impl.timing.is_watched:
                self._quarantine.worked(impl)
            raise PolicyDenied(
                f"{tool} was refused by {impl.plugin}: {_own(impl, error.message)}",
                hint=_own(impl, error.hint),
                **{**facts(error.details), "plugin": impl.plugin},
            ) from error
        except Exception as error:
            self._quarantine.failed(impl, f"failed with {printed(error)}")
            raise PolicyDenied(
                f"{tool} was refused: {impl.hook.name} of {impl.plugin} failed with {printed(error)}",
                hint=f"see {impl.where}; tavern plugins disable {impl.plugin}",
                plugin=impl.plugin,
            ) from error
        if impl.timing.is_watched:
            self._quarantine.worked(impl)
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

    def _note(self, impl: Implementation, error: Exception, consequence: str) -> None:
        what = (
            f"took longer than {self._seconds:g} s (limits.hookTimeoutMs)"
            if isinstance(error, TimeLimit)
            else f"failed with {printed(error)}"
        )
        self._quarantine.failed(impl, what)
        self._diagnostics.add(
            "HOOK_FAILED",
            f"{impl.hook.name} {what}; {consequence}",
            plugin=impl.plugin,
            hint=f"see {impl.where}",
            severity="error",
        )


def _at_once(impl: Implementation, args: Sequence[Any]) -> Any:
    """What `HookRuns._bounded` does for a sync function that never blocks: while it runs, no one can cancel its caller."""
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


def _own(impl: Implementation, text: str) -> str:
    """What a plugin says, without secrets; a plugin of the host says it as the host does."""
    return text if impl.is_builtin else redact_text(text)
