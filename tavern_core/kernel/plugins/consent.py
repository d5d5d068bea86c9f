"""The operator's decisions about what plugins ask for: reviewed, granted, refused, taken back, locked."""

from __future__ import annotations

import getpass
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

from tavern_core.errors import LockMismatch, UsageError
from tavern_core.kernel.config.configuration import LoadedConfig
from tavern_core.kernel.grants.grant_store import GrantStore
from tavern_core.kernel.grants.grants import Decision, GrantRecord, Grants, PluginFacts, asked, decide, difference
from tavern_core.kernel.grants.review import Review
from tavern_core.kernel.plugins.candidate import USE, Candidate
from tavern_core.kernel.plugins.lifecycle import Lifecycle
from tavern_core.kernel.plugins.record import Record

GRANTED_BY_PASSING = ("builtin", "object")
"""Sources of plugins that are part of the program: whoever passed them granted them, and no lock file binds them."""


class Consent:
    """Decides and lets decisions take effect.

    Args:
        settle: judges a plugin again after a decision, and activates it again where it was active.
        judge: judges all plugins that are not active.
        reached: service → the methods that the right to look at it reaches; None where that is not known.
    """

    def __init__(
        self,
        grants: GrantStore,
        lifecycle: Lifecycle,
        settle: Callable[[Record], Awaitable[None]],
        judge: Callable[[], None],
        reached: Callable[[str], tuple[str, ...] | None],
    ) -> None:
        self._grants = grants
        self._lifecycle = lifecycle
        self._settle = settle
        self._judge = judge
        self._reached = reached

    def review(self, name: str) -> Review:
        """What a plugin asks for and what was decided; see `Tavern.review`."""
        candidate = self._lifecycle.record(name).candidate
        facts = facts_of_now(candidate)
        names = {p: self._reached(p.removeprefix(USE)) for p in facts.requested if p.startswith(USE)}
        reached = {permission: methods for permission, methods in names.items() if methods is not None}
        if candidate.source in GRANTED_BY_PASSING:
            return Review(facts, Decision(granted=facts.requested, scopes=facts.scopes), reached=reached)
        record = self._grants.read().get(name)
        asked = candidate.manifest().permissions.capabilities if candidate.requested else ()
        return Review(facts, decide(facts, record), {c.name: c.reason for c in asked if c.reason}, record, reached)

    async def grant(self, name: str, permissions: Iterable[str], *, all_requested: bool = False) -> None:
        """Grant what a plugin asks for and let it take effect; see `Tavern.grant`."""
        record, named = self._lifecycle.record(name), tuple(permissions)
        facts = facts_of_now(record.candidate)
        if all_requested and named:
            raise UsageError(
                "all_requested=True and permissions by name are two different things", hint="say one of them"
            )
        if not all_requested and not named:
            if not (waiting := asked(facts, self._grants.read().get(name))):
                return
            hint = f"tavern.grant({name!r}, {min(waiting)!r}, ...), or all_requested=True for all but danger:*"
            raise UsageError(f"nothing is named that {name} is to be granted", hint=hint)
        self._grants.grant(facts, named or ("*",), by=who())
        await self._settle(record)

    async def refuse(self, name: str, permissions: Iterable[str]) -> None:
        """Note that requests are refused and let that take effect."""
        record = self._lifecycle.record(name)
        self._grants.refuse(facts_of_now(record.candidate), tuple(permissions) or ("*",), by=who())
        await self._settle(record)

    async def revoke(self, name: str, permissions: Iterable[str]) -> None:
        """Take grants back and let that take effect."""
        record = self._lifecycle.record(name)
        self._grants.revoke(name, tuple(permissions) or ("*",), by=who())
        await self._settle(record)

    async def lock(self, *, prune: bool) -> Mapping[str, GrantRecord]:
        """Write down what is installed, with the decisions that carry over; see `Tavern.lock`."""
        installed = self.lockable()
        grants = self._grants.bring_up_to_date(*installed)
        if prune:
            there = self._lifecycle.records.keys()
            grants = self._grants.forget(*(name for name in grants.records if name not in there))
        for facts in installed:
            if (record := self._lifecycle.record(facts.name)).standing.note:
                record.noticed(changed=frozenset(), note="")
        self._judge()
        return grants.records

    def differences(self) -> dict[str, str]:
        """Plugin → why it is not exactly what the lock file says; those that are, are not in it."""
        grants = self._grants.read()
        found = {facts.name: difference(facts, grants.get(facts.name)) for facts in self.lockable()}
        return {name: why for name, why in found.items() if why}

    def lockable(self) -> list[PluginFacts]:
        """What the lock file is about: found plugins whose plugin.yaml can be read, disabled ones included."""
        candidates = [record.candidate for record in self._lifecycle.records.values()]
        return [facts_of_now(c) for c in candidates if c.source not in GRANTED_BY_PASSING and not c.errors]

    def look(self, record: Record) -> Decision | None:
        """What holds of a plugin that is about to be activated, its files read; None for those no lock file binds.

        Raises:
            LockMismatch: this host is locked, and it is not what the lock file says (LOCK_MISMATCH).
        """
        candidate = record.candidate
        if candidate.source in GRANTED_BY_PASSING:
            return None
        decided = (grants := self._grants.read()).get(candidate.name)
        if decided is None and not self._grants.is_frozen:
            return None
        facts = facts_of_now(candidate)
        if self._grants.is_frozen and (why := why_not_locked(facts, grants)):
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
    plugin at every start would cost more than all the rest; it is looked at when the plugin is activated (`Consent.look`).
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
    )


def lock_path(loaded: LoadedConfig) -> Path:
    """tavern.lock beside the project's file, else in the state folder."""
    return (loaded.project_file.parent if loaded.project_file else loaded.home) / "tavern.lock"


def who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid()) if hasattr(os, "getuid") else ""
