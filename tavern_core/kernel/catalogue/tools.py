"""`tavern.tools`: list, get, search, explain. Nothing is imported to list; `get` may activate the plugin."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tavern_core.errors import CallError, TavernError, ToolNotFound, UsageError
from tavern_core.frozen import dataclass
from tavern_core.kernel.access.tool_access import PluginToolGroups
from tavern_core.kernel.access.tool_pins import ToolPin
from tavern_core.kernel.catalogue.namespaces import Namespaces
from tavern_core.kernel.catalogue.profile_inventories import Inventories
from tavern_core.kernel.catalogue.tool_specs import ToolSpecs
from tavern_core.kernel.hooks.event_emitter import EventEmitter
from tavern_core.kernel.plugins.host_tools import Registration
from tavern_core.kernel.plugins.record import Record
from tavern_core.kernel.plugins.upkeep import Upkeep
from tavern_core.kernel.registry import Entry, Registry
from tavern_core.model.call import HOST_PRINCIPAL, CallContext, grant_fix, shortfall
from tavern_core.model.capability import is_capability
from tavern_core.model.event import THREADS_STUCK, TOOLS_CHANGED
from tavern_core.model.ids import spellings, split_id
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.kernel.access.profiles import Profile, ProfileLike

D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Why:
    """Why a tool can or cannot be seen and called, for a person."""

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
class Need:
    """What a tool lacks."""

    missing: tuple[str, ...]
    """Capabilities that one side does not allow."""
    reason: str
    fix: str
    """The command that grants them, or what must be written where."""
    side: str = "plugin"
    """Who does not allow them: plugin, host, profile or caller."""
    is_certain: bool = True
    """False while only the code knows the tool's needs and was never loaded: these are the possible ones."""

    def to_json(self) -> dict[str, Any]:
        return {"missing": list(self.missing), "certain": self.is_certain, "reason": self.reason, "fix": self.fix}


class Settled:
    """A finished answer that can also be awaited, for callers that await every method."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Self]:
        yield from ()  # nothing to await
        return self


@dataclass(frozen=True, slots=True)
class ToolsDiff(Settled):
    """What a refresh changed, by tool id."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def to_json(self) -> dict[str, Any]:
        return {"added": list(self.added), "removed": list(self.removed), "changed": list(self.changed)}


