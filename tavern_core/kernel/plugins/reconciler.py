"""Keeps a host's plugins up to date: finds them, checks which may be used, and activates those that must be active.

Precedence: the host's own plugins, objects of the program, folders, installed packages. A name counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Literal

from tavern_core.errors import PluginError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.grants.grant_store import GrantStore
from tavern_core.kernel.grants.grants import GrantRecord
from tavern_core.kernel.plugins.candidate import PluginCandidate, Tiers, builtin_candidate, object_candidate
from tavern_core.kernel.plugins.candidate_discovery import find_candidates
from tavern_core.kernel.plugins.eligibility import EligibilityInputs, check_eligibility, granted_now
from tavern_core.kernel.plugins.enabled_state import PluginStates
from tavern_core.kernel.plugins.lifecycle import Lifecycle
from tavern_core.kernel.plugins.lock_check import GRANTED_BY_PASSING, DecidedPlugin, GrantDecisions
from tavern_core.kernel.plugins.plugin_record import USABLE, PluginRecord
from tavern_core.model.naming_rules import is_reserved, split_id
from tavern_core.model.nearest import fold
from tavern_core.model.plugin_status import Diagnostic

Activate = Literal["needed", "all", "none"]
"""The time of activation: on first use, when the host opens, or never (for inspection)."""


@dataclass(frozen=True, slots=True)
class PluginSources:
    """The sources of plugins besides folders and packages.

    Args:
        builtin: the host's own plugins as (name, module, whether it contributes only node types).
        given: objects passed by the program.
        tiers: decides in which process the code of a discovered plugin runs.
        upstreams: the upstreams of the configuration, as candidates.
    """

    builtin: Sequence[tuple[str, str, bool]]
    given: Sequence[Any]
    tiers: Tiers
    upstreams: Callable[[], Sequence[PluginCandidate]] = tuple


class Reconciler:
    """Finds plugins, checks them, and activates those that do not wait for their first use."""

    def __init__(self, lifecycle: Lifecycle, sources: PluginSources, grants: GrantStore, states: PluginStates) -> None:
        self.lifecycle, self._records, self._base = lifecycle, lifecycle.records, lifecycle.tables.base
        self._sources, self._grants, self._states = sources, grants, states
        self._activate: Activate = "needed"
        """As the host was opened; with ``none``, even a new grant starts no plugin."""
        self._decisions: dict[str, DecidedPlugin] = {}
        self._decided = grants.read().records
        self._records.add(self._records.new(c, rank) for rank, c in enumerate(self._candidates()))

    async def start(self, activate: Activate) -> None:
        """Activate the plugins that must be active from the start."""
        self._activate = activate
        records = list(self._records.values())
        # If no other plugin has nodes, the host's nodes are not needed before one is named.
        is_alone = all(record.candidate.fixed_id or record.candidate.source == "upstream" for record in records)
        for record in records:
            if record.candidate.fixed_id and not (record.candidate.is_nodes_alone and is_alone):
                await self.lifecycle.activate(record.name)
        self.check_plugins()  # the host's own tools are known now: no plugin may have the name of one
        await self._activate_early()

    def starts_with_host(self, record: PluginRecord) -> bool:
        """Whether a plugin is activated when the host opens (DESIGN §5)."""
        return (
            (record.candidate.fixed_id and not record.candidate.is_nodes_alone)
            or self._activate == "all"
            or (self._activate != "none" and record.starts_early)
        )

    async def _activate_early(self) -> None:
        """Activate plugins that do not wait for their first use."""
        if await self.lifecycle.activate_all(self.starts_with_host):
            self.check_plugins()

    # Discovery --------------------------------------------------------------------------------------------------------

    async def look_again(self) -> None:
        """Discover plugins again: removed or replaced ones stop, new ones are checked and started."""
        fresh = {c.name: (rank, c) for rank, c in enumerate(self._candidates())}
        leaving = [name for name, record in self._records.items() if _has_left(record, fresh.get(name, (0, None))[1])]
        for name in leaving:
            await self.lifecycle.deactivate(name)
            self._records.pop(name).candidate.unload()
            self.lifecycle.tables.registry.drop(name)
            self.lifecycle.tables.settings.withdraw(name)
        for name, (rank, _) in fresh.items():
            if name in self._records:
                self._records[name].rank = rank
        self._records.add(self._records.new(c, rank) for name, (rank, c) in fresh.items() if name not in self._records)
        self.check_plugins()
        await self._activate_early()

    def read_again(self, name: str) -> None:
        """Replace a plugin's record by one from its current files. Raises PluginError: the plugin no longer exists."""
        ranks = {candidate.name: (candidate, rank) for rank, candidate in enumerate(self._candidates())}
        if name not in ranks:
            raise PluginError(f"plugin {name} is no longer there", hint="tavern plugins list")
        self._records[name] = self._records.new(*ranks[name])
        self.check_plugins()
        self._base.signals.tools.emit()

    def _candidates(self) -> list[PluginCandidate]:
        found = [builtin_candidate(*one, self._base.version) for one in self._sources.builtin]
        passed = [object_candidate(thing) for thing in self._sources.given]
        ordinals = {id(candidate): number for number, candidate in enumerate(passed, 1)}
        found += passed
        self._base.diagnostics.forget_found()
        found += find_candidates(
            self._base.loaded, self._base.diagnostics, self.lifecycle.tables.cache, self._sources.tiers
        )
        found += self._sources.upstreams()
        unique: dict[str, PluginCandidate] = {}
        for candidate in found:
            winner = unique.setdefault(candidate.name, candidate)
            if winner is not candidate:
                used, unused = (_place(c, ordinals.get(id(c), 0)) for c in (winner, candidate))
                self._base.diagnostics.put(_clash(candidate, used, unused), found=True)
        return list(unique.values())

    # Eligibility ------------------------------------------------------------------------------------------------------

    def check_plugins(self) -> None:
        """Determine the state of every inactive plugin from declarations, grants and configuration."""
        around = self._around()
        check_eligibility(self._records, around)
        self.lifecycle.list_declared()
        wrong_files = [
            Diagnostic(wrong.code, wrong.located, hint=wrong.hint, severity=wrong.severity)
            for wrong in (*around.decisions.grants.findings, *self._states.findings)
        ]
        records = list(self._records.values())  # another thread may add or remove a plugin meanwhile
        self._base.diagnostics.replace_checked([*wrong_files, *chain.from_iterable(one.problems() for one in records)])

    async def decided(self, record: PluginRecord, read_again: Callable[[], None] | None = None) -> None:
        """Apply a decision about a plugin's rights: check it again, and activate it again if it was active.

        Args:
            read_again: replaces its record.
        """

        def change() -> None:
            record.activation_error = None  # the permission that it lacked may have been granted now
            self.check_plugins()
            self._base.signals.tools.emit()

        await self.lifecycle.renew(record.name, read_again or change, wanted=self.starts_with_host)

    def check_plugins_again(self) -> set[str]:
        """`check_plugins` after a decision of another process; return the active plugins whose rights changed.

        Plugins that failed for lack of rights may have them now.
        """
        around = self._around()
        read_tools = [
            record for record in self._records.values() if record.active or record.activation_error is not None
        ]
        others = [record for record in read_tools if _has_other_rights(record, around)]
        for record in others:
            record.activation_error = None
        self.check_plugins()
        return {record.name for record in others}

    def decided_anew(self) -> set[str]:
        """Apply other processes' acceptances for upstreams; return plugins about whose newer files others decided."""
        before, self._decided = self._decided, self._grants.read().records
        changed = {name for name in before.keys() | self._decided.keys() if before.get(name) != self._decided.get(name)}
        known = {name: self._records[name].candidate for name in changed if name in self._records}
        if any(candidate.source == "upstream" for candidate in known.values()):
            for candidate in self._sources.upstreams():
                if candidate.name in known:
                    self.lifecycle.tools_changed(candidate.name, candidate)
        decided = ((name, one, self._decided.get(name)) for name, one in known.items())
        return {name for name, one, now in decided if now is not None and _is_other(now, one)}

    def _around(self) -> EligibilityInputs:
        host_plugins = [name for name, record in self._records.items() if record.candidate.source == "builtin"]
        tools = (split_id(e.id)[1] for plugin in host_plugins for e in self.lifecycle.tables.registry.of_plugin(plugin))
        # Only for inspection: a working host sees changed code when the plugin is activated.
        decisions = GrantDecisions(self._grants, self._decisions, reads_files=self._activate == "none")
        return EligibilityInputs(
            self._base, self._states.disabled(), {fold(name): name for name in tools if name}, decisions
        )


