"""Are the nodes of a workflow allowed their declared capabilities? Plugin, host, profile and caller must all allow it, as for a tool."""

from __future__ import annotations

from collections.abc import Iterable

from tavern_core.errors import PolicyDenied, TavernError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.catalogue.profile_resolution import Inventories
from tavern_core.kernel.plugins.lifecycle import Lifecycle
from tavern_core.model.call import CallContext, Rights, shortfall
from tavern_core.model.capability import is_dangerous, missing
from tavern_core.model.config import CapabilitiesConfig
from tavern_core.model.node import NodeSpec


@dataclass(frozen=True, slots=True)
class NodeRights:
    """Checks the nodes of a run before the first of them runs.

    Args:
        host: the caller that represents the host itself.
    """

    lifecycle: Lifecycle
    config: CapabilitiesConfig
    host: CallContext
    inventories: Inventories

    async def check(self, specs: Iterable[NodeSpec], caller: CallContext) -> None:
        """Refuse capabilities that one side does not allow.

        Raises:
            PolicyDenied: a capability is not granted to the plugin, or host, profile or caller do not allow it
                (POLICY_DENIED).
        """
        needy = [spec for spec in specs if spec.capabilities]
        limit = await self._of_profile(caller) if needy else None
        for spec in needy:
            self._judge_one(spec, caller, limit)

    async def limit(self, caller: CallContext) -> frozenset[str] | None:
        """The permissions that the profile of a caller allows now; None: all. An unreadable profile allows nothing."""
        try:
            return await self._of_profile(caller)
        except PolicyDenied:
            return frozenset()

    async def _of_profile(self, caller: CallContext) -> frozenset[str] | None:
        if caller.profile is None:
            return None
        try:
            return (await self.inventories.resolved(caller.profile)).capabilities
        except TavernError as error:
            raise PolicyDenied(
                f"the workflow was refused: {error.message}", hint=error.hint, profile=caller.profile
            ) from error

    def _judge_one(self, spec: NodeSpec, caller: CallContext, limit: frozenset[str] | None) -> None:
        record, wanted = self.lifecycle.records.get(spec.plugin), frozenset(spec.capabilities)
        is_free = record is None or record.candidate.fixed_id or record.candidate.implicit
        rights = Rights(
            wanted if record is None or is_free else frozenset(filter(record.may, wanted)),
            frozenset(c for c in wanted if not is_dangerous(c)) if caller is self.host else caller.permissions,
            None if self.config.allow is None else frozenset(self.config.allow),
            frozenset(self.config.deny),
            limit,
            asked=None if record is None else record.candidate.requested,
        )
        if (lacks := shortfall(spec.plugin, wanted, rights, caller)) is not None:
            names, why = ", ".join(lacks.missing), lacks.reason
            if lacks.side == "caller":
                has_names = not missing(rights.caller, lacks.missing)
                empty = "which is not available to this caller: its scope is empty"
                why = empty if has_names else "which the caller does not have"
            raise PolicyDenied(
                f"node type {spec.type} needs {names}, {why}",
                hint=lacks.fix, plugin=spec.plugin, missing=list(lacks.missing), side=lacks.side,
            )  # fmt: skip
