"""Hooks around the nodes of a run: their changes are checked again and recorded in the run's events."""

from __future__ import annotations

from typing import Any

from tavern_core.flow.engine.node_outputs import Outputs
from tavern_core.flow.engine.plan_tables import Work
from tavern_core.flow.engine.protocols import RunPart
from tavern_core.flow.hook_chains import FlowCalls
from tavern_core.kernel.hooks.argument_copies import copied
from tavern_core.kernel.hooks.table import Implementation
from tavern_core.model.run import NodeInfo, RunInfo


class NodeHooks:
    """The `tavern_before_node` and `tavern_after_node` hooks of one run.

    Args:
        before, after: implementations, in their order.
        info: the run, as hooks see it.
    """

    def __init__(
        self, calls: FlowCalls, before: tuple[Implementation, ...], after: tuple[Implementation, ...], info: RunInfo
    ) -> None:
        self._calls = calls
        self._before = before
        self._after = after
        self._info = info

    @property
    def is_before(self) -> bool:
        """Whether any hook needs the inputs."""
        return bool(self._before)

    async def before(self, run: RunPart, path: str, work: Work, inputs: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """The inputs, and whether they were changed. Raises PolicyDenied if a hook denies (POLICY_DENIED)."""
        info = _info(path, work)
        streams = {binding.key: inputs.pop(binding.key) for binding in work.step.streams if binding.key in inputs}
        changed, changes = await self._calls.change_inputs(
            self._before, {"node": info, "run": self._info}, inputs, ("node", path)
        )
        for plugin, what in changes:
            run.note("changed", path, {"plugin": plugin, "inputs": what})
        return (changed | streams if streams else changed), bool(changes)

    async def after(self, path: str, work: Work, outputs: Outputs) -> None:
        """Pass the outputs of the node to observers."""
        if self._after:
            await self._calls.notify(self._after, {"node": _info(path, work), "outputs": outputs, "run": self._info})


def _info(path: str, work: Work) -> NodeInfo:
    step = work.step
    return NodeInfo(path, step.type, copied(dict(step.config)), step.spec.plugin)
