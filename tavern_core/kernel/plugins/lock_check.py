"""What of a plugin is compared with the lock file, and whether it is what was reviewed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tavern_core.errors import LockMismatch
from tavern_core.kernel.config.configuration import LoadedConfig
from tavern_core.kernel.grants.grant_store import GrantStore
from tavern_core.kernel.grants.grants import Decision, GrantRecord, Grants, PluginFacts, decide, difference
from tavern_core.kernel.plugins.candidate import Candidate

GRANTED_BY_PASSING = ("builtin", "object")
"""Sources of plugins that are part of the program: passing them to the host grants them, and no lock file applies."""


def reviewed(candidate: Candidate, store: GrantStore) -> Decision | None:
    """What holds of a plugin that is about to be activated, its files read; None for those no lock file binds.

    Raises:
        LockMismatch: this host is locked, and it is not what the lock file says (LOCK_MISMATCH).
    """
    if candidate.source in GRANTED_BY_PASSING:
        return None
    decided = (grants := store.read()).get(candidate.name)
    if decided is None and not store.is_frozen:
        return None
    facts = facts_of_now(candidate)
    if store.is_frozen and (why := why_not_locked(facts, grants)):
        raise mismatch(candidate.name, why)
    return decide(facts, decided)


def why_not_locked(facts: PluginFacts, grants: Grants) -> str:
    """Why a locked host does not use a plugin; empty when it does."""
    why = difference(facts, grants.get(facts.name))
    if why and grants.is_damaged and grants.get(facts.name) is None:
        return f"the lock file has errors ({grants.findings[0].located})"
    return why


def mismatch(name: str, why: str) -> LockMismatch:
    """The error of a plugin that a locked host does not use."""
    hint = f"review it: tavern plugins review {name}; then: tavern plugins lock"
    return LockMismatch(f"{name}: this host is locked, and {why}", hint=hint)


def facts_for(candidate: Candidate, record: GrantRecord | None) -> PluginFacts:
    """What the lock file needs to know of a plugin, without reading its files where that can be avoided.

    The hash of its files is taken as reviewed when version and manifest are the same, because reading every file of every
    plugin at every start would cost more than all the rest; it is computed when the plugin is activated (`reviewed`).
    """
    same = record is not None and (record.version, record.manifest_hash) == (candidate.version, candidate.manifest_hash)
    return _facts(candidate, record.artifact_hash if record is not None and same else candidate.artifact())


def facts_of_now(candidate: Candidate) -> PluginFacts:
    """What the lock file needs to know of a plugin, its files read where they changed."""
    return _facts(candidate, candidate.artifact())


def _facts(candidate: Candidate, artifact: str) -> PluginFacts:
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
        candidate.tool_hashes,
    )


def lock_path(loaded: LoadedConfig) -> Path:
    """tavern.lock beside the project's file, else in the state folder."""
    return (loaded.project_file.parent if loaded.project_file else loaded.home) / "tavern.lock"
