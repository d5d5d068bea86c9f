"""The chains of hooks around workflows and their nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tavern_core.errors import PolicyDenied
from tavern_core.graph.slot_compatibility import nesting_mismatch
from tavern_core.kernel.execution.sync_async_drivers import Mode
from tavern_core.kernel.hooks.hook_chain_calls import HookCalls
from tavern_core.kernel.hooks.table import Implementation
from tavern_core.model.workflow import Workflow
from tavern_core.schema.bounded_json_copying import copied_parts

_ABSENT: Final = object()
InputChange = tuple[str, str]
"""(plugin, its changed inputs), for the events of the run."""


class FlowCalls:
    """Calls hooks for the engine."""

    def __init__(self, calls: HookCalls, mode: Mode) -> None:
        self._calls = calls
        self._mode = mode

    async def change_inputs(
        self,
        implementations: Iterable[Implementation],
        values: Mapping[str, Any],
        inputs: Mapping[str, Any],
        what: tuple[str, str],
    ) -> tuple[dict[str, Any], list[InputChange]]:
        """Chain hooks that may change inputs: each gets a copy of the previous result.

        Args:
            values: further arguments of the hook besides `inputs`.
            what: the owner of the inputs, for messages: ("node", its path).

        Raises:
            PolicyDenied: one denied, failed, took too long or returned something else (POLICY_DENIED).
        """
        current, changes = inputs if type(inputs) is dict else dict(inputs), list[InputChange]()
        for impl in implementations:
            answer = await self._calls.guard(
                impl, {**values, "inputs": copied_parts(current)}, self._mode, " ".join(what)
            )
            if answer is None:
                continue
            if not isinstance(answer, Mapping) or not all(isinstance(key, str) for key in answer):
                raise PolicyDenied(
                    f"{' '.join(what)} was refused: {impl.plugin} answered {type(answer).__name__} from {impl.hook.name}",
                    hint="return a mapping of inputs, deny(...) or None", plugin=impl.plugin,
                )  # fmt: skip
            changed = _copy(answer, impl, " ".join(what))
            names = sorted(
                k for k in {*current, *changed} if not _same(current.get(k, _ABSENT), changed.get(k, _ABSENT))
            )
            if names:
                changes.append((impl.plugin, ", ".join(names)))
                current = changed
        return current, changes

    async def change_patch(
        self, implementations: Iterable[Implementation], patch: list[Any], workflow: Workflow
    ) -> tuple[list[Any], tuple[str, ...]]:
        """Chain `tavern_before_patch`: each gets a copy of the previous result.

        Returns:
            The operations, and the plugins that changed them.

        Raises:
            PolicyDenied: one denied, failed, took too long or returned something else (POLICY_DENIED).
        """
        changed_by: list[str] = []
        what = f"the patch of workflow {workflow.id or 'without a name'}"
        for impl in implementations:
            given = {"patch": copied_parts(patch), "workflow": copied_parts(workflow.raw)}
            answer = await self._calls.guard(impl, given, self._mode, what)
            if answer is None:
                continue
            if not isinstance(answer, list | tuple):
                raise PolicyDenied(
                    f"{what} was refused: {impl.plugin} answered {type(answer).__name__} from {impl.hook.name}",
                    hint="return a list of operations, deny(...) or None", plugin=impl.plugin,
                )  # fmt: skip
            changed = _copy([*answer], impl, what)
            if not _same(changed, patch):
                changed_by.append(impl.plugin)
                patch = changed
        return patch, tuple(changed_by)

    async def notify(self, implementations: Iterable[Implementation], values: Mapping[str, Any]) -> None:
        """Call observers; their errors are diagnostics."""
        given = {name: copied_parts(value) for name, value in values.items()}
        await self._calls.notify(implementations, given, self._mode)


def _copy(answer: Any, impl: Implementation, what: str) -> Any:
    if why := nesting_mismatch(answer):
        text = f"{what} was refused: what {impl.plugin} answered from {impl.hook.name} {why}"
        raise PolicyDenied(text, hint=f"see {impl.where}", plugin=impl.plugin)
    return copied_parts(answer)


def _same(one: Any, other: Any) -> bool:
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # noqa: BLE001 - objects of plugins may refuse to be compared
        return False
