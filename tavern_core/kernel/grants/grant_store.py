"""The operator's decisions on disk: reads and changes the lock file ``tavern.lock``.

A file with an error is never written over. Changes of several processes add up: each is made, under a lock, to the file as
it is then. The comments that people wrote stay where they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from tavern_core.contract.permissions import TIER
from tavern_core.errors import Finding, Location, PluginNotFound, StateDamaged, UsageError
from tavern_core.kernel.files.atomic_file import read_text, write_atomic
from tavern_core.kernel.files.file_lock import locked
from tavern_core.kernel.grants.grants import (
    GrantRecord,
    Grants,
    PluginFacts,
    carried_over,
    decide,
    expand,
    record_of,
    requested_permissions,
)
from tavern_core.kernel.text.document import LARGEST_FILE
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.result import iso_utc

GrantRecords = Mapping[str, GrantRecord]
MOST_TRIES: Final = 20
"""Maximum repetitions of a change if the file is edited without its lock."""


class GrantStore:
    """Reads and changes the lock file at `path`.

    Args:
        is_frozen: whether the host is locked: it reads the file and never changes it.
        clock: seconds since the epoch, for `grantedAt`.
    """

    def __init__(self, path: Path, *, is_frozen: bool = False, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self.is_frozen = is_frozen
        self._clock = clock
        self._last: tuple[str | None, Grants] = (None, Grants())
        """The last read text and its content: the file is read several times while a host opens."""

    def read(self) -> Grants:
        """The content of the file. Never raises: an error is a finding, and grants nothing."""
        try:
            text = read_text(self.path, LARGEST_FILE)
        except StateDamaged as error:
            return Grants({}, (Finding(error.code, error.message, error.hint, Location(str(self.path))),))
        if text is None:
            return Grants()
        read, grants = self._last
        if read != text:
            from tavern_core.kernel.grants.lock_file import parse_lock

            grants = parse_lock(text, str(self.path))
            self._last = text, grants
        writable = _writable_by_others(self.path)
        return replace(grants, findings=(*writable, *grants.findings)) if writable else grants

    def grant(self, facts: PluginFacts, permissions: Iterable[str], *, by: str = "") -> Grants:
        """Grant the requests of the plugin that `permissions` names (ids, aliases, patterns).

        Raises:
            UsageError: a name that the plugin does not request; nothing is granted (USAGE).
            StateDamaged: the file is corrupt or cannot be written (STATE_DAMAGED).
        """
        return self._decided(facts, tuple(permissions), to_grant=True, by=by)

    def refuse(self, facts: PluginFacts, permissions: Iterable[str], *, by: str = "") -> Grants:
        """Record that `permissions` are refused, whether granted before or not. Raises as `grant`."""
        return self._decided(facts, tuple(permissions), to_grant=False, by=by)

    def revoke(self, plugin: str, permissions: Iterable[str] = ("*",), *, by: str = "") -> Grants:
        """Revoke grants: they are refused from now on. Works for plugins that are no longer installed, too.

        Raises:
            PluginNotFound: there is no decision about this plugin (PLUGIN_NOT_FOUND).
            UsageError: a permission that was neither requested nor granted (USAGE).
            StateDamaged: the file is corrupt or cannot be written (STATE_DAMAGED).
        """
        permissions = tuple(permissions)

        def without(records: GrantRecords) -> GrantRecords:
            if (record := records.get(plugin)) is None:
                names = ", ".join(records) or "no plugin"
                hint = did_you_mean(plugin, records) or f"there is nothing to take back; {self.path} names {names}"
                raise PluginNotFound(f"there is no grant for {plugin!r}", hint=hint)
            # The tier is taken back by name only: without it the plugin runs elsewhere, with everything else it runs as before.
            known = (
                record.requested | record.granted | record.refused | ({TIER.id} if TIER.id in permissions else set())
            )
            chosen = expand(plugin, permissions, known, to_grant=False) if known else frozenset()
            if not chosen:
                return records
            less = replace(
                record,
                granted=record.granted - chosen,
                refused=record.refused | chosen,
                scopes={k: v for k, v in record.scopes.items() if k not in chosen},
                granted_at=iso_utc(self._clock()),
                granted_by=by,
                tier="process" if TIER.id in chosen else record.tier,
            )
            return {**records, plugin: less}

        return self._change(without)

    def forget(self, *plugins: str) -> Grants:
        """Drop all decisions about plugins. No error if there are none."""
        return self._change(lambda records: {name: r for name, r in records.items() if name not in plugins})

    def accept_tools(self, upstream: str, tools: Mapping[str, str]) -> Grants:
        """Record definitions of an upstream's tools as reviewed.

        Args:
            tools: name → hash; an empty hash forgets the tool.

        Raises:
            PluginNotFound: this upstream has no grant (PLUGIN_NOT_FOUND).
            StateDamaged: the file is corrupt or cannot be written (STATE_DAMAGED).
        """

        def accepted(records: GrantRecords) -> GrantRecords:
            if (record := records.get(upstream)) is None:
                raise PluginNotFound(f"there is no grant for {upstream!r}", hint=f"tavern plugins grant {upstream}")
            known = {**record.tools, **tools}
            hashes = {name: digest for name, digest in sorted(known.items()) if digest}
            return {**records, upstream: replace(record, tools=hashes)}

        return self._change(accepted)

    def bring_up_to_date(self, *installed: PluginFacts) -> Grants:
        """Record the present state of plugins, with the decisions that carry over. Grants nothing.

        A plugin without a decision is recorded with its requests and no grant.
        """

        def noted(records: GrantRecords) -> GrantRecords:
            return {**records, **{facts.name: carried_over(facts, records.get(facts.name)) for facts in installed}}

        return self._change(noted)

    def _decided(
        self,
        facts: PluginFacts,
        permissions: Iterable[str],
        *,
        to_grant: bool,
        by: str,
    ) -> Grants:
        def decided(records: GrantRecords) -> GrantRecords:
            before = records.get(facts.name)
            chosen = expand(facts.name, permissions, requested_permissions(facts, before), to_grant=to_grant)
            granted, refused = (chosen, frozenset[str]()) if to_grant else (frozenset[str](), chosen)
            now = decide(facts, before)
            allowed = ((now.granted | granted) - refused) & facts.requested
            wanted = {name: facts.scopes[name] for name in granted if name in facts.scopes}
            scopes = {**{n: s for n, s in now.scopes.items() if n not in granted}, **wanted}
            decision = replace(
                now,
                granted=allowed,
                refused=(now.refused | refused) - granted,
                scopes={name: scope for name, scope in scopes.items() if scope and name in allowed},
                tier=facts.tier if TIER.id in granted else now.tier,
            )
            return {**records, facts.name: record_of(facts, before, decision, iso_utc(self._clock()), by)}

        return self._change(decided)

    def _change(self, change: Callable[[GrantRecords], GrantRecords]) -> Grants:
        """Change the file under its lock, safe against an edit without the lock.

        Raises:
            UsageError: this host is locked (USAGE).
            StateDamaged: the file is corrupt, edited all the time, or cannot be written (STATE_DAMAGED).
        """
        from tavern_core.kernel.grants.lock_file import parse_lock, render_lock

        if self.is_frozen:
            hint = "open it without `locked`, or use `tavern plugins review`, `grant` and `lock`"
            raise UsageError("this host is locked: it does not change the lock file", hint=hint)
        with locked(self.path):
            for _ in range(MOST_TRIES):
                before = read_text(self.path, LARGEST_FILE)
                grants = Grants() if before is None else parse_lock(before, str(self.path))
                if grants.is_damaged:
                    raise StateDamaged(
                        f"{self.path} has errors and is not written over: {grants.findings[0]}",
                        hint="correct it, or move it away and grant everything again",
                        findings=grants.findings,
                    )
                records = dict(sorted(change(grants.records).items()))
                text = render_lock(records, before or "")
                if len(text.encode()) > LARGEST_FILE:  # it could never be read again
                    raise StateDamaged(f"{self.path} is not written: it would be larger than {LARGEST_FILE:,} bytes")
                if text == before or (before is None and not records):
                    return Grants(records)
                if read_text(self.path, LARGEST_FILE) == before:
                    write_atomic(self.path, text)
                    return Grants(records)
        raise StateDamaged(
            f"{self.path} is being edited by another person or program", hint="repeat the command when they are done"
        )


def _writable_by_others(path: Path) -> list[Finding]:
    with suppress(OSError):
        if path.stat().st_mode & 0o002:
            message = "every user of this machine can change the lock file, and so grant anything"
            return [Finding(StateDamaged.code, message, f"chmod o-w {path}", Location(str(path)), "warning")]
    return []
