"""Reserves stdout for results: while a host is open, output of plugins, hooks, tools and their children goes to stderr.

There are two ways to stdout: `sys.stdout` and file descriptor 1, which children inherit. Both are redirected to stderr; results are
written to the original. If sys.stdout is not a file of this process (a test, an embedding program), it stays unchanged.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Final, TextIO, TypeGuard

_OUT: Final = 1
_ERR: Final = 2


class Stdout:
    """The stdout of one run of the command line."""

    def __init__(self) -> None:
        self._before: TextIO | None = None
        """sys.stdout as it was when it was guarded."""
        self._results: TextIO | None = None
        """A separate stream on `_saved`, if sys.stdout wrote to descriptor 1."""
        self._saved = -1
        """The original descriptor 1; -1 while not guarded."""

    @property
    def stream(self) -> TextIO | None:
        """The current stream for results; None if this process has no stdout."""
        if self._saved < 0:
            return sys.stdout
        return self._results or self._before

    def guard(self) -> None:
        """From now on, only `stream` writes to stdout; no effect if it is already guarded.

        Raises:
            BrokenPipeError: earlier output has no reader any more.
        """
        if self._saved >= 0:
            return
        stream: TextIO | None = sys.stdout  # None if the process was started without one
        flush(stream)
        self._before, self._saved = stream, os.dup(_OUT)
        if stream is not None and _descriptor(stream) == _OUT:
            self._results = os.fdopen(
                self._saved, "w", encoding=stream.encoding, errors=stream.errors or "backslashreplace", closefd=False
            )
        os.dup2(_ERR, _OUT)
        sys.stdout = sys.stderr

    def release(self) -> None:
        """Restore stdout; without effect if not guarded.

        Raises:
            BrokenPipeError: the results have no reader any more; stdout is restored anyway.
        """
        if self._saved < 0:
            return
        with suppress(
            OSError
        ):  # output that bypassed sys.stdout is not a result; a full disk of stderr does not concern us
            flush(self._before if self._results is not None else None)
        results, self._results, saved, self._saved = self._results, None, self._saved, -1
        sys.stdout, self._before = self._before, None
        try:
            if results is not None:
                results.close()
        finally:
            os.dup2(saved, _OUT)
            os.close(saved)


def flush(stream: TextIO | None) -> None:
    """Flush; does nothing without a stream, or with a closed one."""
    if is_open(stream):
        stream.flush()


def is_open(stream: TextIO | None) -> TypeGuard[TextIO]:
    """False if nothing can be written: the process has no such stream, or it is closed."""
    return stream is not None and not getattr(stream, "closed", False)


def abandon_unwritable() -> None:
    """Discard unwritable output (no reader, a full disk), so that Python does not fail at exit."""
    try:
        flush(sys.stdout)
    except (OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        if (descriptor := _descriptor(sys.stdout)) >= 0:
            os.dup2(devnull, descriptor)
        os.close(devnull)


def occupy() -> None:
    """Put the null device on standard descriptors that are closed, so that the next opened file does not become one of them.

    Without it, ``tavern … >&-`` would let a tool's child print into the audit log.
    """
    for descriptor in (0, _OUT, _ERR):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:  # another thread came first
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)


def _descriptor(stream: TextIO) -> int:
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):  # a buffer in memory, a closed stream, an object of another kind
        return -1
