"""Lists of tools as people write them in tavern.yaml: the meaning of an entry, and the tools that it names.

    text:count  text.count  text/count   one tool, in any accepted spelling; upper and lower case, `_` and `-` do not matter
    count                                every tool of this local name
    text                                 every tool of this plugin
    group:plugins                        every tool of a plugin, none of the host's own
    core                                 every tool of the host's own
    group:writing                        the entries of the named group, which may name further groups
    text:*   *:count   get_*   *         wildcards: `*` stands for any characters

A list that denies reads an entry as widely as it can, a list that allows as narrowly: there `text.count` is never some
plugin's tool with a dot in its local name, and `text` is never another plugin's tool when a plugin has that name. An
entry that names nothing matches nothing: it never makes a list mean more, and it is reported (`tool_access.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.naming_rules import RESERVED_NAMESPACES, is_plugin_name, spellings, split_id
from tavern_core.model.nearest import fold
from tavern_core.model.tool import ToolSpec
from tavern_core.model.wildcard import matches

GROUP: Final = "group:"
ALL_PLUGINS: Final = "group:plugins"
HOST: Final = "core"


def normalize_tool_name(name: str, aliases: Mapping[str, str] | None = None) -> str:
    """`name` without blanks around it, in lower case, and its alias resolved (seed 002, `normalizeToolName`).

    >>> normalize_tool_name("  My_Tool ", {"my_tool": "text:tool"})
    'text:tool'
    """
    lowered = name.strip().lower()
    return (aliases or {}).get(lowered, lowered)


def local_key(local: str) -> str:
    """The form in which local names are compared: no two tools of a plugin can share it (FEATURES B15)."""
    lowered = local.casefold()
    return lowered.replace("_", "").replace("-", "") or lowered


def plugin_key(plugin: str) -> str:
    """The form in which plugin names are compared; `_` is `-`, and `ab` and `a-b` are two plugins."""
    return plugin.strip().casefold().replace("_", "-")


def host_keys(plugins: Iterable[str]) -> frozenset[str]:
    """The keys that identify the host's own tools: their plugins, and the namespaces that no plugin may have."""
    return frozenset(plugin_key(plugin) for plugin in (*plugins, *RESERVED_NAMESPACES))


def tool_key(tool_id: str) -> str:
    """The form in which tool ids are compared.

    >>> tool_key("My_Plugin:getData") == tool_key("my-plugin:get_data")
    True
    """
    plugin, local = split_id(tool_id.strip())
    return f"{plugin_key(plugin)}:{local_key(local)}"


@dataclass(frozen=True, slots=True)
class ToolNames:
    """The names of one tool, as lists compare them."""

    key: str
    local: str
    written: str
    """The id for wildcards: only upper and lower case are alike, `_` is a character like any other."""
    plugin: str
    """The plugin that contributed it."""
    namespace: str
    """The part of the id before the colon; the plugin's name but for reserved namespaces."""

    @classmethod
    def of(cls, tool: ToolSpec | str) -> ToolNames:
        """The names of a tool, or of one of which only the id is known."""
        tool_id, plugin = (tool, "") if isinstance(tool, str) else (tool.id, tool.plugin)
        prefix, local = split_id(tool_id)
        namespace = plugin_key(prefix)
        owner = plugin_key(plugin) or namespace
        return cls(tool_key(tool_id), local_key(local), f"{namespace}:{local.casefold()}", owner, namespace)


