"""The rights of plugins: requested in the manifest *and* granted by the operator, nothing else (SECURITY §1).

                      granted      refused      neither
    requested         usable       not usable   not usable, waits for a decision (`pending_consent`)
    not requested     not usable   not usable   not usable

- A refusal beats a grant, and an empty list allows nothing.
- Grants are bound to a version, a manifest and an artifact. If one of these changes, decisions still apply to what the plugin
  still requests; only additional requests wait. A grant that a version no longer requests is removed when the lock file is
  updated. If a later version requests it again, it must be granted again.
- The tier is part of the grant. A plugin that was granted for its own process, and no longer requests one, stays there until
  ``tier:host`` is granted.
- Trust in a skill (``skill:trust``) never carries over, because it is for exactly these files.
- A *locked* host uses only plugins that are exactly as in the file (`difference`).

This module is pure: it reads no files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Literal

from tavern_core.contract.permissions import TIER, TRUST, canonical_hook, is_permission, known_permissions
from tavern_core.errors import Finding, UsageError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.capability import is_dangerous
from tavern_core.model.capability_scope import common, within
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.wildcard import matches

Tier = Literal["host", "process"]
"""The place where a plugin's code runs: in the host's own process, or confined in its own."""
Scopes = Mapping[str, tuple[str, ...]]
"""Capability → paths, hosts or names (`model/capability_scope.py`), never an empty one; absent: without limit."""


@dataclass(frozen=True, slots=True)
class PluginFacts:
    """A plugin and its requests."""

    name: str
    version: str
    requested: frozenset[str]
    """Canonical permission ids (`contract.permissions.requested_permissions`)."""
    manifest_hash: str = ""
    artifact_hash: str = ""
    scopes: Scopes = field(default_factory=dict)
    tier: Tier = "host"
    """As plugin.yaml and the host's rules have it."""
    target: str = ""
    """For an upstream: its exact address or command line."""
    tools: Callable[[], Mapping[str, str]] = dict
    """For an upstream: returns tool → hash of its definition, as last listed. Needed only to write the lock file."""


@dataclass(frozen=True, slots=True)
class GrantRecord:
    """The decision about one plugin, and the state of the plugin that it covers."""

    plugin: str
    version: str = ""
    manifest_hash: str = ""
    artifact_hash: str = ""
    requested: frozenset[str] = frozenset()
    """Its requests in that state."""
    granted: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    scopes: Scopes = field(default_factory=dict)
    granted_at: str = ""
    """ISO 8601, UTC."""
    granted_by: str = ""
    tier: Tier | Literal[""] = "host"
    """The tier for which that was decided; empty: written by a version that did not record it."""
    target: str = ""
    """For an upstream: the reviewed target, see `PluginFacts.target`."""
    tools: Mapping[str, str] = field(default_factory=dict)
    """For an upstream: the reviewed definitions, see `PluginFacts.tools`."""


@dataclass(frozen=True, slots=True)
class Grants:
    """The lock file, read."""

    records: Mapping[str, GrantRecord] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    """Findings about the file. Plugins with an invalid record have no grants."""

    def get(self, plugin: str) -> GrantRecord | None:
        return self.records.get(plugin)

    @property
    def is_damaged(self) -> bool:
        """True when something in the file could not be understood; it is not written over then."""
        return any(f.severity == "error" for f in self.findings)


@dataclass(frozen=True, slots=True)
class GrantDecision:
    """The current rights of a plugin."""

    granted: frozenset[str] = frozenset()
    """Usable."""
    undecided: frozenset[str] = frozenset()
    """Requested without a decision; not usable. A capability is here and in `granted` if only its scope grew."""
    refused: frozenset[str] = frozenset()
    """Requested and refused."""
    dropped: frozenset[str] = frozenset()
    """No longer requested."""
    scopes: Scopes = field(default_factory=dict)
    """Granted scopes of the granted capabilities."""
    changed: frozenset[str] = frozenset()
    """The parts that differ from the review: ``version``, ``manifest``, ``artifact``."""
    note: str = ""
    """A sentence about what carried over; empty when nothing changed."""
    tier: Tier = "host"
    """The tier in which its code runs: never a lower one than the grants are for."""

    @property
    def is_pending(self) -> bool:
        """True if a decision is needed."""
        return bool(self.undecided)


