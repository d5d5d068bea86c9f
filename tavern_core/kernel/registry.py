"""The tools of a host: the plugin that contributed each, its visibility, and its compiled plan.

Entries are stored per plugin, in the plugins' order of precedence. The shared map is rebuilt from them and replaced as a whole.
So a reader never sees half a change, and the winner of a clash does not depend on the order of registration.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import NamedTuple

from tavern_core.contract.tools import ToolFactory
from tavern_core.errors import Finding, Location, ToolNotFound
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.signal import Signal
from tavern_core.model.naming_rules import spellings, split_id
from tavern_core.model.nearest import did_you_mean, fold, nearest, suggestion
from tavern_core.model.tool import ToolSpec


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """A known id: with its tool, with a factory, or only declared."""

    id: str
    plugin: str
    spec: ToolSpec | None = None
    factory: ToolFactory | None = None
    optional: bool = False


class LostClash(NamedTuple):
    """Why an id belongs to another tool, and the repair."""

    reason: str
    hint: str = "rename one, or disable the other plugin"


@dataclass(frozen=True, slots=True)
class _RegistrySnapshot:
    """A consistent snapshot of all entries."""

    entries: Mapping[str, RegistryEntry]
    aliases: Mapping[str, str]
    folded: Mapping[str, tuple[str, ...]]
    """Folded id or local name → ids."""
    given: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Id → its aliases in the configuration."""
    mismatches: tuple[Finding, ...] = ()
    """Aliases in the configuration that cannot be used, and why."""
    disputed: frozenset[str] = frozenset()
    """Aliases in the configuration that are names of another tool, too: of neither, unless it is the id of one."""

    def target(self, written: str) -> str | None:
        """The id of which `written` is an alias."""
        return None if written in self.disputed else self.aliases.get(written)


def no_text(written: object) -> ToolNotFound:
    """The error about an id that is not text."""
    hint = "pass the id of a tool, such as 'system:get_current_time'"
    return ToolNotFound(f"a tool id is text, got {type(written).__name__}", hint=hint)


