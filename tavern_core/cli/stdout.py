"""Keeps stdout for results: while a host is open, what plugins, hooks, tools and their children print goes to stderr.

Two doors lead to stdout, `sys.stdout` and file descriptor 1, which children inherit. Both are turned to stderr; results are
written to what was there before. Where sys.stdout is no file of this process (a test, an embedding program), it is kept as it is.
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
        """A stream of its own on `_saved`, where sys.stdout wrote to descriptor 1."""
        self._saved = -1
        """What descriptor 1 was; -1 while nothing is guarded."""

    @property
    def stream(self) -> TextIO | None:
        """Where results are written now; None when this process has no stdout."""
        if self._saved < 0:
            return sys.stdout
        return self._results or self._before

    def guard(self) -> None:
        """From now on only `stream` leads to stdout; without effect while it is guarded.

        Raises:
            BrokenPipeError: what was written before has no reader any more.
        """
        if self._saved >= 0:
            return
        stream: TextIO | None = sys.stdout  # None where the process was started without one
        flush(stream)
        self._before, self._saved = stream, os.dup(_OUT)
        if stream is not None and _descriptor(stream) == _OUT:
            self._results = os.fdopen(
                self._saved, "w", encoding=stream.encoding, errors=stream.errors or "backslashreplace", closefd=False
            )
        os.dup2(_ERR, _OUT)
        sys.stdout = sys.stderr

    def release(self) -> None:
        """Give stdout back; without effect while it is not guarded.

        Raises:
            BrokenPipeError: the results have no reader any more; stdout is given back nevertheless.
        """
        if self._saved < 0:
            return
        with suppress(
            OSError
        ):  # what somebody wrote past sys.stdout is no result; a full disk behind stderr is not ours
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
    """Write out what is buffered; nothing is where there is no stream, or a closed one."""
    if is_open(stream):
        stream.flush()


def is_open(stream: TextIO | None) -> TypeGuard[TextIO]:
    """False where nothing can be written: a process started without the stream, or somebody closed it."""
    return stream is not None and not getattr(stream, "closed", False)


def abandon_unwritable() -> None:
    """Throw away what cannot be written (no reader, a full disk), so that Python does not fail over it when it ends."""
    try:
        flush(sys.stdout)
    except (OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        if (descriptor := _descriptor(sys.stdout)) >= 0:
            os.dup2(devnull, descriptor)
        os.close(devnull)


def occupy() -> None:
    """Put the null device on standard descriptors that are closed, lest the next file that is opened becomes one of them.

    Without it, ``tavern … >&-`` would let a tool's child print into the audit log.
    """
    for descriptor in (0, _OUT, _ERR):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:  # another thread was faster
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)


def _descriptor(stream: TextIO) -> int:
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):  # a buffer in memory, a closed stream, an object of another kind
        return -1
