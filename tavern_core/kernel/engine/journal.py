"""What the nodes of a run gave, line by line: one file for each run that is kept.

A line is with the system before anything that depends on its node begins, so a process that is killed loses nothing that
was complete. The file is locked as long as its run goes on: who can lock it knows that nobody runs it any more.

    crc32 of the rest, as 8 hex digits · space · {"path", "key", "mark", "outputs"} or {"path", "why"} · newline
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tavern_core.errors import UsageError
from tavern_core.kernel.files.atomic_file import PRIVATE_FILE, cannot, make_private_folder, state_errors
from tavern_core.kernel.files.file_lock import release, take
from tavern_core.kernel.files.regular_file import open_regular

_ENDING: Final = ".steps"
_WISH: Final = ".cancel"
"""A file that another process puts beside it: the run shall end."""
_PATIENCE_S: Final = 0.01
"""Somebody who only looks whether a run goes on has the lock for a moment, too."""
_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_FLAGS: Final = os.O_CREAT | os.O_APPEND | os.O_WRONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


class GoesOn(UsageError):
    """The run goes on: nobody else can have it."""


class Journal:
    """The open file of one run.

    Raises:
        GoesOn: the same run goes on, in this process or another (USAGE).
        StateDamaged: it cannot be made (STATE_DAMAGED).
    """

    def __init__(self, folder: Path, run_id: str) -> None:
        self.path = _place(folder, run_id)
        make_private_folder(folder)
        with state_errors(self.path, "write"):
            self._descriptor = os.open(self.path, _FLAGS, PRIVATE_FILE)
            if not take(self._descriptor, _PATIENCE_S):
                os.close(self._descriptor)
                raise GoesOn(f"{run_id} still goes on", hint="answer its questions, or cancel it first")
        self._is_open = True
        self._wish = _place(folder, run_id, _WISH)
        self._wish.unlink(missing_ok=True)  # of a process that has ended

    def add(self, record: dict[str, Any]) -> None:
        """Write a record. Raises StateDamaged (STATE_DAMAGED)."""
        text = _encode(record).encode("utf-8", "surrogatepass")
        line = b"%08x %s\n" % (zlib.crc32(text), text)
        try:
            if os.write(self._descriptor, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # the system took a part of it
        except OSError as error:
            raise cannot("write", self.path, error) from error

    @property
    def is_asked_to_end(self) -> bool:
        """Whether another process wants the run to end."""
        return self._wish.exists()

    def close(self) -> None:
        """Let go of it: the run is over."""
        if self._is_open:
            self._is_open = False
            with suppress(OSError):
                self._wish.unlink(missing_ok=True)
            os.close(self._descriptor)


def read(folder: Path, run_id: str) -> Iterator[dict[str, Any]]:
    """The records of a run whose process ended, or goes on; lines that are damaged or half written are passed over."""
    try:
        file = open_regular(_place(folder, run_id), follow=False)
    except OSError:
        return
    with file:
        for line in file:
            text = line[9:].rstrip(b"\n")
            try:
                if line[:9] == b"%08x " % zlib.crc32(text):
                    yield json.loads(text.decode("utf-8", "surrogatepass"))
            except ValueError:
                continue


def is_going_on(folder: Path, run_id: str) -> bool:
    """Whether a process runs it now, this one included."""
    try:
        descriptor = os.open(_place(folder, run_id), os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return False
    try:
        if not take(descriptor, _PATIENCE_S):
            return True
        release(descriptor)
        return False
    finally:
        os.close(descriptor)


def ask_to_end(folder: Path, run_id: str) -> None:
    """Ask the process that runs it to cancel it. Raises StateDamaged (STATE_DAMAGED)."""
    wish = _place(folder, run_id, _WISH)
    with state_errors(wish, "write"):
        os.close(os.open(wish, _FLAGS, PRIVATE_FILE))


def size(folder: Path, run_id: str) -> int:
    """Bytes of its file; 0 when there is none."""
    try:
        return _place(folder, run_id).stat().st_size
    except OSError:
        return 0


def forget(folder: Path, run_id: str) -> None:
    """Remove what a run left behind."""
    for ending in (_ENDING, _WISH):
        _place(folder, run_id, ending).unlink(missing_ok=True)


def _place(folder: Path, run_id: str, ending: str = _ENDING) -> Path:
    return folder / f"{run_id}{ending}"
