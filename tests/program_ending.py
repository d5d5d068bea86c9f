"""How a forked program ends: its exit handlers run, its objects are removed and its streams are flushed, as Python does it.

What was imported before the fork stays. Python would take it apart as well, which takes ten times as long as everything else: a
forked process copies each page that it changes. A program that ends with an exception, or whose streams cannot be written, ends by
Python alone.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class _Ending:
    def __init__(self) -> None:
        self._imported_before: set[str] = set()
        self._code: int | None = None
        atexit.register(self._leave)  # the first is called last

    @contextmanager
    def of_program(self) -> Iterator[None]:
        """Around a program that was just forked."""
        self._imported_before = set(sys.modules)
        try:
            yield
        except SystemExit as end:
            if end.code is None or isinstance(end.code, int):
                self._code = end.code or 0
            raise
        self._code = 0

    def _leave(self) -> None:
        if self._code is None:
            return
        vars(sys.modules["__main__"]).clear()
        for name in set(sys.modules) - self._imported_before:
            del sys.modules[name]
        gc.collect()
        try:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None and not stream.closed:
                    stream.flush()
        except OSError:
            return
        os._exit(self._code & 0xFF)


ending = _Ending()
"""The one of this process and of all that are forked from it. Import it before everything whose exit handlers are to run."""