@dataclass(frozen=True, slots=True)
class ToolList:
    """A compiled list. `place` is its location, e.g. ``tools.deny``."""

    place: str
    entries: tuple[str, ...]
    _exact: Mapping[str, int]
    _locals: Mapping[str, int]
    _owners: Mapping[str, int]
    _patterns: tuple[tuple[str, int], ...]
    _all_plugins: int | None
    known: SelectorTargets
    """`known.host` are the host's own plugins, which `group:plugins` does not cover."""

    @classmethod
    def compile(cls, place: str, entries: Sequence[str], known: SelectorTargets, *, wide: bool) -> ToolList:
        """Read the entries, as widely as they can be read (lists that deny) or as narrowly (lists that allow)."""
        exact: dict[str, int] = {}
        local: dict[str, int] = {}
        owners: dict[str, int] = {}
        patterns: list[tuple[str, int]] = []
        all_plugins: list[int] = []
        for index, written in enumerate(entries):
            for entry in known.groups.expand(written):
                if is_all_plugins(entry):
                    all_plugins.append(index)
                    continue
                for reading in readings(entry, known.aliases, wide=wide):
                    if "*" in reading:
                        patterns.append((known.pattern(reading), index))
                    elif ":" in reading:
                        exact.setdefault(known.tool(reading), index)
                    else:
                        owners.setdefault(known.plugin(reading), index)
                        if wide or known.plugin(reading) not in known.plugins:
                            local.setdefault(local_key(reading), index)
        return cls(place, tuple(entries), exact, local, owners, tuple(patterns), min(all_plugins, default=None), known)

    def match(self, tool: ToolNames) -> int | None:
        """The index of the first entry that names `tool`, None when none does."""
        found = [self._exact.get(tool.key), self._locals.get(tool.local), self._owners.get(tool.plugin)]
        if tool.namespace in RESERVED_NAMESPACES:
            found.append(self._owners.get(tool.namespace))
        found.append(self._owners.get(HOST) if tool.plugin in self.known.host else self._all_plugins)
        hits = [index for index in found if index is not None]
        first = min(hits, default=len(self.entries))
        for pattern, index in self._patterns:
            if index < first and matches(pattern, tool.written if ":" in pattern else tool.written.partition(":")[2]):
                first = index
        return first if first < len(self.entries) else None


Rank = tuple[int, int]
"""The specificity of an entry; a higher one has precedence."""


def specificity(written: str, matcher: ToolList, names: ToolNames) -> Rank | None:
    """The specificity with which an entry names a tool; None if it does not name it.

    Args:
        matcher: the compiled list of this entry alone.
    """
    if matcher.match(names) is None:
        return None
    entry, known = written.strip(), matcher.known
    if is_all_plugins(entry) or not entry.strip("*:"):
        return 0, 0
    if "*" in entry:
        return (2, 0) if entry.endswith(":*") and entry.count("*") == 1 else (3, len(entry.replace("*", "")))
    if ":" in entry or "/" in entry or known.tool(entry) == names.key:
        return 5, 0
    return (4, 0) if local_key(entry) == names.local and known.plugin(entry) != names.plugin else (2, 0)


class SelectorTargets:
    """The names that entries may refer to.

    Args:
        groups: the named groups.
        plugins: names of all plugins.
        aliases: other ids of tools → the real id.
        host: those of the plugins that are the host's own.
    """

    def __init__(
        self,
        groups: ToolGroups,
        plugins: Iterable[str] = (),
        aliases: Mapping[str, str] | None = None,
        host: Iterable[str] = (),
    ) -> None:
        self.groups = groups
        self.host = host_keys(host)
        self.plugins = frozenset(plugin_key(plugin) for plugin in plugins)
        self.aliases: dict[str, dict[str, list[str]]] = {}
        """Alias in lower case → alias as it is written → real ids: names of an upstream may differ in case, or in blanks around them, alone."""
        for alias, real in (aliases or {}).items():
            self.aliases.setdefault(normalize_tool_name(alias), {}).setdefault(alias.strip(), []).append(real)
        self._by_fold: dict[str, list[str]] = {}
        for plugin in sorted(self.plugins):
            self._by_fold.setdefault(fold(plugin), []).append(plugin)

    def plugin(self, written: str) -> str:
        """The key of the plugin that `written` names: ``FileOperator`` is ``file-operator`` where there is one.

        Only a spelling that cannot be a plugin's name is guessed at: ``fileoperator`` never means ``file-operator``, or
        a plugin with a similar name could take the place of one that is not installed.
        """
        key = plugin_key(written)
        if key in self.plugins or is_plugin_name(written.strip()):
            return key
        alike = self._by_fold.get(fold(written), [])
        return alike[0] if len(alike) == 1 else key

    def tool(self, written: str) -> str:
        """The key of the tool that the id `written` names."""
        plugin, local = split_id(written.strip())
        return f"{self.plugin(plugin)}:{local_key(local)}"

    def pattern(self, written: str) -> str:
        """A wildcard entry in the form in which `matches` compares it with `ToolNames.written`, or with its local part."""
        plugin, local = split_id(written.strip())
        if ":" not in written:
            return local.casefold()
        return f"{plugin_key(plugin) if '*' in plugin else self.plugin(plugin)}:{local.casefold()}"