class Tools:
    """All tools of a host: ``tools["text:count"]``, ``"text:count" in tools``, ``len(tools)``; iterating gives the ids.

    As a collection it holds every tool, hidden ones included; `list` and `search` show what a caller may see.
    """

    def __init__(
        self,
        specs: ToolSpecs,
        namespaces: Namespaces,
        inventories: Inventories,
        upkeep: Upkeep,
        events: EventEmitter,
    ) -> None:
        self._specs = specs
        self._namespaces = namespaces
        self._profiles = inventories.now
        self._upkeep = upkeep
        self._events = events
        self._registration = Registration(specs.lifecycle, specs.registry)
        self._wait = specs.base.portal.run

    def list(self, profile: ProfileLike | None = None, *, context: CallContext | None = None) -> tuple[ToolSpec, ...]:
        """The tools that a caller may see, sorted by id. Nothing is imported; a tool that is only declared has no parameters yet.

        Args:
            profile: only the inventory of this agent profile: its name, the path of an agent_profile.json, or a mapping
                ``{"tool_ids_inventory": [...]}``.
            context: the caller; None: the host itself.

        Raises:
            ProfileInvalid: it does not exist, or is invalid (PROFILE_INVALID).
            UsageError: profile or context has the wrong type (USAGE).
        """
        entries = self._registry.entries()
        caller, inventory = self._caller(profile, context)
        if caller is self._specs.default and not self._specs.config.callers:
            return self._specs.visible_to_host()
        policy = self._specs.policy()
        kinds = self._specs.kinds()
        if inventory is not None:
            entries = {tool_id: entries[tool_id] for tool_id in inventory.tools if tool_id in entries}
        made = [*(self._specs.for_caller(s, caller) for s in self._specs.all(entries)), *self._specs.open_for(caller)]
        shown = (spec for spec in made if spec is not None and spec.kind in kinds)
        allowed = [s for s in shown if s is not None and policy.verdict(s, caller, inventory).allowed]
        if inventory is not None:
            allowed += [
                s
                for s in inventory.resolved.values()
                if s.kind in kinds and policy.verdict(s, caller, inventory).allowed
            ]
        return tuple(sorted(allowed, key=lambda spec: spec.id))

    def get(self, tool: str, default: D | None = None) -> ToolSpec | D | None:
        """One tool, with everything known about it, or `default`; activates its plugin when only its id is known.

        In async code activate the plugin first (`await tavern.plugins.activate(name)`): an import holds up the loop.

        Raises:
            PluginError: its plugin cannot be activated.
        """
        try:
            return self[tool]
        except ToolNotFound:
            return default

    def __getitem__(self, tool: str) -> ToolSpec:
        """One tool, with everything known about it; activates its plugin when only its id is known.

        Raises:
            ToolNotFound: it does not exist; names the nearest (TOOL_NOT_FOUND).
            PluginError: its plugin cannot be activated.
        """
        try:
            entry = self._resolved(tool)
        except ToolNotFound:
            if (beyond := self._beyond(tool, self._specs.default)) is None:
                raise
            return beyond[0]
        if not self._specs.is_whole(entry.id):
            self._wait(self._specs.lifecycle.activate(entry.plugin))
            entry = self._resolved(tool)
        spec = self._specs.of(entry)
        if entry.factory is not None:
            made = self._specs.for_caller(self._specs.placeholder(entry), self._specs.default)
            spec = made or spec
        if spec is None:
            raise ToolNotFound(f"{entry.id} was left out: {self.why(tool).reason}")
        return spec

    def pins(self) -> builtins.list[ToolPin]:
        """The tools whose definitions are pinned, and what changed of them. Raises StateDamaged (STATE_DAMAGED)."""
        entries = self._registry.entries()
        return self._specs.pins.states({
            name: self._specs.of(entry) if self._specs.is_whole(name) else None for name, entry in entries.items()
        })  # fmt: skip

    def pin(self, *tools: str) -> None:
        """Take the definitions of these tools as reviewed, as they are now; one that changes later is in quarantine.

        Raises:
            ToolNotFound: there is no such tool (TOOL_NOT_FOUND).
            UsageError: none is named (USAGE).
        """
        if not tools:
            raise UsageError("no tool is named", hint='tavern.tools.pin("text:count")')
        self._specs.pins.pin([self[tool] for tool in tools])
        self._specs.base.signals.tools.emit()

    def unpin(self, *tools: str) -> None:
        """Forget what was reviewed of these tools. Raises UsageError: one is not pinned (USAGE)."""
        self._specs.pins.unpin(tools)
        self._specs.base.signals.tools.emit()

    def __contains__(self, tool: object) -> bool:
        try:
            self._registry.resolve(tool)  # type: ignore[arg-type]  # any value may be requested
        except ToolNotFound:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self.known_ids())

    def __len__(self) -> int:
        return len(self._registry.entries())

    def search(
        self,
        query: str,
        *,
        capability: str | None = None,
        tag: str | None = None,
        limit: int = 20,
        profile: ProfileLike | None = None,
        context: CallContext | None = None,
    ) -> tuple[ToolSpec, ...]:
        """The tools that fit best, best first; only those the caller may see.

        Args:
            query: an id, a name or words, Chinese or English; empty: all.
            capability: only tools that need it.
            tag: only tools with this tag.

        Raises:
            UsageError: one of these is not text (USAGE).
        """
        from tavern_core.kernel.catalogue.search import ToolIndex

        for name, value in (("query", query), ("capability", capability), ("tag", tag)):
            if not isinstance(value, str) and (value is not None or name == "query"):
                raise UsageError(f"search({name}=...) takes text, got {type(value).__name__}")
        shown = self.list(profile, context=context)
        seen = self._specs.look()
        visible = seen.by_id if shown is seen.listed else {spec.id: spec for spec in shown}
        found = self._specs.index().search(query, capability=capability, tag=tag, limit=limit, among=visible)
        if shown is not seen.listed and (made := visible.keys() - self._registry.entries().keys()):
            own = ToolIndex()  # what factories and namespaces make for this caller only
            own.sync(visible[tool_id] for tool_id in made)
            found += own.search(query, capability=capability, tag=tag, limit=limit)
            found = sorted(found, key=lambda hit: (-hit[1], hit[0]))[: max(limit, 0)]
        return tuple(visible[tool_id] for tool_id, _ in found)

    def why(self, tool: str, *, profile: ProfileLike | None = None, context: CallContext | None = None) -> Why:
        """Why a tool is there, or is not: plugin state, grants, clashes, lists, the profile, capabilities. Never raises for an id."""
        try:
            entry = self._registry.resolve(tool)
        except ToolNotFound as error:
            return self._why_beyond(tool, error, profile, context)
        record = self._specs.lifecycle.records[entry.plugin]
        spec = self._specs.of(entry)
        if spec is None:
            reason = self._specs.look().specs.get(entry.id)
            return Why(entry.id, False, str(reason), f"tavern plugins disable {entry.plugin}", entry.plugin)
        try:
            caller, inventory = self._caller(profile, context)
        except TavernError as error:
            return Why(entry.id, False, error.message, error.hint, entry.plugin)
        if not record.usable:
            return Why(
                entry.id, False, f"plugin {record.name} is {record.state}: {record.reason}", record.fix, record.name
            )
        if (refusal := self._refusal(spec, caller, inventory)) is not None:
            return refusal
        try:
            asked = self._specs.asked_for(spec, caller)
        except CallError as error:
            return Why(entry.id, False, error.message, error.hint, entry.plugin)
        if asked is None:
            return Why(entry.id, False, "its factory makes no tool for this caller", "", entry.plugin)
        alias = f", for which {tool!r} is an alias" if tool in self._registry.aliases_of(entry.id) else ""
        return self._why_there(spec, record, f"offered by {entry.plugin}{alias}", caller, inventory)

    def needs(
        self, tool: str | ToolSpec, *, profile: ProfileLike | None = None, context: CallContext | None = None
    ) -> Need | None:
        """What a tool needs but its plugin, the host, the profile or the caller may not use, and how to allow it; None: nothing.

        The tool is still listed, so that a caller sees what is missing. Its calls are refused until then.

        Raises:
            ToolNotFound: it does not exist (TOOL_NOT_FOUND).
            ProfileInvalid: it does not exist, or is invalid (PROFILE_INVALID).
        """
        spec = self.known(tool) if isinstance(tool, str) else tool
        return self.lacking((spec,), profile=profile, context=context).get(spec.id)

    def lacking(
        self, tools: Iterable[ToolSpec], *, profile: ProfileLike | None = None, context: CallContext | None = None
    ) -> dict[str, Need]:
        """`needs` of several tools: id → what it lacks; only tools that lack something."""
        caller, inventory = self._caller(profile, context)
        found: dict[str, Need] = {}
        for spec in tools:
            record = self._specs.lifecycle.records.get(spec.plugin)
            if record is not None and (need := self._need(spec, record, caller, inventory)) is not None:
                found[spec.id] = need
        return found

    def register(self, *offers: Any, plugin: str = "app") -> tuple[str, ...]:
        """Register tools of the program itself while the host is open; all of them or none.

        Args:
            offers: what `tavern_register_tools` may return: functions marked with `@tool`, ToolSpec, factories …
            plugin: the name they go by, ``app:tool``.

        Returns:
            Their ids.

        Raises:
            NameConflict: a tool of that name is registered already (NAME_CONFLICT).
            PluginError: something in `offers` is not a tool, or has a bad schema.
        """
        return self._wait(self._registration.register(list(offers), plugin))

    def bulk_register(self, offers: Iterable[Any], *, plugin: str = "app") -> tuple[str, ...]:
        """`register` for a list."""
        return self.register(*offers, plugin=plugin)

    def refresh(self) -> ToolsDiff:
        """Look for plugins again: new ones appear, changed ones are read again, removed ones stop.

        Returns:
            What changed, by tool id. It may be awaited too; `await tavern.refresh()` does not hold up an event loop.
        """
        return self._wait(self.look_again())

    async def look_again(self) -> ToolsDiff:
        """`refresh` for async code."""
        self._specs.base.portal.check()
        before = {s.id: s for s in self.snapshot()}
        await self._upkeep.look_again()
        self._specs.changed()
        after = {s.id: s for s in self.snapshot()}
        diff = ToolsDiff(
            tuple(sorted(after.keys() - before.keys())),
            tuple(sorted(before.keys() - after.keys())),
            tuple(sorted(k for k in after.keys() & before.keys() if after[k] != before[k])),
        )
        if diff:
            await self._events.emit(TOOLS_CHANGED, diff.to_json(), "")
        return diff

    def snapshot(self) -> tuple[ToolSpec, ...]:
        """All tools at this moment, hidden ones included, sorted by id. Does not change later."""
        return tuple(self._specs.all(self._registry.entries()))

    @property
    def version(self) -> tuple[int, int, int]:
        """Another value after each change of tools, plugins, hooks, lists or grants."""
        self._specs.catch_up()
        return self._specs.look().stamp

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback()` after each change of `version`, on whichever thread makes it, until what comes back is called."""
        return self._specs.base.signals.tools.subscribe(callback)

    def tool_groups(self) -> PluginToolGroups:
        """Which tools the groups of lists mean now: all of plugins (``group:plugins``), those of each plugin, the named ones.

        Names are normalised as in lists: lower case, sorted by id. Tools that are off or hidden are among them.
        """
        tools = self._specs.all(self._registry.entries())
        return self._specs.policy().tool_groups(tools)

    def known(self, tool: str) -> ToolSpec:
        """What is known of a tool without activating anything.

        Raises:
            ToolNotFound: it does not exist (TOOL_NOT_FOUND).
        """
        try:
            entry = self._resolved(tool)
        except ToolNotFound:
            if isinstance(tool, str) and (found := self._namespaces.known(tool)) is not None:
                return found[0]
            raise
        return self._specs.of(entry) or self._specs.placeholder(entry)

    def suggest(self, written: str) -> tuple[str, ...]:
        """The ids nearest to a misspelt one."""
        return tuple(self._registry.suggest(written))

    def known_ids(self) -> tuple[str, ...]:
        """Ids of all tools, hidden ones included."""
        return tuple(sorted(self._registry.entries()))

    @property
    def _registry(self) -> Registry:
        """All ids, as files and plugins have them now."""
        self._specs.catch_up()
        return self._specs.registry

    def _caller(self, profile: ProfileLike | None, context: CallContext | None) -> tuple[CallContext, Profile | None]:
        """The caller, with the inventory that limits it."""
        if context is not None and not isinstance(context, CallContext):
            raise UsageError(
                f"context= takes a CallContext, got {type(context).__name__}", hint="CallContext(principal=...)"
            )
        caller = context or self._specs.default
        if profile is None:
            return caller, None if caller.profile is None else self._profiles(caller.profile)
        inventory = self._profiles(profile)
        return replace(caller, profile=inventory.name), inventory

    def _resolved(self, tool: str) -> Entry:
        """The entry of an id; raises ToolNotFound with all known reasons."""
        try:
            return self._registry.resolve(tool)
        except ToolNotFound as error:
            if (absent := self._specs.absence(tool)) is None:
                raise
            raise absent.error(tool, error) from error

    def _refusal(self, spec: ToolSpec, caller: CallContext, inventory: Profile | None) -> Why | None:
        """Why no executor runs a tool, or lists and profile bar the caller; None: neither."""
        if spec.kind not in (kinds := self._specs.kinds()):
            fix = (
                did_you_mean(spec.kind, kinds)
                or f"use a plugin that contributes it; known kinds: {', '.join(sorted(kinds))}"
            )
            return Why(spec.id, False, f"no plugin runs tools of kind {spec.kind!r}", fix, spec.plugin)
        verdict = self._specs.policy().verdict(spec, caller, inventory)
        return None if verdict.allowed else Why(spec.id, False, verdict.reason, verdict.fix, spec.plugin)

    def _why_there(
        self, spec: ToolSpec, record: Record, reason: str, caller: CallContext, inventory: Profile | None
    ) -> Why:
        if need := self._need(spec, record, caller, inventory):
            return Why(spec.id, True, need.reason, need.fix, record.name)
        stuck = next(
            (d for d in self._specs.diagnostics.all() if d.code == THREADS_STUCK and d.details.get("of") == spec.id),
            None,
        )
        if stuck is not None:
            return Why(spec.id, True, f"{reason}; {stuck.message}", stuck.hint, record.name)
        return Why(spec.id, True, reason, "", record.name)

    def _need(self, spec: ToolSpec, record: Record, caller: CallContext, inventory: Profile | None) -> Need | None:
        """What a tool lacks of what it needs; if only its code knows its needs, what its plugin requests and lacks."""
        rights = self._specs.rights(record, spec)
        if caller is not self._specs.default:
            own = (
                rights.caller
                if caller.principal == HOST_PRINCIPAL and caller.ledger is self._specs.default.ledger
                else caller.permissions
            )
            rights = replace(rights, caller=own, profile=None if inventory is None else inventory.capabilities)
        if lacks := shortfall(record.name, spec.capabilities, rights, caller):
            why = f"which {record.name} was not granted" if lacks.side == "plugin" else lacks.reason
            return Need(lacks.missing, f"needs {', '.join(lacks.missing)}, {why}", lacks.fix, lacks.side)
        if self._specs.is_whole(spec.id):
            return None
        if waiting := sorted(name for name in record.candidate.requested - record.granted if is_capability(name)):
            return Need(
                tuple(waiting),
                f"may need {', '.join(waiting)}, which {record.name} was not granted",
                grant_fix(record.name, waiting, None),
                is_certain=False,
            )
        return None

    def _beyond(self, tool: str, caller: CallContext) -> tuple[ToolSpec, Record, str] | None:
        """An unregistered tool that can still be called, with its plugin and its maker; None if there is none.

        It is made for this caller by a factory without names, or known to the resolver of its prefix, which is activated.

        Raises:
            CallError: the resolver failed, or a hook left it out.
        """
        if not isinstance(tool, str):
            return None
        ids, records = spellings(tool), self._specs.lifecycle.records
        if self._openly(tool):
            for spec in self._specs.open_for(caller):
                if spec.id in ids:
                    return spec, records[spec.plugin], f"made for this caller by a factory of {spec.plugin}"
        prefix = split_id(tool)[0].strip()
        if self._namespaces.asleep({prefix}):
            self._wait(self._namespaces.wake({prefix}))
        found = self._namespaces.known(tool)
        return None if found is None else (*found, f"known to the namespace {prefix!r} of {found[1].name}")

    def _openly(self, tool: str) -> str | None:
        """The active plugin with factories without names that could make a tool of this id."""
        records = self._specs.lifecycle.records
        return next(
            (r.name for i in spellings(tool) if (r := records.get(split_id(i)[0])) and r.active and r.open_factories),
            None,
        )

    def _why_beyond(
        self, tool: str, error: ToolNotFound, profile: ProfileLike | None, context: CallContext | None
    ) -> Why:
        """The same for a tool that is not registered."""
        try:
            caller, inventory = self._caller(profile, context)
            beyond = self._beyond(tool, caller)
        except TavernError as failed:
            return Why(str(tool), False, failed.message, failed.hint, str(failed.details.get("plugin", "")))
        if beyond is not None:
            spec, record, reason = beyond
            refusal = self._refusal(spec, caller, inventory)
            return self._why_there(spec, record, reason, caller, inventory) if refusal is None else refusal
        if isinstance(tool, str) and (owner := self._openly(tool)):
            reason = f"there is no tool {tool!r}, and the factories of {owner} make none of that name for this caller"
            return Why(tool, False, reason, "", owner)
        return self._why_unknown(tool, error)

    def _why_unknown(self, tool: str, error: ToolNotFound) -> Why:
        absent = self._specs.absence(tool)
        if absent is None:
            return Why(str(tool), False, error.message, error.hint, split_id(str(tool))[0])
        return Why(str(tool), False, absent.reason, absent.fix, absent.plugin)
