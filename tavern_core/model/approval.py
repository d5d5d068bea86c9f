"""A call that waits for somebody, and what that somebody says.

    def approve(request: ApprovalRequest) -> bool | Approval: ...         Tavern.open(approve=approve); may be async

What is approved is one call with exactly these arguments. Saying nothing in time is saying no.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import Any

from tavern_core.frozen import dataclass
from tavern_core.model.capability import Risk
from tavern_core.model.result import iso_utc


@dataclass(frozen=True, slots=True)
class Approval:
    """An answer. Made by `ApprovalRequest.approve` and `reject`; plain True and False are understood too."""

    approved: bool
    reason: str = ""
    """Told to whoever called, and to the log."""
    by: str = ""
    """Who decided, for the log: ``user:alice``."""
    remember: bool = False
    """The same call (tool, caller, arguments) is answered alike until the host closes or the plugin is reloaded."""
    fingerprint: str = ""
    """The call that it is an answer about; one about another call refuses. Empty: whichever is asked about."""


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """One frozen call that somebody is asked about."""

    call_id: str
    tool: str
    plugin: str
    principal: str
    """Who calls."""
    arguments: Mapping[str, Any]
    """A copy to look at: secrets masked, long texts shortened."""
    fingerprint: str
    """SHA-256 over tool, caller, its folders and the whole arguments: what it names is what will run."""
    reason: str
    """Why somebody is asked."""
    asked_by: str
    """The gate, the rule or the tool that wants it."""
    risk: Risk
    """The highest one among what the tool may do."""
    expires_at: float
    """Seconds since the epoch, UTC. Afterwards it is too late: the call is refused."""
    purpose: str = ""
    door: str = ""
    profile: str | None = None
    capabilities: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    """Facts that the gate gave."""

    def approve(self, *, by: str = "", reason: str = "", remember: bool = False) -> Approval:
        """Let exactly this call run."""
        return Approval(True, reason, by, remember, self.fingerprint)

    def reject(self, reason: str = "", *, by: str = "", remember: bool = False) -> Approval:
        """Refuse it; `reason` is told to whoever called."""
        return Approval(False, reason, by, remember, self.fingerprint)

    def to_json(self) -> dict[str, Any]:
        """The request as JSON, camelCase."""
        return {
            "callId": self.call_id,
            "tool": self.tool,
            "plugin": self.plugin,
            "principal": self.principal,
            "profile": self.profile,
            "arguments": dict(self.arguments),
            "fingerprint": self.fingerprint,
            "reason": self.reason,
            "askedBy": self.asked_by,
            "risk": self.risk,
            "capabilities": list(self.capabilities),
            "expiresAt": iso_utc(self.expires_at),
            "purpose": self.purpose,
            "door": self.door,
            "details": dict(self.details),
        }


Approver = Callable[[ApprovalRequest], "bool | Approval | Awaitable[bool | Approval]"]
"""What `Tavern.open(approve=...)` takes."""