def tier_of(facts: PluginFacts, record: GrantRecord) -> Tier:
    """The tier for which the grants of a plugin were given.

    A record without a tier counts for the tier that the plugin has now, if it is about this very plugin.yaml (or was written by
    hand and is about none), and otherwise for its own process: it is unknown what was reviewed.
    """
    if record.tier:
        return record.tier
    return facts.tier if record.manifest_hash in ("", facts.manifest_hash) else "process"


def requested_permissions(facts: PluginFacts, record: GrantRecord | None) -> frozenset[str]:
    """The permissions to decide: the requests of a plugin, and the lower tier if it was granted for the higher one."""
    is_lowered = record is not None and facts.tier == "host" and tier_of(facts, record) == "process"
    return facts.requested | {TIER.id} if is_lowered else facts.requested


def decide(facts: PluginFacts, record: GrantRecord | None) -> GrantDecision:
    """The rights of `facts` under `record` (None: no decision yet)."""
    if record is None or record.target != facts.target:  # another address or command is another upstream
        return GrantDecision(undecided=facts.requested, tier=facts.tier)
    requested = requested_permissions(facts, record)
    refused = record.refused & requested
    allowed = (record.granted & facts.requested) - refused
    if (record.manifest_hash, record.artifact_hash) != (
        facts.manifest_hash,
        facts.artifact_hash,
    ) or not facts.artifact_hash:
        allowed -= {TRUST.id}  # it is for exactly these files, and files that cannot be read whole cannot be trusted
    shared = {name: common(name, record.scopes.get(name), facts.scopes.get(name)) for name in allowed}
    granted = frozenset(name for name, scope in shared.items() if scope != ())
    grown = frozenset(n for n in allowed if not within(n, facts.scopes.get(n), record.scopes.get(n)))
    lowered = requested - facts.requested
    changed = frozenset(
        what
        for what, is_changed in (
            ("version", facts.version != record.version),
            ("manifest", facts.manifest_hash != record.manifest_hash),
            ("artifact", facts.artifact_hash != record.artifact_hash),
            ("tier", bool(lowered - refused)),
        )
        if is_changed
    )
    undecided = (requested - granted - refused) | grown
    added = facts.requested - record.requested | grown | lowered
    return GrantDecision(
        granted=granted,
        undecided=undecided,
        refused=refused,
        dropped=record.requested - facts.requested,
        scopes={name: scope for name, scope in shared.items() if scope},
        changed=changed,
        note=_note(facts, record, changed, undecided, added),
        tier="process" if lowered else facts.tier,
    )


def carried_over(facts: PluginFacts, record: GrantRecord | None) -> GrantRecord:
    """The updated record: the same decisions for the present plugin, as far as it still requests them.

    It grants nothing: additional requests are under `requested` and in neither list.
    """
    at, by = ("", "") if record is None else (record.granted_at, record.granted_by)
    return record_of(facts, record, decide(facts, record), at, by)


def record_of(
    facts: PluginFacts, before: GrantRecord | None, decision: GrantDecision, granted_at: str, granted_by: str
) -> GrantRecord:
    """A record of a decision about the present plugin; of its tools, the reviewed definitions stay."""
    return GrantRecord(
        facts.name,
        facts.version,
        facts.manifest_hash,
        facts.artifact_hash,
        facts.requested,
        decision.granted,
        decision.refused,
        decision.scopes,
        granted_at,
        granted_by,
        decision.tier,
        facts.target,
        facts.tools() if before is None or not before.tools else before.tools,
    )


