"""SIGTERM ends a command as Ctrl-C does: what runs is cancelled and on the record, and the host is closed."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Final

from tavern_core.cli.errors import INTERRUPTED

TERMINATED: Final = 128 + signal.SIGTERM


class Termination:
    """Takes SIGTERM while a command runs, where the process has no handler of its own."""

    has_come = False

    def __enter__(self) -> Termination:
        in_main = threading.current_thread() is threading.main_thread()
        self._is_set = in_main and sys.platform != "win32" and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if self._is_set:
            signal.signal(signal.SIGTERM, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_set:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _interrupt(self, _: int, frame: FrameType | None) -> None:
        self.has_come = True
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # Ctrl-C is ignored, as in a background process of a shell
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)

    def code(self, code: int) -> int:
        """The exit code of the command."""
        return TERMINATED if self.has_come and code == INTERRUPTED else code
