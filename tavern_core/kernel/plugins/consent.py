"""The operator's decisions about requests of plugins: review, grant, refuse, revoke, lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from tavern_core.errors import UsageError
from tavern_core.kernel.grants.grant_store import GrantStore
from tavern_core.kernel.grants.grants import (
    GrantDecision,
    GrantRecord,
    PluginFacts,
    decide,
    difference,
    requested_permissions,
)
from tavern_core.kernel.plugins.candidate import USE
from tavern_core.kernel.plugins.lifecycle import Lifecycle
from tavern_core.kernel.plugins.lock_check import GRANTED_BY_PASSING, facts_of_now
from tavern_core.kernel.plugins.reconciler import Reconciler

if TYPE_CHECKING:
    from tavern_core.kernel.grants.review import Review


class Consent:
    """Records decisions and applies them.

    Args:
        reached: service → the methods that the right to read it covers; None: unknown.
    """

    def __init__(
        self,
        grants: GrantStore,
        lifecycle: Lifecycle,
        reconciler: Reconciler,
        reached: Callable[[str], tuple[str, ...] | None],
    ) -> None:
        self._grants = grants
        self._lifecycle = lifecycle
        self._reconciler = reconciler
        self._reached = reached

    def review(self, name: str) -> Review:
        """The requests of a plugin and the decisions; see `Tavern.review`."""
        from tavern_core.kernel.grants.review import Review

        candidate = self._lifecycle.record(name).candidate
        facts = facts_of_now(candidate)
        names = {p: self._reached(p.removeprefix(USE)) for p in facts.requested if p.startswith(USE)}
        reached = {permission: methods for permission, methods in names.items() if methods is not None}
        if candidate.source in GRANTED_BY_PASSING:
            return Review(facts, GrantDecision(granted=facts.requested, scopes=facts.scopes), reached=reached)
        record = self._grants.read().get(name)
        asked = candidate.origin.manifest().permissions.capabilities if candidate.requested else ()
        return Review(facts, decide(facts, record), {c.name: c.reason for c in asked if c.reason}, record, reached)

    async def grant(self, name: str, permissions: Iterable[str], *, all_requested: bool = False) -> None:
        """Grant requests of a plugin and apply them; see `Tavern.grant`."""
        record, named = self._lifecycle.record(name), tuple(permissions)
        facts = facts_of_now(record.candidate)
        if all_requested and named:
            raise UsageError(
                "all_requested=True and permissions by name are two different things", hint="say one of them"
            )
        if not all_requested and not named:
            if not (waiting := requested_permissions(facts, self._grants.read().get(name))):
                return
            hint = f"tavern.grant({name!r}, {min(waiting)!r}, ...), or all_requested=True for all but danger:*"
            raise UsageError(f"no permission is named for {name}", hint=hint)
        self._grants.grant(facts, named or ("*",), by=user_name())
        await self._reconciler.decided(record)

    async def refuse(self, name: str, permissions: Iterable[str]) -> None:
        """Record that requests are refused, and apply that."""
        record = self._lifecycle.record(name)
        self._grants.refuse(facts_of_now(record.candidate), tuple(permissions) or ("*",), by=user_name())
        await self._reconciler.decided(record)

    async def revoke(self, name: str, permissions: Iterable[str]) -> None:
        """Revoke grants, and apply that."""
        record = self._lifecycle.record(name)
        self._grants.revoke(name, tuple(permissions) or ("*",), by=user_name())
        await self._reconciler.decided(record)

    async def lock(self, *, prune: bool) -> Mapping[str, GrantRecord]:
        """Record what is installed, with the decisions that still apply; see `Tavern.lock`."""
        installed = self.lockable()
        grants = self._grants.bring_up_to_date(*installed)
        if prune:
            there = self._lifecycle.records.keys()
            grants = self._grants.forget(*(name for name in grants.records if name not in there))
        for facts in installed:
            if (record := self._lifecycle.record(facts.name)).condition.note:
                record.note_changes(changed=frozenset(), note="")
        self._reconciler.check_plugins()
        return grants.records

    def differences(self) -> dict[str, str]:
        """Plugin → how it differs from the lock file; plugins that do not differ are left out."""
        grants = self._grants.read()
        found = {facts.name: difference(facts, grants.get(facts.name)) for facts in self.lockable()}
        return {name: why for name, why in found.items() if why}

    def lockable(self) -> list[PluginFacts]:
        """The plugins in the lock file: discovered ones with a readable plugin.yaml, including disabled ones."""
        candidates = [record.candidate for record in self._lifecycle.records.values()]
        return [facts_of_now(c) for c in candidates if c.source not in GRANTED_BY_PASSING and not c.errors]


def user_name() -> str:
    """The user of the operating system who runs this process."""
    try:
        import getpass

        return getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for its user
        return str(os.getuid()) if hasattr(os, "getuid") else ""
