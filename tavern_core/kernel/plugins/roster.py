"""All plugins that are there, each with a record, and which of them may be used.

Precedence: the host's own plugins, those passed as objects, folders, installed packages. A name counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from tavern_core.errors import PluginError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.foundation import Foundation
from tavern_core.kernel.grants.grant_store import GrantStore
from tavern_core.kernel.grants.grants import Decision, GrantRecord, Grants, decide
from tavern_core.kernel.plugins.candidate import Candidate, Tiers, builtin_candidate, object_candidate
from tavern_core.kernel.plugins.candidate_discovery import IndexedSpecs, find_candidates
from tavern_core.kernel.plugins.eligibility import Circumstances, granted_now, judge
from tavern_core.kernel.plugins.enabled_state import PluginStates
from tavern_core.kernel.plugins.lock_check import GRANTED_BY_PASSING, facts_for, facts_of_now, mismatch, why_not_locked
from tavern_core.kernel.plugins.record import USABLE, Record, Records
from tavern_core.kernel.registry import Registry
from tavern_core.model.naming_rules import split_id
from tavern_core.model.nearest import fold
from tavern_core.model.plugin_status import Diagnostic

Activate = Literal["needed", "all", "none"]
"""When plugins are activated: on first use, when the host opens, or never (who only looks)."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where plugins come from besides folders and packages.

    Args:
        builtin: (name, module, whether it contributes only node types) of the host's own.
        given: objects passed by the program.
        tiers: where the code of a discovered plugin runs.
    """

    builtin: Sequence[tuple[str, str, bool]]
    given: Sequence[Any]
    tiers: Tiers
    upstreams: Callable[[], Sequence[Candidate]] = tuple
    """Those of the configuration, as candidates."""


class Roster:
    """Knows every plugin by name.

    Args:
        specs: receives the discovered plugins, with their offers of the last activation.
        records: filled with the present plugins.
        registry: knows the names of the host's own tools.
    """

    def __init__(
        self,
        base: Foundation,
        records: Records,
        sources: Sources,
        *,
        specs: IndexedSpecs,
        grants: GrantStore,
        states: PluginStates,
        registry: Registry,
    ) -> None:
        self.activate: Activate = "needed"
        """As the host was opened: with ``none`` a new grant starts no plugin either."""
        self._base, self._records, self._sources = base, records, sources
        self._specs, self._grants, self._states, self._registry = specs, grants, states, registry
        self._decisions: dict[str, tuple[Candidate, GrantRecord | None, Decision]] = {}
        """Of plugins without code, for which nothing but the lock file can have changed."""
        self._decided = grants.read().records
        records.add({c.name: Record(c, rank) for rank, c in enumerate(self._candidates())})

    # Who is there -----------------------------------------------------------------------------------------------------

    def look_again(self) -> tuple[list[str], Callable[[], None]]:
        """Look for plugins again.

        Returns:
            the names of records whose plugin was removed or replaced, to be deactivated and dropped first; and a function to call
            then, which adds records for new plugins.
        """
        fresh = {c.name: (rank, c) for rank, c in enumerate(self._candidates())}
        leaving = [name for name, record in self._records.items() if _has_left(record, fresh.get(name, (0, None))[1])]

        def take() -> None:
            for name, (rank, candidate) in fresh.items():
                if name in self._records:
                    self._records[name].rank = rank
                else:
                    self._records[name] = Record(candidate, rank)

        return leaving, take

    def read_again(self, name: str) -> None:
        """A new record for one plugin, from its files as they are now.

        Raises:
            PluginError: it is no longer there (PLUGIN_FAILED).
        """
        for rank, candidate in enumerate(self._candidates()):
            if candidate.name == name:
                self._records[name] = Record(candidate, rank)
                return
        raise PluginError(f"plugin {name} is no longer there", hint="tavern plugins list")

    def _candidates(self) -> list[Candidate]:
        found = [builtin_candidate(*one, self._base.version) for one in self._sources.builtin]
        passed = [object_candidate(thing) for thing in self._sources.given]
        ordinals = {id(candidate): number for number, candidate in enumerate(passed, 1)}
        found += passed
        self._base.diagnostics.forget_found()
        found += find_candidates(self._base.loaded, self._base.diagnostics, self._specs, self._sources.tiers)
        found += self._sources.upstreams()
        unique: dict[str, Candidate] = {}
        for candidate in found:
            winner = unique.setdefault(candidate.name, candidate)
            if winner is not candidate:
                used, unused = (_place(c, ordinals.get(id(c), 0)) for c in (winner, candidate))
                self._base.diagnostics.put(_clash(candidate, used, unused), found=True)
        return list(unique.values())

    # Who may be used --------------------------------------------------------------------------------------------------

    def judge(self) -> list[Diagnostic]:
        """Work out the state of every plugin that is not active, from what is declared, granted and configured now.

        Returns:
            what is wrong in the lock file and in the list of disabled plugins.
        """
        grants = self._grants.read()
        judge(self._records, self._around(grants), self._base.diagnostics)
        return [
            Diagnostic(wrong.code, wrong.located, hint=wrong.hint, severity=wrong.severity)
            for wrong in (*grants.findings, *self._states.findings)
        ]

    def with_other_rights(self) -> set[str]:
        """Active and failed plugins of which the lock file says something else now than what they run with, or ran with."""
        grants = self._grants.read()
        around = self._around(grants)

        def has_other_rights(record: Record) -> bool:
            if record.candidate.source in GRANTED_BY_PASSING:
                return False
            if self._grants.is_frozen and grants.get(record.name) is None:
                return True
            known, now = record.standing, granted_now(record, around)
            rights = now.granted, now.undecided, now.scopes, now.kept_apart
            return now.state not in USABLE or rights != (known.granted, known.undecided, known.scopes, known.kept_apart)

        looked_at = [record for record in self._records.values() if record.active or record.broken is not None]
        return {record.name for record in looked_at if has_other_rights(record)}

    def decided_anew(self) -> tuple[set[str], list[Candidate]]:
        """The plugins about which the lock file says something else than at the last look.

        Returns:
            those of which it says it about other files than were read here; and the upstreams, whose tools may be in quarantine or not
            now, as they are with that.
        """
        before, self._decided = self._decided, self._grants.read().records
        changed = {name for name in before.keys() | self._decided.keys() if before.get(name) != self._decided.get(name)}
        known = {name: self._records[name].candidate for name in changed if name in self._records}
        is_upstream = any(candidate.source == "upstream" for candidate in known.values())
        newer = {
            name for name, one in known.items() if (now := self._decided.get(name)) is not None and _is_other(now, one)
        }
        return newer, [one for one in (self._sources.upstreams() if is_upstream else ()) if one.name in known]

    def _around(self, grants: Grants) -> Circumstances:
        own = {name for name, record in self._records.items() if record.candidate.source == "builtin"}
        return Circumstances(
            self._base.version,
            self._base.loaded.config,
            self._states.disabled(),
            self._base.is_safe_mode,
            {
                fold(name): name
                for plugin in own
                for e in self._registry.of_plugin(plugin)
                if (name := split_id(e.id)[1])
            },
            self._decider(grants),
            self._base.loaded.origins,
            lambda candidate: self._refused_by_lock(candidate, grants),
            lambda name: decided.granted if (decided := grants.get(name)) is not None else frozenset(),
        )

    def _decider(self, grants: Grants) -> Callable[[Candidate], Decision]:
        # Who only looks wants to know whether the code changed; who works sees it when a plugin is activated.
        facts_wanted = facts_for if self.activate != "none" else lambda candidate, _: facts_of_now(candidate)

        def decide_on(candidate: Candidate) -> Decision:
            decided, known = grants.get(candidate.name), self._decisions.get(candidate.name)
            if known is not None and known[0] is candidate and known[1] is decided:
                return known[2]
            decision = looked_at(candidate)
            if not candidate.has_code:
                self._decisions[candidate.name] = candidate, decided, decision
            return decision

        def looked_at(candidate: Candidate) -> Decision:
            if (decided := grants.get(candidate.name)) is None:
                return Decision(undecided=candidate.requested, tier=candidate.tier)  # without a look at its files
            return decide(facts_wanted(candidate, decided), decided)

        return decide_on

    def _refused_by_lock(self, candidate: Candidate, grants: Grants) -> PluginError | None:
        if not self._grants.is_frozen or candidate.source in GRANTED_BY_PASSING:
            return None
        why = why_not_locked(facts_of_now(candidate), grants)
        return mismatch(candidate.name, why) if why else None


def _has_left(record: Record, now: Candidate | None) -> bool:
    """Whether a plugin was removed, or replaced since its record; the program's own objects stay."""
    known = record.candidate
    if now is None:
        return known.source != "object"
    return known.source not in ("builtin", "object") and now.stamp != known.stamp


def _is_other(decided: GrantRecord, candidate: Candidate) -> bool:
    return (decided.version, decided.manifest_hash) != (candidate.version, candidate.manifest_hash)


def _clash(candidate: Candidate, used: str, unused: str) -> Diagnostic:
    text = f"plugin {candidate.name!r} is there twice: {used} is used, {unused} is not"
    hint = "uninstall or rename one"
    if candidate.source == "object":
        hint = f"give it another name: Plugin(thing, name='{candidate.name}-2')"
    return Diagnostic("NAME_CONFLICT", text, candidate.name, hint, details={"winner": used, "loser": unused})


def _place(candidate: Candidate, ordinal: int) -> str:
    if ordinal:
        return f"the given object {ordinal} ({candidate.location}, version {candidate.version})"
    what = (
        f"distribution {candidate.distribution}" if candidate.distribution else candidate.location or "the given object"
    )
    return f"{candidate.source} ({what})"
