"""Whether a caller can see and call a tool, why not, and what its calls lack."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tavern_core.errors import CallError, TavernError, ToolNotFound
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.catalogue.namespace_resolvers import canonical
from tavern_core.kernel.catalogue.profile_resolution import Inventories
from tavern_core.kernel.plugins.plugin_record import PluginRecord
from tavern_core.model.call import CallContext, check_caller, grant_fix, shortfall
from tavern_core.model.capability import is_capability
from tavern_core.model.event import THREADS_STUCK
from tavern_core.model.naming_rules import spellings, split_id
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.kernel.access.profiles import Profile, ProfileLike


@dataclass(frozen=True, slots=True)
class AvailabilityReason:
    """Why a tool can or cannot be seen and called, for people."""

    id: str
    visible: bool
    reason: str
    fix: str = ""
    plugin: str = ""

    def __bool__(self) -> bool:
        return self.visible

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "visible": self.visible,
            "reason": self.reason,
            "fix": self.fix or None,
            "plugin": self.plugin or None,
        }


@dataclass(frozen=True, slots=True)
class ToolNeed:
    """The capabilities that a tool needs and is not allowed."""

    missing: tuple[str, ...]
    """Capabilities that one side does not allow."""
    reason: str
    fix: str
    """The command that grants them, or the required configuration."""
    side: str = "plugin"
    """The side that does not allow them: plugin, host, profile or caller."""
    is_certain: bool = True
    """False: only the code, which was never loaded, knows the tool's needs, so these are the possible ones."""

    def to_json(self) -> dict[str, Any]:
        return {"missing": list(self.missing), "certain": self.is_certain, "reason": self.reason, "fix": self.fix}