def difference(facts: PluginFacts, record: GrantRecord | None) -> str:
    """The difference between a plugin and its record in the lock file, in a sentence; empty if there is none."""
    if record is None:
        return "it is not in the lock file"
    if facts.version != record.version:
        return f"version {facts.version} is installed, the lock file has {record.version or 'none'}"
    if facts.target != record.target:
        return f"it is reached by {facts.target!r:.200}, in the lock file by {record.target or 'nothing'!r:.200}"
    for what, now, then in (
        ("plugin.yaml", facts.manifest_hash, record.manifest_hash),
        ("code", facts.artifact_hash, record.artifact_hash),
    ):
        if not now:
            return f"its {what} could not be read whole, so it cannot be compared"
        if now != then:
            return f"its {what} is not the one in the lock file ({now[:12]}… instead of {then[:12] or 'none'}…)"
    if requested_permissions(facts, record) - facts.requested - record.refused:
        return "it runs in the host's own process, and by the lock file in its own"
    if facts.requested != record.requested:
        return f"it requests other permissions than in the lock file: {', '.join(sorted(facts.requested ^ record.requested))}"
    return ""


def expand(plugin: str, written: Iterable[str], requested: frozenset[str], *, to_grant: bool) -> frozenset[str]:
    """The requested permissions named literally, by an alias or by a pattern such as ``hook:*``.

    Patterns are expanded now: they do not cover requests of a later version. To grant, `danger:*` must be named itself.

    Raises:
        UsageError: a name or pattern that the plugin does not request; then nothing is granted (USAGE).
    """
    found: set[str] = set()
    for name in written:
        if not isinstance(name, str):
            raise UsageError(
                f"a permission is a text, got {type(name).__name__}",
                hint=f'pass each by itself: grant("{plugin}", "read:fs", "network")',
            )
        name = canonical_hook(name.strip()) or name.strip()
        if name in requested:
            found.add(name)
        elif "*" in name:
            covered = {r for r in requested if matches(name, r)}
            safe = {r for r in covered if not (to_grant and is_dangerous(r))}
            if not safe:
                raise UsageError(
                    f"{plugin} requests nothing that {name!r} covers" + _only_danger(covered),
                    hint=f"it requests: {', '.join(sorted(requested)) or 'nothing'}",
                )
            found |= safe
        else:
            raise _not_requested(plugin, name, requested)
    return frozenset(found)


def _not_requested(plugin: str, name: str, requested: frozenset[str]) -> UsageError:
    if is_permission(name):
        where = "a plugin requests permissions in its plugin.yaml, an upstream by its entry in tavern.yaml"
        hint = f"it requests: {', '.join(sorted(requested)) or 'nothing'}; {where}"
        return UsageError(f"{plugin} does not request {name!r}", hint=hint)
    close = did_you_mean(name, requested) or did_you_mean(name, known_permissions())
    return UsageError(
        f"{name!r} is not a permission", hint=close or f"{plugin} requests: {', '.join(sorted(requested))}"
    )


def _only_danger(covered: set[str]) -> str:
    return f" (name {', '.join(sorted(covered))} literally: no pattern grants it)" if covered else ""


def _note(
    facts: PluginFacts, record: GrantRecord, changed: frozenset[str], undecided: frozenset[str], added: frozenset[str]
) -> str:
    if not changed:
        return ""
    if "version" in changed:
        what = f"{facts.name} went from {record.version or 'an unknown version'} to {facts.version}"
    elif not (
        parts := " and ".join(
            name for key, name in (("manifest", "plugin.yaml"), ("artifact", "code")) if key in changed
        )
    ):
        what = f"{facts.name} {facts.version} no longer runs in its own process"
    else:
        what = f"{facts.name} {facts.version} has other {parts} than when it was reviewed, under the same version"
    if fresh := undecided & added:
        return f"{what}; what was granted carries over, new requests wait: {', '.join(sorted(fresh))}"
    return f"{what}; it requests nothing new, so its grants carry over"
