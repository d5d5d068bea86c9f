"""A call that needs approval, and the answer to its request.

    def approve(request: ApprovalRequest) -> bool | Approval: ...         Tavern.open(approve=approve); may be async

An approval is for one call with exactly these arguments. No answer in time is a refusal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import Any

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.capability import Risk
from tavern_core.model.result import iso_utc


@dataclass(frozen=True, slots=True)
class Approval:
    """An answer. Created by `ApprovalRequest.approve` and `reject`; plain True and False are accepted, too."""

    approved: bool
    reason: str = ""
    """For the caller and the log."""
    by: str = ""
    """The decider, for the log: ``user:alice``."""
    remember: bool = False
    """The same call (tool, caller, arguments) gets the same answer until the host closes or the plugin is reloaded."""
    fingerprint: str = ""
    """The call that it answers; an answer to another call refuses. Empty: the call of the request."""


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A frozen call that needs approval."""

    call_id: str
    tool: str
    plugin: str
    principal: str
    """The caller."""
    arguments: Mapping[str, Any]
    """A copy for display: secrets masked, long texts shortened."""
    fingerprint: str
    """SHA-256 over tool, caller, its folders and all arguments: it identifies what will run."""
    reason: str
    """Why approval is needed."""
    asked_by: str
    """The gate, the rule or the tool that requires it."""
    risk: Risk
    """The highest risk among the capabilities of the tool."""
    expires_at: float
    """Seconds since the epoch, UTC. After that, the call is refused."""
    purpose: str = ""
    door: str = ""
    profile: str | None = None
    capabilities: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    """Facts from the gate."""

    def approve(self, *, by: str = "", reason: str = "", remember: bool = False) -> Approval:
        """Let exactly this call run."""
        return Approval(True, reason, by, remember, self.fingerprint)

    def reject(self, reason: str = "", *, by: str = "", remember: bool = False) -> Approval:
        """Refuse it; the caller gets `reason`."""
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
"""The type of `Tavern.open(approve=...)`."""
