"""A review of a plugin for the operator: a diff of its requests and the decisions, the riskiest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, Final, Literal

from tavern_core.contract.permissions import RISKS, TIER, Permission, describe_permission
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.grants.grants import GrantDecision, GrantRecord, PluginFacts, requested_permissions, tier_of
from tavern_core.model.capability_scope import Scope

GrantState = Literal["pending", "granted", "refused", "dropped"]
MARKS: Final[Mapping[GrantState, str]] = {"pending": "+", "granted": "=", "refused": "x", "dropped": "-"}
GROWN: Final = "~"
"""The mark of a granted capability that is now requested with a wider scope."""


@dataclass(frozen=True, slots=True)
class PermissionRequest:
    """A line of a review."""

    permission: Permission
    state: GrantState
    scope: Scope = None
    """The scope requested now; None: without limit."""
    granted_scope: Scope = None
    """The usable scope; None: not usable, or without limit."""
    reason: str = ""
    """The plugin's reason for needing it."""
    is_grown: bool = False
    reaches: tuple[str, ...] | None = None
    """For the right to read from a service: its `@read_only` methods; None: not known, or another permission."""

    @property
    def mark(self) -> str:
        """``+`` waits, ``~`` waits with a wider scope, ``=`` granted, ``x`` refused, ``-`` no longer requested."""
        return GROWN if self.is_grown else MARKS[self.state]

    def to_json(self) -> dict[str, Any]:
        return {
            "permission": self.permission.id,
            "risk": self.permission.risk,
            "state": self.state,
            "grown": self.is_grown,
            "sentence": self.permission.sentence,
            "sentenceZh": self.permission.sentence_zh,
            "scope": None if self.scope is None else list(self.scope),
            "grantedScope": None if self.granted_scope is None else list(self.granted_scope),
            "reason": self.reason or None,
            "reaches": None if self.reaches is None else list(self.reaches),
        }


@dataclass(frozen=True, slots=True)
class Review:
    """The requests of a plugin and the decisions on them."""

    facts: PluginFacts
    decision: GrantDecision
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Capability → the plugin's reason for needing it."""
    record: GrantRecord | None = None
    """The record in the lock file; None: no decision."""
    reached: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """``service:use:…`` → the methods it covers, if known."""

    @property
    def waits(self) -> bool:
        """True if a decision is needed."""
        return self.decision.is_pending

    @property
    def command(self) -> str:
        """The command that grants all open requests; it names each one, so that none is granted unread."""
        if not self.waits:
            return ""
        return f"tavern plugins grant {self.facts.name} {' '.join(r.permission.id for r in self.requests() if r.state == 'pending')}"

    def requests(self) -> tuple[PermissionRequest, ...]:
        """Every permission that is or was requested, the riskiest first."""
        return tuple(sorted(self._requests(), key=lambda r: (RISKS.index(r.permission.risk), r.permission.id)))

    def _requests(self) -> Iterator[PermissionRequest]:
        facts, decision = self.facts, self.decision
        for name in requested_permissions(facts, self.record):
            state: GrantState = (
                "pending" if name in decision.undecided else "refused" if name in decision.refused else "granted"
            )
            is_granted = name in decision.granted
            yield PermissionRequest(
                describe_permission(name),
                state,
                facts.scopes.get(name),
                decision.scopes.get(name) if is_granted else None,
                self.reasons.get(name, ""),
                state == "pending" and is_granted,
                self.reached.get(name),
            )
        for name in decision.dropped & (self.record.granted if self.record is not None else frozenset()):
            yield PermissionRequest(describe_permission(name), "dropped")
        if self.record is not None and facts.tier == "process" and tier_of(facts, self.record) == "host":
            yield PermissionRequest(TIER, "dropped")

    def to_json(self) -> dict[str, Any]:
        return {
            "plugin": self.facts.name,
            "version": self.facts.version,
            "target": self.facts.target or None,
            "reviewedVersion": self.record.version if self.record is not None else None,
            "tier": self.facts.tier,
            "grantedTier": tier_of(self.facts, self.record) if self.record is not None else None,
            "waits": self.waits,
            "note": self.decision.note or None,
            "changed": sorted(self.decision.changed),
            "command": self.command or None,
            "permissions": [request.to_json() for request in self.requests()],
        }
