"""The decisions that a gate, or a modify hook that refuses, may return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.safe_printing import said


@dataclass(frozen=True, slots=True)
class Deny:
    """The call must not run. Final: no later hook can undo it."""

    reason: str
    hint: str = ""
    """The change that would allow it: a command, a line of configuration."""
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.reason:
            object.__setattr__(self, "reason", "it gave no reason")


@dataclass(frozen=True, slots=True)
class RequireApproval:
    """The call may run if these exact arguments are approved."""

    reason: str
    details: Mapping[str, Any] = field(default_factory=dict)


Decision = Deny | RequireApproval


def deny(reason: str, *, hint: str = "", **details: Any) -> Deny:
    """Refuse the call: ``return deny("no secrets in arguments")``.

    Args:
        reason: shown to the caller; say what was wrong.
        hint: what would allow it.
        details: facts for a program.
    """
    reason, hint = (text if isinstance(text, str) else said(text) for text in (reason, hint))
    return Deny(reason, hint, details)


def require_approval(reason: str, **details: Any) -> RequireApproval:
    """Hold the call until it is approved; without anyone to ask, it is refused."""
    return RequireApproval(reason, details)
