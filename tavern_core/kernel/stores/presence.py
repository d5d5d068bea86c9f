"""Which processes of a state folder are alive: each holds the lock of a file of its own, which the system gives back when it ends."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tavern_core.kernel.files.atomic_file import PRIVATE_FILE, make_private_folder, state_errors
from tavern_core.kernel.files.file_lock import take_at_once


class Presence:
    """The files of one folder.

    Args:
        folder: made when the first process enters.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}

    def enter(self, process: str) -> None:
        """Hold the file of `process`.

        Raises:
            StateDamaged: the folder cannot be written (STATE_DAMAGED).
        """
        if process in self._held:
            return
        make_private_folder(self._folder)
        path = self._folder / process
        with state_errors(path, "make"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), PRIVATE_FILE)
            take_at_once(descriptor)
        self._held[process] = descriptor

    def leave(self, process: str) -> None:
        """Give the file back and remove it."""
        if (descriptor := self._held.pop(process, None)) is not None:
            with contextlib.suppress(OSError):
                (self._folder / process).unlink()
            os.close(descriptor)

    def is_present(self, process: str) -> bool:
        """Whether the file is locked; an unlocked one is removed."""
        if process in self._held:
            return True
        path = self._folder / process
        try:
            descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
        except OSError:
            return False
        try:
            if not take_at_once(descriptor):
                return True
            with contextlib.suppress(OSError):
                path.unlink()
            return False
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Leave for all who entered here."""
        for process in list(self._held):
            self.leave(process)
