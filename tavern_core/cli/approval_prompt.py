"""Asking at the terminal whether a call may run. Without a terminal on both ends, no one can answer, and nothing is approved."""

from __future__ import annotations

import getpass
import os
import sys
from typing import TYPE_CHECKING, Final

from tavern_core.cli.output import json_text, one_line, visible, write
from tavern_core.cli.prompts import alone, has_person, read_line

if TYPE_CHECKING:
    from tavern_core.model.approval import Approval, ApprovalRequest, Approver

_LONGEST: Final = 2_000


def terminal_approver() -> Approver | None:
    """The callback for `Tavern.open(approve=...)`; None without a terminal."""
    return ask if has_person() else None


def ask(request: ApprovalRequest) -> Approval:
    """Show one call and read the answer; anything but an explicit yes is no."""
    with alone():
        write(sys.stderr, _shown(request))
        said = (read_line("Let it run? Type yes to approve, anything else refuses: ") or "").strip().lower()
    by = f"user:{user_name()}"
    return request.approve(by=by) if said in ("y", "yes") else request.reject("refused at the terminal", by=by)


def _shown(request: ApprovalRequest) -> str:
    arguments = visible(json_text(dict(request.arguments), indent=2))
    if len(arguments) > _LONGEST:
        arguments = arguments[:_LONGEST] + f"\n… ({len(arguments):,} characters)"
    rows = [
        f"\n{one_line(request.tool)} needs approval: {one_line(request.reason)}",
        f"  caller     {one_line(request.principal)}"
        + (f" (profile {one_line(request.profile)})" if request.profile else ""),
        f"  risk       {request.risk}" + (f" ({', '.join(request.capabilities)})" if request.capabilities else ""),
        *([f"  purpose    {one_line(request.purpose)}"] if request.purpose else []),
        f"  call       {request.fingerprint}",
        "  arguments  " + arguments.replace("\n", "\n             "),
    ]
    return "\n".join(rows) + "\n"


def user_name() -> str:
    """The user of the operating system who runs this command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for its user
        return str(os.getuid())
