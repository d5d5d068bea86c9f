"""Work folders of plugin programs, one per call; those of a dead host are removed when the next one starts.

They are in the system's temporary folder, because no box can access the state folder. A note in the state folder has the path, and
its host holds a lock on it, which the system releases when that host ends: an unlocked note belongs to a dead host, and its
folder is removed.
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
"""A younger empty note may not be locked by its host yet."""
LONGEST_NOTE: Final = 4_096


class WorkFolders:
    """The folders of one host; created with the first call that needs one.

    Args:
        home: the state folder.
    """

    def __init__(self, home: Path) -> None:
        self._notes = home / NOTES
        self._lock = threading.Lock()
        self._place: tuple[int, Path] | None = None
        """The process that created it, and the folder."""
        self._end: Callable[[], object] | None = None

    def make(self) -> str:
        """A new empty folder that only this user can enter.

        Raises:
            OSError: there is no temporary folder, or no space in it.
        """
        with self._lock:
            if self._place is None or self._place[0] != os.getpid() or not self._place[1].is_dir():
                self._place = os.getpid(), self._began()
            return tempfile.mkdtemp(prefix="", dir=self._place[1])

    def close(self) -> None:
        """Remove all remaining folders."""
        with self._lock:
            end, self._place, self._end = self._end, None, None
        if end is not None:
            end()

    def sweep(self) -> None:
        """Remove the folders of killed hosts."""
        try:
            notes = list(self._notes.iterdir())
        except OSError:  # there is none
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
            os.write(descriptor, os.fsencode(folder))  # before there is something to remove
        except OSError:  # the state folder is not writable: it works without clean-up
            if descriptor >= 0:
                os.close(descriptor)
                descriptor = -1
        folder.mkdir(mode=0o700)
        # Also at exit, and when the host is garbage-collected, because not every program closes it.
        self._end = weakref.finalize(self, _end, os.getpid(), folder, note, descriptor)
        return folder


def _end(owner: int, folder: Path, note: Path, descriptor: int) -> None:
    """Remove the folder of a host, and its note."""
    if owner != os.getpid():  # a forked copy of the host: the folder belongs to the original
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
        path = os.fsdecode(os.read(descriptor, LONGEST_NOTE))
        folder = Path(path)
        if folder.name == f"{PREFIX}{note.name}" and _is_own(folder):
            shutil.rmtree(folder, ignore_errors=True)
            if folder.exists():
                return
        if path or time.time() - note.stat().st_mtime > FRESH_S:
            note.unlink(missing_ok=True)
    except OSError:  # its host is alive
        return
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _is_own(folder: Path) -> bool:
    """Whether it is a folder of this user, because other users can create names in the temporary folder."""
    try:
        facts = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()
