"""Are the nodes of a workflow allowed their declared capabilities? Plugin, host, profile and caller must all allow it, as for a tool."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from tavern_core.errors import PolicyDenied, TavernError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.access.profiles import Profile
from tavern_core.kernel.plugins.lifecycle import Lifecycle
from tavern_core.model.call import CallContext, grant_fix
from tavern_core.model.capability import covers, forbids, is_dangerous
from tavern_core.model.config import CapabilitiesConfig
from tavern_core.model.node import NodeSpec


@dataclass(frozen=True, slots=True)
class NodeRights:
    """Checks the nodes of a run before the first of them runs.

    Args:
        config: what the host allows and denies.
        host: the caller that represents the host itself.
        profile: finds a profile by name.
    """

    lifecycle: Lifecycle
    config: CapabilitiesConfig
    host: CallContext
    profile: Callable[[str], Awaitable[Profile]]

    async def judge(self, specs: Iterable[NodeSpec], caller: CallContext) -> None:
        """Refuse what one side does not allow.

        Raises:
            PolicyDenied: a capability is not granted to the plugin, or host, profile or caller do not allow it
                (POLICY_DENIED).
        """
        needy = [spec for spec in specs if spec.capabilities]
        limit = await self._of_profile(caller) if needy else None
        for spec in needy:
            for capability in sorted(spec.capabilities):
                self._judge_one(spec, capability, caller, limit)

    async def limit(self, caller: CallContext) -> frozenset[str] | None:
        """What the profile of a caller allows now; None: everything. An unreadable profile allows nothing."""
        try:
            return await self._of_profile(caller)
        except PolicyDenied:
            return frozenset()

    async def _of_profile(self, caller: CallContext) -> frozenset[str] | None:
        if caller.profile is None:
            return None
        try:
            return (await self.profile(caller.profile)).capabilities
        except TavernError as error:
            raise PolicyDenied(
                f"the workflow was refused: {error.message}", hint=error.hint, profile=caller.profile
            ) from error

    def _judge_one(self, spec: NodeSpec, name: str, caller: CallContext, limit: frozenset[str] | None) -> None:
        record = self.lifecycle.records.get(spec.plugin)
        if (
            record is not None
            and not record.candidate.fixed_id
            and not record.candidate.implicit
            and not record.may(name)
        ):
            raise _refused(
                spec,
                name,
                f"plugin {spec.plugin} was not granted",
                grant_fix(spec.plugin, [name], record.candidate.requested),
                "plugin",
            )
        if forbids(self.config.deny, name):
            raise _refused(spec, name, "this host denies", "capabilities.deny in tavern.yaml", "host")
        if self.config.allow is not None and not covers(self.config.allow, name):
            raise _refused(spec, name, "this host does not allow", "capabilities.allow in tavern.yaml", "host")
        if limit is not None and not covers(limit, name):
            raise _refused(
                spec,
                name,
                f"profile {caller.profile!r} does not allow",
                f"capabilities of profile {caller.profile}",
                "profile",
            )
        if caller is self.host and not is_dangerous(name):
            return
        if not covers(caller.permissions, name):
            raise _refused(spec, name, "the caller does not have", f"CallContext(permissions={{{name!r}}})", "caller")
        if caller.scopes.get(name) == ():
            hint = "name what it may reach in CallContext.scopes, or leave the scope out"
            raise _refused(spec, name, "is not available to this caller: its scope is empty", hint, "caller")


def _refused(spec: NodeSpec, name: str, whose: str, hint: str, side: str) -> PolicyDenied:
    why = f"node type {spec.type} needs {name}, which {whose}"
    return PolicyDenied(why, hint=hint, plugin=spec.plugin, missing=[name], side=side)
