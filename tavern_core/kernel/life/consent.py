"""The operator's decisions about what plugins ask for: reviewed, granted, refused, taken back."""

from __future__ import annotations

import getpass
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from tavern_core.kernel.config.configuration import LoadedConfig
from tavern_core.kernel.grants.grant_store import GrantStore
from tavern_core.kernel.grants.grants import Decision, PluginFacts, Review, decide
from tavern_core.kernel.life.candidates import Candidate
from tavern_core.kernel.life.lifecycle import Lifecycle
from tavern_core.kernel.life.records import Record


class Consent:
    """Decides and lets decisions take effect.

    Args:
        settle: judges a plugin again after a decision, and activates it again where it was active.
    """

    def __init__(self, grants: GrantStore, lifecycle: Lifecycle, settle: Callable[[Record], Awaitable[None]]) -> None:
        self._grants = grants
        self._lifecycle = lifecycle
        self._settle = settle

    def review(self, name: str) -> Review:
        """What a plugin asks for and what was decided; see `Tavern.review`."""
        candidate = self._lifecycle.record(name).candidate
        facts = facts_for(candidate, record := self._grants.read().get(name))
        if candidate.source in ("builtin", "object"):
            return Review(facts, Decision(granted=facts.requested))  # whoever passed it granted it
        asked = candidate.manifest().permissions.capabilities if candidate.requested else ()
        return Review(facts, decide(facts, record), {c.name: c.reason for c in asked if c.reason})

    async def grant(self, name: str, permissions: Iterable[str]) -> None:
        """Grant what a plugin asks for and let it take effect."""
        record = self._lifecycle.record(name)
        self._grants.grant(facts_for(record.candidate, None), tuple(permissions) or ("*",), by=who())
        await self._settle(record)

    async def refuse(self, name: str, permissions: Iterable[str]) -> None:
        """Note that requests are refused and let that take effect."""
        record = self._lifecycle.record(name)
        self._grants.refuse(facts_for(record.candidate, None), tuple(permissions) or ("*",), by=who())
        await self._settle(record)

    async def revoke(self, name: str, permissions: Iterable[str]) -> None:
        """Take grants back and let that take effect."""
        record = self._lifecycle.record(name)
        self._grants.revoke(name, tuple(permissions) or ("*",), by=who())
        await self._settle(record)


def facts_for(candidate: Candidate, record: Any) -> PluginFacts:
    """What the lock file needs to know of a plugin.

    The hash of its files is only worked out for a decision: at open it is taken as reviewed when version and manifest are
    the same, because reading every file of every plugin at every start would cost more than all the rest.
    """
    same = record is not None and (record.version, record.manifest_hash) == (candidate.version, candidate.manifest_hash)
    artifact = record.artifact_hash if same else candidate.artifact()
    return PluginFacts(
        candidate.name, candidate.version, candidate.requested, candidate.manifest_hash, artifact, candidate.scopes
    )


def lock_path(loaded: LoadedConfig) -> Path:
    """tavern.lock beside the project's file, else in the state folder."""
    return (loaded.project_file.parent if loaded.project_file else loaded.home) / "tavern.lock"


def who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid()) if hasattr(os, "getuid") else ""
