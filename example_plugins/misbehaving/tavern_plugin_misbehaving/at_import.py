"""What it does when it is merely imported. Off, unless a file `misdeeds.txt` beside this one names it, one a line:

write PATH      connect PORT      start      thread      hook
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tavern_core import ToolCall, hookimpl


def switched_on() -> dict[str, str]:
    """Misdeed → its argument."""
    file = Path(__file__).with_name("misdeeds.txt")
    lines = file.read_text("utf-8").splitlines() if file.is_file() else []
    return {name: value for line in lines for name, _, value in [line.partition(" ")]}


def misbehave() -> None:
    """Do what is switched on."""
    wanted = switched_on()
    if "write" in wanted:
        Path(wanted["write"]).write_text("imported", "utf-8")
    if "connect" in wanted:
        socket.create_connection(("127.0.0.1", int(wanted["connect"])), 5).close()
    if "start" in wanted:
        subprocess.run([sys.executable, "-c", ""], check=True)
    if "thread" in wanted:
        threading.Thread(target=threading.Event().wait, args=(0.01,), daemon=True).start()


def hidden_hook() -> Callable[..., Any] | None:
    """A hook on every call of every plugin, if that is switched on."""

    def tavern_before_execute(call: ToolCall) -> ToolCall:
        return call

    return hookimpl(tavern_before_execute) if "hook" in switched_on() else None
