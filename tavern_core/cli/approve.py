"""Asking at the terminal whether a call may run. Without a terminal on both ends nobody is asked, and nothing is approved."""

from __future__ import annotations

import getpass
import os
import sys
import threading
from typing import TYPE_CHECKING, Final

from tavern_core.cli.output import as_json, one_line, visible, write
from tavern_core.cli.stdout import is_open

if TYPE_CHECKING:
    from tavern_core.model.approval import Approval, ApprovalRequest, Approver

_LONGEST: Final = 2_000
_one_at_a_time = threading.Lock()


def terminal_approver() -> Approver | None:
    """The callback for `Tavern.open(approve=...)`; None where nobody sits at a terminal."""
    if not (is_open(sys.stdin) and is_open(sys.stderr) and sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    return ask


def ask(request: ApprovalRequest) -> Approval:
    """Show one call and read the answer; anything but a plain yes is no."""
    with _one_at_a_time:
        write(sys.stderr, _shown(request))
        write(sys.stderr, "Let it run? Type yes to approve, anything else refuses: ")
        sys.stderr.flush()
        said = sys.stdin.readline().strip().lower()
    by = f"user:{_user()}"
    return request.approve(by=by) if said in ("y", "yes") else request.reject("refused at the terminal", by=by)


def _shown(request: ApprovalRequest) -> str:
    arguments = visible(as_json(dict(request.arguments), indent=2))
    if len(arguments) > _LONGEST:
        arguments = arguments[:_LONGEST] + f"\n… ({len(arguments):,} characters)"
    rows = [
        f"\n{one_line(request.tool)} needs approval: {one_line(request.reason)}",
        f"  caller     {one_line(request.principal)}" + (f" (profile {one_line(request.profile)})" if request.profile else ""),
        f"  risk       {request.risk}" + (f" ({', '.join(request.capabilities)})" if request.capabilities else ""),
        *([f"  purpose    {one_line(request.purpose)}"] if request.purpose else []),
        f"  call       {request.fingerprint}",
        "  arguments  " + arguments.replace("\n", "\n             "),
    ]
    return "\n".join(rows) + "\n"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for its user
        return str(os.getuid())
