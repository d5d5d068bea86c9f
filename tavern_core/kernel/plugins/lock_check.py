"""Compares plugins with the lock file: whether a plugin is the reviewed one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tavern_core.contract.permissions import TRUST
from tavern_core.errors import LockMismatch
from tavern_core.kernel.config.configuration import LoadedConfig
from tavern_core.kernel.grants.grant_store import GrantStore
from tavern_core.kernel.grants.grants import GrantDecision, GrantRecord, Grants, PluginFacts, decide, difference
from tavern_core.kernel.plugins.candidate import PluginCandidate

GRANTED_BY_PASSING = ("builtin", "object")
"""Sources of plugins that are part of the program: passing them to the host grants them, and no lock file applies."""


def decision_at_activation(candidate: PluginCandidate, store: GrantStore) -> GrantDecision | None:
    """The decision for a plugin that is about to be activated, from its files now; None: no lock file applies.

    Raises:
        LockMismatch: this host is locked, and the plugin differs from the lock file (LOCK_MISMATCH).
    """
    if candidate.source in GRANTED_BY_PASSING:
        return None
    decided = (grants := store.read()).get(candidate.name)
    if decided is None and not store.is_frozen:
        return None
    facts = facts_of_now(candidate)
    if store.is_frozen and (refusal := _refusal(facts, grants)) is not None:
        raise refusal
    return decide(facts, decided)


DecidedPlugin = tuple[PluginCandidate, GrantRecord | None, GrantDecision]
"""A decision and its inputs."""


class GrantDecisions:
    """The current decisions of the lock file about plugins.

    Args:
        kept: decisions of earlier checks about plugins without code, which only a change of the lock file can alter.
        reads_files: whether to compare the files of every plugin, and not only version and manifest.
    """

    def __init__(self, store: GrantStore, kept: dict[str, DecidedPlugin], *, reads_files: bool) -> None:
        self.grants = store.read()
        self.is_frozen = store.is_frozen
        self._cached, self._reads_files = kept, reads_files

    def of(self, candidate: PluginCandidate) -> GrantDecision:
        """The decision about a plugin: its usable permissions."""
        decided, known = self.grants.get(candidate.name), self._cached.get(candidate.name)
        if known is not None and known[0] is candidate and known[1] is decided:
            return known[2]
        if decided is None:
            decision = GrantDecision(undecided=candidate.requested, tier=candidate.tier)  # without reading its files
        else:
            facts = facts_of_now(candidate) if self._reads_files else _facts_for(candidate, decided)
            decision = decide(facts, decided)
        if not candidate.has_code:
            self._cached[candidate.name] = candidate, decided, decision
        return decision

    def refusal(self, candidate: PluginCandidate) -> LockMismatch | None:
        """Why a locked host does not use a plugin; None: it does."""
        is_bound = self.is_frozen and candidate.source not in GRANTED_BY_PASSING
        return _refusal(facts_of_now(candidate), self.grants) if is_bound else None


def _refusal(facts: PluginFacts, grants: Grants) -> LockMismatch | None:
    """Why a locked host does not use a plugin; None: it does."""
    why = difference(facts, grants.get(facts.name))
    if why and grants.is_damaged and grants.get(facts.name) is None:
        why = f"the lock file has errors ({grants.findings[0].located})"
    hint = f"review it: tavern plugins review {facts.name}; then: tavern plugins lock"
    return LockMismatch(f"{facts.name}: this host is locked, and {why}", hint=hint) if why else None


def _facts_for(candidate: PluginCandidate, record: GrantRecord) -> PluginFacts:
    """The facts about a plugin for the lock file, avoiding to read its files if possible.

    If version and manifest are unchanged, the files count as reviewed: hashing every file at every start would cost
    more than all the rest. The hash is computed when the plugin is activated (`decision_at_activation`). Files that
    must be trusted are compared at once, because lists and models see such a skill before it is activated.
    """
    same = (record.version, record.manifest_hash) == (candidate.version, candidate.manifest_hash)
    counts = same and TRUST.id not in candidate.requested
    return _facts(candidate, record.artifact_hash if counts else candidate.origin.artifact())


def facts_of_now(candidate: PluginCandidate) -> PluginFacts:
    """The facts about a plugin for the lock file; files that changed are read."""
    return _facts(candidate, candidate.origin.artifact())


def _facts(candidate: PluginCandidate, artifact: str) -> PluginFacts:
    scopes: Mapping[str, tuple[str, ...]] = candidate.scopes
    return PluginFacts(
        candidate.name,
        candidate.version,
        candidate.requested,
        candidate.manifest_hash,
        artifact,
        scopes,
        candidate.tier,
        candidate.target,
        candidate.origin.tool_hashes,
    )


def lock_path(loaded: LoadedConfig) -> Path:
    """tavern.lock next to the project's file, else in the state folder."""
    return (loaded.project_file.parent if loaded.project_file else loaded.home) / "tavern.lock"