def _has_other_rights(record: PluginRecord, around: EligibilityInputs) -> bool:
    """Whether the lock file differs from the rights with which a plugin runs, or ran."""
    if record.candidate.source in GRANTED_BY_PASSING:
        return False
    if around.decisions.is_frozen and around.decisions.grants.get(record.name) is None:
        return True
    known, now = record.condition, granted_now(record, around)
    rights = now.granted, now.undecided, now.scopes, now.kept_apart
    return now.state not in USABLE or rights != (known.granted, known.undecided, known.scopes, known.kept_apart)


def _has_left(record: PluginRecord, now: PluginCandidate | None) -> bool:
    """Whether a plugin was removed, or replaced since its record; the program's own objects stay."""
    known = record.candidate
    if now is None:
        return known.source != "object"
    return known.source not in ("builtin", "object") and now.stamp != known.stamp


def _is_other(decided: GrantRecord, candidate: PluginCandidate) -> bool:
    return (decided.version, decided.manifest_hash) != (candidate.version, candidate.manifest_hash)


def _clash(candidate: PluginCandidate, used: str, unused: str) -> Diagnostic:
    text = f"plugin {candidate.name!r} is there twice: {used} is used, {unused} is not"
    hint = "uninstall or rename one"
    if candidate.source == "object":
        other = f"my-{candidate.name}" if is_reserved(candidate.name) else f"{candidate.name}-2"
        hint = f"give it another name: Plugin(thing, name='{other}')"
    return Diagnostic("NAME_CONFLICT", text, candidate.name, hint, details={"winner": used, "loser": unused})


def _place(candidate: PluginCandidate, ordinal: int) -> str:
    if ordinal:
        return f"the given object {ordinal} ({candidate.location}, version {candidate.version})"
    what = (
        f"distribution {candidate.distribution}" if candidate.distribution else candidate.location or "the given object"
    )
    return f"{candidate.source} ({what})"
