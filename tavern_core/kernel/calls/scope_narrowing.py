"""The effective scope of a plugin's capability: its grant, narrowed by the caller of the running call."""

from __future__ import annotations

from tavern_core.errors import TavernError
from tavern_core.kernel.calls.running_call import current
from tavern_core.kernel.calls.taint_tracking import may_act
from tavern_core.kernel.catalogue.profile_resolution import UnresolvedProfiles
from tavern_core.kernel.plugins.effective_scopes import EffectiveScopes
from tavern_core.kernel.plugins.plugin_record import PluginRecords
from tavern_core.model.call import CallContext
from tavern_core.model.capability import covers, forbids
from tavern_core.model.capability_scope import Scope, common
from tavern_core.model.config import CapabilitiesConfig


class CallerScopes:
    """Used by services that act for a plugin (`Service.for_plugin`)."""

    def __init__(
        self, host: CapabilitiesConfig, records: PluginRecords, reach: EffectiveScopes, profiles: UnresolvedProfiles
    ) -> None:
        self._host = host
        self._records = records
        self._reach = reach
        self._profiles = profiles

    def of(self, plugin: str, capability: str) -> Scope:
        """The scope; empty unless the plugin, the host, the caller and the caller's profile allow the capability."""
        record = self._records.get(plugin)
        if record is None or forbids(self._host.deny, capability):
            return ()
        if self._host.allow is not None and not covers(self._host.allow, capability):
            return ()
        scope = self._reach.scope(record, capability)
        frame = current.get()
        context = frame.caller if frame is not None else None
        if context is None or scope == ():
            return scope
        if not covers(context.permissions, capability) or not self._profile_allows(context, capability):
            return ()
        return common(capability, scope, context.scopes[capability]) if capability in context.scopes else scope

    @staticmethod
    def may_act(capability: str) -> bool:
        """Whether services may use a capability for the running call; see `taint_tracking.may_act`.

        False: its caller has read untrusted content, and the call was not judged as one with an effect.
        """
        frame = current.get()
        return frame is None or may_act(frame.reader, capability)

    def _profile_allows(self, context: CallContext, capability: str) -> bool:
        """Whether the caller's profile allows a capability; an unreadable profile allows nothing."""
        if context.profile is None:
            return True
        try:
            limit = self._profiles.capabilities(context.profile)
        except TavernError:
            return False
        return limit is None or covers(limit, capability)
