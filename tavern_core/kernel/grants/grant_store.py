"""The operator's decisions on disk: reads and changes the lock file ``tavern.lock``.

A file with an error is never written over. Changes of several processes add up: each is made, under a lock, to the file as
it is then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tavern_core.errors import Finding, Location, PluginNotFound, StateDamaged
from tavern_core.kernel.files.atomic_file import read_text, write_atomic
from tavern_core.kernel.files.file_lock import locked
from tavern_core.kernel.grants.grants import (
    GrantRecord,
    Grants,
    PluginFacts,
    carried_over,
    decide,
    expand,
)
from tavern_core.kernel.grants.lock_file import parse_lock, render_lock
from tavern_core.kernel.texts.yaml_reader import LARGEST_FILE
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.result import iso_utc


class GrantStore:
    """Reads and changes the lock file at `path`.

    Args:
        clock: seconds since the epoch, for `grantedAt`.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock

    def read(self) -> Grants:
        """What the file says now. Never raises: what is wrong is a finding, and grants nothing."""
        try:
            text = read_text(self.path, LARGEST_FILE)
        except StateDamaged as error:
            return Grants({}, (Finding(error.code, error.message, error.hint, Location(str(self.path))),))
        if text is None:
            return Grants()
        grants = parse_lock(text, str(self.path))
        return replace(grants, findings=(*_writable_by_others(self.path), *grants.findings))

    def grant(self, facts: PluginFacts, permissions: Iterable[str], *, by: str = "") -> Grants:
        """Grant what `permissions` names (ids, aliases, patterns) of what the plugin asks for.

        Raises:
            UsageError: a name the plugin does not ask for; nothing is granted (USAGE).
            StateDamaged: the file is damaged or cannot be written (STATE_DAMAGED).
        """
        chosen = expand(facts.name, permissions, facts.requested, to_grant=True)
        return self._decided(facts, granted=chosen, by=by)

    def refuse(self, facts: PluginFacts, permissions: Iterable[str], *, by: str = "") -> Grants:
        """Note that what `permissions` names is refused, granted or not until now. Raises as `grant`."""
        chosen = expand(facts.name, permissions, facts.requested, to_grant=False)
        return self._decided(facts, refused=chosen, by=by)

    def revoke(self, plugin: str, permissions: Iterable[str] = ("*",), *, by: str = "") -> Grants:
        """Take grants back: they are refused from now on. Works for plugins that are no longer installed, too.

        Raises:
            PluginNotFound: nothing was ever decided about this plugin (PLUGIN_NOT_FOUND).
            UsageError: a permission that was neither requested nor granted (USAGE).
            StateDamaged: the file is damaged or cannot be written (STATE_DAMAGED).
        """
        with locked(self.path):
            grants = self._for_change()
            if (record := grants.get(plugin)) is None:
                hint = did_you_mean(plugin, grants.records) or f"{self.path} names: {', '.join(grants.records)}"
                raise PluginNotFound(f"nothing was granted to {plugin!r}", hint=hint)
            known = record.requested | record.granted | record.refused
            if chosen := expand(plugin, permissions, known, to_grant=False) if known else frozenset():
                record = replace(
                    record,
                    granted=record.granted - chosen,
                    refused=record.refused | chosen,
                    scopes={k: v for k, v in record.scopes.items() if k not in chosen},
                    granted_at=iso_utc(self._clock()),
                    granted_by=by,
                )
            return self._write({**grants.records, plugin: record})

    def forget(self, plugin: str) -> Grants:
        """Drop everything that was decided about a plugin; it starts anew. No error when there is nothing."""
        with locked(self.path):
            grants = self._for_change()
            if plugin not in grants.records:
                return grants
            return self._write({name: r for name, r in grants.records.items() if name != plugin})

    def bring_up_to_date(self, facts: PluginFacts) -> Grants:
        """After an upgrade: note the plugin's new state with the decisions that carry over."""
        with locked(self.path):
            grants = self._for_change()
            record = grants.get(facts.name)
            if record is None or not decide(facts, record).carries_over:
                return grants
            return self._write({**grants.records, facts.name: carried_over(facts, record)})

    def _decided(
        self,
        facts: PluginFacts,
        *,
        granted: frozenset[str] = frozenset(),
        refused: frozenset[str] = frozenset(),
        by: str,
    ) -> Grants:
        with locked(self.path):
            grants = self._for_change()
            now = decide(facts, grants.get(facts.name))
            allowed = (now.granted | granted) - refused
            scopes = {**now.scopes, **{name: facts.scopes.get(name, ()) for name in granted}}
            record = GrantRecord(
                facts.name,
                facts.version,
                facts.manifest_hash,
                facts.artifact_hash,
                facts.requested,
                allowed,
                (now.refused | refused) - granted,
                {name: scope for name, scope in scopes.items() if scope and name in allowed},
                iso_utc(self._clock()),
                by,
            )
            return self._write({**grants.records, facts.name: record})

    def _for_change(self) -> Grants:
        grants = self.read()
        if grants.is_damaged:
            raise StateDamaged(
                f"{self.path} has errors and is not written over: {grants.findings[0]}",
                hint="correct it, or move it away and grant everything again",
                findings=grants.findings,
            )
        return grants

    def _write(self, records: Mapping[str, GrantRecord]) -> Grants:
        write_atomic(self.path, render_lock(records))
        return Grants(dict(sorted(records.items())))


def _writable_by_others(path: Path) -> list[Finding]:
    with suppress(OSError):
        if path.stat().st_mode & 0o002:
            message = "everybody on this machine can change the lock file, and so grant anything"
            return [Finding(StateDamaged.code, message, f"chmod o-w {path}", Location(str(path)), "warning")]
    return []
