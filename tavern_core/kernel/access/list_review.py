"""Checks the lists of tools in tavern.yaml: unknown entries, circular groups, names of several tools.

Nothing here decides about a tool. An unknown entry has no effect; this check makes sure that it is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, Literal

from tavern_core.errors import Finding, Location
from tavern_core.kernel.access.tool_selectors import (
    SelectorTargets,
    ToolGroups,
    ToolNames,
    group_key,
    group_of,
    is_all_plugins,
    is_group,
    local_key,
    plugin_key,
    readings,
)
from tavern_core.model.config import HostConfig
from tavern_core.model.naming_rules import CALLER_KEYS, CALLER_KINDS, RESERVED_NAMESPACES, caller_key_flaw, split_id
from tavern_core.model.nearest import did_you_mean, nearest
from tavern_core.model.wildcard import matches

_MOST_SUGGESTIONS: Final = 20  # looking for the nearest of 10,000 names takes a tenth of a second


_NO_SUCH_TOOL: Final = (
    "`tavern tools list --all` shows the ids; correct the entry, take it out, or install what it names"
)
_NO_SUCH_GROUP: Final = "add the group to tools.groups, or take the entry out"


class ListReview:
    """Compares the lists of one host with what exists in it. `targets` is what the lists are compiled with."""

    def __init__(
        self,
        config: HostConfig,
        tools: Iterable[str],
        plugins: Iterable[str],
        aliases: Mapping[str, str],
        file: str,
        host: Iterable[str] = (),
    ) -> None:
        self._config, self._callers, self._file = config.tools, config.callers, file
        self._tool_ids, self._aliases = tools, aliases
        self._plugins = sorted({*plugins, *RESERVED_NAMESPACES})
        self._upstreams = {plugin_key(entry.plugin_name(name)) for name, entry in config.upstreams.items()}
        """Their prompts and resources may be named in lists, too."""
        self._suggestions_left = _MOST_SUGGESTIONS
        self._group_names = [name for name in config.tools.groups if group_key(name) != "plugins"]
        groups = ToolGroups({name: config.tools.groups[name] for name in self._group_names})
        self.targets = SelectorTargets(groups, self._plugins, aliases, host)

    # Computed at the first entry: a host without lists compiles in no time, however many tools it has.

    @cached_property
    def _ids(self) -> list[str]:
        return sorted(set(self._tool_ids))

    @cached_property
    def _tools(self) -> list[ToolNames]:
        return [ToolNames.of(tool_id) for tool_id in self._ids]

    @cached_property
    def _keys(self) -> set[str]:
        return {names.key for names in self._tools}

    @cached_property
    def _by_local(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for tool_id, names in zip(self._ids, self._tools, strict=True):
            found.setdefault(names.local, []).append(tool_id)
        return found

    @cached_property
    def _spellings(self) -> list[str]:
        local_names = sorted({split_id(tool_id)[1] for tool_id in self._ids})
        return [*self._ids, *self._aliases, *self._plugins, *local_names]

    def findings(self) -> Iterator[Finding]:
        """All entries of the lists that cannot have their apparent meaning."""
        yield from self._review_list("tools.allow", self._config.allow, wide=False, reads=True)
        yield from self._review_list("tools.only", self._config.only or (), wide=False, reads=True)
        yield from self._review_list("tools.deny", self._config.deny, wide=True, reads=True)
        yield from self._review_groups()
        for key, rule in self._callers.items():
            yield from self.caller("callers", key)
            yield from self._review_list(f"callers.{key}.allow", rule.allow or (), wide=False, reads=True)
            yield from self._review_list(f"callers.{key}.deny", rule.deny, wide=True, reads=True)

    def further(self, lists: Iterable[tuple[str, Sequence[str], bool]]) -> Iterator[Finding]:
        """The same for other lists: (place, entries, whether they are read widely)."""
        for place, entries, wide in lists:
            yield from self._review_list(place, entries, wide=wide)

    def caller(self, place: str, key: str) -> Iterator[Finding]:
        """A key of `callers`, or of another section by caller, that can match no caller."""
        kind, _, name = key.partition(":")
        if flaw := caller_key_flaw(key):
            message = flaw
        elif key != key.strip() or name != name.strip():
            message = f"the caller {key!r} has blanks around it; only a name with the same blanks fits"
        elif name and kind not in CALLER_KINDS and (near := nearest(kind, CALLER_KINDS, 1)):
            message = f"the caller {key!r} is a principal of this name; if {near[0]}:{name} is meant, the entry matches no one"
        else:
            return
        yield self._warning(f"{place}.{key}", message, CALLER_KEYS)

    def _warning(self, place: str, message: str, hint: str, **details: str) -> Finding:
        return Finding("CONFIG_INVALID", message, hint, Location(self._file, pointer=place), "warning", details)

    def _review_groups(self) -> Iterator[Finding]:
        for name, entries in self._config.groups.items():
            if name in self._group_names:
                yield from self._review_list(f"tools.groups.{name}", entries, wide=True, reads=True)
            else:
                message = "group:plugins always means every tool of every plugin; this group is not used"
                yield self._warning(f"tools.groups.{name}", message, "give the group another name")
        for path in self.targets.groups.circles():
            message = f"groups name each other in a circle: {' → '.join(path)}; each means all their entries together"
            hint = f"remove 'group:{path[-1]}' from the group {path[-2]!r}"
            yield self._warning(f"tools.groups.{path[0]}", message, hint)

    def _review_list(self, place: str, entries: Sequence[str], *, wide: bool, reads: bool = False) -> Iterator[Finding]:
        """Args: reads: the list holds for prompts and resources of upstreams, too."""
        for index, entry in enumerate(entries):
            where = place if place.endswith(f".{entry}") else f"{place}[{index}]"  # a key, or an entry of a list
            if not self._exists(entry, wide=wide):
                if reads and (found := self._of_reads(where, entry)) is not None:
                    yield found
                    continue
                yield self._warning(where, *self._unknown(entry), entry=entry)
            elif len(ids := self._several(entry, wide=wide)) > 1:
                message = f"{entry!r} names tools of several plugins: {', '.join(ids[:5])}"
                yield self._warning(where, message, "write the full id of the one you mean", entry=entry)

    def _of_reads(self, place: str, entry: str) -> Finding | None:
        """An entry that holds for no tool, but may hold for a prompt or a resource, which are known to the upstream alone."""
        plugin, colon, name = entry.partition(":")
        if not colon or plugin_key(plugin) not in self._upstreams:
            return None
        message = f"{plugin.strip()} has no tool {name!r}; the entry holds for a prompt or resource of this name only"
        near = did_you_mean(entry, self._ids) if self._suggestions_left > 0 else ""
        self._suggestions_left -= 1
        severity: Literal["warning", "info"] = "warning" if near else "info"
        hint = near or "correct the entry if you mean a tool"
        return Finding("CONFIG_INVALID", message, hint, Location(self._file, pointer=place), severity, {"entry": entry})

    def _exists(self, entry: str, *, wide: bool) -> bool:
        if is_all_plugins(entry):
            return True
        if is_group(entry):
            return group_of(entry) in self.targets.groups
        return any(self._names_something(reading) for reading in readings(entry, self.targets.aliases, wide=wide))

    def _names_something(self, reading: str) -> bool:
        if "*" not in reading:
            if ":" in reading:
                return self.targets.tool(reading) in self._keys
            return local_key(reading) in self._by_local or self.targets.plugin(reading) in self.targets.plugins
        pattern = self.targets.pattern(reading)
        plugin, colon, local = pattern.partition(":")
        if colon and local == "*" and any(matches(plugin, name) for name in self.targets.plugins):
            return True  # the plugin exists; that it has no tools just now is not the list's fault
        texts = (names.written if colon else names.written.partition(":")[2] for names in self._tools)
        return pattern == "*" or any(matches(pattern, text) for text in texts)

    def _several(self, entry: str, *, wide: bool) -> list[str]:
        """The ids that a bare local name fits, when they are not all of one plugin."""
        if "*" in entry or ":" in entry or (not wide and self.targets.plugin(entry) in self.targets.plugins):
            return []
        ids = self._by_local.get(local_key(entry.strip()), [])
        return ids if len({split_id(tool_id)[0] for tool_id in ids}) > 1 else []

    def _unknown(self, entry: str) -> tuple[str, str]:
        """(message, hint) for an entry that names nothing."""
        self._suggestions_left -= 1
        if is_group(entry):
            message = f"no group is called {group_of(entry)!r}; the entry has no effect"
            return message, did_you_mean(group_of(entry), [*self._group_names, "plugins"]) or _NO_SUCH_GROUP
        message = f"no tool, plugin or alias fits {entry!r}; the entry has no effect"
        near = did_you_mean(entry, self._spellings) if self._suggestions_left >= 0 else ""
        return message, near or _NO_SUCH_TOOL