class Availability:
    """Answers what callers may see and call."""

    def __init__(self, inventories: Inventories) -> None:
        self._specs = specs = inventories.specs
        self._namespaces = inventories.namespaces
        self._profiles = inventories.resolved_sync
        self._wait = specs.base.portal.run

    def why(self, tool: str, profile: ProfileLike | None, context: CallContext | None) -> AvailabilityReason:
        """See `Tools.why`."""
        self._specs.catch_up(tool)
        try:
            entry = self._specs.registry.resolve(tool)
        except ToolNotFound as error:
            return self._why_beyond(tool, error, profile, context)
        record = self._specs.lifecycle.records[entry.plugin]
        spec = self._specs.of(entry)
        if spec is None:
            reason = self._specs.current().specs.get(entry.id)
            return AvailabilityReason(
                entry.id, False, str(reason), f"tavern plugins disable {entry.plugin}", entry.plugin
            )
        try:
            caller, inventory = self.caller(profile, context)
        except TavernError as error:
            return AvailabilityReason(entry.id, False, error.message, error.hint, entry.plugin)
        if not record.usable:
            return AvailabilityReason(
                entry.id, False, f"plugin {record.name} is {record.state}: {record.reason}", record.fix, record.name
            )
        if (refusal := self._refusal(spec, caller, inventory)) is not None:
            return refusal
        try:
            asked = self._specs.asked_for(spec, caller)
        except CallError as error:
            return AvailabilityReason(entry.id, False, error.message, error.hint, entry.plugin)
        if asked is None:
            return AvailabilityReason(
                entry.id, False, "its factory makes no tool of this name for this caller", "", entry.plugin
            )
        if asked is not spec and (refusal := self._refusal(asked, caller, inventory)) is not None:
            return refusal
        why, fix = record.candidate.origin.quarantined(split_id(entry.id)[1])
        if why:
            return AvailabilityReason(entry.id, True, why, fix, entry.plugin)
        alias = f", for which {tool!r} is an alias" if tool in self._specs.registry.aliases_of(entry.id) else ""
        return self._why_there(asked, record, f"offered by {entry.plugin}{alias}", caller, inventory)

    def lacking(
        self, tools: Iterable[ToolSpec], profile: ProfileLike | None, context: CallContext | None
    ) -> dict[str, ToolNeed]:
        """See `Tools.lacking`."""
        caller, inventory = self.caller(profile, context)
        found: dict[str, ToolNeed] = {}
        for spec in tools:
            record = self._specs.lifecycle.records.get(spec.plugin)
            if record is not None and (need := self._need(spec, record, caller, inventory)) is not None:
                found[spec.id] = need
        return found

    def caller(self, profile: ProfileLike | None, context: CallContext | None) -> tuple[CallContext, Profile | None]:
        """The caller, with the inventory that limits it."""
        check_caller(context)
        caller = context or self._specs.default
        if profile is None:
            return caller, None if caller.profile is None else self._profiles(caller.profile)
        inventory = self._profiles(profile)
        return replace(caller, profile=inventory.name), inventory

    def beyond(self, tool: str, caller: CallContext) -> tuple[ToolSpec, PluginRecord, str] | None:
        """An unregistered tool that can still be called, with its plugin and the origin of the tool; or None.

        A factory without names makes it for this caller, or the resolver of its prefix, which is activated, knows it.

        Raises:
            CallError: the resolver failed, or a hook hides the tool.
        """
        if not isinstance(tool, str):
            return None
        ids, records = spellings(tool), self._specs.lifecycle.records
        if self._openly(tool):
            for spec in self._specs.open_for(caller):
                if spec.id in ids:
                    return spec, records[spec.plugin], f"made for this caller by a factory of {spec.plugin}"
        prefix = split_id(canonical(tool))[0].strip()
        if self._namespaces.inactive({prefix}):
            self._wait(self._namespaces.wake({prefix}))
        found = self._namespaces.find_sync(tool)
        return None if found is None else (*found, f"known to the namespace {prefix!r} of {found[1].name}")

    def _refusal(self, spec: ToolSpec, caller: CallContext, inventory: Profile | None) -> AvailabilityReason | None:
        """Why no executor runs a tool, its pin blocks it, or lists or profile deny it to the caller; or None."""
        if spec.executor not in (kinds := self._specs.kinds()):
            fix = (
                did_you_mean(spec.kind, kinds)
                or f"use a plugin that contributes it; known kinds: {', '.join(sorted(kinds))}"
            )
            return AvailabilityReason(spec.id, False, f"no plugin runs tools of kind {spec.kind!r}", fix, spec.plugin)
        if not self._specs.without_changed([spec]):
            reason = "it is pinned, and its definition is not the one that was reviewed"
            return AvailabilityReason(
                spec.id, False, reason, f"tavern tools pins; then tavern tools pin {spec.id}", spec.plugin
            )
        verdict = self._specs.policy().verdict(spec, caller, inventory)
        return None if verdict.allowed else AvailabilityReason(spec.id, False, verdict.reason, verdict.fix, spec.plugin)

    def _why_there(
        self, spec: ToolSpec, record: PluginRecord, reason: str, caller: CallContext, inventory: Profile | None
    ) -> AvailabilityReason:
        if need := self._need(spec, record, caller, inventory):
            return AvailabilityReason(spec.id, True, need.reason, need.fix, record.name)
        stuck = next(
            (d for d in self._specs.diagnostics.all() if d.code == THREADS_STUCK and d.details.get("of") == spec.id),
            None,
        )
        if stuck is not None:
            return AvailabilityReason(spec.id, True, f"{reason}; {stuck.message}", stuck.hint, record.name)
        return AvailabilityReason(spec.id, True, reason, "", record.name)

    def _need(
        self, spec: ToolSpec, record: PluginRecord, caller: CallContext, inventory: Profile | None
    ) -> ToolNeed | None:
        """The missing capabilities of a tool; if only its code knows its needs, those that its plugin lacks."""
        rights = self._specs.rights(record, spec)
        if caller is not self._specs.default:
            caller_permissions = rights.caller if self._specs.is_host(caller) else caller.permissions
            rights = replace(
                rights, caller=caller_permissions, profile=None if inventory is None else inventory.capabilities
            )
        if lacks := shortfall(record.name, spec.capabilities, rights, caller):
            why = f"which {record.name} was not granted" if lacks.side == "plugin" else lacks.reason
            return ToolNeed(lacks.missing, f"needs {', '.join(lacks.missing)}, {why}", lacks.fix, lacks.side)
        if self._specs.is_whole(spec.id):
            return None
        if waiting := sorted(name for name in record.candidate.requested - record.granted if is_capability(name)):
            return ToolNeed(
                tuple(waiting),
                f"may need {', '.join(waiting)}, which {record.name} was not granted",
                grant_fix(record.name, waiting, None),
                is_certain=False,
            )
        return None

    def _openly(self, tool: str) -> str | None:
        """The active plugin whose factories without names could make a tool with this id."""
        records = self._specs.lifecycle.records
        return next(
            (r.name for i in spellings(tool) if (r := records.get(split_id(i)[0])) and r.active and r.open_factories),
            None,
        )

    def _why_beyond(
        self, tool: str, error: ToolNotFound, profile: ProfileLike | None, context: CallContext | None
    ) -> AvailabilityReason:
        """`why` for a tool that is not registered."""
        try:
            caller, inventory = self.caller(profile, context)
            beyond = self.beyond(tool, caller)
        except TavernError as failed:
            return AvailabilityReason(
                str(tool), False, failed.message, failed.hint, str(failed.details.get("plugin", ""))
            )
        if beyond is not None:
            spec, record, reason = beyond
            refusal = self._refusal(spec, caller, inventory)
            return self._why_there(spec, record, reason, caller, inventory) if refusal is None else refusal
        if isinstance(tool, str) and (owner := self._openly(tool)):
            reason = f"there is no tool {tool!r}, and the factories of {owner} make none of that name for this caller"
            return AvailabilityReason(tool, False, reason, "", owner)
        return self._why_unknown(tool, error)

    def _why_unknown(self, tool: str, error: ToolNotFound) -> AvailabilityReason:
        absent = self._specs.absence(tool)
        if absent is None:
            return AvailabilityReason(str(tool), False, error.message, error.hint, split_id(str(tool))[0])
        return AvailabilityReason(str(tool), False, absent.reason, absent.fix, absent.plugin)
