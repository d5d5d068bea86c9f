"""`tavern.tools`: list, get, search, explain. Listing imports nothing; `get` may activate the plugin."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tavern_core.errors import ToolNotFound, UsageError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.access.tool_access import PluginToolGroups
from tavern_core.kernel.access.tool_pins import ToolPin
from tavern_core.kernel.catalogue.availability import Availability, AvailabilityReason, ToolNeed
from tavern_core.kernel.catalogue.profile_resolution import Inventories
from tavern_core.kernel.plugins.app_tools import Registration
from tavern_core.kernel.plugins.host_registries import UpstreamLists
from tavern_core.kernel.plugins.reconciler import Reconciler
from tavern_core.kernel.registry import Registry, RegistryEntry
from tavern_core.model.call import CallContext
from tavern_core.model.event import TOOLS_CHANGED
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.kernel.access.profiles import ProfileLike

D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class ToolsDiff:
    """The changes by a refresh, by tool id. It can also be awaited, for callers that await every method."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __await__(self) -> Generator[Any, None, Self]:
        yield from ()  # nothing to await
        return self

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def to_json(self) -> dict[str, Any]:
        return {"added": list(self.added), "removed": list(self.removed), "changed": list(self.changed)}


class Tools:
    """All tools of a host: ``tools["text:count"]``, ``"text:count" in tools``, ``len(tools)``; iterating gives the ids.

    As a collection it holds every tool, including hidden ones; `list` and `search` show what a caller may see.
    """

    def __init__(
        self,
        inventories: Inventories,
        upstreams: UpstreamLists | None,
        reconciler: Reconciler,
    ) -> None:
        self._specs = specs = inventories.specs
        self._namespaces = inventories.namespaces
        self._upstreams = upstreams
        self._reconciler = reconciler
        self._events = specs.lifecycle.events
        self._registration = Registration(specs.lifecycle)
        self._wait = specs.base.portal.run
        self._availability = Availability(inventories)

    def list(
        self, profile: ProfileLike | None = None, *, context: CallContext | None = None, usable: bool = False
    ) -> tuple[ToolSpec, ...]:
        """The tools that a caller may see, sorted by id.

        Nothing is imported; a tool whose parameters only its code knows has none yet.

        Args:
            profile: only the tools in the inventory of this agent profile: its name, the path of an
                agent_profile.json, or a mapping ``{"tool_ids_inventory": [...]}``.
            context: the caller; None: the host itself.
            usable: leave out tools that the caller can never use, for lack of a capability (`needs`).

        Raises:
            ProfileInvalid: it does not exist, or is invalid (PROFILE_INVALID).
            UsageError: profile or context has the wrong type (USAGE).
        """
        if usable:
            visible = self.list(profile, context=context)
            lacking = self.lacking(visible, profile=profile, context=context)
            return tuple(spec for spec in visible if spec.id not in lacking or not lacking[spec.id].is_certain)
        entries = self._registry.entries()
        caller, inventory = self._availability.caller(profile, context)
        if caller is self._specs.default and not self._specs.config.callers:
            return self._specs.visible_to_host()
        policy = self._specs.policy()
        kinds = self._specs.kinds()
        if inventory is not None:
            entries = {tool_id: entries[tool_id] for tool_id in inventory.tools if tool_id in entries}
        made = [*(self._specs.for_caller(s, caller) for s in self._specs.all(entries)), *self._specs.open_for(caller)]
        shown = (spec for spec in made if spec is not None and spec.executor in kinds)
        allowed = [s for s in shown if s is not None and policy.verdict(s, caller, inventory).allowed]
        if inventory is not None:
            allowed += [
                s
                for s in inventory.resolved.values()
                if s.executor in kinds and policy.verdict(s, caller, inventory).allowed
            ]
        return tuple(sorted(self._specs.without_changed(allowed), key=lambda spec: spec.id))

    def get(self, tool: str, default: D | None = None) -> ToolSpec | D | None:
        """A tool with its full definition, or `default`; activates its plugin if only the id is known.

        In async code activate the plugin first (`await tavern.plugins.activate(name)`): an import blocks the loop.

        Raises:
            PluginError: its plugin cannot be activated.
        """
        try:
            return self[tool]
        except ToolNotFound:
            return default

    def __getitem__(self, tool: str) -> ToolSpec:
        """A tool with its full definition; activates its plugin if only the id is known.

        Raises:
            ToolNotFound: it does not exist; names the nearest (TOOL_NOT_FOUND).
            PluginError: its plugin cannot be activated.
        """
        try:
            entry = self._resolved(tool)
        except ToolNotFound:
            if (beyond := self._availability.beyond(tool, self._specs.default)) is None:
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
        """The tools whose definitions are pinned, and their changes since. Raises StateDamaged (STATE_DAMAGED)."""
        entries = self._registry.entries()
        return self._specs.pins.states({
            name: self._specs.of(entry) if self._specs.is_whole(name) else None for name, entry in entries.items()
        })  # fmt: skip

    def pin(self, *tools: str) -> None:
        """Pin the current definitions of these tools as reviewed; a tool that changes later is quarantined.

        Raises:
            ToolNotFound: there is no such tool (TOOL_NOT_FOUND).
            UsageError: no tool is named (USAGE).
        """
        if not tools:
            raise UsageError("no tool is named", hint='tavern.tools.pin("text:count")')
        self._specs.pins.pin([self[tool] for tool in tools])
        self._specs.base.signals.tools.emit()

    def unpin(self, *tools: str) -> None:
        """Remove the pins of these tools. Raises ToolNotFound: one is not pinned (TOOL_NOT_FOUND)."""
        pinned = {pin.tool for pin in self.pins()}
        found = {tool: None if tool in pinned else self._registry.find(tool) for tool in tools}
        self._specs.pins.unpin(tool if entry is None else entry.id for tool, entry in found.items())
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
        """The tools that fit best, best first; only those that the caller may see.

        Args:
            query: an id, a name or words, Chinese or English; empty: all.
            capability: only tools that need it.
            tag: only tools with this tag.

        Raises:
            UsageError: one of the arguments is not text (USAGE).
        """
        from tavern_core.kernel.catalogue.search import ToolIndex

        for name, value in (("query", query), ("capability", capability), ("tag", tag)):
            if not isinstance(value, str) and (value is not None or name == "query"):
                raise UsageError(f"search({name}=...) takes text, got {type(value).__name__}")
        shown = self.list(profile, context=context)
        cache = self._specs.current()
        visible = cache.by_id if shown is cache.listed else {spec.id: spec for spec in shown}
        found = self._specs.index().search(query, capability=capability, tag=tag, limit=limit, among=visible)
        if shown is not cache.listed and (made := visible.keys() - self._registry.entries().keys()):
            own_index = ToolIndex()  # tools that factories and namespaces make for this caller only
            own_index.sync(visible[tool_id] for tool_id in made)
            found += own_index.search(query, capability=capability, tag=tag, limit=limit)
            found = sorted(found, key=lambda hit: (-hit[1], hit[0]))[: max(limit, 0)]
        return tuple(visible[tool_id] for tool_id, _ in found)

    def why(
        self, tool: str, *, profile: ProfileLike | None = None, context: CallContext | None = None
    ) -> AvailabilityReason:
        """Why a tool is available or not: plugin state, grants, clashes, lists, profile, capabilities. Any id works."""
        return self._availability.why(tool, profile, context)

    def needs(
        self, tool: str | ToolSpec, *, profile: ProfileLike | None = None, context: CallContext | None = None
    ) -> ToolNeed | None:
        """The needs of a tool that its plugin, the host, the profile or the caller does not allow; None: none.

        The tool is still listed, so that a caller sees what is missing. Its calls are refused until then.

        Raises:
            ToolNotFound: it does not exist (TOOL_NOT_FOUND).
            ProfileInvalid: it does not exist, or is invalid (PROFILE_INVALID).
        """
        spec = self.known(tool) if isinstance(tool, str) else tool
        return self.lacking((spec,), profile=profile, context=context).get(spec.id)

    def lacking(
        self, tools: Iterable[ToolSpec], *, profile: ProfileLike | None = None, context: CallContext | None = None
    ) -> dict[str, ToolNeed]:
        """`needs` of several tools: id → the missing capabilities; only for tools that lack some."""
        return self._availability.lacking(tools, profile, context)

    def register(self, *offers: Any, plugin: str = "app") -> tuple[str, ...]:
        """Register tools of the program itself while the host is open; all of them or none.

        Args:
            offers: what `tavern_register_tools` may return: functions marked with `@tool`, ToolSpec, factories …
            plugin: the prefix of their ids, as in ``app:tool``.

        Returns:
            Their ids.

        Raises:
            NameConflict: a tool of that name is registered already (NAME_CONFLICT).
            PluginError: something in `offers` is not a tool, or has an invalid schema.
        """
        return self._wait(self._registration.register(list(offers), plugin))

    def bulk_register(self, offers: Iterable[Any], *, plugin: str = "app") -> tuple[str, ...]:
        """`register` for a list."""
        return self.register(*offers, plugin=plugin)

    def refresh(self) -> ToolsDiff:
        """Discover plugins again: new ones appear, changed ones are read again, removed ones stop.

        Upstreams in use are listed again.

        Returns:
            What changed, by tool id. Async code calls `await tavern.refresh()` instead, which does not block the loop.
        """
        return self._wait(self.look_again())

    async def look_again(self) -> ToolsDiff:
        """`refresh` for async code."""
        self._specs.base.portal.check()
        before = {s.id: s for s in self.snapshot()}
        await self._reconciler.look_again()
        if self._upstreams is not None:
            await self._upstreams.refresh_used()
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
        """All current tools, including hidden ones, sorted by id. The result does not change later."""
        return tuple(self._specs.all(self._registry.entries()))

    @property
    def version(self) -> tuple[int, int, int]:
        """A value that differs after each change of tools, plugins, hooks, lists or grants."""
        self._specs.catch_up()
        return self._specs.current().stamp

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback()` after each change of `version`, on the thread that makes it, until the result is called."""
        return self._specs.base.signals.tools.subscribe(callback)

    def tool_groups(self) -> PluginToolGroups:
        """The tools in each group of lists: all of plugins (``group:plugins``), of each plugin, and the named groups.

        Names are normalised as in lists: lower case, sorted by id. Disabled and hidden tools are included.
        """
        tools = self._specs.all(self._registry.entries())
        return self._specs.policy().tool_groups(tools)

    def known(self, tool: str) -> ToolSpec:
        """The known definition of a tool, without activating anything.

        Raises:
            ToolNotFound: it does not exist (TOOL_NOT_FOUND).
        """
        try:
            entry = self._resolved(tool)
        except ToolNotFound:
            if isinstance(tool, str) and (found := self._namespaces.find_sync(tool)) is not None:
                return found[0]
            raise
        return self._specs.of(entry) or self._specs.placeholder(entry)

    def suggest(self, written: str) -> tuple[str, ...]:
        """The ids nearest to a misspelt one."""
        return tuple(self._registry.suggest(written))

    def known_ids(self) -> tuple[str, ...]:
        """Ids of all tools, including hidden ones."""
        return tuple(sorted(self._registry.entries()))

    @property
    def _registry(self) -> Registry:
        """All ids, as files and plugins define them now."""
        self._specs.catch_up()
        return self._specs.registry

    def _resolved(self, tool: str) -> RegistryEntry:
        """The entry of an id; raises ToolNotFound with all known reasons."""
        self._specs.catch_up(tool)
        try:
            return self._specs.registry.resolve(tool)
        except ToolNotFound as error:
            if (absent := self._specs.absence(tool)) is None:
                raise
            raise absent.error(tool, error) from error
