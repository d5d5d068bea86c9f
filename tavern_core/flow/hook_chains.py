"""The chains of hooks around workflows and their nodes. What a hook changes is checked again and recorded in the run's events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tavern_core.errors import PolicyDenied
from tavern_core.flow.engine.node_outputs import Outputs
from tavern_core.flow.engine.plan_tables import PreparedStep
from tavern_core.flow.engine.protocols import RunPart
from tavern_core.graph.slot_compatibility import nesting_mismatch
from tavern_core.kernel.execution.sync_async_drivers import ExecutionMode
from tavern_core.kernel.hooks.argument_copies import copy_json
from tavern_core.kernel.hooks.hook_calls import HookCalls
from tavern_core.kernel.hooks.table import HookImplementation
from tavern_core.kernel.log.call_changes import CallChange
from tavern_core.model.run import NodeInfo, RunInfo
from tavern_core.model.workflow import Workflow
from tavern_core.schema.bounded_json_copying import copied_parts

_ABSENT: Final = object()


class WorkflowHookCalls:
    """Calls hooks for the engine."""

    def __init__(self, calls: HookCalls, mode: ExecutionMode) -> None:
        self._calls = calls
        self._mode = mode

    async def change_inputs(
        self,
        implementations: Iterable[HookImplementation],
        values: Mapping[str, Any],
        inputs: Mapping[str, Any],
        what: str,
    ) -> tuple[dict[str, Any], list[CallChange]]:
        """Chain hooks that may change inputs: each gets a copy of the previous result.

        Args:
            values: further arguments of the hook besides `inputs`.
            what: the owner of the inputs, for messages: a node and its path.

        Returns:
            The inputs, and for each plugin that changed any, all of them before and after: it may have copied a secret.

        Raises:
            PolicyDenied: one denied, failed, took too long or returned something else (POLICY_DENIED).
        """
        current, changes = inputs if type(inputs) is dict else dict(inputs), list[CallChange]()
        for impl in implementations:
            arguments = {**values, "inputs": copied_parts(current)}
            changed = await self._changed(impl, arguments, what, Mapping, "a mapping of inputs")
            if changed is not None and (names := _differences(current, changed)):
                changes.append(CallChange(impl.plugin, ", ".join(names), current, changed))
                current = changed
        return current, changes

    async def change_patch(
        self, implementations: Iterable[HookImplementation], patch: list[Any], workflow: Workflow
    ) -> tuple[list[Any], tuple[str, ...]]:
        """Chain `tavern_before_patch`. Raises as `change_inputs`.

        Returns:
            The operations, and the plugins that changed them.
        """
        changed_by: list[str] = []
        what = f"the patch of workflow {workflow.id or 'without a name'}"
        for impl in implementations:
            arguments = {"patch": copied_parts(patch), "workflow": copied_parts(workflow.raw)}
            changed = await self._changed(impl, arguments, what, list | tuple, "a list of operations")
            if changed is not None and not _same(changed, patch):
                changed_by.append(impl.plugin)
                patch = changed
        return patch, tuple(changed_by)

    async def _changed(
        self, impl: HookImplementation, arguments: Mapping[str, Any], what: str, kind: Any, wanted: str
    ) -> Any:
        """A copy of a hook's answer, which is of this kind; None: it changes nothing. Raises PolicyDenied."""
        answer = await self._calls.guard(impl, arguments, self._mode, what)
        if answer is None:
            return None
        if not isinstance(answer, kind) or (kind is Mapping and not all(isinstance(key, str) for key in answer)):
            raise PolicyDenied(
                f"{what} was refused: {impl.plugin} answered {type(answer).__name__} from {impl.hook.name}",
                hint=f"return {wanted}, deny(...) or None", plugin=impl.plugin,
            )  # fmt: skip
        answer = answer if kind is Mapping else [*answer]  # a subclass of tuple is not copied
        if why := nesting_mismatch(answer):
            text = f"{what} was refused: what {impl.plugin} answered from {impl.hook.name} {why}"
            raise PolicyDenied(text, hint=f"see {impl.where}", plugin=impl.plugin)
        return copied_parts(answer)

    async def notify(self, implementations: Iterable[HookImplementation], values: Mapping[str, Any]) -> None:
        """Call observers; their errors are diagnostics."""
        given = {name: copied_parts(value) for name, value in values.items()}
        await self._calls.notify(implementations, given, self._mode)


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return sorted(key for key in {*old, *new} if not _same(old.get(key, _ABSENT), new.get(key, _ABSENT)))


def _same(one: Any, other: Any) -> bool:
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # noqa: BLE001 - objects of plugins may refuse to be compared
        return False


class NodeHooks:
    """The `tavern_before_node` and `tavern_after_node` hooks of one run.

    Args:
        before, after: implementations, in their order.
        info: the run, as hooks see it.
    """

    def __init__(
        self,
        calls: WorkflowHookCalls,
        before: tuple[HookImplementation, ...],
        after: tuple[HookImplementation, ...],
        info: RunInfo,
    ) -> None:
        self._calls = calls
        self._before = before
        self._after = after
        self._info = info

    @property
    def is_before(self) -> bool:
        """Whether any hook needs the inputs."""
        return bool(self._before)

    async def before(
        self, run: RunPart, path: str, work: PreparedStep, inputs: dict[str, Any]
    ) -> tuple[dict[str, Any], bool]:
        """The inputs, and whether they were changed. Raises PolicyDenied if a hook denies (POLICY_DENIED)."""
        info = _info(path, work)
        streams = {binding.key: inputs.pop(binding.key) for binding in work.step.streams if binding.key in inputs}
        changed, changes = await self._calls.change_inputs(
            self._before, {"node": info, "run": self._info}, inputs, f"node {path}"
        )
        for change in changes:
            run.emit("changed", path, {"plugin": change.plugin, "inputs": change.changed})
        return (changed | streams if streams else changed), bool(changes)

    async def after(self, path: str, work: PreparedStep, outputs: Outputs) -> None:
        """Pass the outputs of the node to observers."""
        if self._after:
            await self._calls.notify(self._after, {"node": _info(path, work), "outputs": outputs, "run": self._info})


def _info(path: str, work: PreparedStep) -> NodeInfo:
    step = work.step
    return NodeInfo(path, step.type, copy_json(dict(step.config)), step.spec.plugin)