class ToolGroups:
    """Named groups, ``group:<name>``; a group may name groups, also in a circle."""

    def __init__(self, groups: Mapping[str, Iterable[str]]) -> None:
        self._groups = {group_key(name): tuple(entries) for name, entries in groups.items()}

    def __contains__(self, name: str) -> bool:
        return group_key(name) in self._groups

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def expand(self, entry: str) -> list[str]:
        """The entries that `entry` stands for: itself, or all that its group holds, at any depth, each once."""
        if not is_group(entry) or is_all_plugins(entry):
            return [entry]
        found: list[str] = []
        waiting, visited = [group_of(entry)], {group_of(entry)}
        while waiting:
            for member in self._groups.get(waiting.pop(), ()):
                if not is_group(member) or is_all_plugins(member):
                    found.append(member)
                elif (inner := group_of(member)) not in visited:
                    visited.add(inner)
                    waiting.append(inner)
        return found

    def circles(self) -> list[tuple[str, ...]]:
        """The circles among the groups, each as the path that closes it: ``("a", "b", "a")``."""
        found: dict[tuple[str, ...], None] = {}
        finished: set[str] = set()
        for start in self._groups:
            path: dict[str, Iterator[str]] = {} if start in finished else {start: iter(self._inner(start))}
            while path:
                name = next(reversed(path))
                following = next(path[name], None)
                if following is None:
                    finished.add(name)
                    del path[name]
                elif following in path:
                    names = list(path)
                    found[(*names[names.index(following) :], following)] = None
                elif following not in finished:
                    path[following] = iter(self._inner(following))
        return list(found)

    def _inner(self, name: str) -> list[str]:
        members = self._groups.get(name, ())
        return [group_of(member) for member in members if is_group(member) and not is_all_plugins(member)]


def group_key(name: str) -> str:
    """The form in which group names are compared."""
    return name.strip().casefold()


def group_of(entry: str) -> str:
    """The name behind ``group:``."""
    return group_key(entry.strip()[len(GROUP) :])


def is_group(entry: str) -> bool:
    """True for ``group:<name>``."""
    return entry.strip().casefold().startswith(GROUP)


def is_all_plugins(entry: str) -> bool:
    """True for ``group:plugins``."""
    return entry.strip().casefold() == ALL_PLUGINS


def readings(entry: str, aliases: Mapping[str, Mapping[str, Sequence[str]]], *, wide: bool) -> list[str]:
    """The names that `entry` may mean: its spellings, and the real id where it is an alias (`SelectorTargets.aliases`).

    A wide reading takes all aliases that `entry` fits as if they were ids. A narrow one takes the only one, or where
    there are several that differ in case or blanks alone, the only one that is written so.
    """
    literal, *ids = spellings(entry)
    found = [literal, *ids] if wide or not ids else ids
    for name in (literal, *ids):
        meant = aliases.get(name.lower(), {})
        alike = [real for reals in meant.values() for real in reals]
        same = meant.get(name, ())
        found += alike if wide or len(alike) == 1 else same if len(same) == 1 else ()
    if wide and ("*" in literal or ":" not in literal):
        pattern = literal.lower()
        fitting = (a for a in aliases if matches(pattern, a if ":" in pattern else a.partition(":")[2]))
        found += [real for alias in fitting for reals in aliases[alias].values() for real in reals]
    return found
