"""A program that a test starts and talks to."""

from __future__ import annotations

import subprocess
from types import TracebackType
from typing import AnyStr


class Program(subprocess.Popen[AnyStr]):
    """Like `Popen`, but a failing test kills it: `Popen` would wait for its end, and the tests would hang."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, error, traceback)