class Registry:
    """All tool ids.

    A change only marks the shared map as outdated, and the next reader rebuilds it. So a start with many plugins builds it once.

    Args:
        changed: emitted after each change, with the lock held.
        aliases: the operator's, alias → id (`tools.aliases`).
        file: the name of the configuration in messages.
    """

    def __init__(self, diagnostics: Diagnostics, changed: Signal, aliases: Mapping[str, str], file: str) -> None:
        self._diagnostics = diagnostics
        self._changed = changed
        self._configured_aliases = aliases
        self._file = file
        self._lock = threading.Lock()
        self._by_plugin: dict[str, tuple[tuple[RegistryEntry, ...], Mapping[str, str]]] = {}
        self._rank: dict[str, int] = {}
        self._picture = _RegistrySnapshot({}, {}, {})
        self._hidden: dict[str, LostClash] = {}
        self._is_stale = False
        self.generation = 0

    def put(self, plugin: str, rank: int, entries: Iterable[RegistryEntry], aliases: Mapping[str, str]) -> None:
        """Replace the tools of `plugin`. `rank` decides clashes: the lower one wins."""
        self.put_all({plugin: (rank, tuple(entries), aliases)})

    def put_all(self, changed: Mapping[str, tuple[int, tuple[RegistryEntry, ...], Mapping[str, str]]]) -> None:
        """Replace the tools of several plugins at once."""
        with self._lock:
            is_new = False
            for plugin, (rank, entries, aliases) in changed.items():
                known = self._by_plugin.get(plugin, ((), {}))
                is_new = is_new or (self._rank.get(plugin), *known) != (rank, entries, aliases)
                self._rank[plugin] = rank
                self._by_plugin[plugin] = entries, aliases
            if is_new:
                self._change()

    def drop(self, plugin: str) -> None:
        """Remove the tools of `plugin`."""
        with self._lock:
            if self._by_plugin.pop(plugin, None) is not None:
                self._change()

    def entries(self) -> Mapping[str, RegistryEntry]:
        """Id → entry, in order of precedence and registration."""
        return self._snapshot().entries

    def of_plugin(self, plugin: str) -> tuple[RegistryEntry, ...]:
        """The tools of one plugin, clashing ones included."""
        return self._by_plugin.get(plugin, ((), {}))[0]

    def shadowed(self) -> Mapping[str, LostClash]:
        """``plugin:tool`` that lost a clash → reason and repair."""
        self._snapshot()
        return self._hidden

    def find(self, written: str) -> RegistryEntry | None:
        """The entry of an id as written; None: there is none, or more than one by its folded name."""
        known = self._snapshot()
        if (entry := known.entries.get(written)) is not None:
            return entry
        if (target := known.target(written)) is not None:  # names of an upstream may have blanks at their end
            return known.entries[target]
        for spelling in spellings(written[:400]):
            if (entry := known.entries.get(spelling)) is not None:
                return entry
            if (target := known.target(spelling)) is not None:
                return known.entries[target]
            if spelling in self._hidden:  # not by its folded name: that would call the other plugin's tool
                return None
        candidates = known.folded.get(fold(written[:400]), ())
        return known.entries[candidates[0]] if len(candidates) == 1 else None

    def resolve(self, written: str) -> RegistryEntry:
        """The entry of an id as written.

        Raises:
            ToolNotFound: none, or more than one by its folded name (TOOL_NOT_FOUND); names the nearest.
        """
        if not isinstance(written, str):
            raise no_text(written)
        if (found := self.find(written)) is not None:
            return found
        for spelling in spellings(written[:400]):
            if (lost := self._hidden.get(spelling)) is not None:
                raise ToolNotFound(lost.reason, hint=lost.hint, nearest=self.suggest(spelling))
        candidates = self._snapshot().folded.get(fold(written[:400]), ())
        if candidates:
            raise ToolNotFound(
                f"{written!r} may mean {' or '.join(candidates)}", hint="write the full id", nearest=list(candidates)
            )
        if (mismatch := self._mismatch(written)) is not None:
            text = f"there is no tool {written[:200]!r}: {mismatch.located}"
            raise ToolNotFound(text, hint=mismatch.hint or "correct the alias, or delete it", nearest=[])
        close = self.suggest(written)
        hint = suggestion(close) or "`tavern tools list` shows what there is"
        raise ToolNotFound(f"there is no tool {written[:200]!r}", hint=hint, nearest=close)

    def suggest(self, written: str) -> list[str]:
        """The ids nearest to what was written: by id first, then by the part behind the colon."""
        ids = self._snapshot().entries
        close = nearest(written, ids)
        if not close:
            locals_ = {split_id(i)[1]: i for i in ids}
            close = [locals_[name] for name in nearest(split_id(spellings(written)[-1])[1], locals_)]
        return close

    def aliases(self) -> Mapping[str, str]:
        """Alias → the id of a tool."""
        return self._snapshot().aliases

    def aliases_of(self, tool_id: str) -> list[str]:
        """Other ids that mean the same tool."""
        return sorted(a for a, target in self._snapshot().aliases.items() if target == tool_id)

    def given_aliases(self, tool_id: str) -> tuple[str, ...]:
        """The aliases of a tool in the configuration."""
        return self._snapshot().given.get(tool_id, ())

    def mismatches(self) -> tuple[Finding, ...]:
        """The aliases in the configuration that cannot be used, and why."""
        return self._snapshot().mismatches

    def missing_target(self, written: str) -> str:
        """What an alias in the configuration means, if there is no such tool; else empty."""
        found = self._mismatch(written)
        return "" if found is None else found.details["target"]

    def _mismatch(self, alias: str) -> Finding | None:
        return next((found for found in self.mismatches() if found.details["alias"] == alias), None)

    def _change(self) -> None:
        self._is_stale = True
        self.generation += 1
        self._changed.emit()

    def _snapshot(self) -> _RegistrySnapshot:
        if self._is_stale:
            with self._lock:
                if self._is_stale:
                    self._rebuild()
        return self._picture

    def _rebuild(self) -> None:
        entries: dict[str, RegistryEntry] = {}
        aliases: dict[str, str] = {}
        by_fold: dict[str, str] = {}
        loose: dict[str, set[str]] = {}
        hidden: dict[str, LostClash] = {}
        for plugin in sorted(self._by_plugin, key=lambda name: (self._rank[name], name)):
            own_entries, _ = self._by_plugin[plugin]
            folded = ("", "")
            for entry in own_entries:
                owner, local = split_id(entry.id)
                if owner != folded[0]:  # most ids of a plugin begin with its name
                    folded = owner, fold(owner)
                name = fold(local)
                key = f"{folded[1]}:{name}"  # `folded_id`
                winner = entries.get(by_fold.get(key, ""))
                if winner is not None and (winner.id != entry.id or winner.plugin != plugin):
                    loser = entry.id if winner.id != entry.id else f"{plugin}/{entry.id}"
                    hidden[loser] = self._clash(entry, winner)
                    continue
                by_fold[key] = entry.id
                entries[entry.id] = entry
                loose.setdefault(f"{folded[1]}{name}", set()).add(entry.id)
                loose.setdefault(name, set()).add(entry.id)
            hidden |= self._add_aliases(plugin, entries, aliases, loose)
        configured, mismatches, disputed = self._add_given(entries, aliases, loose)
        self._hidden = hidden
        self._picture = _RegistrySnapshot(
            entries,
            aliases,
            {k: tuple(sorted(v)) if len(v) > 1 else tuple(v) for k, v in loose.items()},
            {meant: tuple(names) for meant, names in configured.items()},
            tuple(mismatches),
            frozenset(disputed),
        )
        self._is_stale = False

    def _add_aliases(
        self, plugin: str, entries: Mapping[str, RegistryEntry], aliases: dict[str, str], loose: dict[str, set[str]]
    ) -> dict[str, LostClash]:
        """Add the aliases of a plugin's tools to `aliases` and `loose`; returns taken ones, and why they are hidden."""
        hidden = {}
        for alias, target in self._by_plugin[plugin][1].items():
            if target not in entries or entries[target].plugin != plugin:
                continue
            holder = aliases.get(alias) or (alias if alias in entries else target)
            if holder == target:
                aliases[alias] = target
                loose.setdefault(fold(alias), set()).add(target)
            else:
                hidden[alias] = LostClash(f"alias {alias!r} of {plugin} is already {holder!r}; {holder!r} keeps it")
                self._diagnostics.add("NAME_CONFLICT", hidden[alias].reason, plugin=plugin)
        return hidden

    def _add_given(
        self, entries: Mapping[str, RegistryEntry], aliases: dict[str, str], loose: dict[str, set[str]]
    ) -> tuple[dict[str, list[str]], list[Finding], set[str]]:
        """Add the aliases of the configuration to `aliases` and `loose`; returns tool id → its aliases, what cannot be used, and `disputed`."""
        configured: dict[str, list[str]] = {}
        disputed: set[str] = set()
        mismatches: list[Finding] = []
        for alias, written in self._configured_aliases.items():
            meant = next((i for i in spellings(written) if i in entries), None) or aliases.get(written)
            why = "" if meant is None else self._taken(alias, meant, loose)
            if meant is None or why:
                text = why or f"there is no tool {written!r} now; the alias has no effect"
                hint = did_you_mean(written, entries) if meant is None else "choose another alias"
                where = Location(self._file, pointer=f"tools.aliases.{alias}")
                details = {"alias": alias, "target": written if meant is None else ""}
                mismatches.append(Finding("CONFIG_INVALID", text, hint, where, "warning", details))
                if meant is not None and alias not in entries and (alike := loose.get(fold(alias))):
                    alike.add(meant)  # so that a new tool of a server does not get the calls of an alias
                    disputed.add(alias)
                continue
            aliases[alias] = meant
            configured.setdefault(meant, []).append(alias)
            loose.setdefault(fold(alias), set()).add(meant)
        return configured, mismatches, disputed

    def _taken(self, alias: str, target: str, loose: Mapping[str, set[str]]) -> str:
        """Why an alias of the configuration would mean two things; empty if it means only `target`."""
        if others := sorted(loose.get(fold(alias), set()) - {target}):
            return f"{alias!r} is the name or an alias of {others[0]!r} already; the alias is not used"
        if plugin := next((name for name in self._by_plugin if fold(name) == fold(alias)), None):
            return f"{alias!r} is the plugin {plugin!r}; the alias is not used"
        return ""

    def _clash(self, loser: RegistryEntry, winner: RegistryEntry) -> LostClash:
        text = f"tool {loser.id!r} of {loser.plugin} has the same name as {winner.id!r} of {winner.plugin}; "
        if loser.plugin == winner.plugin:  # two workflow files, say
            lost = LostClash(
                f"{text}{winner.id!r} keeps it", "rename one: names that differ only in case or punctuation are equal"
            )
        else:
            lost = LostClash(f"{text}{winner.plugin} keeps it")
        self._diagnostics.add("NAME_CONFLICT", lost.reason, plugin=loser.plugin, hint=lost.hint)
        return lost
