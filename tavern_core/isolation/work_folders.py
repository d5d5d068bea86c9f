"""Folders in which programs of plugins work, each for one call; none outlives its host for longer than until the next one begins.

They lie below one folder of the temporary ones, because no box sees the state folder. A note in the state folder says where, and
its host holds a lock on it that the system releases however that host ends: a note that nobody holds is of a dead host, and what
it names is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final

NOTES: Final = "work"
"""Folder of the notes, in the state folder."""
PREFIX: Final = "tavern-work-"
FRESH_S: Final = 60.0
"""An empty note that is younger may be one that its host has not locked yet."""
LONGEST_NOTE: Final = 4_096


class WorkFolders:
    """Those of one host; made with the first call that needs one.

    Args:
        home: the state folder.
    """

    def __init__(self, home: Path) -> None:
        self._notes = home / NOTES
        self._lock = threading.Lock()
        self._place: tuple[int, Path] | None = None
        """Process that made it, and the folder."""
        self._end: Callable[[], object] | None = None

    def make(self) -> str:
        """A new empty folder that only this user may enter.

        Raises:
            OSError: there is no temporary folder, or no room in it.
        """
        with self._lock:
            if self._place is None or self._place[0] != os.getpid() or not self._place[1].is_dir():
                self._place = os.getpid(), self._began()
            return tempfile.mkdtemp(prefix="", dir=self._place[1])

    def close(self) -> None:
        """Remove what is left."""
        with self._lock:
            end, self._place, self._end = self._end, None, None
        if end is not None:
            end()

    def sweep(self) -> None:
        """Remove what hosts have left behind that were killed."""
        try:
            notes = list(self._notes.iterdir())
        except OSError:  # there never was one
            return
        for note in notes:
            _sweep(note)

    def _began(self) -> Path:
        word = secrets.token_hex(8)
        folder, note = Path(tempfile.gettempdir()).absolute() / f"{PREFIX}{word}", self._notes / word
        descriptor = -1
        try:
            self._notes.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(note, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(descriptor, os.fsencode(folder))  # before there is something to sweep
        except OSError:  # a state folder that cannot be written to: it works, and nobody sweeps
            if descriptor >= 0:
                os.close(descriptor)
                descriptor = -1
        folder.mkdir(mode=0o700)
        # Also at exit, and when nobody holds the host any more: not every program closes it.
        self._end = weakref.finalize(self, _end, os.getpid(), folder, note, descriptor)
        return folder


def _end(owner: int, folder: Path, note: Path, descriptor: int) -> None:
    """Remove the folder of a host, and its note."""
    if owner != os.getpid():  # a forked copy of the host: it is the first one's
        return
    shutil.rmtree(folder, ignore_errors=True)
    if descriptor >= 0:
        note.unlink(missing_ok=True)
        os.close(descriptor)


def _sweep(note: Path) -> None:
    try:
        descriptor = os.open(note, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        said = os.fsdecode(os.read(descriptor, LONGEST_NOTE))
        folder = Path(said)
        if folder.name == f"{PREFIX}{note.name}" and _is_own(folder):
            shutil.rmtree(folder, ignore_errors=True)
            if folder.exists():
                return
        if said or time.time() - note.stat().st_mtime > FRESH_S:
            note.unlink(missing_ok=True)
    except OSError:  # its host is alive
        return
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _is_own(folder: Path) -> bool:
    """Whether it is a folder, and this user's: names in the temporary folder may be anybody's."""
    try:
        facts = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()
